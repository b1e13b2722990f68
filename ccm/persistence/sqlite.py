"""Store in one SQLite file, with one connection in its own thread.

Every write transaction also checks the epoch: once a newer leader has opened the file, a former
leader can no longer write. The transaction also checks that the path still leads to the open file,
because the next process would not find writes to a file that was moved away.

The pragma `synchronous` is set to FULL or higher and read back: with a lower level, a power failure
can lose acknowledged writes. On a network file system, a rollback journal replaces the write-ahead
log, which needs shared memory.

The check of the file's integrity takes half a minute for a million objects. With a write-ahead log,
where readers do not block the writer, it runs in the background after the file was opened.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from ccm.base.log import logger
from ccm.base.tasks import spawn
from ccm.persistence import envelope, local
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.errors import BackendDead, BackendUnavailable
from ccm.persistence.interface import CAS, FENCING, GVK, Expected, ObjectKey, Version
from ccm.persistence.objects import MAX_ENVELOPE, StoragePlace
from ccm.persistence.registry import store_backend
from ccm.persistence.store import (
    Claim,
    Page,
    StoredRecord,
    check_epoch,
    check_expected,
    own_marker,
)

T = TypeVar("T")

APPLICATION_ID = 0x63636D31
"""SQLite application ID of our files: `ccm1` in ASCII."""

SCHEMA = 1
"""Version of the tables, stored as `user_version` of the file."""

PAGE = 200
"""Objects per query of a listing; a whole page is in memory."""

BUSY_MS = 5000
"""Milliseconds for which SQLite waits until another process, such as `kube-ccm doctor`, releases
its lock of the file."""

_TABLES = """
CREATE TABLE instance(marker BLOB NOT NULL, epoch INTEGER NOT NULL);
CREATE TABLE objects(
    grp TEXT, version TEXT, kind TEXT, key TEXT,
    write_id TEXT NOT NULL, epoch INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY(grp, version, kind, key)) WITHOUT ROWID;
"""
_WHERE = "WHERE grp = ? AND version = ? AND kind = ? AND key"
_UPSERT = """
INSERT INTO objects(grp, version, kind, key, write_id, epoch, body) VALUES(?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET write_id = excluded.write_id, epoch = excluded.epoch,
    body = excluded.body
"""
_SELECT_CLUSTER_UIDS = "SELECT json_extract(CAST(marker AS TEXT), '$.clusterUID') FROM instance"
_CORRUPTION_CODES = frozenset({"SQLITE_CORRUPT", "SQLITE_NOTADB"})

INTERRUPT_S = 0.05
"""Seconds between two interruptions of the integrity check, until it ends."""

MIN_FREE_BYTES = 1 << 16
"""Free bytes of the file system below which an error is attributed to a full disk."""


class SqliteConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A local file, or a file on NFS."""

    path: Annotated[Path, msgspec.Meta(description="Absolute path; created if absent.")]


class SqliteStore:
    """Store in a SQLite file.

    Args:
        path: absolute path of the file.

    Raises:
        BackendDead: the path is not absolute.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_absolute() or "\0" in str(path):
            raise BackendDead(f"sqlite.path is {str(path)!r}; use an absolute path")
        self.capabilities = frozenset({CAS, FENCING})
        self.max_bytes = MAX_ENVELOPE
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="persistence-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._is_damaged = False
        self._checking: asyncio.Task[None] | None = None
        self._checker: sqlite3.Connection | None = None

    async def open(self, claim: Claim) -> None:
        """See `Store.open`."""
        await self._stop_check()
        if await self._run(self._open, claim):
            self._checking = spawn(self._check(), name="persistence-sqlite-check")

    async def probe(self) -> None:
        """See `Store.probe`."""
        await self._run(self._probe)

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """See `Store.read`."""
        return await self._run(self._read, place)

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """See `Store.write`."""
        return await self._run(self._write, place, entry, expect)

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        """See `Store.remove`."""
        await self._run(self._remove, place, epoch)

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        last = ""
        while page := await self._run(self._read_page, kind, last):
            yield page
            last = page[-1][0].key

    async def clusters(self, wanted: str) -> Collection[str]:  # noqa: ARG002
        """See `ClusterListing.clusters`."""
        return await self._run(self._cluster_uids)

    async def close(self) -> None:
        """See `Store.close`."""
        await self._stop_check()
        await self._run(self._close)
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in the thread of the store, after earlier ones, and return its result.

        The function runs to its end even if the caller is cancelled.

        Raises:
            BackendDead: the file is damaged.
            BackendUnavailable: a temporary failure.
        """

        def call() -> T:
            try:
                return function(*args)
            except (sqlite3.Error, OSError) as error:
                if _error_name(error) in _CORRUPTION_CODES:
                    self._is_damaged = True
                self._check_intact()
                raise BackendUnavailable(self._describe_error(error)) from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _check(self) -> None:
        """Check the integrity of the file in another thread; after a fault, refuse all calls."""
        try:
            self._is_damaged = not await asyncio.to_thread(self._is_intact)
        except (sqlite3.Error, OSError) as error:
            name = _error_name(error)
            self._is_damaged = name in _CORRUPTION_CODES
            if not self._is_damaged and name != "SQLITE_INTERRUPT":
                logger("persistence").warning(
                    "storage integrity was not checked", source=str(self._path), error=name
                )
        if self._is_damaged:
            logger("persistence").error("storage is damaged", source=str(self._path))

    async def _stop_check(self) -> None:
        """Interrupt the check, and wait for its end.

        The interruption is repeated, because it has no effect before the statement runs. A progress
        handler would not do: before version 3.41, SQLite calls none while it reads the pages.
        """
        while self._checking is not None and not self._checking.done():
            if self._checker is not None:
                with suppress(sqlite3.ProgrammingError):  # it is closed
                    self._checker.interrupt()
            # The task is not cancelled: its thread would keep the file open.
            await asyncio.wait({self._checking}, timeout=INTERRUPT_S)

    def _is_intact(self) -> bool:
        uri = f"{self._path.as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_MS / 1000)) as db:
            self._checker = db
            return bool(db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")

    # Run in the worker thread

    def _check_intact(self) -> None:
        if self._is_damaged:
            raise BackendDead(f"{self._path} is damaged; see the recovery guide")

    @property
    def _db(self) -> sqlite3.Connection:
        self._check_intact()
        if self._connection is None:
            raise BackendUnavailable("the file is not open")
        return self._connection

    def _cluster_uids(self) -> Collection[str]:
        if not self._path.exists():
            return ()
        # Not "ro": SQLite may have to complete or undo a transaction after a crash.
        uri = f"{self._path.as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_MS / 1000)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'instance'").fetchone():
                return ()
            return [uid for (uid,) in db.execute(_SELECT_CLUSTER_UIDS)]

    def _open(self, claim: Claim) -> bool:
        """Open the file; return whether its integrity still has to be checked."""
        self._close()
        self._is_damaged = False
        local.ensure_private_folder(self._path.parent)
        if not os.path.lexists(self._path):
            # Create the file first: SQLite gives its mode to the journal files.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(self._path, flags, local.FILE_MODE))
        local.check_private(self._path, is_folder=False)
        # Read before the file is opened: `_check_path` notices a replacement in between.
        self._inode = _inode_of(self._path)
        self._connection = sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_MS / 1000)
        owner = self._pragma("application_id")
        if owner != APPLICATION_ID and (owner or self._pragma("schema_version")):
            raise BackendDead(
                f"{self._path} is a database of another program; configure another file"
            )
        is_wal = self._enable_durability()
        self._is_damaged = not is_wal and self._pragma("quick_check(1)") != "ok"
        with self._transaction():
            if not self._pragma("schema_version"):
                self._make_tables(claim)
            if (version := self._pragma("user_version")) > SCHEMA:
                raise BackendDead(
                    f"{self._path}: written with schema {version}, this version reads up to "
                    f"{SCHEMA}; upgrade kube-ccm, or configure another file"
                )
            row = self._db.execute("SELECT marker, epoch FROM instance").fetchone()
            marker, epoch = row or (b"", 0)  # an empty marker is damaged
            marker = own_marker(marker, claim, str(self._path))
            check_epoch(epoch, claim.epoch)
            self._db.execute("UPDATE instance SET marker = ?, epoch = ?", (marker, claim.epoch))
        return is_wal

    def _enable_durability(self) -> bool:
        """Enable a durable journal; return whether it is a write-ahead log.

        Raises:
            BackendDead: SQLite cannot make writes durable.
        """
        wanted = "DELETE" if local.is_on_network(self._path) else "WAL"
        mode = self._db.execute(f"PRAGMA journal_mode={wanted}").fetchone()[0]
        level = 2 if mode == "wal" else 3  # FULL, EXTRA
        if mode != "wal":
            self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.execute(f"PRAGMA synchronous={level}")
        if self._pragma("synchronous") != level:
            raise BackendDead(f"{self._path}: SQLite cannot make writes durable here")
        return bool(mode == "wal")

    def _make_tables(self, claim: Claim) -> None:
        for statement in filter(str.strip, _TABLES.split(";")):
            self._db.execute(statement)
        row = (envelope.build_marker(claim.cluster_uid), claim.epoch)
        self._db.execute("INSERT INTO instance(marker, epoch) VALUES(?, ?)", row)
        self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        self._db.execute(f"PRAGMA user_version={SCHEMA}")

    def _pragma(self, name: str) -> Any:
        return self._db.execute(f"PRAGMA {name}").fetchone()[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._check_path()
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _check_path(self) -> None:
        """Check that the open file still has its path.

        Raises:
            BackendUnavailable: the file was moved, deleted or replaced.
        """
        if _inode_of(self._path) != self._inode:
            raise BackendUnavailable(
                f"{self._path} was moved, deleted or replaced while it was open; "
                "move it back, or restart the daemon to use the file at that path"
            )

    def _probe(self) -> None:
        with self._transaction():
            self._db.execute("UPDATE instance SET epoch = epoch")

    def _read(self, place: StoragePlace) -> StoredRecord | None:
        query = f"SELECT body, write_id FROM objects {_WHERE} = ?"  # noqa: S608 - all of it is ours
        row = self._db.execute(query, (*place.kind, place.key)).fetchone()
        return None if row is None else StoredRecord(bytes(row[0]), Version(row[1]))

    def _write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        with self._transaction():
            self._check_leader(entry.epoch)
            if expect is not None:
                query = f"SELECT write_id FROM objects {_WHERE} = ?"  # noqa: S608 - all of it is ours
                row = self._db.execute(query, (*place.kind, place.key)).fetchone()
                check_expected(expect, row and row[0])
            values = (*place.kind, place.key, entry.version, entry.epoch, entry.body)
            self._db.execute(_UPSERT, values)
        return entry.version

    def _remove(self, place: StoragePlace, epoch: int) -> None:
        with self._transaction():
            self._check_leader(epoch)
            self._db.execute(f"DELETE FROM objects {_WHERE} = ?", (*place.kind, place.key))  # noqa: S608

    def _check_leader(self, epoch: int) -> None:
        row = self._db.execute("SELECT epoch FROM instance").fetchone()
        if row is None:
            raise BackendDead(
                f"{self._path}: the storage marker is missing; see the recovery guide"
            )
        (stored_epoch,) = row
        check_epoch(stored_epoch, epoch)
        if stored_epoch < epoch:
            self._db.execute("UPDATE instance SET epoch = ?", (epoch,))

    def _read_page(self, kind: GVK, after: str) -> Page:
        query = f"SELECT key, body, write_id FROM objects {_WHERE} > ? ORDER BY key LIMIT {PAGE}"  # noqa: S608
        return [
            (StoragePlace(kind, ObjectKey(key)), StoredRecord(bytes(body), Version(version)))
            for key, body, version in self._db.execute(query, (*kind, after))
        ]

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _describe_error(self, error: Exception) -> str:
        """Return an error text without the data that was written."""
        name = _error_name(error)
        text = f"{self._path}: SQLite operation failed: {name}"
        with suppress(OSError):
            free_bytes = shutil.disk_usage(self._path.parent).free
            if name == "SQLITE_FULL" or free_bytes < MIN_FREE_BYTES:
                text += "; no space for more: free some space; deletions need some, too"
        return text


def _error_name(error: Exception) -> str:
    name = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None)
    return str(name or type(error).__name__)


def _inode_of(path: Path) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


storage = store_backend("sqlite", SqliteConfig, lambda config: SqliteStore(config.path), ("path",))
