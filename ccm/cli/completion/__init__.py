"""`kube-ccm completion`: Tab completes our commands, the daemon's flags and their values.

The shell's script is a few lines: each Tab asks `kube-ccm __complete`, which answers from the
tables that the command lines are read with (`words`). The answer is Cobra's, as kubectl asks
plugins for it: a line for each word, what it is behind a tab, and last a number that says what to
do with them.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from ccm.base import interpreter

ASK = "__complete"
"""The command that shells call; people do not."""

NO_SPACE = 2
"""More may follow the word directly. As Cobra counts."""

NO_FILES = 4
"""The shell shall not offer files instead."""

SHELLS = ("bash", "zsh", "fish")

_DESCRIPTION = """\
Prints a script that lets your shell complete `kube-ccm`, `cloud-controller-manager`,
`machine-controller` and `machine-controller-manager`: commands, flags, names of controllers and
installed providers, files.
"""

_EPILOG = """\
use it:
  bash   source <(kube-ccm completion bash)     to keep: put it into ~/.bashrc
  zsh    source <(kube-ccm completion zsh)      to keep: put it into ~/.zshrc, after compinit
  fish   kube-ccm completion fish | source      to keep: kube-ccm completion fish > \\
                                                  ~/.config/fish/completions/kube-ccm.fish

`kubectl ccm` needs none of it: kubectl's own completion asks kubectl_complete-ccm.
"""


def add(commands: Any) -> None:
    """Describe the subcommand to the command line's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a script with which your shell completes all of this",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to write it for")
    parser.set_defaults(run=lambda options: _run(options.shell))


def _run(shell: str) -> int:
    sys.stdout.write(script(shell))
    return 0


def script(shell: str) -> str:
    """What the shell has to read."""
    from ccm.cli.completion import scripts, words

    # A Tab must not run what lies in the folder where it is pressed.
    asking = shlex.join(interpreter.command("ccm.cli", ASK))
    programs = " ".join(("kube-ccm", *words.DAEMONS))
    return scripts.TEXTS[shell].replace("PROGRAMS", programs).replace("ASK", asking)


def answer(whole: argparse.ArgumentParser, typed: Sequence[str]) -> int:
    """Print what a shell may offer; the exit status.

    Args:
        whole: the parser of `kube-ccm`.
        typed: the words up to the cursor, two at least: the program first, and last what was
            begun, which may be empty.
    """
    from ccm.cli.completion import words

    *before, last = typed
    offered, directive = words.offer(words.place(whole, before), before[-1], last)
    lines = [f"{word}\t{text}" if text else word for word, text in offered.items()]
    sys.stdout.writelines(f"{line}\n" for line in (*lines, f":{directive}"))
    return 0
