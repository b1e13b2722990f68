"""Keeps the store on disk: a file of JSON lines, one per change, that is never edited.

The first line says up to which revision the file was compacted; the lines that follow,
up to that revision, are the objects as they were then, and every later line is a change,
in order. A change is one `write` without buffering, so it outlives a killed process (not
a power cut: nothing is synced). A torn last line is dropped at the next start. When
enough changes have gathered, the file is replaced by one with the living objects only.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator

import msgspec

COMPACT_BYTES = 64 * 1024 * 1024
"""Changes gather up to this size, or twice the living objects', before a compaction."""


class Record(msgspec.Struct, frozen=True):
    """One line: a change of one object, or an object that lived at the compaction."""

    revision: int
    resource: str = ""
    key: str = ""
    change: str = ""
    raw: msgspec.Raw = msgspec.field(name="object", default=msgspec.Raw(b"null"))


class Journal:
    """An open journal file; one process may have it open."""

    def __init__(self, path: pathlib.Path, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self.path = path
        self._compact_bytes = compact_bytes
        self._gathered = 0
        self._limit = compact_bytes
        self._file: int | None = None

    def load(self) -> Iterator[Record]:
        """Every record, the first of them the mark of the compaction (no resource).

        Drops a torn last line. Call it before the first `append`.

        Raises:
            OSError: the file cannot be read.
            ValueError: a line that is not the last is damaged.
        """
        if not self.path.exists():
            return
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

    def append(self, record: Record) -> None:
        """Write one change through to the operating system."""
        self._gathered += self._write(_line(record))

    @property
    def is_full(self) -> bool:
        """True when the owner should call `compact`."""
        return self._gathered > self._limit

    def compact(self, revision: int, living: Iterable[Record]) -> None:
        """Replace the file, atomically, by one that holds only the living objects."""
        fresh = self.path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(b'{"revision":%d}\n' % revision)
            file.writelines(_line(record) for record in living)
            size = file.tell()
        fresh.replace(self.path)
        self.close()
        self._gathered = 0
        self._limit = max(self._compact_bytes, 2 * size)

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: bytes) -> int:
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(self.path, flags, 0o600)
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        return len(line)


def _line(record: Record) -> bytes:
    return msgspec.json.encode(record) + b"\n"
