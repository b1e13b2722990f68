"""The `kube-ccm` command, for trying, inspecting and developing, not for production.

Each subcommand is a module whose `add` declares its arguments and a function that runs it and
returns the exit status. Subcommands with the daemon's flags use a `command.Command`. A subcommand
imports its dependencies when it runs, so that `--help` and `--version` answer at once.

Allowed here: reading the command line and the environment, and one clear message for each mistake
in them. Not allowed: the work itself.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import ccm
from ccm.cli import (
    completion,
    doctor,
    explain,
    new_provider,
    orphans,
    plan,
    providers,
    rollout,
    sandbox,
)

_DESCRIPTION = """\
Tools around the cloud-controller-manager: try it, look into it, develop a provider.

The daemon itself is another command: cloud-controller-manager (or python -m ccm). As a plugin of
kubectl, all of it is `kubectl ccm` too.
"""

_EPILOG = """\
start here:
  kube-ccm sandbox                     a whole cluster to play with, on this machine, in seconds
  kube-ccm sandbox --help              what it does and what you can do in it

with a cluster of your own:
  kube-ccm providers                   which providers are installed; with a NAME, what it reads
  kube-ccm doctor --cloud-provider=... the daemon's flags: finds what keeps it from working
  kube-ccm plan ...                    the same flags: what the daemon would do, nothing is done
  kube-ccm explain node NAME           why a node or Service is as it is: the daemon's own word
  kube-ccm orphans ...                 the same flags: load balancers that belong to no Service
  kube-ccm rollout status mcd/NAME     how far machines are exchanged; undo, pause, resume
  source <(kube-ccm completion bash)   Tab completes commands and flags, the daemon's too

with a cloud of your own:
  kube-ccm new-provider NAME           writes a package with a provider, its tests green at once
"""

_COLUMN = 16

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells: 128 + SIGINT."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Prints command names and summaries side by side, on lines of up to 100 characters."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_COLUMN, width=100)
        self._action_max_length = _COLUMN - 2  # argparse ignores the indentation of commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status; 2 means that the command line is wrong."""
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
        # The reader has closed the pipe (`| head`): also keep Python from flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="kube-ccm",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"kube-ccm {ccm.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (
        sandbox,
        providers,
        doctor,
        plan,
        explain,
        orphans,
        rollout,
        new_provider,
        completion,
    ):
        module.add(commands)
    return parser
