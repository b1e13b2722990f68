"""The daemon's command line: what is read, and what is answered at once."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import ccm
from ccm.app.options import argv, usage
from ccm.app.options.table import FLAGS, SECTIONS, Options

PROGRAM = "cloud-controller-manager"

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
        return f"{_INTRODUCTION}\n{usage.explain(FLAGS, SECTIONS)}"
    if options.version == "true":
        return f"{PROGRAM} {ccm.__version__}\n"
    if options.version == "raw":
        return (
            f"{PROGRAM} {ccm.__version__} python={platform.python_version()} "
            f"implementation={platform.python_implementation()} "
            f"platform={platform.system().lower()}/{platform.machine()}\n"
        )
    return None
