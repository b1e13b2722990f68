"""Sessions with the API server, which follow our TLS settings and our certificate.

A session is a pool of connections made of TLS settings. It serves until they change: then new
requests get a new session, and the old one is closed when its last request, possibly a long
watch, has ended.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace

from ccm.base.log import logger
from ccm.kube import errors, tls
from ccm.kube.connections import Connections
from ccm.kube.credentials import Credential


@dataclass(slots=True, kw_only=True, eq=False)
class PooledSession:
    """A session, the TLS settings it was made of, and how many requests use it."""

    connections: Connections
    settings: tls.TlsSettings
    users: int = 0
    retired: bool = False


class Sessions:
    """The sessions towards one server.

    Args:
        opener: makes connections of a TLS context, None where the server speaks no TLS, and the
            name expected in the server's certificate.
        settings: of TLS; replaced by `adopt`.
        secure: whether the server speaks TLS at all.
        source: where the settings come from, for messages.
    """

    def __init__(
        self,
        opener: Callable[[ssl.SSLContext | None, str], Connections],
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
        self._newest: PooledSession | None = None
        self._open: set[PooledSession] = set()
        self._changing = asyncio.Lock()

    def adopt(self, settings: tls.TlsSettings) -> None:
        """Use other TLS settings from the next request on."""
        self._settings = settings

    async def close(self) -> None:
        """Close every session, used or not."""
        self._newest = None
        while self._open:
            await self._open.pop().connections.close()

    async def acquire(self, credential: Credential) -> PooledSession:
        """The session for a credential, a new one if the TLS settings changed.

        Raises:
            errors.Unreachable: nothing can be made of the TLS settings.
        """
        wanted = self._settings
        if credential.certificate is not None:
            wanted = replace(wanted, certificate=credential.certificate)
        newest = self._newest
        if newest is None or newest.settings != wanted:
            newest = await self._exchanged(wanted)
        newest.users += 1
        return newest

    async def release(self, pooled: PooledSession) -> None:
        """End one use of a session; a retired one is closed by its last user."""
        pooled.users -= 1
        await self._close_unused(pooled)

    async def _exchanged(self, wanted: tls.TlsSettings) -> PooledSession:
        async with self._changing:
            old = self._newest
            if old is not None and old.settings == wanted:
                return old
            context = await self._build_context(wanted) if self._secure else None
            opened = self._opener(context, wanted.server_name)
            newest = PooledSession(connections=opened, settings=wanted)
            self._open.add(newest)
            self._newest = newest
            if old is not None:
                self._log.info("TLS settings changed, new connections use them")
                old.retired = True
                await self._close_unused(old)
            return newest

    async def _close_unused(self, pooled: PooledSession) -> None:
        if pooled.retired and pooled.users == 0 and pooled in self._open:
            self._open.discard(pooled)
            await pooled.connections.close()

    async def _build_context(self, settings: tls.TlsSettings) -> ssl.SSLContext:
        try:
            return await asyncio.to_thread(tls.build_context, settings)
        except (OSError, ValueError) as problem:
            raise errors.Unreachable(
                f"TLS settings of {self._source} are unusable: {problem}", kind="tls"
            ) from problem
