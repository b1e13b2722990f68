"""Creates certificates and reads the names in them, with the package `cryptography`.

The module runs in a child process, `python -m ccm.serving.minting`. The daemon needs
`cryptography` only now and then, but an import would cost 14 MiB of memory for ever.
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
"""How long before its creation a certificate becomes valid: a peer's clock may be behind.

Source: client-go, util/cert.
"""


def self_signed(
    now: datetime.datetime, lifetime: datetime.timedelta, hosts: Sequence[str]
) -> bytes:
    """Return a self-signed certificate, followed by its private key, both in PEM.

    Args:
        now: the current time, UTC.
        lifetime: how long the certificate is valid from now on.
        hosts: DNS names and IP addresses; the common name contains the first of them.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    # The random serial number distinguishes two certificates with one name.
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
        # The certificate is its own CA, so that a client can use the file as CA bundle.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def names(chain: bytes) -> list[str]:
    """Return the subject alternative names of the first certificate in a PEM chain.

    Without subject alternative names, return the common names.

    Raises:
        ValueError: the chain has no valid certificate.
    """
    certificate = x509.load_pem_x509_certificate(chain)
    try:
        alternatives = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return [str(name.value) for name in common]
    addresses = [str(name) for name in alternatives.get_values_for_type(x509.IPAddress)]
    return [*alternatives.get_values_for_type(x509.DNSName), *addresses]


def main(task: str, *words: str) -> None:
    """Run the command line: `mint NOW LIFETIME_S HOST...`, or `names` with a PEM chain on stdin."""
    if task == "mint":
        now, lifetime_s, *hosts = words
        lifetime = datetime.timedelta(seconds=float(lifetime_s))
        sys.stdout.buffer.write(self_signed(datetime.datetime.fromisoformat(now), lifetime, hosts))
    else:
        sys.stdout.write("\n".join(names(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main(*sys.argv[1:])
