"""Input of a provider when it is opened: its configuration and access to the cluster.

The daemon passes the bytes of the `--cloud-config` file unchanged. `Context` parses the usual
formats into a Struct or into `settings.Fields`, so that one message reports every fault of a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from ccm.base import credentials, files, redact
from ccm.cloud import errors
from ccm.cloud.journal import PartJournal
from ccm.cloud.settings import ConfigError, Fields, from_environment
from ccm.model import Node, ObjectReference, Service, names
from ccm.model.cidr import Network

S = TypeVar("S", bound=msgspec.Struct)

Form = Literal["YAML", "JSON", "TOML", "INI"]

READER = "provider-reader"
"""Name of the API client that reads objects for providers, with the daemon's own permissions."""

_POSITION = re.compile(r"line \d+, column \d+|byte \d+")


class ApiClient(Protocol):
    """Client of the cluster's API server, for providers that need it."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request and return the body of the response."""


class ClientBuilder(Protocol):
    """Factory of API clients."""

    def client(self, name: str) -> ApiClient:
        """Return a client with its own rate limit; `name` becomes part of its user agent."""


class EventSink(Protocol):
    """Recorder of a provider's events."""

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Record an event of kind `Normal` or `Warning`; never blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Input of a provider when it is opened.

    Attributes:
        config: the raw bytes of the cloud-config file; empty when none was given.
        source: the origin of `config`, for messages.
        cluster_name: `--cluster-name`.
        clients: factory of API clients; None without a cluster, as in contract tests.
        environ: the environment variables of the process, for a provider whose vendor's own
            cloud-controller-manager reads them; empty in contract tests, unless a test sets them.
        pod_ranges: the ranges of `--cluster-cidr`, whose Pods need routes; empty with
            `--configure-cloud-routes=false`.
        events: recorder for `warn`; None without a cluster, as in contract tests.
        journal: recorder of the resources that a load balancer or VM needs besides itself.
        followed: the files passed to `follow`, with their signatures at the time of the call.
    """

    config: bytes = b""
    source: str = "cloud config"
    cluster_name: str = "kubernetes"
    clients: ClientBuilder | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    pod_ranges: Sequence[Network] = ()
    events: EventSink | None = field(default=None, repr=False, compare=False)
    journal: PartJournal = field(default_factory=PartJournal, repr=False, compare=False)
    followed: dict[Path, files.Signature] = field(default_factory=dict, repr=False, compare=False)
    _readers: dict[str, ApiClient] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def warn(self, about: ObjectReference, reason: str, message: str) -> None:
        """Record a Warning event about a Node or Service that is served nevertheless.

        If the object cannot be served, raise an error instead: the daemon then records the event.
        Secrets in the message are masked, and repeated messages are counted.

        Args:
            about: `node.reference` or `service.reference`.
            reason: reason in CamelCase; most providers use a reason of the vendor's own
                cloud-controller-manager.
            message: the cause, and what users can do about it.
        """
        if self.events is not None:
            self.events.event(about, names.WARNING, reason, message)

    async def whole(self, obj: Node | Service) -> Mapping[str, Any]:
        """Read an object from the API server, with all its fields.

        `ccm.model` has only the fields that the daemon uses. Each call sends one request, within
        the rate limit `--kube-api-qps`. Do not call it in `load_balancer_digest`, which must do no
        I/O.

        Raises:
            Aborted: the object is gone, or its name now belongs to another object.
            Unavailable: the request failed, or there is no cluster, as in contract tests.
        """
        if self.clients is None:
            raise errors.Unavailable(f"{obj.key} cannot be read: no cluster is connected")
        if READER not in self._readers:  # shared, because each client has its own rate limit
            self._readers[READER] = self.clients.client(READER)
        client = self._readers[READER]
        place = f"namespaces/{obj.namespace}/services" if obj.namespace else "nodes"
        try:
            body = await client.request("GET", f"/api/v1/{place}/{obj.name}")
            whole_object: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        except Exception as error:  # `ApiClient` declares no error classes
            if getattr(error, "status", None) == 404:
                raise errors.Aborted(f"{obj.key} was deleted") from error
            raise errors.Unavailable(f"{obj.key} cannot be read: {error}") from error
        if whole_object.get("metadata", {}).get("uid") != obj.uid:
            raise errors.Aborted(f"{obj.key} was replaced by another object")
        return whole_object

    def follow(self, file: str | Path) -> Path:
        """Watch a file and return its path; a change reopens the provider.

        For credentials and certificates that the cloud-config names; the cloud-config itself is
        always watched. Call this method before reading the file, so that no change is missed. The
        reopened provider replaces the old one only after a successful test call, so the old one
        stays in use while the file is broken.
        """
        path = Path(file)
        self.followed[path] = files.signature(path)
        return path

    def secret_file(self, file: str | Path) -> str:
        """Follow a file that holds a secret, and return its text without surrounding white space.

        The text is masked in all output from then on.

        Raises:
            ConfigError: the file is unreadable, empty or too long for a credential.
        """
        try:
            text = credentials.read(self.follow(file))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} cannot be read: not text in UTF-8") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read: {files.describe_error(error)}") from error
        if not text:
            raise ConfigError(f"{file} is empty")
        redact.register(text)
        return text

    def settings(self, declared: type[S], *, form: Form = "YAML", environment: bool = False) -> S:
        """Return the configuration as the Struct that declares it; see `ccm.cloud.settings`.

        Args:
            declared: the Struct; each section of an INI file is a nested Struct.
            form: format of the file; YAML includes JSON.
            environment: whether environment variables that are named like settings also set them.
                The file wins over variables, and an empty variable counts as unset.

        Raises:
            ConfigError: the file is malformed or settings are invalid; the message lists every
                fault.
        """
        variables: Mapping[str, Any] = {}
        if environment:
            variables = from_environment(declared, self.environ)
        return self._fields({**variables, **self._parsed(form)}).read(declared)

    def yaml(self) -> Fields:
        """Parse the configuration as a YAML mapping. Raises ConfigError."""
        return self._fields(self._parsed("YAML"))

    def json(self) -> Fields:
        """Parse the configuration as a JSON object. Raises ConfigError."""
        return self._fields(self._parsed("JSON"))

    def toml(self) -> Fields:
        """Parse the configuration as TOML. Raises ConfigError."""
        return self._fields(self._parsed("TOML"))

    def ini(self) -> Mapping[str, Fields]:
        """Parse the configuration as INI: section -> fields. Raises ConfigError."""
        sections: Mapping[str, Any] = self._parsed("INI")
        return {name: self._fields(section, where=name) for name, section in sections.items()}

    def _fields(self, values: Mapping[str, Any], *, where: str = "") -> Fields:
        return Fields(values, where=where, secret_file=self.secret_file)

    def _parsed(self, form: Form) -> Mapping[str, Any]:
        try:
            parsed = _parse(form, self.config)
        except Exception as error:  # parsers raise many classes; all mean a malformed file
            raise ConfigError(
                f"{self.source} is not valid {form}: {_syntax_error(form, error)}"
            ) from error
        if not isinstance(parsed, dict | None):
            kind = "a list" if isinstance(parsed, list) else "one value"
            raise ConfigError(f"{self.source} must be a mapping of names to values, not {kind}")
        return parsed or {}


def _parse(form: Form, config: bytes) -> Any:
    # Imports are local so that only the parser in use is loaded.
    if form == "JSON":
        return msgspec.json.decode(config or b"{}")
    if form == "YAML":
        from ccm.base import strict_yaml

        return strict_yaml.load(config)
    if form == "TOML":
        import tomllib

        return tomllib.loads(config.decode())
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(config.decode())
    return {name: dict(parser[name]) for name in parser.sections()}


def _syntax_error(form: Form, error: Exception) -> str:
    """Return the position of a syntax error without quoting the line: it may hold a secret."""
    if form == "YAML":
        from ccm.base import strict_yaml

        return strict_yaml.describe_error(error)
    lines = getattr(error, "errors", ())
    line = lines[0][0] if lines else getattr(error, "lineno", None)
    if line is not None:
        return f"line {line}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    position = _POSITION.search(str(error))
    return position[0] if position else "nested too deeply or invalid"
