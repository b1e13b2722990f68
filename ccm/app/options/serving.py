"""The flags of the HTTPS servers, and of their authentication and authorization."""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address

from ccm.app.options import controllers
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
"""Prefixes of the TLS flags of the HTTPS server and of the webhook server."""

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
    """Ports, certificates, authentication and authorization of the HTTPS servers."""

    webhooks: tuple[str, ...] = WEBHOOK.flag(
        (),
        "Names of webhooks to serve; -name excludes one, * means service-annotations. An empty "
        "list serves none. Needs the feature gate CloudControllerManagerWebhook. "
        "service-annotations rejects a Service with invalid annotations of the cloud provider. "
        "kubermatic-machines sets defaults in Kubermatic's Machines and MachineDeployments, and "
        "rejects invalid ones.",
        check=controllers.known_names_check("webhooks", controllers.WEBHOOKS),
        path="Webhook.Webhooks",
    )

    webhook_bind_address: Address = WEBHOOK_SERVING.flag(
        _ANY,
        "Address the webhook server listens on; 0.0.0.0 or :: means every interface.",
        kind=ADDRESS,
    )
    webhook_secure_port: int = WEBHOOK_SERVING.flag(
        10260,
        "Port of the webhook server; must differ from --secure-port. 0 disables the server.",
        unit="port",
        check=port,
        kind=INT,
    )
    webhook_cert_dir: str = WEBHOOK_SERVING.flag(
        "",
        "Directory of cloud-controller-manager-webhook.crt and .key. Ignored if "
        "--webhook-tls-cert-file is set. If both flags are empty, a certificate is created in "
        "memory.",
    )
    webhook_tls_cert_file: str = WEBHOOK_SERVING.flag(
        "", "PEM file with the webhook server's certificate chain, leaf first."
    )
    webhook_tls_private_key_file: str = WEBHOOK_SERVING.flag(
        "", "PEM file with the key of --webhook-tls-cert-file."
    )
    webhook_tls_min_version: str = WEBHOOK_SERVING.flag(
        "",
        "Minimum TLS version for webhooks: VersionTLS10 to VersionTLS13. Empty means TLS 1.2.",
        check=_version,
    )
    webhook_tls_cipher_suites: tuple[str, ...] = WEBHOOK_SERVING.flag(
        (), "Webhook cipher suites up to TLS 1.2. Empty means Python's defaults.", check=_suites
    )
    webhook_tls_curve_preferences: tuple[int, ...] = WEBHOOK_SERVING.flag(
        (),
        "Key exchange groups of the webhook server, by TLS number. Empty means OpenSSL's defaults.",
        check=_groups,
        kind=NUMBERS,
    )
    webhook_tls_sni_cert_key: tuple[NamedCertificate, ...] = WEBHOOK_SERVING.flag(
        (),
        "Certificate of the webhook server for certain host names. Repeat the flag for more.",
        kind=CERTIFICATES,
    )

    webhook_client_ca_file: str = WEBHOOK_CALLERS.flag(
        "",
        "PEM file of the CAs that must have signed the client certificate of a webhook caller; "
        "reloaded when it changes. Empty accepts every caller: an API server sends a client "
        "certificate only if its --admission-control-config-file configures one.",
    )

    bind_address: Address = SECURE_SERVING.flag(
        _ANY,
        "Address the HTTPS server listens on; 0.0.0.0 or :: means every interface.",
        kind=ADDRESS,
    )
    secure_port: int = SECURE_SERVING.flag(
        10258,
        "HTTPS port of health checks and metrics. 0 disables the server.",
        unit="port",
        check=port,
        kind=INT,
    )
    cert_dir: str = SECURE_SERVING.flag(
        "",
        "Directory of cloud-controller-manager.crt and .key, which are created at start if both "
        "are absent. Ignored if --tls-cert-file is set. If both flags are empty, a certificate is "
        "created in memory.",
    )
    tls_cert_file: str = SECURE_SERVING.flag(
        "", "PEM file with the server's certificate chain, leaf first; reloaded when it changes."
    )
    tls_private_key_file: str = SECURE_SERVING.flag("", "PEM file with the key of --tls-cert-file.")
    tls_cipher_suites: tuple[str, ...] = SECURE_SERVING.flag(
        (), "Cipher suites up to TLS 1.2. Empty means Python's defaults.", check=_suites
    )
    tls_curve_preferences: tuple[int, ...] = SECURE_SERVING.flag(
        (),
        "Key exchange groups by TLS number: 23, 24, 25 or 29. Empty means OpenSSL's defaults. "
        "Before Python 3.15 only the first is used.",
        check=_groups,
        kind=NUMBERS,
    )
    tls_min_version: str = SECURE_SERVING.flag(
        "",
        "Minimum TLS version: VersionTLS10 to VersionTLS13. Empty means TLS 1.2.",
        check=_version,
    )
    tls_sni_cert_key: tuple[NamedCertificate, ...] = SECURE_SERVING.flag(
        (), "Certificate for certain host names. Repeat the flag for more.", kind=CERTIFICATES
    )
    permit_port_sharing: bool = SECURE_SERVING.flag(
        False, "Let several processes listen on one port (SO_REUSEPORT)."
    )

    authentication_kubeconfig: str = AUTHENTICATION.flag(
        "",
        "kubeconfig for TokenReviews. Empty means the in-cluster configuration; outside a "
        "cluster every token is rejected.",
    )
    authentication_token_webhook_cache_ttl: timedelta = AUTHENTICATION.flag(
        _CACHE, "How long a TokenReview is cached.", check=not_negative
    )
    client_ca_file: str = AUTHENTICATION.flag(
        "", "PEM file of the CAs of accepted client certificates. Empty means the cluster's CAs."
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
        "Prefixes of the headers in which a trusted proxy passes extra attributes of the user.",
        check=no_blanks("a header name"),
    )
    requestheader_client_ca_file: str = AUTHENTICATION.flag(
        "", "PEM file of the CAs of trusted proxies. Empty means the cluster's CAs."
    )
    requestheader_allowed_names: tuple[str, ...] = AUTHENTICATION.flag(
        (), "Common names of trusted proxies. Empty means every proxy with a valid certificate."
    )
    authentication_skip_lookup: bool = AUTHENTICATION.flag(
        False, "Do not read the ConfigMap extension-apiserver-authentication."
    )
    authentication_tolerate_lookup_failure: bool = AUTHENTICATION.flag(
        False,
        "Start although the ConfigMap extension-apiserver-authentication cannot be read; "
        "requests may then be treated as anonymous.",
    )

    authorization_kubeconfig: str = AUTHORIZATION.flag(
        "",
        "kubeconfig for SubjectAccessReviews. Empty means the in-cluster configuration; outside "
        "a cluster only the paths of --authorization-always-allow-paths are served.",
    )
    authorization_webhook_cache_authorized_ttl: timedelta = AUTHORIZATION.flag(
        _CACHE, "How long an allowing SubjectAccessReview is cached.", check=not_negative
    )
    authorization_webhook_cache_unauthorized_ttl: timedelta = AUTHORIZATION.flag(
        _CACHE, "How long a denying SubjectAccessReview is cached.", check=not_negative
    )
    authorization_always_allow_paths: tuple[str, ...] = AUTHORIZATION.flag(
        ("/healthz", "/readyz", "/livez"),
        "Paths allowed without authorization; a * at the end matches every path with that prefix.",
    )


def faults(flags: ServingFlags, *, uid_headers: bool) -> Iterator[FlagViolation]:
    """Yield the faults of flags that are valid alone, but not together.

    `uid_headers`: whether the feature gate RemoteRequestHeaderUID is on.
    """
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
    """Yield messages, to log at start, about TLS settings that have no effect."""
    for prefix in PREFIXES:
        name = f"{prefix}tls".replace("-", "_")
        suites = getattr(flags, f"{name}_cipher_suites")
        if any(suite in policy.SUITES_TLS13 for suite in suites):
            yield (
                f"--{prefix}tls-cipher-suites cannot select suites of TLS 1.3: Python enables all "
                "of them, as Go does"
            )
        groups = getattr(flags, f"{name}_curve_preferences")
        if len(groups) > 1 and not hasattr(ssl.SSLContext, "set_groups"):
            yield (
                f"--{prefix}tls-curve-preferences: only the first, {groups[0]}, has an effect, "
                "because this Python version can set only one group"
            )
