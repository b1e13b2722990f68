"""The daemon's command line: what is read, and what is answered at once."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

import ccm
from ccm.app.options import argv
from ccm.app.options.table import FLAGS, SECTIONS, Options
from ccm.base.flags import Flag, Section

PROGRAM = "cloud-controller-manager"

_WIDTH = 100
_INDENT = " " * 10

_INTRODUCTION = f"""\
Joins a Kubernetes cluster to the cloud it runs on: gives new nodes their provider ID,
labels and addresses, keeps those up to date, and removes nodes whose machines are gone.

Usage: {PROGRAM} --cloud-provider=NAME [flags]
"""


def parse(words: Sequence[str]) -> Options:
    """Read a command line, the program's name left out.

    Raises:
        UsageError: unknown flags, wrong values, or words that belong to no flag.
    """
    parsed = argv.parse(FLAGS, words)
    options = Options.given(parsed.values)
    if parsed.arguments and not options.help:
        found = " ".join(map(argv.quote, parsed.arguments))
        raise argv.UsageError([f'"{PROGRAM}" does not take any arguments, got [{found}]'])
    return options


def answer(options: Options) -> str | None:
    """The text to print before exiting with 0, if help or the version was asked for."""
    if options.help:
        return f"{_INTRODUCTION}\n{explain(FLAGS, SECTIONS)}"
    if options.version == "true":
        return f"{PROGRAM} {ccm.__version__}\n"
    if options.version == "raw":
        return (
            f"{PROGRAM} {ccm.__version__} python={platform.python_version()} "
            f"implementation={platform.python_implementation()} "
            f"platform={platform.system().lower()}/{platform.machine()}\n"
        )
    return None


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
    head, noted = f"  {short}--{flag.name}{word}", f"({notes})" if notes else ""
    if noted and len(head) + 2 + len(noted) <= _WIDTH:
        return [f"{head}  {noted}", *_wrap(flag.text + idle)]
    return [head, *(_wrap(noted) if noted else ()), *_wrap(flag.text + idle)]


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
