"""Who we are to the API server: a fixed token, a token file, or (see `exec_plugin`) a program.

The transport asks for the current credential before each attempt and reports one that
was answered with 401; a source then looks for a newer one and says whether it found it.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ccm.base import clock, redact
from ccm.base.log import logger
from ccm.kube.errors import NoCredentials
from ccm.kube.tls import ClientCertificate

REREAD_AFTER_S = 50.0
"""Age at which a token file is read again: 10 s before the minute that client-go
(transport, cached file token source) allows a token to be old."""

_RETRY_READ_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What proves who we are: an Authorization header, a client certificate, or nothing."""

    header: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = None


class Credentials(Protocol):
    """A source of credentials; one per process, used by all its requests."""

    async def current(self) -> Credential:
        """The credential for the next attempt.

        Raises:
            NoCredentials: there is none; nothing is ever sent anonymously instead.
        """
        ...

    async def rejected(self, credential: Credential, sent_at: float) -> bool:
        """The server answered 401 to a request begun at `sent_at` (monotonic seconds).

        True when `current` now gives another credential than the rejected one, so that
        repeating the request makes sense. Never raises: a failed renewal is False.
        """
        ...


class Fixed:
    """A credential that never changes; without arguments: anonymous."""

    def __init__(self, credential: Credential | None = None) -> None:
        self._credential = credential or Credential()

    async def current(self) -> Credential:
        """The credential."""
        return self._credential

    async def rejected(self, credential: Credential, sent_at: float) -> bool:  # noqa: ARG002
        """False: there is no other."""
        return False


def bearer(token: str) -> Credential:
    """The credential of a bearer token, which the log never shows."""
    redact.know(token, lasting=False)
    return Credential(header=f"Bearer {token}")


def basic(username: str, password: str) -> Credential:
    """The credential of a user name and a password, which the log never shows."""
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    for secret in (password, pair):
        redact.know(secret)
    return Credential(header=f"Basic {pair}")


def read_token(path: Path) -> str:
    """The token in a file, without surrounding white space; blocking.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty, or not text that fits a header.
    """
    token = path.read_text(encoding="ascii").strip()
    if not token:
        raise ValueError(f"token file {path} is empty")
    if not token.isprintable():
        raise ValueError(f"token file {path} holds more than one token")
    return token


class TokenFile:
    """A bearer token in a file that somebody else keeps fresh.

    The file is read again when the token is 50 seconds old, and at once after a 401. If
    it cannot be read then, the old token stays in use; that is logged when it begins and
    when it ends.
    """

    def __init__(self, path: Path) -> None:
        self._log = logger("kube")
        self._path = path
        self._credential: Credential | None = None
        self._read_at = 0.0
        self._reread_at = 0.0
        self._failing = False
        self._reading = asyncio.Lock()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    async def current(self) -> Credential:
        """The newest token known.

        Raises:
            NoCredentials: the file could never be read.
        """
        known = self._credential
        if known is not None and (clock.monotonic() < self._reread_at or self._reading.locked()):
            return known
        async with self._reading:
            if self._credential is None or clock.monotonic() >= self._reread_at:
                await self._read()
            return self._credential_or_raise()

    async def rejected(self, credential: Credential, sent_at: float) -> bool:
        """Read the file again unless that has happened since the request began."""
        async with self._reading:
            if self._credential == credential and self._read_at <= sent_at:
                await self._read()
            return self._credential != credential

    async def _read(self) -> None:
        try:
            token = await asyncio.to_thread(read_token, self._path)
        except (OSError, ValueError) as problem:
            self._reread_at = clock.monotonic() + _RETRY_READ_S
            self._note_failure(problem)
            return
        self._read_at = clock.monotonic()
        self._reread_at = self._read_at + REREAD_AFTER_S
        self._credential = bearer(token)
        if self._failing:
            self._failing = False
            self._log.info("token file can be read again", file=str(self._path))

    def _note_failure(self, problem: Exception) -> None:
        if not self._failing:
            self._failing = True
            self._log.warning(
                "token file cannot be read, the last token stays in use",
                file=str(self._path),
                error=str(problem),
            )

    def _credential_or_raise(self) -> Credential:
        if self._credential is None:
            raise NoCredentials(f"no token could be read from {self._path}")
        return self._credential
