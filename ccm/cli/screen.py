"""Where commands write.

Names, annotations and messages of tenants and clouds may have anything in them: escape sequences of
terminals, ends of lines, changes of direction. All that commands print goes through here.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable


def show(out: TextIO, lines: Iterable[str]) -> None:
    """Write each text as one line, with escapes for what would move a terminal's cursor."""
    from ccm.base.log_render import visible

    out.writelines(f"{visible(line)}\n" for line in lines)


def show_json(out: TextIO, value: object) -> None:
    """Write a value as JSON in which every character is printable; it means the same."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    out.write(re.sub(r"[^\n -~]", _as_json, text) + "\n")


def fail(command: str, text: str) -> None:
    """Write to standard error why a command failed; a list of faults has a line for each."""
    show(sys.stderr, f"kube-ccm {command}: {text}".split("\n"))


def _as_json(letter: re.Match[str]) -> str:
    return letter[0] if letter[0].isprintable() else json.dumps(letter[0])[1:-1]
