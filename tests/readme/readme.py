"""What the README files hold for programs: code blocks that carry a file name, and commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text(name: str = "README.md") -> str:
    """The whole of one of them."""
    return (ROOT / name).read_text()


def providers() -> str:
    """What the author of a provider reads."""
    return text("providers/README.md")


def files() -> Mapping[str, str]:
    """File name -> content of each named block for that author."""
    return dict(_BLOCK.findall(providers()))


def commands(heading: str) -> Sequence[Sequence[str]]:
    """The commands in the section of that heading for that author, as a shell would split them."""
    _, _, section = providers().partition(f"\n## {heading}\n")
    blocks: list[str] = _COMMANDS.findall(section.partition("\n## ")[0])
    return [shlex.split(line) for block in blocks for line in block.splitlines()]
