"""Access to rich, which draws on terminals; rich is an optional dependency.

Only commands draw. structlog also loads rich where it is installed, which costs 0.1 s of CPU and 3
MiB. The image does not contain rich.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def console(out: TextIO, environ: Mapping[str, str]) -> Console | None:
    """Return a rich console for `out`, or None if only plain lines are possible.

    The result is None if `out` is no terminal or a dumb one, or if rich is not installed. The
    console prints texts literally: brackets are no markup.

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
