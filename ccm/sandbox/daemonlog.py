"""Reads what the daemon logs, one JSON object a line, while it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

_WARNINGS = frozenset({"warning", "error", "critical"})


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line, as far as a sandbox cares; the figures stand in the last one."""

    msg: str = ""
    level: str = "info"
    err: str = ""
    detail: str = ""
    node: str = ""
    node_writes: int | None = None
    service_writes: int = 0
    cloud_calls: int | None = None

    @property
    def is_warning(self) -> bool:
        """Whether somebody should look at it."""
        return self.level in _WARNINGS

    @property
    def writes(self) -> int | None:
        """Writes about nodes and Services; None in all lines but the last."""
        return None if self.node_writes is None else self.node_writes + self.service_writes

    def __str__(self) -> str:
        return " ".join(filter(None, (self.msg, self.node, self.detail, self.err)))


_DECODER = msgspec.json.Decoder(Entry)


class DaemonLog:
    """A log that is followed.

    Attributes:
        last: the line with which the daemon ended; None while it runs, or if it crashed.
    """

    def __init__(self, path: Path) -> None:
        self.last: Entry | None = None
        self._path = path
        self._read = 0

    def news(self) -> Sequence[Entry]:
        """The entries written since the last call; lines that are no JSON are left out."""
        with self._path.open("rb") as source:
            source.seek(self._read)
            whole, newline, _ = source.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        entries = list(_entries(whole))
        self.last = next((entry for entry in entries if entry.msg == "stopped"), self.last)
        return entries


def _entries(text: bytes) -> Iterator[Entry]:
    for line in text.splitlines():
        try:
            yield _DECODER.decode(line)
        except msgspec.MsgspecError:
            continue  # a traceback, or what a library printed
