"""YAML as Kubernetes reads it: a duplicate name in a mapping is an error.

Import this module only inside functions that read a document: a daemon that is configured by flags
alone needs no YAML parser.
"""

from __future__ import annotations

import re
from typing import IO, Any

import yaml
from yaml import YAMLError

__all__ = ["LOAD_ERRORS", "YAMLError", "describe_error", "load", "load_all"]

_QUOTED = re.compile(r"'(.+)'")
_HARMLESS = re.compile(r"<[a-z ]+>|\\.|.")
"""Quoted parts of an error message that may be shown: a kind of token, or one character."""


class _DuplicateName(ValueError):
    """A name occurs twice; the message has the name and its line."""


LOAD_ERRORS = (YAMLError, ValueError, OverflowError, RecursionError)
"""Errors that `load` raises for an unreadable document."""


def load(data: bytes | IO[str], *, case_insensitive: bool = False) -> Any:
    """Return the content of a document; if it is unreadable, raise one of `LOAD_ERRORS`.

    Args:
        case_insensitive: whether names that differ only in case are duplicates.
    """
    return yaml.load(data, _CaseInsensitive if case_insensitive else _Strict)  # noqa: S506 - safe, only stricter


def load_all(data: bytes | IO[str]) -> list[Any]:
    """Return the contents of all documents; if one is unreadable, raise one of `LOAD_ERRORS`."""
    return list(yaml.load_all(data, _Strict))


def describe_error(error: Exception) -> str:
    """Return the fault of a document and its position, without values, which may be secret."""
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
        return "unreadable text, or an invalid date or number"
    problem = getattr(error, "problem", None) or "unreadable"
    shown = _QUOTED.sub(
        lambda match: match[0] if _HARMLESS.fullmatch(match[1]) else "(not shown)", problem
    )
    return f"line {mark.line + 1}, column {mark.column + 1}: {shown}"


class _Strict(yaml.SafeLoader):
    """Safe loader that rejects duplicate names in a mapping."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Check nodes rather than values: an explicit name may override a name from `<<`.
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name = self.canonical_name(key.value)
            if name in seen:
                line = key.start_mark.line + 1
                raise _DuplicateName(f"line {line}: duplicate name {key.value}")
            seen.add(name)
        return node

    @staticmethod
    def canonical_name(name: str) -> str:
        """Return the same text for all names that count as duplicates of each other."""
        return name


def _whole_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """Construct an integer as the safe loader does, up to 64 bits."""
    number: int = loader.construct_yaml_int(node)
    if not -(2**63) <= number < 2**64:  # Python refuses to print thousands of digits
        raise yaml.constructor.ConstructorError(
            problem="number exceeds 64 bits", problem_mark=node.start_mark
        )
    return number


_Strict.add_constructor("tag:yaml.org,2002:int", _whole_number)


class _CaseInsensitive(_Strict):
    """Strict loader that also rejects names that differ only in case, as duplicates."""

    @staticmethod
    def canonical_name(name: str) -> str:
        return name.lower()
