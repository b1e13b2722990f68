"""Credentials of storage, from files that are mounted."""

from __future__ import annotations

from pathlib import Path

from ccm.base import credentials, redact
from ccm.base.files import reason
from ccm.persistence.errors import BackendUnavailable


def text_of(path: Path, *, secret: bool = True) -> str:
    """What a file holds; a secret is never logged.

    Raises:
        BackendUnavailable: it cannot be read; it may be mounted later.
    """
    try:
        text = credentials.read(path)
    except (OSError, ValueError) as error:
        raise BackendUnavailable(f"{path} cannot be read: {reason(error)}") from error
    if secret:
        redact.know(text)
    return text
