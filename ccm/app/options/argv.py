"""Parser for command lines, and the help text for the flags of an option table.

The syntax is that of Go's pflag:

* `--name=value` and `--name value` mean the same, but a boolean takes its value only after `=`.
* `-v4`, `-v=4` and `-v 4` mean the same.
* `_` in a name means `-`.
* `--` ends the flags.

Unlike argparse, this parser reports all faults together, and accepts values that begin with a dash.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ccm.base.flags import Flag, FlagSection, aliases, did_you_mean, resolve_aliases

_WIDTH = 100
_INDENT = " " * 10

NO_IDLE: Mapping[str, bool] = MappingProxyType({})


class UsageError(ValueError):
    """An invalid command line; `faults` holds one message for each fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        lines = self.faults if len(self.faults) == 1 else ("invalid flags:", *self.faults)
        super().__init__("\n  ".join(lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedArguments:
    """A parsed command line.

    Attributes:
        values: flag name -> value, for the flags on the command line.
        arguments: words that belong to no flag; empty words are dropped.
        no_effect: names of the flags on the command line that have no effect.
        aliases: deprecated aliases on the command line.
    """

    values: Mapping[str, Any]
    arguments: tuple[str, ...]
    no_effect: tuple[str, ...] = ()
    aliases: frozenset[str] = frozenset()


def parse(
    flags: Mapping[str, Flag], argv: Sequence[str], no_effect: Mapping[str, bool] = NO_IDLE
) -> ParsedArguments:
    """Parse a command line, without the program's name.

    Args:
        flags: the option table.
        argv: the words of the command line.
        no_effect: flags that are accepted without effect -> whether they take a value.

    Raises:
        UsageError: unknown flags, missing or invalid values; lists all of them.
    """
    former = aliases(flags)
    values: dict[str, Any] = {}
    arguments: list[str] = []
    faults: list[str] = []
    unused: dict[str, None] = {}
    words = iter(argv)
    for word in words:
        if word == "--":
            arguments.extend(words)
        elif word == "-" or not word.startswith("-"):
            arguments.append(word)
        else:
            try:
                name, value = _split(flags, word)
                if name in no_effect and name not in flags:
                    unused[name] = None
                    if value is None and no_effect[name]:
                        next(words, None)
                else:
                    flag = former.get(name) or _known(flags, name, word)
                    values[name] = _value(flag, value, words, values.get(name))
            except ValueError as fault:
                faults.append(str(fault))
    used, violations = resolve_aliases(flags, values)
    faults += (f"--{name} {right}" for name, right in violations)
    if faults:
        raise UsageError(faults)
    return ParsedArguments(
        values=values,
        arguments=tuple(filter(None, arguments)),
        no_effect=tuple(unused),
        aliases=used,
    )


def _split(flags: Mapping[str, Flag], word: str) -> tuple[str, str | None]:
    """Return the flag name and the value in a word; the value is None if the word has none.

    Raises:
        ValueError: bad syntax, or an unknown short flag.
    """
    if not word.startswith("--"):
        name = next((flag.name for flag in flags.values() if flag.short == word[1]), None)
        if name is None:
            raise ValueError(f"unknown shorthand flag: '{word[1]}' in {word}; see --help")
        return name, word[2:].removeprefix("=") if len(word) > 2 else None
    written, equals, value = word[2:].partition("=")
    if not written or written.startswith("-"):
        raise ValueError(f"bad flag syntax: {word}")
    return written.replace("_", "-"), value if equals else None


def _known(flags: Mapping[str, Flag], name: str, word: str) -> Flag:
    if name in flags:
        return flags[name]
    hint = did_you_mean(name, flags, "--")
    advice = f"{hint} See --help" if hint else "; see --help"
    raise ValueError(f"unknown flag: {word.partition('=')[0]}{advice}")


def _value(flag: Flag, text: str | None, words: Iterator[str], earlier: Any) -> Any:
    if text is None:
        text = flag.kind.bare_value if flag.kind.bare_value is not None else next(words, None)
    if text is None:
        raise ValueError(f"flag needs an argument: --{flag.name} takes {flag.kind.expected}")
    try:
        value = flag.kind.parse(text)
    except ValueError as error:
        right = f"expected {flag.kind.expected}"
        raise ValueError(f"invalid argument {quote(text)} for --{flag.name}: {right}") from error
    return value if flag.kind.merge is None or earlier is None else flag.kind.merge(earlier, value)


def quote(text: str) -> str:
    """Return the text in double quotes, on one line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def explain(
    flags: Mapping[str, Flag],
    sections: Iterable[FlagSection],
    *,
    required: Collection[str] = (),
    no_effect: Collection[str] | None = None,
) -> str:
    """Return the help of flags: required flags first, then by section.

    Lines have at most 100 columns.

    Args:
        flags: the flags.
        sections: sections in the order of the help; a section without flags is left out.
        required: names of the flags that must be set.
        no_effect: names of the flags that are accepted without effect, to list them and deprecated
            flags, too; None = list neither.
    """
    known = [flag for flag in flags.values() if not flag.deprecated]
    groups = {"required": [flag for flag in known if flag.name in required]}
    for section in sections:
        groups[section.title] = [
            flag for flag in known if flag.section == section and flag.name not in required
        ]
    if no_effect is not None:
        former = [flag for flag in flags.values() if flag.deprecated]
        groups["deprecated"] = [
            *(replace(flag, text=f"DEPRECATED: {flag.deprecated}. {flag.text}") for flag in former),
            *aliases(flags).values(),
        ]
    texts = {
        title: [line for flag in listed for line in _explain_flag(flag)]
        for title, listed in groups.items()
        if listed
    }
    if no_effect:
        texts["ineffective"] = [f"      --{name}" for name in sorted(no_effect)]
    return "\n".join(
        "\n".join([f"{title[0].upper()}{title[1:]} flags:", "", *rows, ""])
        for title, rows in texts.items()
    )


def _explain_flag(flag: Flag) -> list[str]:
    short = f"-{flag.short}, " if flag.short else "    "
    is_bare = flag.kind.bare_value is not None
    default = flag.kind.write(flag.default)
    notes = [
        *([flag.kind.word] if is_bare else ()),
        *([flag.unit] if flag.unit else ()),
        *([f"default {default}"] if default not in ("", "[]") else ()),
    ]
    head = f"  {short}--{flag.name}{'' if is_bare else f' {flag.kind.word}'}"
    noted = f"({', '.join(notes)})" if notes else ""
    if noted and len(head) + 2 + len(noted) <= _WIDTH:
        return [f"{head}  {noted}", *_wrap(flag.text)]
    return [head, *(_wrap(noted) if noted else ()), *_wrap(flag.text)]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
