"""HTTP sessions that follow their TLS files.

A session is made of TLS material and serves until the material changes: then new
requests get a new session, and the old one is closed when its last request, possibly a
long watch, has left. Files are looked at once a minute, and at once after a failure of
trust; unusable ones leave the old material in use.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from ccm.base import clock
from ccm.base.log import logger
from ccm.kube import errors, tls
from ccm.kube.credentials import Credential

TLS_CHECK_S = 60.0
"""How often the TLS files are looked at."""

_FORCED_CHECK_S = 5.0


class Session(Protocol):
    """What is kept here: something made of a TLS context that can be closed."""

    async def close(self) -> None:
        """Close it and its connections."""
        ...


S = TypeVar("S", bound=Session)


@dataclass(slots=True, kw_only=True, eq=False)
class Door(Generic[S]):
    """A session, the TLS material it was made of, and how many requests use it."""

    session: S
    material: tls.TlsMaterial
    users: int = 0
    retired: bool = False


class Sessions(Generic[S]):
    """The sessions towards one server.

    Args:
        opener: makes a session of a TLS context; of None where the server speaks no TLS.
        settings: where TLS material comes from.
        secure: whether the server speaks TLS at all; if not, no file is looked at.
        source: where the settings come from, for messages.
    """

    def __init__(
        self,
        opener: Callable[[ssl.SSLContext | None], S],
        settings: tls.TlsSettings,
        *,
        secure: bool,
        source: str,
    ) -> None:
        self._log = logger("kube")
        self._opener = opener
        self._settings = settings
        self._secure = secure
        self._source = source
        self._material: tls.TlsMaterial | None = None
        self._trouble = False
        self._checked_at = 0.0
        self._outdated = False
        self._door: Door[S] | None = None
        self._doors: set[Door[S]] = set()
        self._changing = asyncio.Lock()

    def adopt(self, settings: tls.TlsSettings) -> None:
        """Take the TLS material from elsewhere, from the next request on."""
        self._settings = settings
        # Due at once, also when no file is named: the old material came from the old settings.
        self._outdated = True

    async def close(self) -> None:
        """Close every session, used or not."""
        self._door = None
        while self._doors:
            await self._doors.pop().session.close()

    async def enter(self, credential: Credential) -> Door[S]:
        """The door for a credential, opened anew when its TLS material changed."""
        if self._secure:
            await self._refresh_material()
        wanted = self._material or tls.TlsMaterial()
        if credential.certificate is not None:
            wanted = replace(wanted, certificate=credential.certificate)
        door = self._door
        if door is None or door.material != wanted:
            return await self._change_door(wanted)
        door.users += 1
        return door

    async def leave(self, door: Door[S]) -> None:
        """End one use of a door; a retired one is closed by its last user."""
        door.users -= 1
        if door.retired and door.users == 0 and door in self._doors:
            self._doors.discard(door)
            await door.session.close()

    async def _change_door(self, wanted: tls.TlsMaterial) -> Door[S]:
        async with self._changing:
            old = self._door
            if old is not None and old.material == wanted:
                old.users += 1
                return old
            context = await self._build_context(wanted) if self._secure else None
            door = Door(session=self._opener(context), material=wanted, users=1)
            self._doors.add(door)
            self._door = door
            if old is not None:
                self._log.info("TLS material changed, new connections use it")
                old.retired = True
                old.users += 1
                await self.leave(old)
            return door

    async def _build_context(self, material: tls.TlsMaterial) -> ssl.SSLContext:
        insecure = self._settings.insecure
        try:
            return await asyncio.to_thread(tls.build_context, material, insecure=insecure)
        except (OSError, ValueError) as problem:
            raise errors.Unreachable(
                f"TLS material of {self._source} is unusable: {problem}", kind="tls"
            ) from problem

    async def _refresh_material(self) -> None:
        """Read the TLS files if that is due; unusable ones leave the old material in place."""
        now = clock.monotonic()
        settings = self._settings
        if (
            self._material is not None
            and not self._outdated
            and (not settings.from_files or now - self._checked_at < TLS_CHECK_S)
        ):
            return
        self._checked_at = now
        try:
            self._material = await asyncio.to_thread(_read_usable, settings, self._material)
        except (OSError, ValueError) as problem:
            if self._material is None:
                raise errors.Unreachable(
                    f"TLS material of {self._source} is unusable: {problem}", kind="tls"
                ) from problem
            self._note_trouble(problem)
        else:
            self._outdated = False
            self._note_trouble(None)

    def _note_trouble(self, problem: Exception | None) -> None:
        if problem is not None and not self._trouble:
            self._log.warning("TLS files are unusable, the old ones stay", error=str(problem))
        elif problem is None and self._trouble:
            self._log.info("TLS files are usable again")
        self._trouble = problem is not None

    async def material_changed(self) -> bool:
        """Look at the TLS files now; whether they differ from what is in use."""
        now = clock.monotonic()
        if not self._secure or now - self._checked_at < _FORCED_CHECK_S:
            return False
        before = self._material
        self._checked_at = now - TLS_CHECK_S
        await self._refresh_material()
        return self._material != before


def _read_usable(settings: tls.TlsSettings, known: tls.TlsMaterial | None) -> tls.TlsMaterial:
    """Read the material; prove of a new one that a context can be made of it."""
    material = settings.read()
    if material == known:
        return known
    tls.build_context(material, insecure=settings.insecure)
    return material
