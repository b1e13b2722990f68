"""TLS towards the API server: whom we trust, who we are, and the context made of it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from ccm.base.credentials import KeyPair


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
