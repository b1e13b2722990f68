"""Telling one version of a file from another without reading it, and writing for one's own eyes."""

from __future__ import annotations

import os
import re
from pathlib import Path

Signature = tuple[int, int, int] | None
"""Inode, time of change and size of what a path leads to; None = nothing."""


def signature(path: Path) -> Signature:
    """What tells one version of a file from another; None if it cannot be looked at."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def reason(error: Exception) -> str:
    """Why a file cannot be used, for people: without error numbers, and the path that they know."""
    said = getattr(error, "strerror", None) or str(error)
    plain = _TLS_PLACE.sub("", said)
    return "it is not valid PEM" if plain == "PEM lib" else plain


_TLS_PLACE = re.compile(r"^\[[A-Z0-9_: ]+\] | \(_ssl\.c:\d+\)$")
"""What Python adds to the words of the TLS library."""


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whoever could read what was there before."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
