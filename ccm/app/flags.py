"""Command line flags: how one is declared, read from argv, and explained.

A flag is a field of a frozen dataclass, declared through a `Section`; the dataclass
is the table. Nothing here knows a particular flag. The syntax is that of the Go
reference (its pflag library): `--name=value` and `--name value`; a boolean takes its
value after `=` only; `-v4`, `-v=4` and `-v 4` are one; `_` in a name means `-`; `--`
ends the flags. Every fault of a command line is collected before any is reported.
"""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ccm.app import values

T = TypeVar("T")
State = Literal["works", "accepted"]
_WIDTH = 100


class UsageError(ValueError):
    """A command line that cannot be used; `faults` holds one sentence for each fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        lines = self.faults if len(self.faults) == 1 else ("invalid flags:", *self.faults)
        super().__init__("\n  ".join(lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag.

    Attributes:
        name: without dashes in front.
        section: title of the group that help shows it in.
        kind: how its value is read and written.
        default: its value when nobody sets it.
        text: what it does, in a sentence or two; states what zero or empty means.
        unit: of a bare number, empty where the kind says it.
        upstream: its name in the Go reference, None if it is ours.
        short: one letter for `-x`, or empty.
        accepted: why it has no effect here; empty if it works.
        deprecated: what to do instead; such a flag is left out of help.
    """

    name: str
    section: str
    kind: values.Kind[Any]
    default: Any
    text: str
    unit: str = ""
    upstream: str | None = None
    short: str = ""
    accepted: str = ""
    deprecated: str = ""

    @property
    def state(self) -> State:
        """`works`, or `accepted` when it is read and then has no effect."""
        return "accepted" if self.accepted else "works"


@dataclass(frozen=True, slots=True)
class Section:
    """A titled group of flags; `flag` declares one of them.

    Attributes:
        title: its heading in help.
        ours: True when the Go reference has no such flags.
        accepted: why no flag of this section has an effect yet; empty if they work.
    """

    title: str
    ours: bool = False
    accepted: str = ""

    def flag(
        self, kind: values.Kind[T], default: T, text: str, *, accepted: str = "", **more: str
    ) -> T:
        """Declare a flag as the default of a dataclass field.

        The field's name with `-` for `_` is the flag's name. `more` takes the `unit`,
        `short` and `deprecated` of `Flag`.
        """
        facts = {"kind": kind, "section": self, "text": text, **more}
        facts["accepted"] = accepted or self.accepted
        return field(default_factory=lambda: default, metadata={"flag": facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a command line said.

    Attributes:
        values: flag name to value, for the flags that were given.
        arguments: the words that belong to no flag, empty ones left out.
    """

    values: Mapping[str, Any]
    arguments: tuple[str, ...]


def table(declared: type) -> dict[str, Flag]:
    """Every flag that a dataclass declares, by name, in the order of its fields."""
    found = {}
    for entry in dataclasses.fields(declared):
        if "flag" not in entry.metadata:
            continue
        facts = dict(entry.metadata["flag"])
        section = facts.pop("section")
        name = entry.name.replace("_", "-")
        assert entry.default_factory is not dataclasses.MISSING
        found[name] = Flag(
            name=name,
            section=section.title,
            default=entry.default_factory(),
            upstream=None if section.ours else name,
            **facts,
        )
    return found


def parse(flags: Mapping[str, Flag], argv: Sequence[str]) -> Parsed:
    """Read a command line, the program's name left out.

    Raises:
        UsageError: an unknown flag, a missing value or a wrong one; all are named.
    """
    reader = _Reader(flags, argv)
    reader.read()
    if reader.faults:
        raise UsageError(reader.faults)
    return Parsed(values=reader.values, arguments=tuple(filter(None, reader.arguments)))


def lines(flags: Mapping[str, Flag], current: Mapping[str, Any]) -> list[str]:
    """One line `FLAG: --name="value"` for every flag, sorted by name."""
    return [
        f"FLAG: --{name}={quote(flags[name].kind.write(current[name]))}" for name in sorted(flags)
    ]


def explain(flags: Mapping[str, Flag], sections: Iterable[Section]) -> str:
    """The help of every flag that is not deprecated, by section, within 100 columns."""
    shown = [flag for flag in flags.values() if not flag.deprecated]
    return "\n".join(
        _explain_section(section, [flag for flag in shown if flag.section == section.title])
        for section in sections
    )


def quote(text: str) -> str:
    """The text in double quotes, on one line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class _Reader:
    """One pass over argv, pflag's rules, faults kept instead of raised."""

    def __init__(self, flags: Mapping[str, Flag], argv: Sequence[str]) -> None:
        self.values: dict[str, Any] = {}
        self.arguments: list[str] = []
        self.faults: list[str] = []
        self._flags = flags
        self._shorts = {flag.short: flag for flag in flags.values() if flag.short}
        self._words = iter(argv)

    def read(self) -> None:
        for word in self._words:
            if word == "--":
                self.arguments.extend(self._words)
            elif word.startswith("--"):
                self._long(word)
            elif word.startswith("-") and word != "-":
                self._cluster(word)
            else:
                self.arguments.append(word)

    def _long(self, word: str) -> None:
        written, equals, value = word[2:].partition("=")
        name = written.replace("_", "-")
        if not name or name.startswith("-"):
            self.faults.append(f"bad flag syntax: {word}")
        elif name not in self._flags:
            self.faults.append(f"unknown flag: --{written}{_hint(name, self._flags)}")
        elif equals:
            self._set(self._flags[name], value)
        else:
            self._set_from_next(self._flags[name])

    def _cluster(self, word: str) -> None:
        """`-h`, `-v4`, `-v=4`, `-v 4`, and letters without values run together."""
        letters = word[1:]
        while letters:
            flag = self._shorts.get(letters[0])
            rest = letters[1:]
            if flag is None:
                self.faults.append(f"unknown shorthand flag: '{letters[0]}' in {word}")
                return
            if rest.startswith("="):
                self._set(flag, rest[1:])
                return
            if rest and flag.kind.bare is None:
                self._set(flag, rest)
                return
            self._set_from_next(flag)
            letters = rest

    def _set_from_next(self, flag: Flag) -> None:
        value = flag.kind.bare
        if value is None:
            value = next(self._words, None)
        if value is None:
            self.faults.append(f"flag needs an argument: --{flag.name} takes {flag.kind.wants}")
        else:
            self._set(flag, value)

    def _set(self, flag: Flag, text: str) -> None:
        try:
            value = flag.kind.parse(text)
        except ValueError:
            self.faults.append(
                f"invalid argument {quote(text)} for --{flag.name}: it takes {flag.kind.wants}"
            )
            return
        if flag.kind.join is not None and flag.name in self.values:
            value = flag.kind.join(self.values[flag.name], value)
        self.values[flag.name] = value


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean --{near[0]}?" if near else ""


def _explain_section(section: Section, shown: Iterable[Flag]) -> str:
    rows = [f"{section.title[0].upper()}{section.title[1:]} flags:", ""]
    if section.accepted:
        rows += [*_wrap(f"Accepted without effect: {section.accepted}.", indent=6), ""]
    for flag in shown:
        rows += _explain_flag(flag, known=section.accepted)
    return "\n".join(rows) + "\n"


def _explain_flag(flag: Flag, *, known: str) -> list[str]:
    """`known` is the reason that stands at the head of the section already."""
    short = f"-{flag.short}, " if flag.short else "    "
    word = f" {flag.kind.word}" if flag.kind.bare is None else ""
    notes = ", ".join(_notes(flag))
    told = not flag.accepted or flag.accepted == known
    body = flag.text if told else f"{flag.text} Accepted without effect: {flag.accepted}."
    return [
        f"  {short}--{flag.name}{word}" + (f"  ({notes})" if notes else ""),
        *_wrap(body, indent=10),
    ]


def _notes(flag: Flag) -> Iterator[str]:
    if flag.kind.bare is not None:
        yield flag.kind.word
    if flag.unit:
        yield flag.unit
    text = flag.kind.write(flag.default)
    if text not in ("", "[]"):
        yield f"default {text}"


def _wrap(text: str, *, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
