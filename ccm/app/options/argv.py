"""Reads a command line as the Go reference's flag library (pflag) does.

`--name=value` and `--name value`; a boolean takes its value after `=` only; `-v4`, `-v=4`
and `-v 4` are one; `_` in a name means `-`; `--` ends the flags. Every fault of a command
line is collected before any is reported. Nothing here knows a particular flag.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ccm.base.flags import Flag


class UsageError(ValueError):
    """A command line that cannot be used; `faults` holds one sentence for each fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        lines = self.faults if len(self.faults) == 1 else ("invalid flags:", *self.faults)
        super().__init__("\n  ".join(lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a command line said.

    Attributes:
        values: flag name to value, for the flags that were given.
        arguments: the words that belong to no flag, empty ones left out.
    """

    values: Mapping[str, Any]
    arguments: tuple[str, ...]


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
                self.faults.append(f"unknown shorthand flag: '{letters[0]}' in {word}; see --help")
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
    return f"; did you mean --{near[0]}? See --help" if near else "; see --help"
