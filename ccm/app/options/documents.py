"""Reads a configuration document: YAML or JSON into a tree, every fault with its path.

As strict as Kubernetes is: no field may be unknown or given twice, also not in two spellings
that differ in case only. Values are never quoted in a complaint about their form, because
somebody may have put a secret into the wrong place.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ccm.base import files

_LARGEST = 1 << 20
"""Bytes of a configuration file; a larger one is no configuration."""


class DocumentError(Exception):
    """A document that cannot be used; `faults` holds one sentence for each fault."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n  ".join(faults))
        self.faults = faults


class Section:
    """A mapping of the document: hands out its fields and collects what is wrong.

    Args:
        values: the mapping.
        path: its place in the document, empty at the top.
        faults: where complaints go; shared by the whole document.
    """

    def __init__(self, values: Mapping[Any, Any], path: str, faults: list[str]) -> None:
        self._values = {str(key).lower(): value for key, value in values.items()}
        self._names = {str(key).lower(): str(key) for key in values}
        self._path = path
        self._taken: dict[str, str] = {}
        self.faults = faults

    def where(self, name: str) -> str:
        """The path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str) -> Any:
        """The value of a field, whatever the case of its name; None if there is none."""
        self._taken[name.lower()] = name
        return self._values.get(name.lower())

    def fault(self, name: str, words: str) -> None:
        """Complain about a field."""
        self.faults.append(f"{self.where(name)} {words}")

    def section(self, name: str) -> Section:
        """A field that is a mapping; an empty one if it is missing."""
        value = self.take(name)
        if value is not None and not isinstance(value, dict):
            self.fault(name, f"must be a mapping, not {_kind_of(value)}")
        found = value if isinstance(value, dict) else {}
        return Section(found, self.where(name), self.faults)

    def sections(self, name: str) -> Iterator[Section]:
        """A field that is a list of mappings."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            self.fault(name, f"must be a list, not {_kind_of(value)}")
            return
        for number, entry in enumerate(value or ()):
            if isinstance(entry, dict):
                yield Section(entry, f"{self.where(name)}[{number}]", self.faults)
            else:
                self.fault(f"{name}[{number}]", f"must be a mapping, not {_kind_of(entry)}")

    def text(self, name: str) -> str:
        """A field that is text; empty if it is missing."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            self.fault(name, f"must be text, not {_kind_of(value)}")
        return value if isinstance(value, str) else ""

    def rest(self) -> Mapping[str, Any]:
        """All fields, as written, for a mapping whose names are free."""
        self._taken.update(self._names)
        return {self._names[key]: value for key, value in self._values.items()}

    def done(self) -> None:
        """Complain about the fields that nobody took."""
        for key, name in self._names.items():
            if key not in self._taken:
                self.fault(name, f"is unknown{_hint(key, self._taken)}")


T = TypeVar("T")


def load(
    file: str, what: str, take: Callable[[Section], T], *, kind: str, versions: Collection[str]
) -> T:
    """What `take` makes of a document of one kind.

    Args:
        file: its path.
        what: the flag that names it, for messages.
        take: reads its top section.
        kind: of the document.
        versions: those that are read.

    Raises:
        DocumentError: it cannot be read, is no mapping or of another kind or version, or
            whatever `take` complained about.
    """
    source = f"{what}={file}"
    faults: list[str] = []
    top = Section(_parse(_content(file, source), source), "", faults)
    for name, known in (("apiVersion", versions), ("kind", (kind,))):
        value = top.take(name)
        if value not in known:
            given = f"is {value!r}" if isinstance(value, str) else "is missing"
            top.fault(name, f"{given}; it must be {' or '.join(known)}")
    if not faults:
        result = take(top)
        top.done()
    if faults:
        raise DocumentError(*(f"{source}: {fault}" for fault in faults))
    return result


def _content(file: str, source: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise DocumentError(f"{source} cannot be read: {files.reason(error)}") from error
    if len(data) > _LARGEST:
        raise DocumentError(f"{source} is larger than {_LARGEST} bytes")
    return data


def _parse(data: bytes, source: str) -> dict[Any, Any]:
    # A daemon that is started by flags alone needs no reader of YAML.
    from ccm.base import strict_yaml

    try:
        found = strict_yaml.load(data, any_case=True)
    except strict_yaml.FAULTS as error:
        raise DocumentError(f"{source} is not valid YAML: {strict_yaml.reason(error)}") from error
    if not isinstance(found, dict):
        raise DocumentError(f"{source} must be a mapping of names to values, not {_kind_of(found)}")
    return found


def _kind_of(value: object) -> str:
    """What a value of a document is, in words."""
    words = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    if value is None:
        return "empty"
    return words.get(type(value), "a number" if isinstance(value, int | float) else "a date")


def _hint(key: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"; did you mean {known[near[0]]}?"
    return f"; known here: {', '.join(sorted(known.values()))}"
