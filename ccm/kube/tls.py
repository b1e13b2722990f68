"""TLS towards the API server: where certificates come from, and the context made of them.

Material is read from its files again and again, because a cluster rotates its
authority and its client certificates; two readings are compared as values.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """A client's certificate chain and private key, both PEM."""

    chain: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """What a connection needs: the trusted authorities (None: the system's) and our own
    certificate (None: we show none)."""

    authorities: bytes | None = None
    certificate: ClientCertificate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Where TLS material comes from; inline data wins over a file, as in client-go.

    Attributes:
        ca_data: trusted authorities, PEM.
        ca_file: file of them; followed when it changes.
        cert_data: client certificate chain, PEM.
        cert_file: file of it; followed when it changes.
        key_data: private key of the certificate, PEM.
        key_file: file of it; followed when it changes.
        server_name: name expected in the server's certificate; empty: the host's.
        insecure: trust any server.
    """

    ca_data: bytes | None = None
    ca_file: Path | None = None
    cert_data: bytes | None = None
    cert_file: Path | None = None
    key_data: bytes | None = field(default=None, repr=False)
    key_file: Path | None = None
    server_name: str = ""
    insecure: bool = False

    @property
    def configured(self) -> bool:
        """Whether anything is set that makes sense with TLS only."""
        return self != TlsSettings()

    @property
    def from_files(self) -> bool:
        """Whether a part comes from a file, and so may change."""
        pairs = (
            (self.ca_data, self.ca_file),
            (self.cert_data, self.cert_file),
            (self.key_data, self.key_file),
        )
        return any(data is None and file is not None for data, file in pairs)

    def read(self) -> TlsMaterial:
        """Read the material; blocking.

        Raises:
            OSError: a file cannot be read.
            ValueError: a certificate comes without its key, or the other way round.
        """
        chain = _either(self.cert_data, self.cert_file)
        key = _either(self.key_data, self.key_file)
        if (chain is None) != (key is None):
            raise ValueError("a client certificate and its key must be given together")
        return TlsMaterial(
            authorities=_either(self.ca_data, self.ca_file),
            certificate=ClientCertificate(chain=chain, key=key) if chain and key else None,
        )


def build_context(material: TlsMaterial, *, insecure: bool = False) -> ssl.SSLContext:
    """A client context of the material; blocking for some milliseconds.

    Raises:
        ssl.SSLError: a certificate or key is no valid PEM, or they do not match.
        ValueError: the authorities hold no certificate.
    """
    if material.authorities is None:
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(cadata=_text(material.authorities))
    # Newer Pythons demand extensions of authorities that Go does not, and many
    # clusters' authorities lack; like Go, a trusted intermediate is trust enough.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if material.certificate is not None:
        _load_certificate(context, material.certificate)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    # OpenSSL's binding takes files only; the folder is readable by us alone and short-lived.
    with tempfile.TemporaryDirectory(prefix="ccm-tls-") as folder:
        chain = Path(folder, "chain.pem")
        key = Path(folder, "key.pem")
        chain.write_bytes(certificate.chain)
        key.write_bytes(certificate.key)
        # An encrypted key must fail, not ask for a password on the terminal.
        context.load_cert_chain(chain, key, password=_no_password)


def _no_password() -> str:
    raise ValueError("an encrypted private key is not supported")


def _either(data: bytes | None, file: Path | None) -> bytes | None:
    if data is not None:
        return data
    return file.read_bytes() if file is not None else None


def _text(pem: bytes) -> str:
    text = pem.decode("ascii", errors="replace")
    if "-----BEGIN" not in text:
        raise ValueError("no certificate found in the certificate authority data")
    return text
