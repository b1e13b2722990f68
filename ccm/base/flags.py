"""Command line flags: how one is declared.

A flag is a field of a frozen dataclass, declared through a `Section`; the dataclass is the
table. All there is to say about a flag stands there: kind, default, meaning, unit, what is
right beyond its kind, and where the configuration file has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from ccm.base import flag_values as values
from ccm.base.flag_values import Kind

T = TypeVar("T")
Check = Callable[[T], str]
"""What would be right in place of a value, in words that follow it; empty if it is right."""

Fault = tuple[str, str]
"""The name of a flag, and what would be right."""

_USUAL: Mapping[type, Kind[Any]] = {
    bool: values.BOOL,
    float: values.FLOAT,
    int: values.INT32,
    str: values.STRING,
    timedelta: values.DURATION,
    tuple: values.STRINGS,
}


@dataclass(frozen=True, slots=True)
class Section:
    """A titled group of flags; `flag` declares one of them.

    Attributes:
        title: its heading in help.
        ours: True when the Go reference has no such flags.
    """

    title: str
    ours: bool = False

    def flag(
        self,
        default: T,
        text: str,
        *,
        kind: Kind[T] | None = None,
        check: Check[T] | None = None,
        **more: str,
    ) -> T:
        """Declare a flag as the default of a dataclass field.

        The field's name with `-` for `_`, but for one at its end, is the flag's name. Without a
        `kind` it is the usual one for the type of the default. `more` takes the `unit`, `path`,
        `short` and `deprecated` of `Flag`.
        """
        kind = kind or _USUAL[type(default)]
        facts = {"kind": kind, "section": self, "text": text, "check": check, **more}
        return field(default_factory=lambda: default, metadata={"flag": facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag.

    Attributes:
        name: without dashes in front.
        section: the group that help shows it in.
        kind: how its value is read and written.
        default: its value when nobody sets it.
        text: what it does, in a sentence or two; states what zero or empty means.
        unit: of a bare number, empty where the kind says it.
        check: looks at a value by itself; None = whatever the kind reads is right.
        path: the field of the configuration file that says the same; empty if none does.
        short: one letter for `-x`, or empty.
        deprecated: what to do instead; such a flag is left out of help.
    """

    name: str
    section: Section
    kind: Kind[Any]
    default: Any
    text: str
    unit: str = ""
    check: Check[Any] | None = None
    path: str = ""
    short: str = ""
    deprecated: str = ""

    def wrong(self, value: Any) -> str:
        """What would be right in place of a value; empty if it is right."""
        return self.check(value) if self.check is not None else ""

    def fault(self, value: Any, right: str) -> str:
        """The sentence that refuses a value."""
        return f"--{self.name}={self.kind.write(value)}: {right}"


def table(declared: type) -> dict[str, Flag]:
    """Every flag that a dataclass declares or inherits, by name, sorted."""
    fields = (entry for entry in dataclasses.fields(declared) if "flag" in entry.metadata)
    flags = (
        Flag(
            name=entry.name.rstrip("_").replace("_", "-"),
            default=entry.default_factory(),  # type: ignore[operator]
            **entry.metadata["flag"],
        )
        for entry in fields
    )
    return {flag.name: flag for flag in sorted(flags, key=lambda flag: flag.name)}
