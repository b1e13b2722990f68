"""YAML as Kubernetes reads it: a name that occurs twice in one mapping is a fault."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml
from yaml import YAMLError

__all__ = ["DuplicateName", "YAMLError", "load"]


class DuplicateName(ValueError):
    """A name is given twice; the message says which, and where."""


def load(data: bytes) -> Any:
    """What a document holds.

    Raises:
        DuplicateName: a name is given twice.
        YAMLError: it is no YAML. ValueError, OverflowError, RecursionError: it cannot be read.
    """
    return yaml.load(data, _Loader)  # noqa: S506 - a safe loader, only stricter


class _Loader(yaml.SafeLoader):
    """Refuses a name that occurs twice in one mapping."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = str(key.value).lower() if isinstance(key, yaml.ScalarNode) else ""
            if name in seen:
                line = key.start_mark.line + 1
                raise DuplicateName(f"{key.value} is given twice, again in line {line}")
            if name:
                seen.add(name)
        return super().construct_mapping(node, deep)
