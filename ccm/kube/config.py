"""Address of the API server and identity: from a Pod's service account, or from a kubeconfig.

`load` reads all files at once, and returns the signatures of the files with credentials and
certificate authorities. A caller that watches these files can call `load` again, and test the
result before use. Each setting of a kubeconfig is either honoured or rejected by name. An ignored
proxy or impersonation would send requests to the wrong server or with the wrong identity.

The package `kubernetes` is not used, because it accepts any YAML as a kubeconfig. It also loads
models of the whole API, which takes ten times the CPU time of the rest of the start.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ccm.base import redact
from ccm.base.credentials import KeyPair, check_header_value
from ccm.base.files import Signature, describe_error, signature
from ccm.base.log import logger
from ccm.kube.credentials import (
    CredentialSource,
    StaticCredentials,
    TlsSettings,
    basic,
    bearer,
    build_context,
)
from ccm.kube.exec_plugin import API_VERSIONS, ExecPlugin, ExecSettings
from ccm.model import names

T = TypeVar("T")


class ClusterConfigError(Exception):
    """The configuration is missing, unreadable or not supported.

    The message names the file and the field, or the environment variable.
    """


class Kubeconfig:
    """Kubeconfig files, merged as in kubectl.

    If several files define a cluster, context or user with the same name, the first file counts.

    Args:
        paths: paths of files, joined by the path separator; missing files are skipped.

    Raises:
        ClusterConfigError: all files are missing, or a file is unreadable or is not a kubeconfig.
    """

    def __init__(self, paths: str) -> None:
        self._paths = paths
        named = (Path(path).expanduser() for path in paths.split(os.pathsep) if path)
        self._files = {path: _content(path) for path in named if path.exists()}
        if not self._files:
            raise ClusterConfigError(f"{paths}: no such file")

    @property
    def current_context(self) -> str:
        """Name of the current context.

        Raises:
            ClusterConfigError: no file sets a current context.
        """
        for content in self._files.values():
            if content.get("current-context"):
                return str(content["current-context"])
        raise ClusterConfigError(f"{self._paths}: current-context: is not set")

    def section(self, kind: str, name: str) -> KubeconfigSection:
        """Return a section of a kubeconfig.

        Args:
            kind: `cluster`, `context` or `user`.
            name: name of the section.

        Raises:
            ClusterConfigError: the section is missing or is not a mapping.
        """
        for path, content in self._files.items():
            for entry in content.get(f"{kind}s") or ():
                if entry["name"] == name:
                    fields = entry.get(kind) or {}
                    if not isinstance(fields, Mapping):
                        raise ClusterConfigError(f"{path}: {kind} {name!r}: must be a mapping")
                    return KubeconfigSection(file=path, name=f"{kind} {name!r}", fields=fields)
        raise ClusterConfigError(f"{self._paths}: {kind} {name!r} does not exist")


def _content(path: Path) -> Mapping[str, Any]:
    """Return the content of a kubeconfig.

    Raises:
        ClusterConfigError: the file is unreadable or is not a kubeconfig.
    """
    # Imported here, because a daemon inside a cluster needs no YAML parser.
    from ccm.base import strict_yaml

    try:
        with path.open(encoding="utf-8") as file:
            content = strict_yaml.load(file)
    except OSError as problem:
        raise ClusterConfigError(f"{path}: cannot be read: {describe_error(problem)}") from problem
    except strict_yaml.LOAD_ERRORS as error:
        raise ClusterConfigError(
            f"{path}: is not valid YAML: {strict_yaml.describe_error(error)}"
        ) from error
    if not isinstance(content, dict):
        raise ClusterConfigError(f"{path}: is not a kubeconfig: it must be a mapping with clusters")
    for kind in ("clusters", "contexts", "users"):
        entries = content.get(kind) or []
        if not isinstance(entries, list) or not all(
            isinstance(entry, dict) and "name" in entry for entry in entries
        ):
            raise ClusterConfigError(
                f"{path}: is not a kubeconfig: {kind} must be a list of mappings, each with a name"
            )
    return content


class FileReader:
    """Reads files, and records their signatures to detect later changes."""

    def __init__(self) -> None:
        self.signatures: dict[Path, Signature] = {}

    def read(self, path: Path) -> bytes:
        """Return the content of a file; an unreadable file raises OSError."""
        # Take the signature before the read, so that a change during the read is detected later.
        self.signatures[path] = signature(path)
        return path.read_bytes()

    def token(self, path: Path) -> str:
        """Return the token in a file, without surrounding whitespace.

        Raises:
            OSError: the file is unreadable.
            ValueError: the file is empty, or the token is not valid in a header.
        """
        token = self.read(path).decode(errors="replace").strip()
        if not token:
            raise ValueError("the file is empty")
        return check_header_value(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigSection:
    """Section of a kubeconfig.

    All methods that return a field raise `ClusterConfigError` if the value is invalid.

    Attributes:
        file: the kubeconfig, for messages and relative paths.
        name: name of the section, for messages.
        fields: content of the section.
    """

    file: Path
    name: str
    fields: Mapping[str, Any]

    def error(self, field: str, words: str) -> ClusterConfigError:
        """Return an error about a field; `words` describe the fault."""
        return ClusterConfigError(f"{self.file}: {self.name}: {field}: {words}")

    def reject_unsupported(self, honoured: set[str]) -> None:
        """Raise ClusterConfigError if a field is set that is not in `honoured`."""
        for name, value in self.fields.items():
            if name not in honoured and value not in (None, "", False, [], {}):
                raise self.error(str(name), "is not supported")

    def text(self, field: str) -> str:
        """Return the string in a field; empty = not set."""
        return self._typed(field, str, "a string")

    def flag(self, field: str) -> bool:
        """Return the boolean in a field; False if it is not set."""
        return self._typed(field, bool, "true or false")

    def path(self, field: str) -> Path | None:
        """Return the path in a field, resolved against the folder of `file`; None = not set."""
        value = self.text(field)
        return self.file.parent / value if value else None

    def data(self, field: str) -> bytes | None:
        """Return the decoded base64 data in a field; None = not set."""
        value = self.text(field)
        if not value:
            return None
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as problem:
            raise self.error(field, f"is not base64: {problem}") from problem

    def content(self, field: str, parts: FileReader) -> bytes | None:
        """Return the inline data in `<field>-data`, else the content of the file in `field`.

        Inline data takes precedence, as in client-go. None = neither is set.

        Args:
            field: name of the field with the path.
            parts: reads the file, and records its signature.
        """
        inline = self.data(f"{field}-data")
        file = self.path(field)
        if inline is not None or file is None:
            return inline
        try:
            return parts.read(file)
        except (OSError, ValueError) as problem:
            raise self.error(
                field, f"{file} cannot be read: {describe_error(problem)}"
            ) from problem

    def items(self, field: str) -> list[Any]:
        """Return the list in a field; empty if it is not set."""
        return self._typed(field, list, "a list")

    def _typed(self, field: str, kind: type[T], words: str) -> T:
        value = self.fields.get(field)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise self.error(field, f"must be {words}")
        return value


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder in a Pod with the service account's token, the cluster's CA and the Pod's namespace."""

__all__ = ["ClusterConfig", "ClusterConfigError", "load"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Address of one API server, and the identity for requests to it.

    Attributes:
        server: URL of the server, without a slash at the end; may have a path.
        credentials: source of credentials.
        tls: trusted authorities, and the client certificate.
        namespace: namespace of this Pod, or of the kubeconfig's context.
        disable_compression: whether to request uncompressed responses.
        source: origin of the configuration, for messages.
        files: path -> signature of each file with a credential or certificate authorities, taken
            before the read. Files that only an exec plugin reads are not included.
    """

    server: str
    credentials: CredentialSource
    tls: TlsSettings
    namespace: str = DEFAULT_NAMESPACE
    disable_compression: bool = False
    source: str = ""
    files: Mapping[Path, Signature] = field(default_factory=dict)


def load(
    kubeconfig: str = "",
    master: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """Load the address of the API server and the identity; blocks for file I/O.

    Without `kubeconfig` and `master`, address and identity are those of a Pod, from the environment
    and `service_account`.

    Args:
        kubeconfig: path of a file, or paths joined by the path separator; existing files are
            merged.
        master: server URL that overrides the URL in the kubeconfig. Without `kubeconfig`, access is
            anonymous.
        environ: environment to read and to pass to exec plugins; None = environment of the process.
        service_account: folder with the files `token`, `ca.crt` and `namespace`.

    Raises:
        ClusterConfigError: the configuration is missing, unreadable, contradictory or not
            supported.
    """
    variables = os.environ if environ is None else environ
    if kubeconfig:
        return _from_kubeconfig(kubeconfig, master, dict(variables))
    if master:
        server = _server_url(master, secure=False, where="--master")
        return ClusterConfig(
            server=server, credentials=StaticCredentials(), tls=TlsSettings(), source="--master"
        )
    return _in_cluster(variables, service_account)


def _in_cluster(environ: Mapping[str, str], folder: Path) -> ClusterConfig:
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ClusterConfigError(
            "no kubeconfig is set, and the process is not in a cluster (KUBERNETES_SERVICE_HOST "
            "or KUBERNETES_SERVICE_PORT is missing); set a kubeconfig"
        )
    parts = FileReader()
    try:
        token = parts.token(folder / "token")
    except (OSError, ValueError) as problem:
        raise ClusterConfigError(
            f"service account token {folder / 'token'} cannot be read: {describe_error(problem)}"
        ) from problem
    address = f"[{host}]" if ":" in host else host
    return ClusterConfig(
        server=f"https://{address}:{port}",
        credentials=StaticCredentials(bearer(token)),
        tls=_in_cluster_tls(parts, folder / "ca.crt"),
        namespace=_read_namespace(folder / "namespace"),
        disable_compression=True,
        source=str(folder),
        files=parts.signatures,
    )


def _in_cluster_tls(parts: FileReader, authority: Path) -> TlsSettings:
    try:
        settings = TlsSettings(authorities=parts.read(authority))
        build_context(settings)
    except (OSError, ValueError) as problem:
        # Not an error, as in client-go: a server with a publicly trusted certificate still works.
        logger("kube").warning(
            "cluster CA unusable, system CAs trusted instead",
            file=str(authority),
            error=str(problem),
        )
        return TlsSettings()
    return settings


def _read_namespace(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
    except (OSError, ValueError):
        return DEFAULT_NAMESPACE


def _from_kubeconfig(paths: str, master: str, environ: Mapping[str, str]) -> ClusterConfig:
    kubeconfig = Kubeconfig(paths)
    context = kubeconfig.section("context", kubeconfig.current_context)
    cluster = kubeconfig.section("cluster", context.text("cluster"))
    name = context.text("user")
    user = (
        kubeconfig.section("user", name)
        if name
        else KubeconfigSection(file=context.file, name="no user", fields={})
    )
    context.reject_unsupported(_CONTEXT_FIELDS)
    cluster.reject_unsupported(_CLUSTER_FIELDS)
    user.reject_unsupported(_USER_FIELDS)
    parts = FileReader()
    settings = _tls_settings(cluster, user, parts)
    server = _server_url(
        master or cluster.text("server"),
        secure=settings.is_configured,
        where=f"{cluster.file}: {cluster.name}: server",
    )
    return ClusterConfig(
        server=server,
        credentials=_credentials(user, parts)
        or _exec_plugin(cluster, user, server, settings, environ)
        or StaticCredentials(),
        tls=settings,
        namespace=context.text("namespace") or DEFAULT_NAMESPACE,
        disable_compression=cluster.flag("disable-compression"),
        source=f"{context.file} ({context.name})",
        files=parts.signatures,
    )


def _server_url(text: str, *, secure: bool, where: str) -> str:
    if not text:
        raise ClusterConfigError(f"{where}: is not set")
    full = text if "://" in text else f"{'https' if secure else 'http'}://{text}"
    if "@" in full.partition("://")[2].partition("/")[0]:
        raise ClusterConfigError(
            f"{where}: the URL contains a user or a password (not shown); set username and "
            "password of the kubeconfig's user instead"
        )
    try:
        url = urlsplit(full)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and not url.query
        usable = usable and url.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ClusterConfigError(f"{where}: {text!r} is not the URL of a server")
    return full.rstrip("/")


def _tls_settings(
    cluster: KubeconfigSection, user: KubeconfigSection, parts: FileReader
) -> TlsSettings:
    insecure = cluster.flag("insecure-skip-tls-verify")
    authorities = cluster.content("certificate-authority", parts)
    if insecure and authorities is not None:
        raise cluster.error("insecure-skip-tls-verify", "conflicts with certificate-authority")
    chain = user.content("client-certificate", parts)
    key = user.content("client-key", parts)
    if (chain is None) != (key is None):
        raise user.error("client-certificate", "must be set together with client-key")
    trusted = TlsSettings(
        authorities=authorities, server_name=cluster.text("tls-server-name"), insecure=insecure
    )
    try:
        build_context(trusted)
    except (OSError, ValueError) as problem:
        raise cluster.error("certificate-authority", describe_error(problem)) from problem
    if chain is None or key is None:
        return trusted
    settings = replace(trusted, certificate=KeyPair(chain=chain, key=key))
    try:
        build_context(settings)
    except (OSError, ValueError) as problem:
        raise user.error(
            "client-certificate", f"cannot be used with client-key: {describe_error(problem)}"
        ) from problem
    return settings


def _credentials(user: KubeconfigSection, parts: FileReader) -> CredentialSource | None:
    token_file = user.path("tokenFile")
    token = user.text("token")
    username = user.text("username")
    if username and (token or token_file):
        raise user.error("username", "conflicts with token; set only one of them")
    if token_file is not None:
        try:
            token = parts.token(token_file)
        except (OSError, ValueError) as problem:
            raise user.error("tokenFile", f"{token_file}: {describe_error(problem)}") from problem
    try:
        if token:
            return StaticCredentials(bearer(token.strip()))
        return StaticCredentials(basic(username, user.text("password"))) if username else None
    except ValueError as problem:
        raise user.error("token" if token else "password", str(problem)) from problem


def _exec_plugin(
    cluster: KubeconfigSection,
    user: KubeconfigSection,
    server: str,
    settings: TlsSettings,
    environ: Mapping[str, str],
) -> ExecPlugin | None:
    fields = user.fields.get("exec")
    if not fields:
        return None
    if not isinstance(fields, Mapping):
        raise user.error("exec", "must be a mapping")
    section = KubeconfigSection(file=user.file, name=f"{user.name}: exec", fields=fields)
    section.reject_unsupported(_EXEC_FIELDS)
    version = section.text("apiVersion")
    if version not in API_VERSIONS:
        raise section.error("apiVersion", f"{version!r} is not one of {', '.join(API_VERSIONS)}")
    _check_interactive(section, version)
    command = section.text("command")
    if not command:
        raise section.error("command", "is not set")
    if "/" in command:
        command = str(section.file.parent / command)
    args = section.items("args")
    if not all(isinstance(arg, str) for arg in args):
        raise section.error("args", "must be strings")
    info = _cluster_info(cluster, server, settings) if section.flag("provideClusterInfo") else None
    return ExecPlugin(
        ExecSettings(
            api_version=version,
            command=command,
            args=tuple(args),
            environ={**environ, **_exec_environ(section)},
            cluster=info,
            install_hint=section.text("installHint").strip(),
        )
    )


def _check_interactive(section: KubeconfigSection, version: str) -> None:
    mode = section.text("interactiveMode")
    if not mode and version.endswith("/v1"):
        raise section.error("interactiveMode", f"must be set for {version}")
    if mode == "Always":
        raise section.error("interactiveMode", "Always is not supported: there is no terminal")
    if mode not in ("", "Never", "IfAvailable"):
        raise section.error("interactiveMode", f"{mode!r} is unknown")


def _exec_environ(section: KubeconfigSection) -> dict[str, str]:
    environ: dict[str, str] = {}
    for pair in section.items("env"):
        match pair:
            case {"name": str(name), "value": str(value)}:
                if redact.is_secret_name(name):
                    try:
                        redact.register(value)
                    except ValueError as problem:
                        raise section.error("env", f"{name} {problem}") from problem
                environ[name] = value
            case _:
                raise section.error("env", "must be a list of name and value pairs, all strings")
    return environ


def _cluster_info(
    cluster: KubeconfigSection, server: str, settings: TlsSettings
) -> Mapping[str, Any]:
    """Return the cluster information for an exec plugin (`Cluster` of client.authentication)."""
    info: dict[str, Any] = {
        "server": server,
        "tls-server-name": settings.server_name,
        "insecure-skip-tls-verify": settings.insecure,
        "certificate-authority-data": base64.b64encode(settings.authorities or b"").decode(),
        "disable-compression": cluster.flag("disable-compression"),
    }
    for extension in cluster.items("extensions"):
        if isinstance(extension, Mapping) and extension.get("name") == names.EXTENSION_EXEC:
            info["config"] = extension.get("extension")
    return {field: value for field, value in info.items() if value}
