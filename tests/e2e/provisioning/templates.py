"""Manifests with placeholders, which are written `<< UPPER_NAME >>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).with_name("testdata")

_PLACEHOLDER = re.compile(r"<< ([A-Z][A-Z0-9_]*) >>")


def placeholders(text: str) -> set[str]:
    """The names of all placeholders."""
    return set(_PLACEHOLDER.findall(text))


def fill(text: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """The documents of a text in which placeholders have their values."""
    missing = placeholders(text) - values.keys()
    assert not missing, f"no value for {', '.join(sorted(missing))}"
    filled = _PLACEHOLDER.sub(lambda match: values[match[1]], text)
    return [dict(document) for document in yaml.safe_load_all(filled)]


def deployment(package: str, variant: str, values: Mapping[str, str]) -> dict[str, Any]:
    """A MachineDeployment of a package; `variant` is empty for its plain one."""
    name = "-".join(filter(None, ("machinedeployment", package, variant)))
    (found,) = fill((FOLDER / f"{name}.yaml").read_text(), values)
    return found
