"""What a provider gets to start with: its configuration and a few handles.

The daemon hands over the bytes of the `--cloud-config` file as they are; `Context` has
parsers for the usual formats, and reads them as a Struct or field by field
(`settings.Fields`), so that every fault of a file is reported in one message.
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
from ccm.cloud.settings import ConfigError, Fields, from_environment
from ccm.model import Node, ObjectReference, Service, names
from ccm.model.cidr import Network

S = TypeVar("S", bound=msgspec.Struct)

Form = Literal["YAML", "JSON", "TOML", "INI"]

READER = "provider-reader"
"""Name of the client that reads objects for providers, with the rights of the daemon itself."""

_PLACE = re.compile(r"line \d+, column \d+|byte \d+")


class ApiClient(Protocol):
    """The cluster's API server, for providers that need it."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request and return the body of the answer."""


class ClientBuilder(Protocol):
    """Makes API clients; the name ends up in the user agent."""

    def client(self, name: str) -> ApiClient:
        """A client of its own name and rate limit."""


class EventSink(Protocol):
    """Where a provider's events go."""

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Record an event of kind `Normal` or `Warning`; never blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything a provider is opened with.

    Attributes:
        config: the raw bytes of the cloud-config file; empty when none was given.
        source: where they came from, for messages.
        cluster_name: `--cluster-name`.
        clients: makes API clients; None where there is no cluster, as in contract tests.
        environ: the environment of the process, for a provider whose reference reads that; empty in
            contract tests, unless they say otherwise.
        pod_ranges: the ranges that routes are made for: `--cluster-cidr`, unless
            `--configure-cloud-routes=false`; empty where none are.
        events: takes what `warn` says; None where there is no cluster, as in contract tests.
        followed: the files that the provider named to `follow`, and what they looked like then.
    """

    config: bytes = b""
    source: str = "cloud config"
    cluster_name: str = "kubernetes"
    clients: ClientBuilder | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    pod_ranges: Sequence[Network] = ()
    events: EventSink | None = field(default=None, repr=False, compare=False)
    followed: dict[Path, files.Signature] = field(default_factory=dict, repr=False, compare=False)
    _readers: dict[str, ApiClient] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def warn(self, about: ObjectReference, reason: str, message: str) -> None:
        """Make a Warning event about a Node or Service that is served all the same.

        What is not served is an error, and the daemon makes its event. Secrets in the message are
        masked, and a message that is repeated is counted.

        Args:
            about: `node.reference` or `service.reference`.
            reason: in CamelCase, for machines; with most providers that of the vendor's manager.
            message: for people: what is so, and what they may do.
        """
        if self.events is not None:
            self.events.event(about, names.WARNING, reason, message)

    async def whole(self, obj: Node | Service) -> Mapping[str, Any]:
        """The object with every field it has at the API server, as it is now.

        `ccm.model` holds the fields that the daemon uses; this asks for all, one request for each
        call, at the rate of `--kube-api-qps`. Not for a digest, which makes no call.

        Raises:
            Aborted: it is gone, or another has its name.
            Unavailable: it cannot be read, or there is no cluster, as in contract tests.
        """
        if self.clients is None:
            raise errors.Unavailable(f"no API server to read {obj.key} from")
        if READER not in self._readers:  # one, because each has a rate of its own
            self._readers[READER] = self.clients.client(READER)
        client = self._readers[READER]
        place = f"namespaces/{obj.namespace}/services" if obj.namespace else "nodes"
        try:
            body = await client.request("GET", f"/api/v1/{place}/{obj.name}")
            found: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        except Exception as error:  # what an API client raises is its own
            if getattr(error, "status", None) == 404:
                raise errors.Aborted(f"{obj.key} is gone") from error
            raise errors.Unavailable(f"cannot read {obj.key}: {error}") from error
        if found.get("metadata", {}).get("uid") != obj.uid:
            raise errors.Aborted(f"{obj.key} is another by now")
        return found

    def follow(self, file: str | Path) -> Path:
        """Open the provider anew when that file changes, as when the cloud-config does.

        For credentials and certificates that the cloud-config names; call it before the file is
        read. What the provider holds when it is opened anew is tried with a first call before
        the old is let go, so that a broken file changes nothing.
        """
        path = Path(file)
        self.followed[path] = files.signature(path)
        return path

    def secret_file(self, file: str | Path) -> str:
        """The text of such a file, which the log never shows, white space around it left out.

        Raises:
            ConfigError: it cannot be read, is empty, or is too long for a credential.
        """
        try:
            text = credentials.read(self.follow(file))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} cannot be read: not text in UTF-8") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read: {files.reason(error)}") from error
        if not text:
            raise ConfigError(f"{file} is empty")
        redact.know(text)
        return text

    def settings(self, declared: type[S], *, form: Form = "YAML", environment: bool = False) -> S:
        """The configuration as the Struct that declares it, see `ccm.cloud.settings`.

        JSON is YAML too; the sections of INI are Structs within it.

        Args:
            declared: the Struct.
            form: of the file.
            environment: whether variables of the environment with the settings' names count too;
                what the file says goes before, and an empty variable is none.

        Raises:
            ConfigError: it cannot be read, or settings are wrong; every fault is named.
        """
        given: Mapping[str, Any] = {}
        if environment:
            given = from_environment(declared, self.environ)
        return self._fields({**given, **self._parsed(form)}).read(declared)

    def yaml(self) -> Fields:
        """The configuration as a YAML mapping. Raises ConfigError."""
        return self._fields(self._parsed("YAML"))

    def json(self) -> Fields:
        """The configuration as a JSON object. Raises ConfigError."""
        return self._fields(self._parsed("JSON"))

    def toml(self) -> Fields:
        """The configuration as TOML. Raises ConfigError."""
        return self._fields(self._parsed("TOML"))

    def ini(self) -> Mapping[str, Fields]:
        """The configuration as INI: section -> fields. Raises ConfigError."""
        sections: Mapping[str, Any] = self._parsed("INI")
        return {name: self._fields(section, where=name) for name, section in sections.items()}

    def _fields(self, values: Mapping[str, Any], *, where: str = "") -> Fields:
        return Fields(values, where=where, secret_file=self.secret_file)

    def _parsed(self, form: Form) -> Mapping[str, Any]:
        try:
            found = _parse(form, self.config)
        except Exception as error:  # whatever a parser stumbles over, it is the file
            raise ConfigError(f"{self.source} is not valid {form}: {_why(form, error)}") from error
        if not isinstance(found, dict | None):
            kind = "a list" if isinstance(found, list) else "one value"
            raise ConfigError(f"{self.source} must be a mapping of names to values, not {kind}")
        return found or {}


def _parse(form: Form, config: bytes) -> Any:
    # Of the parsers only the one in use is loaded.
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


def _why(form: Form, error: Exception) -> str:
    """Where a file cannot be read, without quoting it: the line may hold a secret."""
    if form == "YAML":
        from ccm.base import strict_yaml

        return strict_yaml.reason(error)
    lines = getattr(error, "errors", ())
    line = lines[0][0] if lines else getattr(error, "lineno", None)
    if line is not None:
        return f"line {line}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    found = _PLACE.search(str(error))
    return found[0] if found else "nested too deeply or not valid"
