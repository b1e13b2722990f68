"""Reference of all flags, generated from their declarations.

`python -m ccm.app.options.reference` prints the content of `FLAGS.md`, beside this package; a test
compares the two.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ccm.app.options.table import ALIASES, FLAGS, NO_EFFECT, SECTIONS
from ccm.base.flags import Flag, FlagSection

FILE = Path(__file__).parents[1] / "FLAGS.md"

_HEAD = """\
# Flags of the daemon

Written by `python -m ccm.app.options.reference` from the declarations of the flags; change those
instead. Names and defaults are those of the Go reference where it has the flag; *ours* says that
it has not.
"""


def markdown() -> str:
    """Return the whole reference as Markdown."""
    return "\n".join([_HEAD, *map(_section, SECTIONS), _aliases(), _idle()])


def _aliases() -> str:
    listed = "\n".join(f"* `--{flag.name}`: {flag.deprecated}" for flag in ALIASES.values())
    why = "Accepted for one release, with one warning:"
    return f"## Deprecated names\n\n{why}\n\n{listed}\n"


def _idle() -> str:
    listed = "\n".join(f"* `--{name}`" for name in NO_EFFECT)
    why = "Accepted with one notice, so that command lines of the reference keep working:"
    return f"## Without effect\n\n{why}\n\n{listed}\n"


def _section(section: FlagSection) -> str:
    rows = [flag for flag in FLAGS.values() if flag.section == section]
    title = f"## {section.title[0].upper()}{section.title[1:]}"
    head = ["| flag | type | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([title, "", *head, *map(_row, rows), ""])


def _row(flag: Flag) -> str:
    short = f"`-{flag.short}`, " if flag.short else ""
    default = flag.kind.write(flag.default)
    cells = (
        f"{short}`--{flag.name}`",
        f"{flag.kind.word}, {flag.unit}" if flag.unit else flag.kind.word,
        f"`{default}`" if default not in ("", "[]") else "",
        flag.text
        + (" *Ours.*" if flag.section.ours else "")
        + (f" *Deprecated: {flag.deprecated}.*" if flag.deprecated else ""),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
