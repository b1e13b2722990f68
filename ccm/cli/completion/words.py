"""What can be typed: programs, their commands, and the flags of each, with values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ccm.app import names
from ccm.app.flags import Flag
from ccm.app.options import FLAGS, PROGRAM
from ccm.cli import doctor
from ccm.cloud import registry

_FILE_ENDS = ("config", "-file", "-config-to", "-dir")


class Value(Enum):
    """What follows a flag."""

    NONE = "none"
    OPTIONAL = "optional"
    """Only behind `=`; a boolean of the daemon."""
    ANY = "any"
    FILE = "file"
    ONE = "one"
    """One of some words."""
    LIST = "list"
    """Some of them, with commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One flag.

    Attributes:
        long: with its dashes; empty if there is a short form only.
        short: with its dash; empty if there is none.
        help: what it does, one line.
        value: what follows it.
        words: the values that are known.
    """

    long: str = ""
    short: str = ""
    help: str = ""
    value: Value = Value.NONE
    words: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand.

    Attributes:
        name: as typed.
        help: what it does, one line.
        options: its flags.
        words: what may stand there without a dash.
    """

    name: str
    help: str
    options: Sequence[Option]
    words: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program: either it has commands, or flags only.

    Attributes:
        name: as typed.
        options: flags before any command.
        commands: empty for the daemon.
    """

    name: str
    options: Sequence[Option]
    commands: Sequence[Command] = ()


def programs(parser: argparse.ArgumentParser) -> tuple[Program, ...]:
    """`ccm`, as its parser has it, and the daemon, as its table has it."""
    known = sorted(registry.available())
    daemon = [_of_flag(flag, known) for flag in FLAGS.values() if not flag.deprecated]
    own = [_of_flag(flag, known) for flag in doctor.own_flags().values()]
    commands = [
        _command(name, text, below, [*own, *daemon] if name == doctor.NAME else None, known)
        for name, text, below in _commands(parser)
    ]
    return (
        Program(name=parser.prog, options=_options(parser), commands=commands),
        Program(name=PROGRAM, options=daemon),
    )


def _command(
    name: str,
    text: str,
    parser: argparse.ArgumentParser,
    flags: Sequence[Option] | None,
    known: Sequence[str],
) -> Command:
    return Command(
        name=name,
        help=text,
        options=_options(parser, known) if flags is None else flags,
        words=[word for action in _positionals(parser) for word in _choices(action, known)],
    )


def _commands(
    parser: argparse.ArgumentParser,
) -> Iterable[tuple[str, str, argparse.ArgumentParser]]:
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - see `_actions`
            helps = {each.dest: each.help or "" for each in action._choices_actions}  # noqa: SLF001
            for name, below in action.choices.items():
                yield name, helps.get(name, ""), below


def _options(parser: argparse.ArgumentParser, known: Sequence[str] = ()) -> list[Option]:
    return [_of_action(action, known) for action in _actions(parser) if action.option_strings]


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in _actions(parser) if not action.option_strings]


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """argparse has no public way to ask what a parser knows."""
    return parser._actions  # noqa: SLF001


def _of_action(action: argparse.Action, known: Sequence[str]) -> Option:
    long = next((name for name in action.option_strings if name.startswith("--")), "")
    short = next((name for name in action.option_strings if not name.startswith("--")), "")
    words = _choices(action, known)
    value = Value.NONE
    if action.nargs != 0:
        value = _value(long, words)
    text = (action.help or "").replace("%(default)s", str(action.default))
    return Option(long=long, short=short, help=_line(text), value=value, words=words)


def _choices(action: argparse.Action, known: Sequence[str]) -> Sequence[str]:
    if action.dest in ("name", "provider"):
        return tuple(known)
    choices: Any = action.choices
    return () if choices is None or isinstance(choices, Mapping) else tuple(map(str, choices))


def _of_flag(flag: Flag, known: Sequence[str]) -> Option:
    words = _WORDS.get(flag.name, ())
    if flag.name == "cloud-provider":
        words = tuple(known)
    value = _value(flag.name, words)
    if flag.name == "controllers":
        value = Value.LIST
    if flag.kind.bare is not None:
        value, words = Value.OPTIONAL, ("true", "false")
    return Option(
        long=f"--{flag.name}",
        short=f"-{flag.short}" if flag.short else "",
        help=_line(flag.text),
        value=value,
        words=words,
    )


_WORDS: Mapping[str, Sequence[str]] = {
    "controllers": tuple(
        f"{sign}{name}" for sign in ("", "-") for name in [one.name for one in names.CONTROLLERS]
    ),
    "logging-format": ("text", "json", "dev"),
    "output": ("table", "json"),
}
"""Values of flags whose table does not list them."""


def _value(name: str, words: Sequence[str]) -> Value:
    if words:
        return Value.ONE
    return Value.FILE if name.endswith(_FILE_ENDS) else Value.ANY


def _line(text: str) -> str:
    """The first sentence, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")
