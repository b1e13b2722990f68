"""TLS policy of a server: accepted versions, cipher suites and key exchange groups. No I/O."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

VERSIONS = {
    "VersionTLS10": ssl.TLSVersion.TLSv1,
    "VersionTLS11": ssl.TLSVersion.TLSv1_1,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}

SUITES_TLS13 = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
"""Cipher suites of TLS 1.3: settings may name them, but all are always enabled, as in Go."""

SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
}
"""Cipher suites up to TLS 1.2: name in IANA's registry and in Go -> OpenSSL's name.

Sources: RFC 5246, 5289, 7905. Go also has suites with 3DES and RC4, which OpenSSL 3 removed.
"""

GROUPS = {23: "prime256v1", 24: "secp384r1", 25: "secp521r1", 29: "X25519"}
"""Key exchange groups: TLS number -> OpenSSL's name (RFC 8446, 4.2.7)."""


class TlsError(ValueError):
    """A TLS version, cipher suite or group is unknown; the message lists all known values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPolicy:
    """TLS policy of a server.

    Attributes:
        minimum: minimum TLS version.
        suites: OpenSSL's names of cipher suites up to TLS 1.2; empty means Python's defaults.
        groups: OpenSSL's names of key exchange groups; empty means OpenSSL's defaults.
    """

    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    suites: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def parse_policy(minimum: str, suites: Sequence[str], groups: Sequence[int] = ()) -> TlsPolicy:
    """Return the policy for settings in Kubernetes' notation.

    Versions are written like `VersionTLS12`, cipher suites by IANA name, groups by TLS number.

    Empty settings mean the defaults.

    Raises:
        TlsError: a version, suite or group is unknown.
    """
    if minimum and minimum not in VERSIONS:
        raise TlsError(f"TLS version {minimum!r} is unknown; known: {', '.join(VERSIONS)}")
    for name in suites:
        if name not in SUITES and name not in SUITES_TLS13:
            known = ", ".join(sorted([*SUITES, *SUITES_TLS13]))
            raise TlsError(f"cipher suite {name!r} is unknown; known: {known}")
    for number in groups:
        if number not in GROUPS:
            known = ", ".join(f"{number} ({name})" for number, name in GROUPS.items())
            raise TlsError(f"key exchange group {number} is unknown; known: {known}")
    old = tuple(dict.fromkeys(SUITES[name] for name in suites if name in SUITES))
    lowest = VERSIONS[minimum] if minimum else ssl.TLSVersion.TLSv1_2
    if suites and not old:
        # All named suites are of TLS 1.3, so earlier versions have no suites.
        lowest = ssl.TLSVersion.TLSv1_3
    return TlsPolicy(
        minimum=lowest, suites=old, groups=tuple(dict.fromkeys(GROUPS[number] for number in groups))
    )
