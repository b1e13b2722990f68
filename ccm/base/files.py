"""File tools: signatures that detect changes, error texts, and files for the owner only."""

from __future__ import annotations

import os
import re
from pathlib import Path

Signature = tuple[int, int, int] | None
"""Inode, modification time (ns) and size (bytes) of a file; a new version differs in one of them.
None = absent or inaccessible."""


def signature(path: Path) -> Signature:
    """Return the signature of a file; None if the file is absent or inaccessible."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def describe_error(error: Exception) -> str:
    """Return why a file cannot be used, without the error number and the file's path."""
    text = getattr(error, "strerror", None) or str(error)
    plain = _TLS_PLACE.sub("", text)
    return "not valid PEM" if plain == "PEM lib" else plain


_TLS_PLACE = re.compile(r"^\[[A-Z0-9_: ]+\] | \(_ssl\.c:\d+\)$")
"""Codes and source lines that Python adds to messages of the TLS library."""


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whatever the mode of an existing file."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        # `os.open` applies its mode to new files only.
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
