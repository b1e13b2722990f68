"""Parts of a configuration: kubeconfig files, their sections, and the files they name."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ccm.base.credentials import header_value
from ccm.base.files import Signature, reason, signature

T = TypeVar("T")


class ConfigError(Exception):
    """The configuration is missing, unreadable or not supported; the message says where."""


class Kubeconfig:
    """Kubeconfig files, merged as kubectl does: the first that has a name counts.

    Args:
        paths: the files, joined by the path separator; missing ones are skipped.

    Raises:
        ConfigError: there is none, or one is no kubeconfig.
    """

    def __init__(self, paths: str) -> None:
        self._paths = paths
        named = (Path(path).expanduser() for path in paths.split(os.pathsep) if path)
        self._files = {path: _content(path) for path in named if path.exists()}
        if not self._files:
            raise ConfigError(f"{paths}: no such file")

    @property
    def current_context(self) -> str:
        """The name of the current context; raises ConfigError if none is set."""
        for content in self._files.values():
            if content.get("current-context"):
                return str(content["current-context"])
        raise ConfigError(f"{self._paths}: current-context: is not set")

    def section(self, kind: str, name: str) -> Section:
        """Return the `cluster`, `context` or `user` of that name; ConfigError: there is none."""
        for path, content in self._files.items():
            for entry in content.get(f"{kind}s") or ():
                if entry["name"] == name:
                    fields = entry.get(kind) or {}
                    if not isinstance(fields, Mapping):
                        raise ConfigError(f"{path}: {kind} {name!r}: must be a mapping")
                    return Section(file=path, name=f"{kind} {name!r}", fields=fields)
        raise ConfigError(f"{self._paths}: {kind} {name!r} does not exist")


def _content(path: Path) -> Mapping[str, Any]:
    """Return the content of a kubeconfig; raises ConfigError for any other file."""
    # A daemon inside a cluster needs no reader of YAML.
    from ccm.base import strict_yaml

    try:
        with path.open(encoding="utf-8") as file:
            found = strict_yaml.load(file)
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read: {reason(problem)}") from problem
    except strict_yaml.FAULTS as error:
        raise ConfigError(f"{path}: is not valid YAML: {strict_yaml.reason(error)}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is not a kubeconfig: it must be a mapping with clusters")
    for kind in ("clusters", "contexts", "users"):
        entries = found.get(kind) or []
        if not isinstance(entries, list) or not all(
            isinstance(one, dict) and "name" in one for one in entries
        ):
            raise ConfigError(
                f"{path}: is not a kubeconfig: {kind} must be a list of mappings, each with a name"
            )
    return found


class Parts:
    """Reads files, and remembers how they looked before."""

    def __init__(self) -> None:
        self.seen: dict[Path, Signature] = {}

    def read(self, path: Path) -> bytes:
        """The content of a file; raises OSError."""
        self.seen[path] = signature(path)
        return path.read_bytes()

    def token(self, path: Path) -> str:
        """The token in a file, without surrounding white space; raises OSError, ValueError."""
        token = self.read(path).decode(errors="replace").strip()
        if not token:
            raise ValueError("it is empty")
        return header_value(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a kubeconfig with its place, so that every complaint can name it."""

    file: Path
    name: str
    fields: Mapping[str, Any]

    def fault(self, field: str, words: str) -> ConfigError:
        """What is wrong with a field, to be raised."""
        return ConfigError(f"{self.file}: {self.name}: {field}: {words}")

    def refuse_others(self, honoured: set[str]) -> None:
        """Raise for a field that would be ignored."""
        for name, value in self.fields.items():
            if name not in honoured and value not in (None, "", False, [], {}):
                raise self.fault(str(name), "is not supported")

    def text(self, field: str) -> str:
        """A string; empty if it is not set."""
        return self._typed(field, str, "a string")

    def flag(self, field: str) -> bool:
        """A truth value; False if it is not set."""
        return self._typed(field, bool, "true or false")

    def path(self, field: str) -> Path | None:
        """A path, relative to the file; None if it is not set."""
        value = self.text(field)
        return self.file.parent / value if value else None

    def data(self, field: str) -> bytes | None:
        """Bytes given in base64; None if they are not set."""
        value = self.text(field)
        if not value:
            return None
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as problem:
            raise self.fault(field, f"is not base64: {problem}") from problem

    def content(self, field: str, parts: Parts) -> bytes | None:
        """Inline data wins over a file, as in client-go."""
        inline = self.data(f"{field}-data")
        file = self.path(field)
        if inline is not None or file is None:
            return inline
        try:
            return parts.read(file)
        except (OSError, ValueError) as problem:
            raise self.fault(field, f"{file} cannot be read: {reason(problem)}") from problem

    def items(self, field: str) -> list[Any]:
        """A list; empty if it is not set."""
        return self._typed(field, list, "a list")

    def _typed(self, field: str, kind: type[T], words: str) -> T:
        value = self.fields.get(field)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise self.fault(field, f"must be {words}")
        return value
