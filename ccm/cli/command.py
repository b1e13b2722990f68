"""Common parts of subcommands: parsing of flags, output and errors.

Names, annotations and messages from tenants and clouds can contain terminal escape sequences, line
breaks and bidirectional control characters. This module escapes all output of subcommands.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from ccm.base.flags import Flag, FlagSection, flags_of
from ccm.doctor import CHECK_LIMIT_S, ExaminationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ccm.app.options import Options
    from ccm.doctor.case import Case

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCommand:
    """A parsed command line.

    Attributes:
        options: the daemon's settings, including those in the `--config` file.
        own_flags: values of the subcommand's own flags, by name.
        arguments: positional arguments.
    """

    options: Options
    own_flags: Mapping[str, Any]
    arguments: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonCommand:
    """A subcommand with the daemon's flags, in the daemon's syntax, and with flags of its own.

    Attributes:
        name: name of the subcommand.
        summary: one line for the list of subcommands.
        introduction: help text above the flags.
        own: dataclass that declares the subcommand's own flags.
        execute: runs the subcommand, writes to the given stream and returns the exit status; raises
            ExaminationError.
        used: names of the daemon's flags that the help lists; empty = all.
        needs_provider: whether a missing `--cloud-provider` is an error.
        check_arguments: called with the positional arguments and the values of the own flags;
            returns one message for each error.
        exit_usage: exit status for an invalid command line.
    """

    name: str
    summary: str
    introduction: str
    own: type
    execute: Callable[[ParsedCommand, TextIO], int]
    used: Collection[str] = ()
    needs_provider: bool = True
    check_arguments: Callable[[Sequence[str], Mapping[str, Any]], Iterable[str]] = (
        lambda words, _own: (f"{word!r} is not a flag" for word in words)
    )
    exit_usage: int = EXIT_USAGE

    def own_flags(self) -> Mapping[str, Flag]:
        """Return the subcommand's own flags, by name."""
        return flags_of(self.own)

    def add(self, commands: Any) -> None:
        """Register the subcommand; argparse does not parse its arguments."""
        parser: argparse.ArgumentParser = commands.add_parser(
            self.name, help=self.summary, add_help=False, prefix_chars="\0"
        )
        parser.add_argument("words", nargs=argparse.REMAINDER)
        parser.set_defaults(run=lambda options: self.run(options.words))

    def run(self, words: Sequence[str], *, out: TextIO | None = None) -> int:
        """Print the help or run the subcommand; return the exit status.

        Args:
            words: the arguments of the subcommand.
            out: destination of the output; None = standard output.
        """
        from ccm.app.options.argv import UsageError

        out = sys.stdout if out is None else out
        if {"-h", "--help"} & set(words):
            out.write(self.introduction + self._flags_help())
            return EXIT_OK
        try:
            request = self.read(words)
        except UsageError as error:
            sys.stderr.write(f"kube-ccm {self.name}: {error}\n")
            return self.exit_usage
        with _logging_at(request.options.v):
            try:
                return self.execute(request, out)
            except ExaminationError as error:
                fail(self.name, str(error))
                return EXIT_FAILED

    def read(self, words: Sequence[str]) -> ParsedCommand:
        """Parse the arguments of the subcommand.

        Raises:
            UsageError: an argument or the `--config` file is invalid; the message lists the errors.
        """
        from ccm.app.options import FLAGS, NO_EFFECT, Options, argv, config, faults

        flags = self.own_flags()
        parsed = argv.parse({**FLAGS, **flags}, words, NO_EFFECT)
        given = {name: value for name, value in parsed.values.items() if name not in flags}
        own = {name: parsed.values.get(name, flag.default) for name, flag in flags.items()}
        wrong = [*self.check_arguments(parsed.arguments, own)]
        wrong += [
            flag.error_message(own[name], right)
            for name, flag in flags.items()
            if (right := flag.violation(own[name]))
        ]
        options = config.with_config_file(Options.from_values(given, parsed))
        provider = options.cloud_provider or ("" if self.needs_provider else "none")
        wrong += faults(replace(options, cloud_provider=provider))
        if wrong:
            raise argv.UsageError(wrong)
        return ParsedCommand(options=options, own_flags=own, arguments=parsed.arguments)

    def _flags_help(self) -> str:
        from ccm.app.options import FLAGS, SECTIONS, argv

        own = self.own_flags()
        known = {name: FLAGS[name] for name in self.used} or FLAGS
        listed = (*own.values(), *(known[name] for name in self.used))
        sections = dict.fromkeys(flag.section for flag in listed)
        return argv.explain({**own, **known}, (*sections, *(() if self.used else SECTIONS)))


def add_parser(commands: Any, name: str, text: str, **more: str) -> argparse.ArgumentParser:
    """Register a subcommand, and return its argparse parser.

    Args:
        commands: the subparsers of `kube-ccm`.
        name: name of the subcommand.
        text: one line for the list of subcommands.
        more: description, epilog and usage.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter, **more
    )
    return parser


def output(section: FlagSection, for_people: str) -> str:
    """Declare the flag `--output`: a human-readable format, which is the default, or json."""
    return section.flag(
        for_people,
        f"Output format: {for_people} or json.",
        short="o",
        check=lambda word: "" if word in (for_people, "json") else f"must be {for_people} or json",
    )


@contextlib.contextmanager
def _logging_at(verbosity: int) -> Iterator[None]:
    """Inside the block, write logs to stderr if `verbosity` is above 0; otherwise drop them."""
    from ccm.base import log

    with open(os.devnull, "wb", buffering=0) as null:
        log.setup(verbosity=verbosity, stream=None if verbosity else null)
        try:
            yield
        finally:
            log.setup()


@contextlib.asynccontextmanager
async def open_case(
    request: ParsedCommand, environ: Mapping[str, str], limit_s: float = CHECK_LIMIT_S
) -> AsyncIterator[Case]:
    """Yield the case of a subcommand, and close it at the end.

    Args:
        request: the command line.
        environ: environment variables, for the kubeconfig and exec plugins.
        limit_s: time limit of one request in seconds.

    Raises:
        ExaminationError: a request to the API server or the cloud failed in the block.
    """
    from ccm.base import redact
    from ccm.cloud.errors import CloudError
    from ccm.doctor.case import Case
    from ccm.kube.errors import KubeError

    case = Case(options=request.options, environ=environ, limit_s=limit_s)
    try:
        yield case
    except (CloudError, KubeError) as error:
        where = case.cluster.server if isinstance(error, KubeError) else type(error).__name__
        raise ExaminationError(redact.mask_text(f"{where}: {error}")) from error
    finally:
        await case.exit_stack.aclose()


def show(out: TextIO, lines: Iterable[str]) -> None:
    """Write each text as one line, with control characters escaped."""
    from ccm.base.log_render import escape_control

    out.writelines(f"{escape_control(line)}\n" for line in lines)
    out.flush()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def show_json(out: TextIO, value: object) -> None:
    """Write a value as JSON, with characters that are not printable escaped."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    escaped = re.sub(
        r"[^\n -~]",
        lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1],
        text,
    )
    out.write(f"{escaped}\n")
    out.flush()


def fail(command: str, text: str) -> None:
    """Write a subcommand's error message to stderr, with control characters escaped."""
    show(sys.stderr, f"kube-ccm {command}: {text}".split("\n"))
