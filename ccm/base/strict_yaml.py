"""YAML as Kubernetes reads it: a name that occurs twice in one mapping is a fault.

Import it where a document is read: a daemon that is started by flags alone needs no reader.
"""

from __future__ import annotations

import re
from typing import IO, Any

import yaml
from yaml import YAMLError

__all__ = ["FAULTS", "YAMLError", "load", "load_all", "reason"]

_QUOTED = re.compile(r"'(.+)'")
_HARMLESS = re.compile(r"<[a-z ]+>|\\.|.")
"""What of a document may be quoted: a kind of token, or one character."""


class _DuplicateName(ValueError):
    """A name is given twice; the message says which, and where."""


FAULTS = (YAMLError, ValueError, OverflowError, RecursionError)
"""What `load` raises for a document that it cannot read."""


def load(data: bytes | IO[str], *, any_case: bool = False) -> Any:
    """What a document holds; raises one of `FAULTS`.

    `any_case`: names that differ in case only are one.
    """
    return yaml.load(data, _AnyCase if any_case else _Strict)  # noqa: S506 - safe, only stricter


def load_all(data: bytes | IO[str]) -> list[Any]:
    """What the documents of a file hold; raises one of `FAULTS`."""
    return list(yaml.load_all(data, _Strict))


def reason(error: Exception) -> str:
    """What is wrong with a document and where, without quoting it: it may hold a secret."""
    if isinstance(error, _DuplicateName):
        return str(error)
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1}: {error.reason}"
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "no readable text, or a value that is no date or number although it looks like one"
    said = getattr(error, "problem", None) or "unreadable"
    shown = _QUOTED.sub(lambda it: it[0] if _HARMLESS.fullmatch(it[1]) else "(not shown)", said)
    return f"line {mark.line + 1}, column {mark.column + 1}: {shown}"


class _Strict(yaml.SafeLoader):
    """Refuses a name that occurs twice in one mapping."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, and not where values are made: what `<<` brings may be given once more.
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name = self.same(key.value)
            if name in seen:
                line = key.start_mark.line + 1
                raise _DuplicateName(f"{key.value} is given twice, again in line {line}")
            seen.add(name)
        return node

    @staticmethod
    def same(name: str) -> str:
        """What is equal for names that are one."""
        return name


def _whole_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """Read an integer as the safe loader does, up to 64 bits."""
    found: int = loader.construct_yaml_int(node)
    if not -(2**63) <= found < 2**64:  # Python would not even print thousands of digits
        raise yaml.constructor.ConstructorError(
            problem="a number of more than 64 bits", problem_mark=node.start_mark
        )
    return found


_Strict.add_constructor("tag:yaml.org,2002:int", _whole_number)


class _AnyCase(_Strict):
    """Takes names that differ in case only for one."""

    @staticmethod
    def same(name: str) -> str:
        """What is equal for names that are one."""
        return name.lower()
