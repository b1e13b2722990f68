"""The texts about flags: help, and the lines that log the settings in force."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ccm.app.options.argv import quote
from ccm.base.flags import Flag, Section

_WIDTH = 100
_INDENT = " " * 10


def lines(flags: Mapping[str, Flag], current: Mapping[str, Any]) -> list[str]:
    """One line `FLAG: --name="value"` for every flag."""
    return [
        f"FLAG: --{name}={quote(flag.kind.write(current[name]))}" for name, flag in flags.items()
    ]


def explain(flags: Mapping[str, Flag], sections: Iterable[Section]) -> str:
    """The help of every flag that is not deprecated, by section, within 100 columns."""
    shown = [flag for flag in flags.values() if not flag.deprecated]
    return "\n".join(
        _explain_section(section, [flag for flag in shown if flag.section == section])
        for section in sections
    )


def _explain_section(section: Section, shown: Iterable[Flag]) -> str:
    rows = [f"{section.title[0].upper()}{section.title[1:]} flags:", ""]
    for flag in shown:
        rows += _explain_flag(flag)
    return "\n".join(rows) + "\n"


def _explain_flag(flag: Flag) -> list[str]:
    short = f"-{flag.short}, " if flag.short else "    "
    word = f" {flag.kind.word}" if flag.kind.bare is None else ""
    notes = ", ".join(_notes(flag))
    idle = f" Accepted without effect: {flag.accepted}." if flag.accepted else ""
    return [
        f"  {short}--{flag.name}{word}" + (f"  ({notes})" if notes else ""),
        *_wrap(flag.text + idle),
    ]


def _notes(flag: Flag) -> Iterator[str]:
    if flag.kind.bare is not None:
        yield flag.kind.word
    if flag.unit:
        yield flag.unit
    text = flag.kind.write(flag.default)
    if text not in ("", "[]"):
        yield f"default {text}"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
