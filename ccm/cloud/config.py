"""What a provider gets to start with: its configuration and a few handles.

The daemon hands over the bytes of the `--cloud-config` file as they are; `Context` has
parsers for the usual formats, and `Fields` reads values so that every fault of a file is
reported in one message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ccm.base import files, redact
from ccm.base.clock import SYSTEM, Clock
from ccm.base.durations import parse_duration

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_PLACE = re.compile(r"line \d+, column \d+|byte \d+")


class ConfigError(Exception):
    """The provider's configuration is wrong; the daemon prints the message and exits with 1.

    Attributes:
        faults: every fault found, one sentence each.
    """

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


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


class Fields:
    """Reads typed values from a mapping and collects every fault.

    Read all fields, then call `done()`, which raises one `ConfigError` with every fault,
    unknown names included. A field that failed reads as its default meanwhile.
    """

    def __init__(self, values: Mapping[str, Any], *, where: str = "") -> None:
        self._values = values
        self._where = f"{where}." if where else ""
        self._seen: set[str] = set()
        self.faults: list[str] = []

    def text(self, name: str, default: str = "", *, required: bool = False) -> str:
        """A non-empty string; a missing one is a fault only if `required`.

        The log never shows the value if the name ends like that of a secret: password, token,
        secret, api key. `secret` reads one of another name.
        """
        value: object = self._take(name, default)
        if not isinstance(value, str):
            # Not the value itself: it may be a secret that lost its quotes.
            kind = type(value).__name__
            self.faults.append(f"{self._where}{name} is of type {kind}; it must be text in quotes")
            return default
        if required and not value:
            self.faults.append(f"{self._where}{name} is missing; it is required")
        if redact.is_secret(name):
            redact.know(value)
        return value

    def secret(self, name: str, default: str = "", *, required: bool = False) -> str:
        """As `text`, for a value that the log must never show."""
        value = self.text(name, default, required=required)
        redact.know(value)
        return value

    def integer(self, name: str, default: int, *, least: int | None = None) -> int:
        """A whole number, at least `least`."""
        value = self._take(name, default)
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            self._fault(name, value, "must be a whole number")
            return default
        if least is not None and value < least:
            self._fault(name, value, f"must be at least {least}")
            return default
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """True or false, also as a word."""
        value = self._take(name, default)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if not isinstance(value, bool):
            self._fault(name, value, "must be true or false")
            return default
        return value

    def duration(self, name: str, default: timedelta) -> timedelta:
        """A Go duration such as 30s, above zero."""
        value = self._take(name, None)
        if value is None:
            return default
        try:
            parsed = parse_duration(str(value))
        except ValueError:
            parsed = timedelta(0)
        if parsed <= timedelta(0):
            self._fault(name, value, "must be a duration above zero, such as 30s or 1m30s")
            return default
        return parsed

    def done(self) -> None:
        """Check for unknown names and report.

        Raises:
            ConfigError: there was any fault.
        """
        for name in self._values:
            if name not in self._seen:
                known = ", ".join(sorted(self._seen))
                self.faults.append(f"{self._where}{name} is unknown; known are {known}")
        if self.faults:
            raise ConfigError(*self.faults)

    def _take(self, name: str, default: Any) -> Any:
        self._seen.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def _fault(self, name: str, value: Any, rule: str) -> None:
        self.faults.append(f"{self._where}{name} is {value!r}; it {rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything a provider is opened with.

    Attributes:
        config: the raw bytes of the cloud-config file; empty when none was given.
        source: where they came from, for messages.
        cluster_name: `--cluster-name`.
        clients: makes API clients; None where there is no cluster, as in contract tests.
        clock: the clock to use, so that tests own time.
        followed: the files that the provider named to `follow`, and what they looked like then.
    """

    config: bytes = b""
    source: str = "cloud config"
    cluster_name: str = "kubernetes"
    clients: ClientBuilder | None = None
    clock: Clock = field(default=SYSTEM)
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

    def yaml(self) -> Fields:
        """The configuration as a YAML mapping. Raises ConfigError."""
        # Of the parsers only the one in use is loaded.
        import yaml

        try:
            parsed = yaml.safe_load(self.config)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise self._unreadable("YAML", error) from error
        return self._mapping(parsed)

    def json(self) -> Fields:
        """The configuration as a JSON object. Raises ConfigError."""
        try:
            parsed = msgspec.json.decode(self.config or b"{}")
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise self._unreadable("JSON", error) from error
        return self._mapping(parsed)

    def toml(self) -> Fields:
        """The configuration as TOML. Raises ConfigError."""
        import tomllib

        try:
            parsed = tomllib.loads(self.config.decode())
        except (ValueError, RecursionError) as error:
            raise self._unreadable("TOML", error) from error
        return self._mapping(parsed)

    def ini(self) -> Mapping[str, Fields]:
        """The configuration as INI: section -> fields. Raises ConfigError."""
        import configparser

        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(self.config.decode(), source=self.source)
        except (configparser.Error, ValueError) as error:
            raise self._unreadable("INI", error) from error
        return {name: Fields(dict(parser[name]), where=name) for name in parser.sections()}

    def _unreadable(self, form: str, error: Exception) -> ConfigError:
        return ConfigError(f"{self.source} is not valid {form}: {_place(error)}")

    def _mapping(self, parsed: Any) -> Fields:
        if parsed is None:
            return Fields({})
        if not isinstance(parsed, dict):
            kind = type(parsed).__name__
            raise ConfigError(f"{self.source} must be a mapping of names to values, not a {kind}")
        return Fields(parsed)


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
