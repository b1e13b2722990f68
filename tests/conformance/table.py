"""The conformance table: every promised behaviour with an ID, in `rows/*.toml`.

A row has a situation and the expected behaviour. Where the behaviour differs from the Go
reference on purpose, `deviation` says how and why. Tests name the rows they prove with
`@pytest.mark.row("...")`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row; `deviation` is empty where the reference does the same."""

    situation: str
    expected: str
    deviation: str = ""


def load(folder: Path = FOLDER) -> Mapping[str, Row]:
    """All rows by ID.

    Raises:
        ValueError: an ID occurs twice.
    """
    rows: dict[str, Row] = {}
    for path in sorted(folder.glob("*.toml")):
        for name, fields in tomllib.loads(path.read_text()).items():
            if name in rows:
                raise ValueError(f"{path.name}: row {name} is there twice")
            rows[name] = Row(**fields)
    return rows


def case(rows: str | tuple[str, ...], *values: Any, id: str | None = None) -> Any:  # noqa: A002
    """A set of parameters that proves one row or several."""
    names = (rows,) if isinstance(rows, str) else rows
    return pytest.param(*values, id=id, marks=pytest.mark.row(*names))
