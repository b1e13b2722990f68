"""`ccm/app/FLAGS.md`, the reference of all flags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ccm.app.options.table import ALIASES, FLAGS, NO_EFFECT, SECTIONS
from ccm.base.flags import Flag, FlagSection
from tests.generated import GENERATED, ROOT

_HEAD = f"""\
# Flags of the daemon

{GENERATED} of the flags. Names and defaults match
the Go program; *ours* marks a flag that the Go program lacks.
"""


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of the file."""
    text = "\n".join([_HEAD, *map(_section, SECTIONS), _aliases(), _idle()])
    yield ROOT / "ccm" / "app" / "FLAGS.md", text


def _aliases() -> str:
    listed = "\n".join(f"* `--{flag.name}`: {flag.deprecated}" for flag in ALIASES.values())
    why = "Accepted for one release, with one warning:"
    return f"## Deprecated names\n\n{why}\n\n{listed}\n"


def _idle() -> str:
    listed = "\n".join(f"* `--{name}`" for name in NO_EFFECT)
    why = "Accepted with one notice, so that command lines of the Go program keep working:"
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
