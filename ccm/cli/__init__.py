"""The `kube-ccm` command: for people who try, inspect or develop, never for production.

Each subcommand is a module whose `add` describes its arguments and registers the function that
runs them and returns the exit status; those that take the daemon's flags do so by a
`command.Command`. A subcommand imports what it needs when it runs, so that `--help` and `--version`
answer at once.

What may enter: reading the command line and the environment, one clear message for
each mistake in them. What must never enter: the work itself.
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
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Commands and what they do beside each other, on lines as long as our others."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_COLUMN, width=100)
        self._action_max_length = _COLUMN - 2  # argparse forgets how far commands are indented


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status (2: the command line is wrong)."""
    try:
        words = sys.argv[1:] if argv is None else argv
        if words[:1] == [completion.ASK] and words[2:]:
            return completion.answer(build_parser(), words[1:])
        options = build_parser().parse_args(words)
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left (`| head`); nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="kube-ccm",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"kube-ccm {ccm.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for each in (
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
        each.add(commands)
    return parser
