"""The flags of the HTTPS servers, and of their authentication and authorization."""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address

from ccm.app.options import names
from ccm.base.flags import (
    ADDRESS,
    CERTIFICATES,
    INT,
    NUMBERS,
    Address,
    FlagSection,
    FlagViolation,
    NamedCertificate,
    no_blanks,
    not_negative,
    port,
)
from ccm.serving import policy

WEBHOOK = FlagSection("webhook")
WEBHOOK_SERVING = FlagSection("webhook serving")
WEBHOOK_CALLERS = FlagSection("webhook callers", ours=True)
SECURE_SERVING = FlagSection("secure serving")
AUTHENTICATION = FlagSection("authentication")
AUTHORIZATION = FlagSection("authorization")

PREFIXES = ("", "webhook-")
"""Prefixes of the flags of the two servers."""

_ANY = IPv4Address("0.0.0.0")  # noqa: S104 - the reference's default
_CACHE = timedelta(seconds=10)


def _version(value: str) -> str:
    known = value in ("", *policy.VERSIONS)
    return "" if known else f"must be one of {', '.join(policy.VERSIONS)}"


def _suites(value: Sequence[str]) -> str:
    return _unknown(lambda: policy.parse_policy("", value))


def _groups(value: Sequence[int]) -> str:
    return _unknown(lambda: policy.parse_policy("", (), value))


def _unknown(read: Callable[[], object]) -> str:
    try:
        read()
    except policy.TlsError as error:
        return str(error)
    return ""


@dataclass(frozen=True, kw_only=True)
class ServingFlags:
    """Ports, certificates, authentication and authorization of the servers."""

    webhooks: tuple[str, ...] = WEBHOOK.flag(
        (),
        "Webhooks to serve: names, -name to leave one out, * for all. Empty serves none. Needs "
        "the feature gate CloudControllerManagerWebhook. There is one: service-annotations "
        "refuses a Service whose annotations the cloud provider does not understand.",
        check=names.known_names_check("webhooks", names.WEBHOOKS),
        path="Webhook.Webhooks",
    )

    webhook_bind_address: Address = WEBHOOK_SERVING.flag(
        _ANY,
        "Address the webhook server listens on; 0.0.0.0 or :: means every interface.",
        kind=ADDRESS,
    )
    webhook_secure_port: int = WEBHOOK_SERVING.flag(
        10260,
        "Port of the webhook server; 0 turns it off. It must differ from --secure-port.",
        unit="port",
        check=port,
        kind=INT,
    )
    webhook_cert_dir: str = WEBHOOK_SERVING.flag(
        "",
        "Directory of cloud-controller-manager-webhook.crt and .key. Not used when "
        "--webhook-tls-cert-file is set; if both are empty a certificate is made in memory.",
    )
    webhook_tls_cert_file: str = WEBHOOK_SERVING.flag(
        "", "PEM file with the webhook server's certificate chain, its own first."
    )
    webhook_tls_private_key_file: str = WEBHOOK_SERVING.flag(
        "", "PEM file with the key of --webhook-tls-cert-file."
    )
    webhook_tls_min_version: str = WEBHOOK_SERVING.flag(
        "",
        "Lowest TLS version for webhooks: VersionTLS10 to VersionTLS13. Empty means TLS 1.2.",
        check=_version,
    )
    webhook_tls_cipher_suites: tuple[str, ...] = WEBHOOK_SERVING.flag(
        (), "Cipher suites for webhooks up to TLS 1.2. Empty means the safe ones.", check=_suites
    )
    webhook_tls_curve_preferences: tuple[int, ...] = WEBHOOK_SERVING.flag(
        (),
        "Key exchange groups for webhooks by their TLS numbers. Empty means the usual ones.",
        check=_groups,
        kind=NUMBERS,
    )
    webhook_tls_sni_cert_key: tuple[NamedCertificate, ...] = WEBHOOK_SERVING.flag(
        (),
        "A certificate for some host names only, for webhooks. Repeat the flag for more.",
        kind=CERTIFICATES,
    )

    webhook_client_ca_file: str = WEBHOOK_CALLERS.flag(
        "",
        "PEM file of the authorities that callers of webhooks must show a certificate of; read "
        "again when it changes. Empty lets everybody call: an API server shows one only when "
        "its --admission-control-config-file tells it to.",
    )

    bind_address: Address = SECURE_SERVING.flag(
        _ANY,
        "Address the HTTPS server listens on; 0.0.0.0 or :: means every interface.",
        kind=ADDRESS,
    )
    secure_port: int = SECURE_SERVING.flag(
        10258,
        "Port of health checks and metrics, over HTTPS. 0 means no server at all.",
        unit="port",
        check=port,
        kind=INT,
    )
    cert_dir: str = SECURE_SERVING.flag(
        "",
        "Directory of cloud-controller-manager.crt and .key, made there when they cannot be "
        "read. Not used when --tls-cert-file is set; if both are empty a certificate is made "
        "in memory.",
    )
    tls_cert_file: str = SECURE_SERVING.flag(
        "",
        "PEM file with the server's certificate chain, its own first; read again when it changes.",
    )
    tls_private_key_file: str = SECURE_SERVING.flag("", "PEM file with the key of --tls-cert-file.")
    tls_cipher_suites: tuple[str, ...] = SECURE_SERVING.flag(
        (), "Cipher suites up to TLS 1.2. Empty means the safe ones.", check=_suites
    )
    tls_curve_preferences: tuple[int, ...] = SECURE_SERVING.flag(
        (),
        "Key exchange groups by their TLS numbers: 23, 24, 25 or 29. Empty means the usual ones. "
        "Before Python 3.15 the first counts and the others are left out.",
        check=_groups,
        kind=NUMBERS,
    )
    tls_min_version: str = SECURE_SERVING.flag(
        "",
        "Lowest TLS version: VersionTLS10 to VersionTLS13. Empty means TLS 1.2.",
        check=_version,
    )
    tls_sni_cert_key: tuple[NamedCertificate, ...] = SECURE_SERVING.flag(
        (),
        "A certificate for some host names only. Repeat the flag for more.",
        kind=CERTIFICATES,
    )
    permit_port_sharing: bool = SECURE_SERVING.flag(
        False, "Let several processes listen on one port (SO_REUSEPORT)."
    )

    authentication_kubeconfig: str = AUTHENTICATION.flag(
        "",
        "kubeconfig for asking the API server who a caller is. Empty means the in-cluster "
        "account, and outside a cluster that every token is refused.",
    )
    authentication_token_webhook_cache_ttl: timedelta = AUTHENTICATION.flag(
        _CACHE,
        "How long an answer about a caller's token is remembered.",
        check=not_negative,
    )
    client_ca_file: str = AUTHENTICATION.flag(
        "",
        "PEM file of the authorities whose client certificates are accepted. Empty means those "
        "of the cluster.",
    )
    requestheader_username_headers: tuple[str, ...] = AUTHENTICATION.flag(
        ("x-remote-user",),
        "Headers in which a trusted proxy names the user.",
        check=no_blanks("a header name"),
    )
    requestheader_uid_headers: tuple[str, ...] = AUTHENTICATION.flag(
        (),
        "Headers in which a trusted proxy gives the user's UID, such as x-remote-uid. Needs the "
        "feature gate RemoteRequestHeaderUID.",
        check=no_blanks("a header name"),
    )
    requestheader_group_headers: tuple[str, ...] = AUTHENTICATION.flag(
        ("x-remote-group",),
        "Headers in which a trusted proxy names groups.",
        check=no_blanks("a header name"),
    )
    requestheader_extra_headers_prefix: tuple[str, ...] = AUTHENTICATION.flag(
        ("x-remote-extra-",),
        "Beginnings of the headers in which a trusted proxy passes further facts.",
        check=no_blanks("a header name"),
    )
    requestheader_client_ca_file: str = AUTHENTICATION.flag(
        "",
        "PEM file of the authorities that certify trusted proxies. Empty means those of the "
        "cluster.",
    )
    requestheader_allowed_names: tuple[str, ...] = AUTHENTICATION.flag(
        (), "Common names of trusted proxies. Empty means every proxy with a good certificate."
    )
    authentication_skip_lookup: bool = AUTHENTICATION.flag(
        False, "Do not read the cluster's own authentication settings at start."
    )
    authentication_tolerate_lookup_failure: bool = AUTHENTICATION.flag(
        False,
        "Start although the cluster's authentication settings cannot be read; callers may then "
        "be taken for anonymous.",
    )

    authorization_kubeconfig: str = AUTHORIZATION.flag(
        "",
        "kubeconfig for asking the API server what a caller may do. Empty means the in-cluster "
        "account, and outside a cluster that all but the allowed paths is forbidden.",
    )
    authorization_webhook_cache_authorized_ttl: timedelta = AUTHORIZATION.flag(
        _CACHE, "How long a permission is remembered.", check=not_negative
    )
    authorization_webhook_cache_unauthorized_ttl: timedelta = AUTHORIZATION.flag(
        _CACHE, "How long a refusal is remembered.", check=not_negative
    )
    authorization_always_allow_paths: tuple[str, ...] = AUTHORIZATION.flag(
        ("/healthz", "/readyz", "/livez"),
        "Paths that anybody may get without asking the API server; a * at the end means every "
        "path that begins so.",
    )


def faults(flags: ServingFlags, *, uid_headers: bool) -> Iterator[FlagViolation]:
    """Yield the faults of the flags; `uid_headers`: whether the gate for UID headers is on."""
    if flags.webhook_secure_port == flags.secure_port != 0:
        right = "--webhook-secure-port cannot be the same value as --secure-port"
        yield "webhook-secure-port", right
    for prefix in PREFIXES:
        files = [f"{prefix}tls-cert-file", f"{prefix}tls-private-key-file"]
        missing = [name for name in files if not getattr(flags, name.replace("-", "_"))]
        if len(missing) == 1:
            files.remove(missing[0])
            yield files[0], f"needs --{missing[0]} too"
    if flags.requestheader_uid_headers and not uid_headers:
        yield "requestheader-uid-headers", "needs the feature gate RemoteRequestHeaderUID"


def notices(flags: ServingFlags) -> Iterator[str]:
    """Yield notices for the start about TLS settings that have no effect."""
    for prefix in PREFIXES:
        name = f"{prefix}tls".replace("-", "_")
        suites = getattr(flags, f"{name}_cipher_suites")
        if any(suite in policy.SUITES_TLS13 for suite in suites):
            yield (
                f"--{prefix}tls-cipher-suites cannot choose among the suites of TLS 1.3: "
                "Python leaves all of them on, as Go does"
            )
        groups = getattr(flags, f"{name}_curve_preferences")
        if len(groups) > 1 and not hasattr(ssl.SSLContext, "set_groups"):
            yield (
                f"--{prefix}tls-curve-preferences: only the first, {groups[0]}, has an effect, "
                "because this Python can set one group and no list"
            )
