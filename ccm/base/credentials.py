"""Credentials: their limits, checked where they are read, and key pairs, which no disk has."""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

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


def memory_file() -> IO[bytes]:
    """An empty file that is gone when it is closed; outside Linux a temporary one of ours alone."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("ccm"), "w+b")
    else:  # noqa: RET505 - mypy knows this form
        return tempfile.NamedTemporaryFile(prefix="ccm-")


def path_of(file: IO[bytes]) -> str:
    """The path under which this process can read a file in memory."""
    return f"/proc/self/fd/{file.fileno()}" if sys.platform == "linux" else file.name


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate chain and its private key, both PEM."""

    chain: bytes
    key: bytes = field(repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a context show it.

        Raises:
            ssl.SSLError: one is no PEM, or they do not belong together.
            ValueError: the key is encrypted.
        """
        # OpenSSL's binding takes files only.
        with memory_file() as chain, memory_file() as key:
            for file, content in ((chain, self.chain), (key, self.key)):
                file.write(content)
                file.flush()
            # An encrypted key must fail, not ask for a password on the terminal.
            context.load_cert_chain(path_of(chain), path_of(key), password=_no_password)


def _no_password() -> str:
    raise ValueError("an encrypted private key is not supported")
