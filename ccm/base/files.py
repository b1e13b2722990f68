"""Telling one version of a file from another without reading it, and writing for one's own eyes."""

from __future__ import annotations

import os
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


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whoever could read what was there before."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
