"""Credentials for the API server, fixed or (see `exec_plugin`) of a program, and TLS settings.

The transport asks for the current credential before each attempt and reports one that
was answered with 401; a source then looks for a newer one and says whether it found it.
"""

from __future__ import annotations

import base64
import ssl
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

    async def rejected(self, credential: Credential, sent_at: float) -> bool:
        """The server answered 401 to a request begun at `sent_at` (monotonic seconds).

        True when `current` now gives another credential than the rejected one, so that
        repeating the request makes sense. Never raises: a failed renewal is False.
        """


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """What a connection needs.

    Attributes:
        authorities: whom we trust, PEM; None: the system's.
        certificate: our own; None: we show none.
        server_name: name expected in the server's certificate; empty: the host's.
        insecure: trust any server.
    """

    authorities: bytes | None = None
    certificate: KeyPair | None = None
    server_name: str = ""
    insecure: bool = False

    @property
    def configured(self) -> bool:
        """Whether anything is set that makes sense with TLS only."""
        return self != TlsSettings()


def build_context(settings: TlsSettings) -> ssl.SSLContext:
    """A client context; blocking for some milliseconds.

    Raises:
        ssl.SSLError: a certificate or key is no valid PEM, or they do not match.
        ValueError: the authorities hold no certificate, or the key is encrypted.
    """
    if settings.authorities is None:
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(cadata=_text(settings.authorities))
    # Newer Pythons demand extensions of authorities that Go does not, and many
    # clusters' authorities lack; like Go, a trusted intermediate is trust enough.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.certificate is not None:
        settings.certificate.load_into(context)
    return context


def _text(pem: bytes) -> str:
    text = pem.decode("ascii", errors="replace")
    if "-----BEGIN" not in text:
        raise ValueError("no certificate found in the certificate authority data")
    return text
