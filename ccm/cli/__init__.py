"""The command `kube-ccm`, for trying, inspecting and developing; production does not need it.

Each subcommand is a module. Its function `add` declares the arguments and registers a function
that runs the subcommand and returns the exit status. Subcommands with the daemon's flags use a
`command.DaemonCommand`. A subcommand imports its dependencies when it runs, so that `--help` and
`--version` respond at once.

This package reads the command line and the environment, and reports each mistake in them with one
clear message. The work itself is done in other packages.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import ccm
from ccm.cli import (
    backup,
    command,
    completion,
    doctor,
    explain,
    journal,
    new_provider,
    orphans,
    plan,
    providers,
    rollout,
    sandbox,
)

_DESCRIPTION = """\
Tools for the cloud-controller-manager: try it, inspect it, develop a provider.

The daemon is a separate command: cloud-controller-manager (or python -m ccm). As a kubectl plugin,
all commands are also available as `kubectl ccm`.
"""

_EPILOG = """\
start here:
  kube-ccm sandbox                     start a local test cluster in seconds
  kube-ccm sandbox --help              the parts of the sandbox, and its options

with your cluster (`...`: the daemon's flags):
  kube-ccm providers                   list the installed providers; with a NAME, describe one
  kube-ccm doctor ...                  check the cluster, the cloud and the daemon's setup
  kube-ccm plan ...                    show what the daemon would change, without changing it
  kube-ccm explain node NAME           explain the state of a node, Service or Machine
  kube-ccm journal list                show the resources that the daemon created, and their owners
  kube-ccm orphans ...                 list load balancers that belong to no Service
  kube-ccm rollout status mcd/NAME     show a rollout of Machines; restart, undo or pause it
  kube-ccm backup ...                  store the machine objects outside of the cluster
  kube-ccm restore ...                 create the machine objects of a snapshot
  source <(kube-ccm completion bash)   enable shell completion, also for the daemon

with your cloud:
  kube-ccm new-provider NAME           write a package for a new provider, with passing tests
"""

_COLUMN = 16

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells: 128 + SIGINT."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter that prints command names beside summaries, in lines of up to 100 columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_COLUMN, width=100)
        self._action_max_length = _COLUMN - 2  # argparse ignores the indentation of commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status; after Ctrl-C it is `INTERRUPTED`.

    Raises:
        SystemExit: `--help` or `--version` was printed, or argparse rejected the command line (2).
    """
    try:
        words = sys.argv[1:] if argv is None else argv
        if words[:1] == [completion.COMPLETE_COMMAND] and words[2:]:
            return completion.print_completions(build_parser(), words[1:])
        options = build_parser().parse_args(words)
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `| head`, has closed the pipe. Python must not flush to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = command.Parser(
        prog="kube-ccm", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=_Formatter
    )
    parser.add_argument("--version", action="version", version=f"kube-ccm {ccm.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        sandbox.add,
        providers.add,
        doctor.add,
        plan.add,
        explain.add,
        journal.add,
        orphans.add,
        rollout.add,
        backup.BACKUP.add,
        backup.RESTORE.add,
        new_provider.add,
        completion.add,
    ):
        add(commands)
    return parser
