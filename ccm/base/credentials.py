"""Credentials: size limits, and TLS key pairs, which on Linux are never written to disk."""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

MAX_BYTES = 64 << 10
"""Maximum bytes of a credential; usual keys in JSON or PEM have 4 KiB, kubeconfigs 16 KiB."""

MAX_HEADER_BYTES = 16 << 10
"""Maximum bytes of a credential in an HTTP header. Identity providers issue tokens of up to 12 KiB,
and common proxies accept at most 16 KiB of headers."""


def check_size(text: str) -> str:
    """Return a credential unchanged, after a check of its size.

    Raises:
        ValueError: the credential exceeds `MAX_BYTES`; the message has its size, not its text.
    """
    if len(text) > MAX_BYTES // 4 and (size := len(text.encode(errors="replace"))) > MAX_BYTES:
        raise ValueError(f"must have at most {MAX_BYTES} bytes, but has {size}")
    return text


def check_header_value(text: str) -> str:
    """Return a credential unchanged, after a check that an HTTP header can carry it.

    Raises:
        ValueError: the credential exceeds `MAX_HEADER_BYTES`, or is not one line of printable
            ASCII; the message has the rule and the size, not the text.
    """
    if len(text) > MAX_HEADER_BYTES or not (text.isascii() and text.isprintable()):
        raise ValueError(
            f"must be one line of printable ASCII with at most {MAX_HEADER_BYTES} bytes, to fit "
            f"into a header; it has {len(text.encode(errors='replace'))} bytes"
        )
    return text


def read(path: Path) -> str:
    """Return the credential in a file, without surrounding white space.

    Raises:
        OSError: the file cannot be read.
        ValueError: the content is not UTF-8, or exceeds `MAX_BYTES`.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"the file has more than {MAX_BYTES} bytes, too many for a credential")
    return data.decode().strip()


def memory_file() -> IO[bytes]:
    """Open an empty file that vanishes on close: in memory on Linux, on disk elsewhere."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("ccm"), "w+b")
    else:  # noqa: RET505 - mypy knows this form
        return tempfile.NamedTemporaryFile(prefix="ccm-")


def path_of(file: IO[bytes]) -> str:
    """Return the path under which this process can read a file of `memory_file`."""
    return f"/proc/self/fd/{file.fileno()}" if sys.platform == "linux" else file.name


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """Certificate chain and its private key, both PEM."""

    chain: bytes
    key: bytes = field(repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the pair into a TLS context, which then presents the certificate.

        Raises:
            ssl.SSLError: the chain or the key is no PEM, or they do not match.
            ValueError: the key is encrypted.
        """
        # Python's ssl module takes files only.
        with memory_file() as chain, memory_file() as key:
            for file, content in ((chain, self.chain), (key, self.key)):
                file.write(content)
                file.flush()
            # An encrypted key must fail, not ask for a password on the terminal.
            context.load_cert_chain(path_of(chain), path_of(key), password=_no_password)


def _no_password() -> str:
    raise ValueError("encrypted private keys are not supported")
