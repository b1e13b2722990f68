"""Who we are to the API server: a fixed credential, or (see `exec_plugin`) a program.

The transport asks for the current credential before each attempt and reports one that
was answered with 401; a source then looks for a newer one and says whether it found it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Protocol

from ccm.base import credentials, redact
from ccm.base.credentials import KeyPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What proves who we are: an Authorization header, a client certificate, or nothing."""

    header: str | None = field(default=None, repr=False)
    certificate: KeyPair | None = None


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
    """Return the credential of a bearer token, which the log never shows.

    Raises:
        ValueError: no header can carry it; the message does not show it.
    """
    redact.know(credentials.header_value(token), lasting=False)
    return Credential(header=f"Bearer {token}")


def basic(username: str, password: str) -> Credential:
    """Return the credential of a user name and a password, which the log never shows.

    Raises:
        ValueError: no header can carry it; the message does not show it.
    """
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    for secret in (password, credentials.header_value(pair)):
        redact.know(secret)
    return Credential(header=f"Basic {pair}")
