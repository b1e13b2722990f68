"""The door to rich, which draws on terminals: an extra that is not installed everywhere.

Only commands draw. structlog loads rich too where it is installed: 0.1 s of CPU and 3 MiB, which
the image saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def console(out: TextIO, environ: Mapping[str, str]) -> Console | None:
    """What draws on `out`; None where plain lines have to do.

    That is where `out` is no terminal or one that cannot be drawn on, and where rich is not
    installed. Texts are shown as they are: brackets in them mean nothing.

    Args:
        out: where it is drawn.
        environ: the environment: `TERM`, and `NO_COLOR`, with which there is no style at all.
    """
    if not out.isatty() or environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(
        file=out,
        force_terminal=True,
        color_system=None if "NO_COLOR" in environ else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )
