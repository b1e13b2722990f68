"""Certificates for tests: an authority, and whom it certifies; each as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A certificate and its key on disk."""

    chain: Path
    key: Path

    def context(self, *, trusts: Path | None = None) -> ssl.SSLContext:
        """A client that shows this certificate; without `trusts` it believes any server."""
        context = client_context(trusts)
        context.load_cert_chain(self.chain, self.key)
        return context


def client_context(trusts: Path | None = None) -> ssl.SSLContext:
    """A client without a certificate; without `trusts` it believes any server."""
    if trusts is not None:
        return ssl.create_default_context(cafile=str(trusts))
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Authority:
    """Signs certificates.

    Args:
        folder: where files go.
        name: its common name, and the beginning of its files' names.
        signed_by: the authority above it; None: it is a root.
    """

    def __init__(self, folder: Path, name: str, *, signed_by: Authority | None = None) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._is_root = signed_by is None
        issuer, key = (signed_by._name, signed_by._key) if signed_by else (self._name, self._key)
        certificate = (
            _builder(self._name, issuer, self._key, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS, critical=True)
            .sign(key, hashes.SHA256())
        )
        self.own: bytes = certificate.public_bytes(serialization.Encoding.PEM)
        self.file = folder / f"{name}.crt"
        self.file.write_bytes(self.own)

    def client(self, name: str, groups: Sequence[str] = ()) -> Files:
        """A certificate for a user."""
        return self._leaf(_name(name, groups), name, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, *names: str, file: str = "server") -> Files:
        """A certificate for a server with these names and addresses."""
        alternatives = [alternative(each) for each in names]
        return self._leaf(_name(names[0]), file, ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def _leaf(
        self,
        subject: x509.Name,
        file: str,
        usage: x509.ObjectIdentifier,
        alternatives: Sequence[x509.GeneralName],
    ) -> Files:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key, self._key).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if alternatives:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        files = Files(chain=self._folder / f"{file}.crt", key=self._folder / f"{file}.key")
        intermediate = b"" if self._is_root else self.own
        files.chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + intermediate)
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files


def signing_request(
    common: str,
    *names: x509.GeneralName,
    groups: Sequence[str] = ("system:nodes",),
    attribute: tuple[x509.ObjectIdentifier, bytes] | None = None,
    encoding: serialization.Encoding = serialization.Encoding.PEM,
) -> bytes:
    """A PKCS #10 request, signed with a new key."""
    builder = x509.CertificateSigningRequestBuilder(_name(common, groups))
    if attribute is not None:
        builder = builder.add_attribute(*attribute)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    request = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return request.public_bytes(encoding)


def alternative(name: str) -> x509.GeneralName:
    """A DNS name or IP address in a certificate."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common: str, groups: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signed_with: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(signed_with.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 30 * _DAY)
        # Clients are strict about these since Python 3.13.
        .add_extension(own, critical=False)
        .add_extension(above, critical=False)
    )
