"""The flags of the HTTPS servers and of who may call them.

A part of the table in `options`, apart only because it is long.
"""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address

from ccm.app import flags, values

_NO_HTTP2 = "this server speaks HTTP/1.1 only"

WEBHOOK = flags.Section("webhook")
WEBHOOK_SERVING = flags.Section("webhook serving")
SECURE_SERVING = flags.Section("secure serving")
AUTHENTICATION = flags.Section("authentication")
AUTHORIZATION = flags.Section("authorization")

_ANY = IPv4Address("0.0.0.0")  # noqa: S104 - the reference's default
_CACHE = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """What the servers listen on, present and ask of callers; one field a flag."""

    webhooks: tuple[str, ...] = WEBHOOK.flag(
        values.STRINGS,
        (),
        "Webhooks to serve: names, -name to leave one out, * for all. Empty serves none. Needs "
        "the feature gate CloudControllerManagerWebhook. There is one: service-annotations "
        "refuses a Service whose annotations the cloud provider does not understand.",
    )

    webhook_bind_address: values.Address = WEBHOOK_SERVING.flag(
        values.ADDRESS,
        _ANY,
        "Address the webhook server listens on; 0.0.0.0 or :: means every interface.",
    )
    webhook_secure_port: int = WEBHOOK_SERVING.flag(
        values.INT,
        10260,
        "Port of the webhook server; 0 turns it off. It must differ from --secure-port.",
        unit="port",
    )
    webhook_disable_http2_serving: bool = WEBHOOK_SERVING.flag(
        values.BOOL, False, "Serve webhooks over HTTP/1.1 only.", accepted=_NO_HTTP2
    )
    webhook_cert_dir: str = WEBHOOK_SERVING.flag(
        values.STRING,
        "",
        "Directory of cloud-controller-manager-webhook.crt and .key. Not used when "
        "--webhook-tls-cert-file is set; if both are empty a certificate is made in memory.",
    )
    webhook_tls_cert_file: str = WEBHOOK_SERVING.flag(
        values.STRING, "", "PEM file with the webhook server's certificate chain, its own first."
    )
    webhook_tls_private_key_file: str = WEBHOOK_SERVING.flag(
        values.STRING, "", "PEM file with the key of --webhook-tls-cert-file."
    )
    webhook_tls_min_version: str = WEBHOOK_SERVING.flag(
        values.STRING,
        "",
        "Lowest TLS version for webhooks: VersionTLS10 to VersionTLS13. Empty means TLS 1.2.",
    )
    webhook_tls_cipher_suites: tuple[str, ...] = WEBHOOK_SERVING.flag(
        values.STRINGS, (), "Cipher suites for webhooks up to TLS 1.2. Empty means the safe ones."
    )
    webhook_tls_curve_preferences: tuple[int, ...] = WEBHOOK_SERVING.flag(
        values.NUMBERS,
        (),
        "Key exchange groups for webhooks by their TLS numbers. Empty means the usual ones.",
    )
    webhook_tls_sni_cert_key: tuple[values.NamedCertificate, ...] = WEBHOOK_SERVING.flag(
        values.CERTIFICATES,
        (),
        "A certificate for some host names only, for webhooks. Repeat the flag for more.",
    )

    bind_address: values.Address = SECURE_SERVING.flag(
        values.ADDRESS,
        _ANY,
        "Address the HTTPS server listens on; 0.0.0.0 or :: means every interface.",
    )
    secure_port: int = SECURE_SERVING.flag(
        values.INT,
        10258,
        "Port of health checks and metrics, over HTTPS. 0 means no server at all.",
        unit="port",
    )
    disable_http2_serving: bool = SECURE_SERVING.flag(
        values.BOOL, False, "Serve HTTP/1.1 only.", accepted=_NO_HTTP2
    )
    cert_dir: str = SECURE_SERVING.flag(
        values.STRING,
        "",
        "Directory of cloud-controller-manager.crt and .key, made there when they cannot be "
        "read. Not used when --tls-cert-file is set; if both are empty a certificate is made "
        "in memory.",
    )
    tls_cert_file: str = SECURE_SERVING.flag(
        values.STRING,
        "",
        "PEM file with the server's certificate chain, its own first; read again when it changes.",
    )
    tls_private_key_file: str = SECURE_SERVING.flag(
        values.STRING, "", "PEM file with the key of --tls-cert-file."
    )
    tls_cipher_suites: tuple[str, ...] = SECURE_SERVING.flag(
        values.STRINGS, (), "Cipher suites up to TLS 1.2. Empty means the safe ones."
    )
    tls_curve_preferences: tuple[int, ...] = SECURE_SERVING.flag(
        values.NUMBERS,
        (),
        "Key exchange groups by their TLS numbers: 23, 24, 25 or 29. Empty means the usual ones. "
        "Before Python 3.15 the first counts and the others are left out.",
    )
    tls_min_version: str = SECURE_SERVING.flag(
        values.STRING,
        "",
        "Lowest TLS version: VersionTLS10 to VersionTLS13. Empty means TLS 1.2.",
    )
    tls_sni_cert_key: tuple[values.NamedCertificate, ...] = SECURE_SERVING.flag(
        values.CERTIFICATES,
        (),
        "A certificate for some host names only. Repeat the flag for more.",
    )
    http2_max_streams_per_connection: int = SECURE_SERVING.flag(
        values.INT,
        0,
        "Requests that one HTTP/2 connection may have open at once. 0 means 100.",
        unit="streams",
        accepted=_NO_HTTP2,
    )
    permit_port_sharing: bool = SECURE_SERVING.flag(
        values.BOOL, False, "Let several processes listen on one port (SO_REUSEPORT)."
    )
    permit_address_sharing: bool = SECURE_SERVING.flag(
        values.BOOL,
        False,
        "Listen although old connections still hold the address (SO_REUSEADDR).",
        accepted="it is always on, as in every Go program",
    )

    authentication_kubeconfig: str = AUTHENTICATION.flag(
        values.STRING,
        "",
        "kubeconfig for asking the API server who a caller is. Empty means the in-cluster "
        "account, and outside a cluster that every token is refused.",
    )
    authentication_token_webhook_cache_ttl: timedelta = AUTHENTICATION.flag(
        values.DURATION, _CACHE, "How long an answer about a caller's token is remembered."
    )
    client_ca_file: str = AUTHENTICATION.flag(
        values.STRING,
        "",
        "PEM file of the authorities whose client certificates are believed. Empty means those "
        "of the cluster.",
    )
    requestheader_username_headers: tuple[str, ...] = AUTHENTICATION.flag(
        values.STRINGS, ("x-remote-user",), "Headers in which a trusted proxy names the user."
    )
    requestheader_uid_headers: tuple[str, ...] = AUTHENTICATION.flag(
        values.STRINGS,
        (),
        "Headers in which a trusted proxy gives the user's UID, such as x-remote-uid. Needs the "
        "feature gate RemoteRequestHeaderUID.",
    )
    requestheader_group_headers: tuple[str, ...] = AUTHENTICATION.flag(
        values.STRINGS, ("x-remote-group",), "Headers in which a trusted proxy names groups."
    )
    requestheader_extra_headers_prefix: tuple[str, ...] = AUTHENTICATION.flag(
        values.STRINGS,
        ("x-remote-extra-",),
        "Beginnings of the headers in which a trusted proxy passes further facts.",
    )
    requestheader_client_ca_file: str = AUTHENTICATION.flag(
        values.STRING,
        "",
        "PEM file of the authorities that certify trusted proxies. Empty means those of the "
        "cluster.",
    )
    requestheader_allowed_names: tuple[str, ...] = AUTHENTICATION.flag(
        values.STRINGS,
        (),
        "Common names of trusted proxies. Empty means every proxy with a good certificate.",
    )
    authentication_skip_lookup: bool = AUTHENTICATION.flag(
        values.BOOL, False, "Do not read the cluster's own authentication settings at start."
    )
    authentication_tolerate_lookup_failure: bool = AUTHENTICATION.flag(
        values.BOOL,
        False,
        "Start although the cluster's authentication settings cannot be read; callers may then "
        "be taken for anonymous.",
    )

    authorization_kubeconfig: str = AUTHORIZATION.flag(
        values.STRING,
        "",
        "kubeconfig for asking the API server what a caller may do. Empty means the in-cluster "
        "account, and outside a cluster that all but the allowed paths is forbidden.",
    )
    authorization_webhook_cache_authorized_ttl: timedelta = AUTHORIZATION.flag(
        values.DURATION, _CACHE, "How long a permission is remembered."
    )
    authorization_webhook_cache_unauthorized_ttl: timedelta = AUTHORIZATION.flag(
        values.DURATION, _CACHE, "How long a refusal is remembered."
    )
    authorization_always_allow_paths: tuple[str, ...] = AUTHORIZATION.flag(
        values.STRINGS,
        ("/healthz", "/readyz", "/livez"),
        "Paths that anybody may get without asking the API server; a * at the end means every "
        "path that begins so.",
    )
