"""What a provider gets to start with: its configuration and a few handles.

The daemon hands over the bytes of the `--cloud-config` file as they are; `Context` has
parsers for the usual formats, and reads them as a Struct (`settings`) or field by field
(`fields`), so that every fault of a file is reported in one message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from ccm.base import files, redact
from ccm.cloud.fields import ConfigError, Fields

S = TypeVar("S", bound=msgspec.Struct)

Form = Literal["YAML", "JSON", "TOML", "INI"]

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
        ...


class ClientBuilder(Protocol):
    """Makes API clients; the name ends up in the user agent."""

    def client(self, name: str) -> ApiClient:
        """A client of its own name and rate limit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything a provider is opened with.

    Attributes:
        config: the raw bytes of the cloud-config file; empty when none was given.
        source: where they came from, for messages.
        cluster_name: `--cluster-name`.
        clients: makes API clients; None where there is no cluster, as in contract tests.
        followed: the files that the provider named to `follow`, and what they looked like then.
    """

    config: bytes = b""
    source: str = "cloud config"
    cluster_name: str = "kubernetes"
    clients: ClientBuilder | None = None
    followed: dict[Path, files.Signature] = field(default_factory=dict, repr=False, compare=False)

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
            ConfigError: it cannot be read, or is empty.
        """
        try:
            text = self.follow(file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
            raise ConfigError(f"{file} cannot be read: {reason}") from error
        if not text:
            raise ConfigError(f"{file} is empty")
        redact.know(text)
        return text

    def settings(self, declared: type[S], *, form: Form = "YAML") -> S:
        """The configuration as the Struct that declares it, see `ccm.cloud.settings`.

        JSON is YAML too; the sections of INI are Structs within it.

        Raises:
            ConfigError: it cannot be read, or settings are wrong; every fault is named.
        """
        return self._fields(self._parsed(form)).read(declared)

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
            raise ConfigError(f"{self.source} is not valid {form}: {_place(error)}") from error
        if not isinstance(found, dict | None):
            kind = type(found).__name__
            raise ConfigError(f"{self.source} must be a mapping of names to values, not a {kind}")
        return found or {}


def _parse(form: Form, config: bytes) -> Any:
    # Of the parsers only the one in use is loaded.
    if form == "JSON":
        return msgspec.json.decode(config or b"{}")
    if form == "YAML":
        import yaml

        return yaml.safe_load(config)
    if form == "TOML":
        import tomllib

        return tomllib.loads(config.decode())
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(config.decode())
    return {name: dict(parser[name]) for name in parser.sections()}


def _place(error: Exception) -> str:
    """Where a file cannot be read, without quoting it: the line may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}"
    lines = getattr(error, "errors", ())
    line = lines[0][0] if lines else getattr(error, "lineno", None)
    if line is not None:
        return f"line {line}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    found = _PLACE.search(str(error))
    return found[0] if found else "nested too deeply or not valid"
