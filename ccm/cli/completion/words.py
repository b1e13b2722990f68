"""What can be typed at a place of a command line, and which of it fits what was begun.

The tables are those that the command lines are read with: the argparse tree of `kube-ccm`, and the
daemon's flags. Only what a place needs is loaded: somebody waits for it at a keyboard.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING

from ccm.cli import doctor, explain, orphans, plan, rollout
from ccm.cli.completion import NO_FILES, NO_SPACE

if TYPE_CHECKING:
    from ccm.base.flags import Flag

DAEMON = "cloud-controller-manager"

DAEMONS = (DAEMON, "machine-controller", "machine-controller-manager")
"""Programs that run in a cluster; the others are its machine controllers alone."""

_TAKES_DAEMONS_FLAGS = {each.NAME: each for each in (doctor, explain, orphans, plan, rollout)}

_PROVIDERS = "ccm.providers"
"""The registry's group of entry points, without the time it takes to load the registry."""

_FILE_ENDS = ("config", "-file", "-config-to", "-dir", "folder", "picture")


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
    PROVIDER = "provider"
    """An installed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One flag.

    Attributes:
        names: with their dashes; the one that is offered comes first.
        help: what it does, one line.
        value: what follows it.
        words: the values that are known.
    """

    names: Sequence[str]
    help: str = ""
    value: Value = Value.NONE
    words: Sequence[str] = ()

    @property
    def spelling(self) -> str:
        """How it is offered: with `=` where a value must follow."""
        name = self.names[0]
        return name if self.value in (Value.NONE, Value.OPTIONAL) else f"{name}="


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What may stand at one place: flags, and words without a dash, each with what it is."""

    options: Sequence[Option]
    words: Mapping[str, str] = field(default_factory=dict)

    def option(self, name: str) -> Option | None:
        """The flag of that name."""
        return next((one for one in self.options if name in one.names), None)


def place(whole: argparse.ArgumentParser, before: Sequence[str]) -> Place:
    """Where somebody is who typed these words, the program first.

    Args:
        whole: the parser of `kube-ccm`.
        before: the words before the one at the cursor.
    """
    program, *typed = before
    if (daemon := PurePath(program).name) in DAEMONS:
        return Place(options=_daemon(daemon))
    name, parser = "", whole
    for word in typed:
        if told := dict(_commands(parser)).get(word):
            name, parser = word, told[1]
    if name in _TAKES_DAEMONS_FLAGS:
        own = _TAKES_DAEMONS_FLAGS[name].own_flags().values()
        words = {explain.NAME: explain.OBJECTS, rollout.NAME: rollout.ACTIONS}.get(name, {})
        return Place(options=[*map(_of_flag, own), *_daemon()], words=words)
    positionals = [action for action in _actions(parser) if not action.option_strings]
    words = dict.fromkeys((word for one in positionals for word in _known(_of_action(one))), "")
    words |= {name: text for name, (text, _) in _commands(parser)}
    return Place(options=_options(parser), words=words)


def offer(here: Place, previous: str, last: str) -> tuple[Mapping[str, str], int]:
    """The words that fit what was begun, each with what it is, and what the shell does with them.

    Behind `--flag=` they are values, without the flag.

    Args:
        here: the place.
        previous: the word before.
        last: what was begun.
    """
    name, equals, begun = last.partition("=")
    option = here.option(name) if equals else here.option(previous)
    if option is not None and (equals or option.value not in (Value.NONE, Value.OPTIONAL)):
        return _values(option, begun if equals else last)
    words = here.words
    if last.startswith("-"):
        words = {one.spelling: one.help for one in here.options}
    found = {word: text for word, text in words.items() if word.startswith(last)}
    is_open = len(found) == 1 and next(iter(found)).endswith("=")
    return found, NO_FILES | (NO_SPACE if is_open else 0)


def _values(option: Option, begun: str) -> tuple[Mapping[str, str], int]:
    if option.value is Value.FILE:
        return {}, 0
    before, comma, last = "", "", begun
    if option.value is Value.LIST:
        before, comma, last = begun.rpartition(",")
    found = [f"{before}{comma}{word}" for word in _known(option) if word.startswith(last)]
    return dict.fromkeys(found, ""), NO_FILES | (NO_SPACE if option.value is Value.LIST else 0)


def _known(option: Option) -> Sequence[str]:
    if option.value is not Value.PROVIDER:
        return option.words
    from importlib.metadata import entry_points

    return sorted({entry.name for entry in entry_points(group=_PROVIDERS)})


def _commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, tuple[str, argparse.ArgumentParser]]]:
    """The name of each subcommand, what it does, and its parser."""
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - see `_actions`
            for told in action._choices_actions:  # noqa: SLF001
                yield told.dest, (told.help or "", action.choices[told.dest])


def _options(parser: argparse.ArgumentParser) -> list[Option]:
    return [_of_action(action) for action in _actions(parser) if action.option_strings]


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """argparse has no public way to ask what a parser knows."""
    return parser._actions  # noqa: SLF001


def _of_action(action: argparse.Action) -> Option:
    names = sorted(action.option_strings, key=len, reverse=True)
    words = () if action.choices is None else tuple(map(str, action.choices))
    value = Value.NONE if action.nargs == 0 else _value(action.dest.replace("_", "-"), words)
    return Option(names=names, help=_line(action.help or ""), value=value, words=words)


def _daemon(name: str = DAEMON) -> list[Option]:
    from ccm.app.options import FLAGS

    known = FLAGS
    if name != DAEMON:
        from ccm.app.machines.commands import COMMANDS

        known = COMMANDS[name].flags
    return [_of_flag(flag) for flag in known.values() if not flag.deprecated]


def _of_flag(flag: Flag) -> Option:
    names = [f"--{flag.name}", *([f"-{flag.short}"] if flag.short else ())]
    words = _words(flag)
    value = Value.OPTIONAL if flag.kind.bare is not None else _value(flag.name, words)
    return Option(names=names, help=_line(flag.text), value=value, words=words)


def _words(flag: Flag) -> Sequence[str]:
    """The values of a flag, as far as they are known."""
    if flag.kind.bare is not None:
        return ("true", "false")
    if flag.name == "controllers":
        from ccm.app.options.names import (
            MANIFESTS,
        )

        return [f"{sign}{one.name}" for sign in ("", "-") for one in MANIFESTS]
    if flag.name == "output":
        return (flag.default, "json")  # for people by default, or for programs
    return ("text", "json", "dev") if flag.name == "logging-format" else ()


def _value(name: str, words: Sequence[str]) -> Value:
    """What follows a flag that needs a value, or what stands for a word of that name."""
    if name in ("name", "provider", "cloud-provider"):
        return Value.PROVIDER
    if name == "controllers":
        return Value.LIST
    if words:
        return Value.ONE
    return Value.FILE if name.endswith(_FILE_ENDS) else Value.ANY


def _line(text: str) -> str:
    """The first sentence, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")
