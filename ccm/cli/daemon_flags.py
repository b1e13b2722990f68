"""What commands share that take the daemon's flags, in its own syntax, and a few of theirs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TextIO, TypeVar

if TYPE_CHECKING:
    from ccm.app.options import Options
    from ccm.base.flags import Flag, Section


class Wanted(Protocol):
    """What every command's line asks for."""

    @property
    def options(self) -> Options:
        """The daemon's settings, as far as they were given."""
        ...


W = TypeVar("W", bound=Wanted)

EXIT_OK = 0
EXIT_USAGE = 2


def output(section: Section, for_people: str) -> str:
    """The flag of a command that says what it prints: a word for what people read, or json."""
    return section.flag(
        for_people,
        f"{for_people} for people, json for programs.",
        short="o",
        check=lambda word: "" if word in (for_people, "json") else f"must be {for_people} or json",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[W]):
    """A command.

    Attributes:
        name: behind `kube-ccm`.
        summary: what it does, in a line.
        introduction: of its help, which tells of flags behind it.
        own: its own flags.
        read: turns the words behind its name into what is wanted; raises UsageError.
        then: does that, and says so there; the exit status.
        used: of the daemon's flags those that the help tells of; empty: all of them.
        wrong: the exit status where the words cannot be used.
    """

    name: str
    summary: str
    introduction: str
    own: Callable[[], Mapping[str, Flag]]
    read: Callable[[Sequence[str]], W]
    then: Callable[[W, TextIO], int]
    used: Collection[str] = ()
    wrong: int = EXIT_USAGE

    def add(self, commands: Any) -> None:
        """Describe it to the command line's parser; it gets its words as they are."""
        # The words are the daemon's, whose syntax is not argparse's.
        parser: argparse.ArgumentParser = commands.add_parser(
            self.name, help=self.summary, add_help=False, prefix_chars="\0"
        )
        parser.add_argument("words", nargs=argparse.REMAINDER)
        parser.set_defaults(run=lambda options: self.run(options.words))

    def run(self, words: Sequence[str], *, out: TextIO | None = None) -> int:
        """Answer its words, with its help or with what they ask for; the exit status.

        Args:
            words: as they were given.
            out: where to; None: standard output.
        """
        from ccm.app.options.argv import UsageError

        out = sys.stdout if out is None else out
        if {"-h", "--help"} & set(words):
            out.write(self.introduction + _flags(self.own(), self.used))
            return EXIT_OK
        try:
            wanted = self.read(words)
        except UsageError as error:
            sys.stderr.write(f"kube-ccm {self.name}: {error}\n")
            return self.wrong
        with logging_at(wanted.options.v):
            return self.then(wanted, out)


def of_no_cloud(given: Options) -> Options:
    """The settings of a command that asks no cloud: it needs no provider to be named."""
    return replace(given, cloud_provider=given.cloud_provider or "none")


def _no_flags(words: Sequence[str]) -> Iterator[str]:
    return (f"{word!r} is no flag" for word in words)


def read(
    words: Sequence[str],
    own: Mapping[str, Flag],
    *,
    complete: Callable[[Options], Options] = lambda options: options,
    arguments: Callable[[Sequence[str]], Iterable[str]] = _no_flags,
) -> tuple[Options, Mapping[str, Any]]:
    """Turn words into the daemon's settings and the values of the command's own flags.

    Args:
        words: what stands behind the command's name.
        own: its own flags.
        complete: puts in what the daemon would need and this command does not, before the
            settings are checked; they are given as they were.
        arguments: what is wrong with the words that are no flags, a sentence for each fault.

    Raises:
        UsageError: the words cannot be used; every fault is named.
    """
    from ccm.app.options import FLAGS, IDLE, Options, argv, config, faults

    parsed = argv.parse({**FLAGS, **own}, words, IDLE)
    given = {name: value for name, value in parsed.values.items() if name not in own}
    chosen = {name: parsed.values.get(name, flag.default) for name, flag in own.items()}
    wrong = list(arguments(parsed.arguments))
    wrong += [
        flag.fault(chosen[name], right)
        for name, flag in own.items()
        if (right := flag.wrong(chosen[name]))
    ]
    options = config.effective(Options.given(given, parsed.idle))
    wrong += faults(complete(options))
    if wrong:
        raise argv.UsageError(wrong)
    return options, chosen


def _flags(own: Mapping[str, Flag], used: Collection[str]) -> str:
    """What the help says of flags: the command's own first."""
    from ccm.app.options import FLAGS, SECTIONS, argv

    known = {name: FLAGS[name] for name in used} or FLAGS
    told = (*own.values(), *(known[name] for name in used))
    sections = dict.fromkeys(flag.section for flag in told)
    return argv.explain({**own, **known}, (*sections, *(() if used else SECTIONS)))


@contextlib.contextmanager
def logging_at(verbosity: int) -> Iterator[None]:
    """What a command says is all; the log is for those who ask for it by -v."""
    from ccm.base import log

    with open(os.devnull, "wb", buffering=0) as nowhere:
        log.setup(verbosity=verbosity, stream=None if verbosity else nowhere)
        try:
            yield
        finally:
            log.setup()
