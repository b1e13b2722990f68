"""Credentials for the API server and TLS settings; `exec_plugin` has credentials of a program.

The transport gets the current credential before each attempt and reports one that was rejected with
401. The source then tries to get a newer one and returns whether it succeeded.
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
    """Proof of identity: an Authorization header, a client certificate, or nothing."""

    header: str | None = field(default=None, repr=False)
    certificate: KeyPair | None = None


class CredentialSource(Protocol):
    """Source of credentials; one per process, used by all its requests."""

    async def current(self) -> Credential:
        """Return the credential for the next attempt.

        Raises:
            NoCredentials: there is none; no request is ever sent anonymously instead.
        """

    async def refresh_rejected(self, credential: Credential, sent_at: float) -> bool:
        """Handle the 401 of a request that began at `sent_at` (monotonic seconds).

        Return whether `current` now returns another credential than the rejected one, so that a
        retry makes sense. Never raises: a failed renewal is False.
        """


class StaticCredentials:
    """Credential that never changes; without arguments: anonymous."""

    def __init__(self, credential: Credential | None = None) -> None:
        self._credential = credential or Credential()

    async def current(self) -> Credential:
        """Return the credential."""
        return self._credential

    async def refresh_rejected(self, credential: Credential, sent_at: float) -> bool:  # noqa: ARG002
        """Return False: there is no other credential."""
        return False


def bearer(token: str) -> Credential:
    """Return the credential of a bearer token, which is masked from now on.

    Raises:
        ValueError: no header can carry the token; the message does not show it.
    """
    redact.register(credentials.check_header_value(token), lasting=False)
    return Credential(header=f"Bearer {token}")


def basic(username: str, password: str) -> Credential:
    """Return the credential of a user name and a password, which is masked from now on.

    Raises:
        ValueError: no header can carry the pair; the message does not show it.
    """
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    for secret in (password, credentials.check_header_value(pair)):
        redact.register(secret)
    return Credential(header=f"Basic {pair}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS settings of connections.

    Attributes:
        authorities: trusted certificate authorities, PEM; None = those of the system.
        certificate: client certificate; None = none.
        server_name: name expected in the server's certificate; empty = the host's.
        insecure: whether to trust any server.
    """

    authorities: bytes | None = None
    certificate: KeyPair | None = None
    server_name: str = ""
    insecure: bool = False

    @property
    def is_configured(self) -> bool:
        """Whether a setting is set that makes sense with TLS only."""
        return self != TlsSettings()


def build_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a client context; blocking for some milliseconds.

    Raises:
        ssl.SSLError: a certificate or key is no valid PEM, or they do not match.
        ValueError: the authorities contain no certificate, or the key is encrypted.
    """
    if settings.authorities is None:
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(cadata=_text(settings.authorities))
    # Newer Python versions require extensions that the authorities of many clusters lack and Go
    # does not require. As in Go, a trusted intermediate is sufficient.
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
