"""`ccm completion`: what shells need to complete our commands, written from their own tables.

`words` makes one model of the argparse tree and of the daemon's flag table; `bash`, `zsh` and
`fish` write it down. The scripts are complete in themselves: a Tab starts no program.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

_DESCRIPTION = """\
Prints a script that lets your shell complete `ccm` and `cloud-controller-manager`: commands, flags,
names of controllers and installed providers, files.
"""

_EPILOG = """\
use it:
  bash   source <(ccm completion bash)            for ever: put it into ~/.bashrc
  zsh    source <(ccm completion zsh)             for ever: put it into ~/.zshrc, after compinit
  fish   ccm completion fish | source             for ever: ccm completion fish > \\
                                                    ~/.config/fish/completions/ccm.fish
"""

SHELLS = ("bash", "zsh", "fish")


def add(commands: Any, whole: argparse.ArgumentParser) -> None:
    """Describe the subcommand to the command line's parser.

    Args:
        commands: where subcommands are added.
        whole: the parser that they belong to, which the script is about.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a script with which your shell completes all of this",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to write it for")
    parser.set_defaults(run=lambda options: _run(whole, options.shell))


def _run(whole: argparse.ArgumentParser, shell: str) -> int:
    from ccm.cli.completion import bash, fish, words, zsh

    write = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}[shell]
    sys.stdout.write(write(words.programs(whole)))
    return 0
