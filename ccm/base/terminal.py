"""Access to rich, which draws on terminals; rich is an optional dependency.

Only commands draw on a terminal, so the container image does not contain rich. Where rich is
installed, structlog loads it too, which costs 0.1 s of CPU and 3 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def console(out: TextIO, environ: Mapping[str, str]) -> Console | None:
    """Return a rich console for `out`, or None if only plain lines are possible.

    The result is None if `out` is not a terminal or is a dumb one, or if rich is not installed.
    The console prints brackets literally, not as markup.

    Args:
        environ: environment; `TERM` names the terminal, `NO_COLOR` switches styles off.
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
