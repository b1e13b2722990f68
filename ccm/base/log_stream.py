"""Where log lines go: one stream, or errors to one and the rest to another, held back a little.

A line is written whole. A stream that nobody reads any more loses lines and never harms the
process.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Protocol


class Stream(Protocol):
    """What is needed of a binary stream."""

    def write(self, data: bytes, /) -> object:
        """Take the bytes."""
        ...

    def flush(self) -> None:
        """Hand on what was taken."""
        ...


class Out:
    """Writes lines.

    Args:
        errors: where errors go.
        infos: where everything else goes; None = to the same.
        buffer_bytes: how much of `infos` may be held back until `flush`; 0 = nothing.
    """

    def __init__(
        self, errors: Stream, infos: Stream | None = None, *, buffer_bytes: int = 0
    ) -> None:
        self._errors = errors
        self._infos = infos or errors
        self._room = buffer_bytes if infos is not None else 0
        self._held: list[bytes] = []
        self._size = 0
        self._lock = threading.Lock()

    def write(self, level: str, line: bytes) -> None:
        """Write a line, its line break not included."""
        if level in ("error", "critical"):
            _put(self._errors, line + b"\n")
        elif self._room == 0:
            _put(self._infos, line + b"\n")
        else:
            self._hold(line + b"\n")

    def flush(self) -> None:
        """Write what was held back."""
        with self._lock:
            self._empty()

    def _hold(self, line: bytes) -> None:
        with self._lock:
            self._held.append(line)
            self._size += len(line)
            if self._size >= self._room:
                self._empty()

    def _empty(self) -> None:
        held, self._held, self._size = self._held, [], 0
        if held:
            _put(self._infos, b"".join(held))


def _put(stream: Stream, data: bytes) -> None:
    # A closed pipe or a full disk: there is nowhere left to say so.
    with contextlib.suppress(OSError, ValueError):
        stream.write(data)
        stream.flush()
