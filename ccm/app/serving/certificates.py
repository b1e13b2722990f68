"""The TLS side of our two HTTPS servers, from the flags; their names differ by a prefix only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ccm.app.options import PROGRAM, Options
from ccm.app.provider import Misconfigured
from ccm.serving import certs, tls
from ccm.serving.policy import TlsError, policy

SERVER = ""
WEBHOOKS = "webhook-"
"""Prefixes of the flags of a server."""

PAIR_NAMES = {SERVER: PROGRAM, WEBHOOKS: f"{PROGRAM}-webhook"}
"""Names of a certificate's files in a `--cert-dir`, as in the Go reference."""


def cert_reloader(options: Options, prefix: str) -> tls.CertReloader:
    """Keeps the TLS context of a server.

    Raises:
        Misconfigured: a flag names a version, suite or group that is unknown.
    """

    def get(name: str) -> Any:
        return options.get(prefix + name)

    try:
        rules = policy(
            get("tls-min-version"), get("tls-cipher-suites"), get("tls-curve-preferences")
        )
    except TlsError as error:
        raise Misconfigured(f"--{prefix}tls-...: {error}") from error
    named = [
        certs.Named(
            source=certs.Files(
                Path(entry.cert_file),
                Path(entry.key_file),
                called=(f"--{prefix}tls-sni-cert-key: ", f"--{prefix}tls-sni-cert-key: "),
            ),
            names=entry.names,
        )
        for entry in get("tls-sni-cert-key")
    ]
    callers = options.webhook_client_ca_file if prefix == WEBHOOKS else ""
    return tls.CertReloader(
        rules,
        certs.Certificates(_main(get, prefix), named),
        callers=Path(callers) if callers else None,
    )


def _main(get: Callable[[str], Any], prefix: str) -> certs.Source:
    if get("tls-cert-file"):
        return certs.Files(
            Path(get("tls-cert-file")),
            Path(get("tls-private-key-file")),
            called=(f"--{prefix}tls-cert-file=", f"--{prefix}tls-private-key-file="),
        )
    subject = certs.Subject.serving(get("bind-address"))
    if get("cert-dir"):
        return certs.Directory(Path(get("cert-dir")), PAIR_NAMES[prefix], subject)
    return certs.Memory(subject)
