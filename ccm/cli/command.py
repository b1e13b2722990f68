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

from ccm.base.flags import Flag, FlagSection, did_you_mean, flags_of, missing, one_of
from ccm.doctor import CHECK_LIMIT_S, ExaminationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ccm.app.options import Options
    from ccm.doctor.case import Case

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_FINDINGS = 3
"""Exit statuses of all subcommands: done; failed, also in part; invalid command line; done, with
changes to make or problems to solve."""

FORMATS = ("table", "json", "yaml")
"""Values of `--output`. `table` is for people, and may change; the documents are an interface."""

_FORMER_TABLE = "text"
"""Deprecated name of the format `table`, accepted for one release."""

SERVER_SECTIONS = (
    *("leader-migration", "stopping", "configuration file", "webhook", "webhook serving"),
    *("webhook callers", "secure serving", "authentication", "authorization", "help", "global"),
)
"""Titles of the sections of flags that only a running daemon uses."""

_OTHER_FLAGS = """\
--help-all also lists the daemon's flags that have no effect here, and deprecated flags.
"""


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
        used: names of the daemon's flags that have an effect; empty = all but those of
            `unused_sections`.
        unused_sections: titles of sections of the daemon's flags that have no effect, except for
            --config and -v.
        required: names of the daemon's flags that must be set.
        check_arguments: called with the positional arguments, the values of the own flags and the
            names of the flags in the command line; returns one message for each error.
    """

    name: str
    summary: str
    introduction: str
    own: type
    execute: Callable[[ParsedCommand, TextIO], int]
    used: Collection[str] = ()
    unused_sections: Collection[str] = ()
    required: Collection[str] = ("cloud-provider",)
    check_arguments: Callable[
        [Sequence[str], Mapping[str, Any], Collection[str]], Iterable[str]
    ] = lambda words, _own, _given: (f"{word!r} is not a flag" for word in words)

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
        if {"-h", "--help", "--help-all"} & set(words):
            out.write(self.introduction + self._flags_help(is_full="--help-all" in words))
            return EXIT_OK
        try:
            request = self.read(words)
        except UsageError as error:
            sys.stderr.write(f"kube-ccm {self.name}: {error}\n")
            return EXIT_USAGE
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
        if own.get("output") == _FORMER_TABLE:
            fail(self.name, "-o text is deprecated: use -o table")
            own["output"] = FORMATS[0]
        wrong = [*self.check_arguments(parsed.arguments, own, parsed.values.keys())]
        wrong += [
            flag.error_message(own[name], right)
            for name, flag in flags.items()
            if (right := flag.violation(own[name]))
        ]
        options = config.with_config_file(Options.from_values(given, parsed))
        wrong += (missing(name) for name in self.required if not options.get(name))
        wrong += faults(replace(options, cloud_provider=options.cloud_provider or "none"))
        if wrong:
            raise argv.UsageError(wrong)
        return ParsedCommand(options=options, own_flags=own, arguments=parsed.arguments)

    def _flags_help(self, *, is_full: bool) -> str:
        from ccm.app.options import FLAGS, NO_EFFECT, SECTIONS, argv

        own = self.own_flags()
        known = {name: flag for name, flag in FLAGS.items() if is_full or self._is_used(flag)}
        sections = dict.fromkeys((*(flag.section for flag in own.values()), *SECTIONS))
        no_effect = NO_EFFECT if is_full else None
        text = argv.explain({**known, **own}, sections, required=self.required, no_effect=no_effect)
        return text if is_full else f"{text}\n{_OTHER_FLAGS}"

    def _is_used(self, flag: Flag) -> bool:
        if self.used:
            return flag.name in self.used
        return flag.section.title not in self.unused_sections or flag.name in ("config", "v")


class Parser(argparse.ArgumentParser):
    """Parser that suggests the closest name for an unknown command, flag or choice."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words; every unknown word is an error, also in a subcommand."""
        words = sys.argv[1:] if args is None else args
        self._refuse(self._unknown_flags(words))
        options, unknown = super().parse_known_args(words, namespace)
        self._refuse(unknown)
        return options, unknown

    def _unknown_flags(self, words: Sequence[str]) -> Iterator[str]:
        """Yield unknown flags before the first argument: argparse takes their value for one."""
        rest = iter(words)
        for word in rest:
            written, is_assigned, _ = word.partition("=")
            known = [name for name in self._option_string_actions if name.startswith(written)]
            if "-" not in self.prefix_chars or not word.startswith("--") or word == "--":
                return
            if not known:
                yield word
            elif not is_assigned and self._option_string_actions[known[0]].nargs is None:
                next(rest, None)

    def _refuse(self, unknown: Iterable[str]) -> None:
        for word in unknown:
            name = word.partition("=")[0]
            hint = did_you_mean(name, self._option_string_actions)
            self.error(f"unknown flag or argument: {name}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), known)
            text = f"invalid choice: {value!r}, expected {', '.join(known)}{hint}"
            raise argparse.ArgumentError(action, text)


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


def output(section: FlagSection) -> str:
    """Declare the flag `--output`, for `show_result`."""
    return section.flag(
        FORMATS[0], f"Output format: {', '.join(FORMATS)}.", short="o", check=one_of(*FORMATS)
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


def show_result(out: TextIO, form: str, document: object, lines: Iterable[str]) -> None:
    """Write the result of a subcommand in the format of `--output`.

    Args:
        out: destination.
        form: one of `FORMATS`.
        document: the result as a value that JSON can represent; for `json` and `yaml`.
        lines: the result for people, for example from `table`; for `table`.
    """
    if form == "table":
        show(out, lines)
    else:
        out.write(_DOCUMENTS[form](document))
        out.flush()


def _json_text(document: object) -> str:
    """Return a value as JSON, with characters that are not printable escaped."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    escaped = re.sub(
        r"[^\n -~]",
        lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1],
        text,
    )
    return f"{escaped}\n"


def yaml_text(document: object) -> str:
    """Return a value as YAML, with the same keys as in JSON, and escaped outside of ASCII."""
    import msgspec
    import yaml

    plain = msgspec.json.decode(msgspec.json.encode(document))
    return str(yaml.safe_dump(plain, sort_keys=False, width=sys.maxsize))


_DOCUMENTS: Mapping[str, Callable[[object], str]] = {"json": _json_text, "yaml": yaml_text}


def fail(command: str, text: str) -> None:
    """Write a subcommand's error message to stderr, with control characters escaped."""
    show(sys.stderr, f"kube-ccm {command}: {text}".split("\n"))
