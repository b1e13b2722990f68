"""Makes certificates, and reads the names in them; the only door to cryptography.

Run as `python -m ccm.serving.minting`: one JSON request on standard input, one JSON answer
on standard output. It is a process of its own because the package takes 12 MiB of memory,
which the daemon would hold for the rest of its life for the sake of its first second.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BACKDATED = datetime.timedelta(hours=1)
"""A peer's clock may be behind ours (client-go, util/cert)."""


def self_signed(
    name: str,
    *,
    dns: Sequence[str],
    addresses: Sequence[str],
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> tuple[str, str]:
    """A certificate that vouches for itself, and its key; both PEM.

    Args:
        name: its common name.
        dns: host names it is for.
        addresses: IP addresses it is for.
        now: the time of day, UTC.
        lifetime: how long from now it is valid.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    # Two certificates of one name must not look like one to a peer that stores them.
    serial = x509.random_serial_number()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name}@{int(now.timestamp())}")])
    alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in dns]
    alternatives += [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        # Its own authority, so that a caller may trust it by this very file.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )


def names(chain: str) -> list[str]:
    """The host names and addresses a PEM chain's first certificate is for.

    Those of its extension; without one the common name.

    Raises:
        ValueError: it is no certificate.
    """
    certificate = x509.load_pem_x509_certificate(chain.encode())
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return [str(each.value) for each in common]
    addresses = [str(each) for each in found.get_values_for_type(x509.IPAddress)]
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do what a request asks: `mint` a certificate or tell the `names` in one."""
    if "names" in request:
        return {"names": names(request["names"])}
    wanted = request["mint"]
    chain, key = self_signed(
        wanted["name"],
        dns=wanted["dns"],
        addresses=wanted["addresses"],
        now=datetime.datetime.fromisoformat(wanted["now"]),
        lifetime=datetime.timedelta(seconds=wanted["lifetime_s"]),
    )
    return {"chain": chain, "key": key}


def main() -> int:
    """Answer the request on standard input; the exit code."""
    try:
        json.dump(answer(json.load(sys.stdin)), sys.stdout)
    except ValueError as error:
        json.dump({"error": str(error)}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
