"""Limits of credentials. They are checked where credentials are read, with their names at hand."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 64 << 10
"""Longest credential of any kind; keys in JSON or PEM have 4 KiB, and kubeconfigs 16 KiB."""

HEADER_BYTES = 16 << 10
"""Longest credential in a header. Identity providers issue tokens of up to 12 KiB, and common
proxies take no more than 16 KiB of headers."""


def checked(text: str) -> str:
    """Return a credential.

    Raises:
        ValueError: it is too long; the message has its size and not the text.
    """
    if len(text) > MOST_BYTES // 4 and (size := len(text.encode(errors="replace"))) > MOST_BYTES:
        raise ValueError(f"must have at most {MOST_BYTES} bytes, as a credential, and has {size}")
    return text


def header_value(text: str) -> str:
    """Return a credential that a header can carry.

    Raises:
        ValueError: it cannot; the message has the rule and the size, and not the text.
    """
    if len(text) > HEADER_BYTES or not (text.isascii() and text.isprintable()):
        raise ValueError(
            f"must be one line of printable ASCII with at most {HEADER_BYTES} bytes, for it goes "
            f"into a header, and has {len(text.encode(errors='replace'))}"
        )
    return text


def read(path: Path) -> str:
    """Return the credential in a file, without white space around it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no text in UTF-8, or too long.
    """
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes, and a credential has fewer")
    return data.decode().strip()
