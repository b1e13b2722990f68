"""A hundred journal entries at once, beside the same bytes in one transaction of a bare library."""

from __future__ import annotations

import itertools
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from ccm.persistence.memory import MemoryStore
from ccm.persistence.postgres import PostgresConfig, PostgresStore
from ccm.persistence.sqlite import SqliteStore
from ccm.persistence.store import Store
from tests import postgres
from tests.contract.persistence import buckets
from tests.support import journals

ENTRIES = 100
REPETITIONS = 100
LIMIT = 3.0
"""Highest ratio of the journal to the bare library."""

RECORDS = 1_000_000
RECORD_BYTES = 300
RECORDS_AT_ONCE = 50_000
LIMIT_OPENING_S = 2.0

Rows = Sequence[tuple[str, bytes]]
Insert = Callable[[Rows], Coroutine[Any, Any, None]]

_ANNOTATIONS = {f"sim.example.com/{name}": "some-value" for name in ("pool", "algorithm", "type")}
_TABLE = "CREATE TABLE bare(name TEXT PRIMARY KEY, body {})"


async def journal_store() -> dict[str, Any]:
    """Times and ratios of each store, and the opening of a file with a million records."""
    with tempfile.TemporaryDirectory(prefix="ccm-bench-") as name:
        folder = Path(name)
        return {
            "entries": ENTRIES,
            "repetitions": REPETITIONS,
            "limit_of_ratios": LIMIT,
            "sqlite": await _sqlite(folder),
            "postgres": await _postgres(),
            "s3": await _s3(folder),
            "memory": await _measured(MemoryStore()),
            "sqlite_opening": await _opening(folder / "large" / "x.db"),
        }


async def _measured(store: Store, insert: Insert | None = None) -> dict[str, float]:
    """Median times of many batches of new entries, by turns with the bare library."""
    watched = journals.WatchedStore(store)
    journal_ms: list[float] = []
    bare_ms: list[float] = []
    numbers = itertools.count()
    async with journals.opened(watched) as journal:
        for repetition in range(REPETITIONS):
            entries = [
                journals.entry(number, intended_name=f"lb-{number}", annotations=_ANNOTATIONS)
                for number in itertools.islice(numbers, ENTRIES)
            ]
            works = [(journal_ms, journal.put(*entries))]
            if insert is not None:
                rows = [(entry.name, msgspec.json.encode(entry)) for entry in entries]
                works.append((bare_ms, insert(rows)))
            # Neither is always the first.
            for times_ms, work in works[:: 1 if repetition % 2 else -1]:
                began = time.perf_counter()
                await work
                times_ms.append((time.perf_counter() - began) * 1000)
    figures = {
        "journal_ms": round(statistics.median(journal_ms), 2),
        "page_writes": round(watched.writes / REPETITIONS, 2),
    }
    if bare_ms:
        figures["bare_ms"] = round(statistics.median(bare_ms), 2)
        figures["ratio"] = round(statistics.median(journal_ms) / statistics.median(bare_ms), 2)
    return figures


async def _sqlite(folder: Path) -> dict[str, float]:
    with closing(sqlite3.connect(folder / "bare.db", isolation_level=None)) as db:
        # As the store does on a local disk.
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(_TABLE.format("BLOB"))

        async def insert(rows: Rows) -> None:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO bare VALUES(?, ?)", rows)
            db.execute("COMMIT")

        return await _measured(SqliteStore(folder / "store" / "x.db"), insert)


async def _postgres() -> dict[str, float] | str:
    if postgres.programs() is None:
        return postgres.MISSING
    with postgres.running() as socket:
        address: dict[str, Any] = {
            "host": str(socket),
            "user": postgres.USER,
            "database": postgres.USER,
        }
        db = await asyncpg.connect(**address, ssl=False)
        try:
            await db.execute(_TABLE.format("BYTEA"))

            async def insert(rows: Rows) -> None:
                async with db.transaction():
                    await db.executemany("INSERT INTO bare VALUES($1, $2)", rows)

            return await _measured(PostgresStore(PostgresConfig(**address)), insert)
        finally:
            await db.close()


async def _s3(folder: Path) -> dict[str, float]:
    with buckets.running() as url:
        return await _measured(next(iter(buckets.S3Harness(url, folder).stores().values())))


async def _opening(path: Path) -> dict[str, float | str]:
    """Seconds until a large file is open, an entry is stored, and the file is closed."""
    async with journals.opened(SqliteStore(path)):
        pass  # creates the tables
    _fill(path)
    times = [time.perf_counter()]
    async with journals.opened(SqliteStore(path)) as journal:
        times.append(time.perf_counter())
        await journal.put(journals.entry())
        times.append(time.perf_counter())
    times.append(time.perf_counter())
    opened_s, stored_s, closed_s = (
        round(end - start, 3) for start, end in itertools.pairwise(times)
    )
    return {
        "records": RECORDS,
        "sqlite_version": sqlite3.sqlite_version,
        "file_mib": round(path.stat().st_size / (1 << 20)),
        "opened_s": opened_s,
        "first_entry_s": stored_s,
        "closed_s": closed_s,
        "limit_opened_s": LIMIT_OPENING_S,
    }


def _fill(path: Path) -> None:
    """Add records with the bare library, and remove the file from the page cache."""
    query = "INSERT INTO objects VALUES('example.com', 'v1', 'Thing', ?, ?, 0, ?)"
    body = bytes(RECORD_BYTES)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        for start in range(0, RECORDS, RECORDS_AT_ONCE):
            numbers = range(start, start + RECORDS_AT_ONCE)
            db.execute("BEGIN")
            db.executemany(query, ((f"_/{n:09d}", f"{n:036d}", body) for n in numbers))
            db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)  # only clean pages can be removed
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
