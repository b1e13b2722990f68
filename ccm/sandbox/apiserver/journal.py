"""Keeps the store on disk: a file of JSON lines, one per change, that is never edited.

The first line says up to which revision the file was compacted; the lines that follow,
up to that revision, are the objects as they were then, and every later line is a change,
in order. A change is flushed at once, so it outlives a killed process (not
a power cut: nothing is synced). A torn last line is dropped at the next start. When
enough changes have gathered, the file is replaced by one with the living objects only.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

COMPACT_BYTES = 64 * 1024 * 1024
"""Changes gather up to this size, or twice the living objects', before a compaction."""


class Record(msgspec.Struct, frozen=True):
    """One line: a change of one object, or an object that lived at the compaction."""

    revision: int
    resource: str = ""
    key: str = ""
    change: Literal["ADDED", "MODIFIED", "DELETED"] = "ADDED"
    raw: msgspec.Raw = msgspec.field(name="object", default=msgspec.Raw(b"null"))


class Journal:
    """A journal file; one process may use it."""

    def __init__(self, path: pathlib.Path, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self.path = path
        self._compact_bytes = compact_bytes
        self._gathered = 0
        self._limit = compact_bytes
        path.touch(mode=0o600)

    def load(self) -> Iterator[Record]:
        """Every record, the first of them the mark of the compaction (no resource).

        Drops a torn last line. Call it before the first `append`.

        Raises:
            OSError: the file cannot be read.
            ValueError: a line that is not the last is damaged.
        """
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        decoder = msgspec.json.Decoder(Record)
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{self.path}: line {number} is damaged: {error}") from error
        self._gathered = whole

    def append(self, record: Record) -> bool:
        """Write one change through to the operating system; true asks for a compaction."""
        with self.path.open("ab") as file:
            self._gathered += file.write(_line(record))
        return self._gathered > self._limit

    def compact(self, revision: int, living: Iterable[Record]) -> None:
        """Replace the file, atomically, by one that holds only the living objects."""
        fresh = self.path.with_suffix(".new")
        fresh.touch(mode=0o600)
        with fresh.open("wb") as file:
            file.write(b'{"revision":%d}\n' % revision)
            file.writelines(_line(record) for record in living)
            size = file.tell()
        fresh.replace(self.path)
        self._gathered = 0
        self._limit = max(self._compact_bytes, 2 * size)


def _line(record: Record) -> bytes:
    return msgspec.json.encode(record) + b"\n"
