"""Strict reader of configuration documents in YAML or JSON; every fault names the field's path.

Like Kubernetes, it rejects unknown fields and duplicate fields, including fields that differ only
in case. Errors about the type of a value never quote the value, which may be a misplaced secret.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ccm.base import files

_LARGEST = 1 << 20
"""Maximum size of a configuration file in bytes."""


class DocumentError(Exception):
    """An invalid document; `faults` holds one message for each fault."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n  ".join(faults))
        self.faults = faults


class DocumentSection:
    """A mapping in the document; records which fields were read, and collects faults.

    Args:
        values: the mapping.
        path: path of the mapping in the document; empty at the top.
        faults: list to which faults are added; all sections of the document share it.
    """

    def __init__(self, values: Mapping[Any, Any], path: str, faults: list[str]) -> None:
        self._values = {str(key).lower(): value for key, value in values.items()}
        self._names = {str(key).lower(): str(key) for key in values}
        self._path = path
        self._taken: dict[str, str] = {}
        self.faults = faults

    def where(self, name: str) -> str:
        """Return the path of a field in the document."""
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str) -> Any:
        """Return the value of a field, and mark the field as known; None if it is missing.

        The case of the name is ignored.
        """
        self._taken[name.lower()] = name
        return self._values.get(name.lower())

    def add_fault(self, name: str, words: str) -> None:
        """Add a fault of a field."""
        self.faults.append(f"{self.where(name)} {words}")

    def section(self, name: str) -> DocumentSection:
        """Return the mapping in a field as a section.

        A missing field gives an empty section. So does a field of another type, which is a fault.
        """
        value = self.take(name)
        if value is not None and not isinstance(value, dict):
            self.add_fault(name, f"must be a mapping, not {_kind_of(value)}")
        values = value if isinstance(value, dict) else {}
        return DocumentSection(values, self.where(name), self.faults)

    def sections(self, name: str) -> Iterator[DocumentSection]:
        """Yield a section for each item of a list of mappings; other types are faults."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            self.add_fault(name, f"must be a list, not {_kind_of(value)}")
            return
        for number, entry in enumerate(value or ()):
            if isinstance(entry, dict):
                yield DocumentSection(entry, f"{self.where(name)}[{number}]", self.faults)
            else:
                self.add_fault(f"{name}[{number}]", f"must be a mapping, not {_kind_of(entry)}")

    def text(self, name: str) -> str:
        """Return the value of a text field; empty if it is missing or not text.

        A value that is not text is a fault.
        """
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            self.add_fault(name, f"must be text, not {_kind_of(value)}")
        return value if isinstance(value, str) else ""

    def all_fields(self) -> Mapping[str, Any]:
        """Return all fields by name, and mark all as known; for a mapping with arbitrary names."""
        self._taken.update(self._names)
        return {self._names[key]: value for key, value in self._values.items()}

    def reject_unknown(self) -> None:
        """Add a fault for each field that is not marked as known."""
        for key, name in self._names.items():
            if key not in self._taken:
                self.add_fault(name, f"is unknown{_hint(key, self._taken)}")


T = TypeVar("T")


def load(
    file: str,
    flag: str,
    parse: Callable[[DocumentSection], T],
    *,
    kind: str,
    versions: Collection[str],
) -> T:
    """Read a document, and return the result of `parse`.

    Args:
        file: path of the document.
        flag: flag that names the file, for messages.
        parse: parses the top section and adds faults to it.
        kind: required `kind`.
        versions: accepted values of `apiVersion`.

    Raises:
        DocumentError: the file is unreadable, is larger than 1 MiB, is no mapping, has another kind
            or version, or has a field that `parse` did not read; or `parse` added faults.
    """
    source = f"{flag}={file}"
    faults: list[str] = []
    top = DocumentSection(_parse(_content(file, source), source), "", faults)
    for name, known in (("apiVersion", versions), ("kind", (kind,))):
        value = top.take(name)
        if value not in known:
            cause = f"is {value!r}" if isinstance(value, str) else "is missing"
            top.add_fault(name, f"{cause}; must be {' or '.join(known)}")
    if not faults:
        result = parse(top)
        top.reject_unknown()
    if faults:
        raise DocumentError(*(f"{source}: {fault}" for fault in faults))
    return result


def _content(file: str, source: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise DocumentError(f"{source} cannot be read: {files.describe_error(error)}") from error
    if len(data) > _LARGEST:
        raise DocumentError(f"{source} is larger than {_LARGEST} bytes")
    return data


def _parse(data: bytes, source: str) -> dict[Any, Any]:
    # Imported here: a daemon without a configuration file needs no YAML parser.
    from ccm.base import strict_yaml

    try:
        document = strict_yaml.load(data, case_insensitive=True)
    except strict_yaml.LOAD_ERRORS as error:
        raise DocumentError(
            f"{source} is not valid YAML: {strict_yaml.describe_error(error)}"
        ) from error
    if not isinstance(document, dict):
        raise DocumentError(
            f"{source} must be a mapping of names to values, not {_kind_of(document)}"
        )
    return document


def _kind_of(value: object) -> str:
    """Return the type of a YAML value in words, such as `a list`."""
    words = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    if value is None:
        return "empty"
    return words.get(type(value), "a number" if isinstance(value, int | float) else "a date")


def _hint(key: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"; did you mean {known[near[0]]}?"
    return f"; known: {', '.join(sorted(known.values()))}"
