"""Where the API server is and who we are: from inside the cluster, or from a kubeconfig.

`load` reads once, at start; what rotates later (token file, certificates, the exec
plugin's answer) is followed by the objects it returns. Every setting of a kubeconfig is
either honoured or refused by name: an ignored proxy or impersonation would send requests
where, or as whom, nobody wants them.

The package `kubernetes` merges kubeconfig files, and is imported only when there are any;
a daemon inside a cluster never loads it.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ccm.base.log import logger
from ccm.kube import kubeconfig_reader, tls
from ccm.kube.credentials import Credentials, Fixed, TokenFile, basic, bearer, read_token
from ccm.kube.exec_plugin import API_VERSIONS, ExecPlugin, ExecSettings
from ccm.model import names

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a Pod finds its token, its cluster's authority and its namespace."""

DEFAULT_NAMESPACE = "default"

_CONTEXT_FIELDS = {"cluster", "user", "namespace", "extensions"}
_CLUSTER_FIELDS = {
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority",
    "certificate-authority-data",
    "disable-compression",
    "extensions",
}
_USER_FIELDS = {
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "token",
    "tokenFile",
    "username",
    "password",
    "exec",
    "extensions",
}
_EXEC_FIELDS = {
    "apiVersion",
    "command",
    "args",
    "env",
    "installHint",
    "interactiveMode",
    "provideClusterInfo",
}


class ConfigError(Exception):
    """The configuration is missing, unreadable or not supported; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """How to reach one API server.

    Attributes:
        server: its URL, without a slash at the end; may have a path.
        credentials: who we are.
        tls: whom we trust, and our certificate.
        namespace: the one we run in, or the context's.
        disable_compression: ask for answers uncompressed.
        source: where all this comes from, for messages.
    """

    server: str
    credentials: Credentials
    tls: tls.TlsSettings
    namespace: str = DEFAULT_NAMESPACE
    disable_compression: bool = False
    source: str = ""


def load(
    kubeconfig: str = "",
    master: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """Find the API server; blocking, call it once at start.

    Args:
        kubeconfig: file, or several joined by the path separator, of which those that
            exist are merged. Empty together with `master`: we run inside the cluster.
        master: server URL that overrides the kubeconfig's; alone: anonymous access.
        environ: environment to look into and to hand to exec plugins; the process' own
            by default.
        service_account: folder with token, ca.crt and namespace.

    Raises:
        ConfigError: something is missing, unreadable, contradictory or not supported.
    """
    variables = os.environ if environ is None else environ
    if kubeconfig:
        return _from_kubeconfig(kubeconfig, master, dict(variables))
    if master:
        server = _server_url(master, secure=False, where="--master")
        return ClusterConfig(
            server=server, credentials=Fixed(), tls=tls.TlsSettings(), source="--master"
        )
    return _in_cluster(variables, service_account)


def _in_cluster(environ: Mapping[str, str], folder: Path) -> ClusterConfig:
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigError(
            "no kubeconfig is given, and this is not inside a cluster:"
            " KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set"
        )
    try:
        read_token(folder / "token")
    except (OSError, ValueError) as problem:
        raise ConfigError(f"service account token cannot be read: {problem}") from problem
    authority = folder / "ca.crt"
    settings = tls.TlsSettings(ca_file=authority)
    try:
        tls.build_context(settings.read())
    except (OSError, ValueError) as problem:
        # As client-go does; a server with a publicly trusted certificate still works.
        logger("kube").warning(
            "cluster authority is unusable, the system's are trusted instead",
            file=str(authority),
            error=str(problem),
        )
        settings = tls.TlsSettings()
    address = f"[{host}]" if ":" in host else host
    return ClusterConfig(
        server=f"https://{address}:{port}",
        credentials=TokenFile(folder / "token"),
        tls=settings,
        namespace=_read_namespace(folder / "namespace"),
        disable_compression=True,
        source=str(folder),
    )


def _read_namespace(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
    except (OSError, ValueError):
        return DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """A part of a kubeconfig with its place, so that every complaint can name it."""

    file: Path
    name: str
    fields: Mapping[str, Any]

    def fault(self, field: str, words: str) -> ConfigError:
        return ConfigError(f"{self.file}: {self.name}: {field}: {words}")

    def refuse_others(self, honoured: set[str]) -> None:
        for field, value in self.fields.items():
            if field not in honoured and value not in (None, "", False, [], {}):
                raise self.fault(str(field), "is not supported")

    def text(self, field: str) -> str:
        value = self.fields.get(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.fault(field, "must be a string")
        return value

    def flag(self, field: str) -> bool:
        value = self.fields.get(field)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.fault(field, "must be true or false")
        return value

    def path(self, field: str) -> Path | None:
        value = self.text(field)
        return self.file.parent / value if value else None

    def data(self, field: str) -> bytes | None:
        value = self.text(field)
        if not value:
            return None
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as problem:
            raise self.fault(field, f"is not base64: {problem}") from problem

    def items(self, field: str) -> list[Any]:
        value = self.fields.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.fault(field, "must be a list")
        return value


def _from_kubeconfig(paths: str, master: str, environ: Mapping[str, str]) -> ClusterConfig:
    context, cluster, user = _select(paths)
    context.refuse_others(_CONTEXT_FIELDS)
    cluster.refuse_others(_CLUSTER_FIELDS)
    user.refuse_others(_USER_FIELDS)
    settings = _tls_settings(cluster, user)
    server = _server_url(
        master or cluster.text("server"),
        secure=settings.configured,
        where=f"{cluster.file}: {cluster.name}: server",
    )
    return ClusterConfig(
        server=server,
        credentials=_credentials(cluster, user, server, environ),
        tls=settings,
        namespace=context.text("namespace") or DEFAULT_NAMESPACE,
        disable_compression=cluster.flag("disable-compression"),
        source=f"{context.file} ({context.name})",
    )


def _select(paths: str) -> tuple[_Section, _Section, _Section]:
    """Context, cluster and user of the current context of merged files."""
    files, merged = _merge(paths)
    current = ""
    for content in files.values():
        # The first file that names one decides, as in kubectl; the package takes the last.
        current = current or str(content.get("current-context") or "")
    if not current:
        raise ConfigError(f"{paths}: current-context: is not set")
    context = _lookup(paths, merged, "context", current)
    cluster = _lookup(paths, merged, "cluster", context.text("cluster"))
    name = context.text("user")
    if not name:
        return context, cluster, _Section(file=context.file, name="no user", fields={})
    return context, cluster, _lookup(paths, merged, "user", name)


def _merge(paths: str) -> tuple[Mapping[str, Mapping[str, Any]], Any]:
    """The content of each file by its path, and all of them as one tree."""
    import yaml

    reader = kubeconfig_reader.load()
    try:
        merger = reader.merger(paths)
    except (reader.fault, OSError, yaml.YAMLError, ValueError) as problem:
        raise ConfigError(f"{paths}: cannot be read: {problem}") from problem
    except (AttributeError, KeyError, TypeError) as problem:
        raise ConfigError(f"{paths}: is not a kubeconfig: {problem}") from problem
    if merger.config is None:
        raise ConfigError(f"{paths}: no such file")
    return merger.config_files, merger.config


def _lookup(paths: str, merged: Any, what: str, name: str) -> _Section:
    try:
        entry = merged[f"{what}s"].get_with_name(name)
    except kubeconfig_reader.load().fault as problem:
        raise ConfigError(f"{paths}: {what} {name!r} does not exist") from problem
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"{paths}: {what}s: is not a list of named entries") from problem
    fields = entry.value.get(what) or {}
    if not isinstance(fields, Mapping):
        raise ConfigError(f"{entry.path}: {what} {name!r}: must be a mapping")
    return _Section(file=Path(entry.path), name=f"{what} {name!r}", fields=fields)


def _server_url(text: str, *, secure: bool, where: str) -> str:
    if not text:
        raise ConfigError(f"{where}: is not set")
    full = text if "://" in text else f"{'https' if secure else 'http'}://{text}"
    try:
        url = urlsplit(full)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and not url.query
        usable = usable and url.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{where}: {text!r} is not the URL of a server")
    return full.rstrip("/")


def _tls_settings(cluster: _Section, user: _Section) -> tls.TlsSettings:
    settings = tls.TlsSettings(
        ca_data=cluster.data("certificate-authority-data"),
        ca_file=cluster.path("certificate-authority"),
        cert_data=user.data("client-certificate-data"),
        cert_file=user.path("client-certificate"),
        key_data=user.data("client-key-data"),
        key_file=user.path("client-key"),
        server_name=cluster.text("tls-server-name"),
        insecure=cluster.flag("insecure-skip-tls-verify"),
    )
    if settings.insecure and (settings.ca_data or settings.ca_file):
        raise cluster.fault("insecure-skip-tls-verify", "contradicts certificate-authority")
    certificate = settings.cert_data or settings.cert_file
    key = settings.key_data or settings.key_file
    if (certificate is None) != (key is None):
        raise user.fault("client-certificate", "must be given together with client-key")
    try:
        material = settings.read()
        tls.build_context(tls.TlsMaterial(authorities=material.authorities))
    except (OSError, ValueError) as problem:
        raise cluster.fault("certificates", str(problem)) from problem
    try:
        if material.certificate is not None:
            tls.build_context(material)
    except (OSError, ValueError) as problem:
        raise user.fault("client-certificate", str(problem)) from problem
    return settings


def _credentials(
    cluster: _Section, user: _Section, server: str, environ: Mapping[str, str]
) -> Credentials:
    token_file = user.path("tokenFile")
    token = user.text("token")
    username = user.text("username")
    if username and (token or token_file):
        raise user.fault("username", "contradicts token: only one is allowed")
    if token_file is not None:
        try:
            read_token(token_file)
        except (OSError, ValueError) as problem:
            raise user.fault("tokenFile", str(problem)) from problem
        return TokenFile(token_file)
    if token:
        return Fixed(bearer(token.strip()))
    if username:
        return Fixed(basic(username, user.text("password")))
    if user.fields.get("exec"):
        return ExecPlugin(_exec_settings(cluster, user, server, environ))
    return Fixed()


def _exec_settings(
    cluster: _Section, user: _Section, server: str, environ: Mapping[str, str]
) -> ExecSettings:
    fields = user.fields["exec"]
    if not isinstance(fields, Mapping):
        raise user.fault("exec", "must be a mapping")
    section = _Section(file=user.file, name=f"{user.name}: exec", fields=fields)
    section.refuse_others(_EXEC_FIELDS)
    version = section.text("apiVersion")
    if version not in API_VERSIONS:
        raise section.fault("apiVersion", f"{version!r} is not one of {', '.join(API_VERSIONS)}")
    _check_interactive(section, version)
    command = section.text("command")
    if not command:
        raise section.fault("command", "is not set")
    if "/" in command:
        command = str(section.file.parent / command)
    args = section.items("args")
    if not all(isinstance(arg, str) for arg in args):
        raise section.fault("args", "must be strings")
    told = _cluster_info(cluster, server) if section.flag("provideClusterInfo") else None
    return ExecSettings(
        api_version=version,
        command=command,
        args=tuple(args),
        environ={**environ, **_exec_environ(section)},
        cluster=told,
        install_hint=section.text("installHint").strip(),
    )


def _check_interactive(section: _Section, version: str) -> None:
    mode = section.text("interactiveMode")
    if not mode and version.endswith("/v1"):
        raise section.fault("interactiveMode", f"must be set for {version}")
    if mode == "Always":
        raise section.fault("interactiveMode", "Always is not supported: there is no terminal")
    if mode not in ("", "Never", "IfAvailable"):
        raise section.fault("interactiveMode", f"{mode!r} is unknown")


def _exec_environ(section: _Section) -> dict[str, str]:
    environ: dict[str, str] = {}
    for pair in section.items("env"):
        match pair:
            case {"name": str(name), "value": str(value)}:
                environ[name] = value
            case _:
                raise section.fault("env", "must be a list of name and value, both strings")
    return environ


def _cluster_info(cluster: _Section, server: str) -> Mapping[str, Any]:
    """What an exec plugin is told about the cluster (client authentication API)."""
    file = cluster.path("certificate-authority")
    authority = cluster.data("certificate-authority-data")
    if authority is None and file is not None:
        authority = file.read_bytes()
    told: dict[str, Any] = {
        "server": server,
        "tls-server-name": cluster.text("tls-server-name"),
        "insecure-skip-tls-verify": cluster.flag("insecure-skip-tls-verify"),
        "certificate-authority-data": base64.b64encode(authority or b"").decode(),
        "disable-compression": cluster.flag("disable-compression"),
    }
    for extension in cluster.items("extensions"):
        if isinstance(extension, Mapping) and extension.get("name") == names.EXTENSION_EXEC:
            told["config"] = extension.get("extension")
    return {field: value for field, value in told.items() if value}
