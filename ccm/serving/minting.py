"""Makes certificates, and reads the names in them; the only door to cryptography.

Run as `python -m ccm.serving.minting`, a process of its own: the package takes 14 MiB of memory,
which the daemon would hold for the rest of its life for the sake of its first second.
"""

from __future__ import annotations

import datetime
import ipaddress
import sys
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BACKDATED = datetime.timedelta(hours=1)
"""A peer's clock may be behind ours (client-go, util/cert)."""


def self_signed(
    now: datetime.datetime, lifetime: datetime.timedelta, hosts: Sequence[str]
) -> bytes:
    """Return a certificate that vouches for itself, then its key; both PEM.

    Args:
        now: the time of day, UTC.
        lifetime: how long from now it is valid.
        hosts: DNS names and IP addresses it is for; the first is its common name.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    # Two certificates of one name must not look like one to a peer that stores them.
    serial = x509.random_serial_number()
    common = f"{hosts[0]}@{int(now.timestamp())}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
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
        .add_extension(x509.SubjectAlternativeName(map(_alternative, hosts)), critical=False)
        # Its own authority, so that a caller may trust it by this very file.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def names(chain: bytes) -> list[str]:
    """Return the host names and addresses a PEM chain's first certificate is for.

    Those of its extension; without one the common name.

    Raises:
        ValueError: it is no certificate.
    """
    certificate = x509.load_pem_x509_certificate(chain)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return [str(each.value) for each in common]
    addresses = [str(each) for each in found.get_values_for_type(x509.IPAddress)]
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def main(task: str, *words: str) -> None:
    """Do a task: `mint NOW LIFETIME_S HOST...`, or `names` of the PEM chain on standard input."""
    if task == "mint":
        now, lifetime_s, *hosts = words
        lifetime = datetime.timedelta(seconds=float(lifetime_s))
        sys.stdout.buffer.write(self_signed(datetime.datetime.fromisoformat(now), lifetime, hosts))
    else:
        sys.stdout.write("\n".join(names(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main(*sys.argv[1:])
