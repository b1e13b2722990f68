"""Credentials for the API server, and TLS settings.

The transport gets the current credential before each attempt. If the server rejects the credential
with 401, the transport tells the source, which tries to renew the credential and returns whether it
succeeded. `exec_plugin` and `serviceaccount` contain the sources that can renew a credential.
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
    """Credential: an Authorization header, a client certificate, both, or nothing (anonymous).

    The certificate replaces the certificate in `TlsSettings`.
    """

    header: str | None = field(default=None, repr=False)
    certificate: KeyPair | None = None


class CredentialSource(Protocol):
    """Source of the credentials of a transport."""

    async def current(self) -> Credential:
        """Return the credential for the next attempt.

        Raises:
            NoCredentials: no credential is available; the request is not sent.
        """

    async def refresh_rejected(self, credential: Credential, sent_at: float) -> bool:
        """Handle a 401: try to renew the credential; a failed renewal raises no error.

        Args:
            credential: the rejected credential.
            sent_at: monotonic time at which the request began.

        Returns:
            Whether `current` now returns another credential, so that a retry makes sense.
        """


class StaticCredentials:
    """Source with one credential that never changes; without a credential, access is anonymous."""

    def __init__(self, credential: Credential | None = None) -> None:
        self._credential = credential or Credential()

    async def current(self) -> Credential:
        """Return the fixed credential."""
        return self._credential

    async def refresh_rejected(self, credential: Credential, sent_at: float) -> bool:  # noqa: ARG002
        """Return False: there is no other credential."""
        return False


def bearer(token: str) -> Credential:
    """Return the credential for a bearer token, which is masked in logs from now on.

    Raises:
        ValueError: the token is not valid in a header; the message does not show the token.
    """
    redact.register(credentials.check_header_value(token), lasting=False)
    return Credential(header=f"Bearer {token}")


def basic(username: str, password: str) -> Credential:
    """Return the credential for a user name and a password.

    From now on, the password and the encoded pair are masked in logs.

    Raises:
        ValueError: the password is too long, or the encoded pair is not valid in a header; the
            message does not show the password.
    """
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    for secret in (password, credentials.check_header_value(pair)):
        redact.register(secret)
    return Credential(header=f"Basic {pair}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS settings of connections.

    Attributes:
        authorities: trusted certificate authorities, PEM; None = the authorities of the system.
        certificate: client certificate; None = no certificate.
        server_name: name expected in the server's certificate; empty = the host of the URL.
        insecure: whether to trust any server certificate.
    """

    authorities: bytes | None = None
    certificate: KeyPair | None = None
    server_name: str = ""
    insecure: bool = False

    @property
    def is_configured(self) -> bool:
        """Whether any setting differs from its default: then a URL without a scheme means https."""
        return self != TlsSettings()


def build_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context of a client; blocks for some milliseconds.

    Raises:
        ssl.SSLError: a certificate or key is not valid PEM, or the two do not match.
        ValueError: the authorities contain no certificate, or the key is encrypted.
    """
    if settings.authorities is None:
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(cadata=_text(settings.authorities))
    # Newer Python versions require certificate extensions that the authorities of many clusters
    # lack, and that Go does not require. As in Go, it is sufficient to trust an intermediate CA.
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
