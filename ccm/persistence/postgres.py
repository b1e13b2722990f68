"""Store in a table of a PostgreSQL database. Several clusters can share the table; each reads and
writes only its own rows.

Each call is one statement that can be repeated, without a transaction over several round trips. A
statement that changes objects also locks the cluster's row with the epoch: once a newer leader has
opened the store, a former leader can no longer write, and a frozen leader keeps no lock. Concurrent
changes share a statement. A server that does not flush to disk is rejected.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import ssl
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import asyncpg
import msgspec

from ccm.base import files, log
from ccm.base.backoff import ExponentialBackoff
from ccm.base.tasks import cancel_and_join, spawn
from ccm.persistence import envelope
from ccm.persistence.engine import StoreProvider, build_provider
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.errors import (
    BackendDead,
    BackendUnavailable,
    PersistenceError,
    VersionConflict,
)
from ccm.persistence.interface import (
    ABSENT,
    CAS,
    FENCING,
    GVK,
    SHARED,
    Expected,
    ObjectKey,
    Version,
)
from ccm.persistence.local import read_text
from ccm.persistence.objects import StoragePlace
from ccm.persistence.registry import BackendContext, backend
from ccm.persistence.store import Claim, Page, StoredRecord, check_epoch

PAGE = 200
BATCH = 200
BATCH_BYTES = 4 << 20
"""Maximum changes of one statement, and bytes of their envelopes."""

POOL = 4
CONNECT_S = 5.0
COMMAND_S = 10.0
RETRY_S = 25.0
"""Seconds for which a call waits for a connection and repeats its statement: less than the engine's
deadline, so that the error still names the cause."""

BACKOFF = ExponentialBackoff(base_s=0.05, cap_s=1.0, jitter=1.0)

SCHEMA = 1
"""Version of the tables, stored as the comment of the table of objects."""

SCHEMA_LOCK = 0x63636D31
"""Advisory lock ID for the creation of the schema: `ccm1` in ASCII."""

_SESSION = {
    "synchronous_commit": "on",
    "statement_timeout": "8s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "5s",
    "tcp_user_timeout": "10000",
}
"""Settings of each connection. The time limits are for a process or network that freezes: the
server then ends the statement, and releases its locks."""

_SET_UP = """
SELECT current_setting('fsync') = 'on' AS is_durable, count(set_config(name, given.value, false))
FROM pg_settings JOIN unnest($1::text[], $2::text[]) AS given(name, value) USING (name)
WHERE NOT (name = 'synchronous_commit' AND setting = 'remote_apply')
"""
_TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = ANY($1) AND application_name = $2
"""

_SCHEMA = """
DO $$ BEGIN
PERFORM pg_advisory_xact_lock({lock});
CREATE TABLE IF NOT EXISTS "{table}_instance"(
    cluster_uid text PRIMARY KEY, marker bytea NOT NULL, epoch bigint NOT NULL);
CREATE TABLE IF NOT EXISTS "{table}"(
    cluster_uid text, grp text, version text, kind text, key text COLLATE "C",
    write_id text NOT NULL, epoch bigint NOT NULL, body bytea NOT NULL,
    PRIMARY KEY(cluster_uid, grp, version, kind, key));
COMMENT ON TABLE "{table}" IS 'kube-ccm schema {schema}';
END $$
"""
_COLUMNS = {
    "": "cluster_uid text, grp text, version text, kind text, key text, "
    "write_id text, epoch bigint, body bytea",
    "_instance": "cluster_uid text, marker bytea, epoch bigint",
}
"""Suffix of a table's name -> its columns."""

_LAYOUT = """
SELECT (
    SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
    FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
), obj_description(relation, 'pg_class')
FROM unnest($1::text[]) WITH ORDINALITY AS given(name, number), to_regclass(name) AS relation
ORDER BY number
"""
"""Columns and comment of each table, None = absent."""

_CLAIM = """
UPDATE "{table}_instance" SET epoch = greatest(epoch, $2) WHERE cluster_uid = $1
RETURNING marker, epoch
"""
_MARK = """
INSERT INTO "{table}_instance" VALUES(
    $1, $2, greatest($3::bigint, (SELECT max(epoch) FROM "{table}" WHERE cluster_uid = $1)))
ON CONFLICT DO NOTHING
"""
"""Not below the epoch of the objects: if an operator deleted the row, a former leader must not
restore it with its own epoch after the present one has written."""

_AT = "cluster_uid = $1 AND grp = $2 AND version = $3 AND kind = $4 AND key"
_READ = f'SELECT body, write_id FROM "{{table}}" WHERE {_AT} = $5'  # noqa: S608 - ours
_LIST = f'SELECT key, body, write_id FROM "{{table}}" WHERE {_AT} > $5 ORDER BY key LIMIT $6'  # noqa: S608 - ours


def _change(text: str) -> str:
    """Return a statement that makes changes if no newer leader has opened the store.

    Its row has the epoch in the store, None = the row of the cluster is missing or its epoch was
    set back, and the IDs of the writes that took effect.
    """
    return f"""
WITH leader AS (
    SELECT epoch FROM "{{table}}_instance" WHERE cluster_uid = $1 AND epoch >= $2 FOR SHARE),
given AS (
    SELECT given.* FROM leader, unnest(
        $3::text[], $4::text[], $5::text[], $6::text[],
        $7::text[], $8::bigint[], $9::bytea[], $10::text[]
    ) AS given(grp, version, kind, key, write_id, epoch, body, expected)
    WHERE leader.epoch <= given.epoch),
changed AS ({text} RETURNING stored.write_id)
SELECT (SELECT epoch FROM leader) AS epoch, ARRAY(SELECT write_id FROM changed) AS changed
"""  # noqa: S608 - ours


_KEY = "(cluster_uid, grp, version, kind, key)"
# Sorted, so that two processes lock the same rows in the same order.
_INSERT = f"""
INSERT INTO "{{table}}" AS stored(cluster_uid, grp, version, kind, key, write_id, epoch, body)
SELECT $1, given.* FROM (
    SELECT grp, version, kind, key, write_id, epoch, body FROM given
    ORDER BY grp, version, kind, key) AS given
ON CONFLICT {_KEY} DO UPDATE SET"""  # noqa: S608 - ours
_AT_GIVEN = """
stored.cluster_uid = $1 AND (stored.grp, stored.version, stored.kind, stored.key)
    = (given.grp, given.version, given.kind, given.key)"""

_PUT = _change(
    f"{_INSERT} write_id = excluded.write_id, epoch = excluded.epoch, body = excluded.body"
)
# The write's own ID in a condition: a repeated statement succeeds if its first run did.
_CREATE = _change(f"{_INSERT} epoch = excluded.epoch WHERE stored.write_id = excluded.write_id")
_REPLACE = _change(f"""
UPDATE "{{table}}" AS stored SET write_id = given.write_id, epoch = given.epoch, body = given.body
FROM given WHERE {_AT_GIVEN} AND stored.write_id IN (given.expected, given.write_id)""")  # noqa: S608 - ours
_DELETE = _change(f'DELETE FROM "{{table}}" AS stored USING given WHERE {_AT_GIVEN}')  # noqa: S608 - ours


_ADVICE = {
    "25006": "the server is read-only, such as a standby; host must be the primary",
    "28P01": "see user and password_file",
    "28000": "pg_hba.conf of the server rejects this connection",
    "3D000": "the database does not exist",
    "42501": "the user must be allowed to create tables, or the tables must exist",
    "42P01": "a table was dropped; the next start creates it",
    "53300": "the server has no free connection for this user; raise its connection limit",
}
"""SQLSTATE -> advice for the error message."""

_PASSING = frozenset({"40001", "40P01", "53300", "55P03"})
"""SQLSTATEs of a statement that changed nothing and may succeed soon: conflicts of locks, and too
many connections."""


class PostgresConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Database, over TLS with a verified certificate, or over a Unix socket."""

    host: Annotated[str, msgspec.Meta(description="Host, or folder of the Unix socket.")]
    port: Annotated[int, msgspec.Meta(description="Port of the server.", ge=1)] = 5432
    database: Annotated[str, msgspec.Meta(description="Name of the database.")] = "ccm"
    user: Annotated[str, msgspec.Meta(description="Database user.")] = "ccm"
    password_file: Annotated[Path | None, msgspec.Meta(description="File with the password.")] = (
        None
    )
    table: Annotated[str, msgspec.Meta(description="Table; created if absent.")] = "ccm_objects"
    ca_file: Annotated[
        Path | None, msgspec.Meta(description="PEM file with the CA certificates of the server.")
    ] = None
    allow_insecure: Annotated[
        bool, msgspec.Meta(description="Connect without TLS. For tests only.")
    ] = False

    def identity(self) -> dict[str, str | int]:
        """Return the settings that identify the storage."""
        return {
            setting: getattr(self, setting) for setting in ("host", "port", "database", "table")
        }


class _Change(NamedTuple):
    """Change of one object that waits for its statement.

    Attributes:
        statement: `_PUT`, `_CREATE`, `_REPLACE` or `_DELETE`.
        place: kind and key of the object.
        entry: the envelope; empty for a deletion.
        expected: version that `_REPLACE` requires.
        result: epoch in the store, and whether the change took effect.
    """

    statement: str
    place: StoragePlace
    entry: StoreEntry
    expected: str
    result: asyncio.Future[tuple[int | None, bool]]


class _Pool:
    """Connections that are opened on demand; a call waits until one is free.

    If the server has no free connection, the pool gets smaller instead of failing the call.

    Args:
        connect: opens a connection with the given application name.
    """

    def __init__(self, connect: Callable[[str], Awaitable[Any]]) -> None:
        self._connect = connect
        self._name = f"kube-ccm {uuid.uuid4()}"
        self._size = POOL
        self._slots = asyncio.Semaphore(POOL)
        self._idle: list[Any] = []
        self._abandoned: set[int] = set()

    async def fetch(self, query: str, *values: Any) -> Sequence[Any]:
        """Run a statement and return its rows; repeat it if the server had closed a connection."""
        while True:
            db, is_new = await self._take()
            pid = db.get_server_pid()  # unknown once the connection is closed
            try:
                await self._end_abandoned(db)
                rows: Sequence[Any] = await db.fetch(query, *values)
                return rows
            except BaseException as error:
                is_lost = db.is_closed() or isinstance(error, _CONNECTION_LOST)
                if is_lost or not isinstance(error, asyncpg.PostgresError):
                    self._abandoned.add(pid)
                    db.terminate()
                if not is_lost or is_new or not isinstance(error, Exception):
                    raise
            finally:
                if not db.is_closed():
                    self._idle.append(db)
                self._slots.release()

    def grow(self) -> None:
        """Allow one connection more, up to `POOL`."""
        if self._size < POOL:
            self._size += 1
            self._slots.release()

    async def close(self) -> None:
        """Close the connections; no call may be running."""
        while self._idle:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await self._idle.pop().close(timeout=CONNECT_S)

    async def _take(self) -> tuple[Any, bool]:
        """Return a free connection, and whether it is new."""
        await self._slots.acquire()
        try:
            while self._idle:
                if not (db := self._idle.pop()).is_closed():
                    return db, False
            return await self._connect(self._name), True
        except BaseException as error:
            if isinstance(error, asyncpg.TooManyConnectionsError) and self._size > 1:
                self._size -= 1
            else:
                self._slots.release()
            raise

    async def _end_abandoned(self, db: Any) -> None:
        """End sessions whose statement has an unknown outcome: it must not take effect later."""
        if abandoned := self._abandoned.copy():
            await db.fetch(_TERMINATE, list(abandoned), self._name)
            self._abandoned -= abandoned


_CONNECTION_LOST = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.PostgresConnectionError,
    asyncpg.ReadOnlySQLTransactionError,  # the primary moved: `host` may lead to the new one
)


class PostgresStore:
    """Store in a table.

    Args:
        config: settings of the database.

    Raises:
        BackendDead: a setting is invalid.
    """

    max_bytes = 2 << 20
    """Maximum bytes of an envelope."""

    def __init__(self, config: PostgresConfig) -> None:
        self.capabilities = frozenset({CAS, FENCING, SHARED})
        for setting, (pattern, advice) in _FORMATS.items():
            if not re.fullmatch(pattern, value := getattr(config, setting)):
                raise BackendDead(f"postgres.{setting} is {value!r}; use {advice}")
        if not 1 <= config.port <= 65535:
            raise BackendDead(f"postgres.port is {config.port}; use a port from 1 to 65535")
        self._config = config
        self._name = f"database {config.database} at {config.host}"
        self._pool = _Pool(self._connect)
        self._claim = Claim("", 0)
        self._is_open = False
        self._pending: list[_Change] = []
        self._committer: asyncio.Task[None] | None = None
        if config.allow_insecure:
            log.logger("persistence").warning("database is used without TLS", source=self._name)

    async def open(self, claim: Claim) -> None:
        """See `Store.open`."""
        self._claim = claim
        await self._prepare_tables()
        marker, epoch = await self._claim_epoch()
        envelope.check_marker(bytes(marker), claim.cluster_uid, self._name)
        check_epoch(epoch, claim.epoch)
        self._is_open = True

    async def probe(self) -> None:
        """See `Store.probe`; also restores a lost row of the cluster."""
        await self._claim_epoch()
        self._pool.grow()

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """See `Store.read`."""
        rows = await self._fetch(_READ, self._claim.cluster_uid, *place.kind, place.key)
        return StoredRecord(bytes(rows[0][0]), Version(rows[0][1])) if rows else None

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """See `Store.write`."""
        if expect is None:
            is_written = await self._change(_PUT, place, entry)
        elif expect is ABSENT:
            is_written = await self._change(_CREATE, place, entry)
        else:
            is_written = await self._change(_REPLACE, place, entry, expect)
        if not is_written:
            raise VersionConflict("the object was changed concurrently")
        return entry.version

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        """See `Store.remove`."""
        await self._change(_DELETE, place, StoreEntry(b"", Version(""), epoch))

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        last = ""
        while True:
            rows = await self._fetch(_LIST, self._claim.cluster_uid, *kind, last, PAGE)
            if not rows:
                return
            yield [
                (StoragePlace(kind, ObjectKey(key)), StoredRecord(bytes(body), Version(version)))
                for key, body, version in rows
            ]
            last = rows[-1]["key"]

    async def close(self) -> None:
        """See `Store.close`."""
        await cancel_and_join(self._committer)
        await self._pool.close()

    # Changes

    async def _change(
        self, statement: str, place: StoragePlace, entry: StoreEntry, expected: str = ""
    ) -> bool:
        """Make a change, together with concurrent ones; return whether it took effect."""
        result = asyncio.get_running_loop().create_future()
        self._pending.append(_Change(statement, place, entry, expected, result))
        if self._committer is None or self._committer.done():
            self._committer = spawn(self._commit_pending(), name="persistence-postgres")
        epoch, is_changed = await result
        if epoch is None:
            raise BackendUnavailable(
                f"{self._name}: the row of this cluster in {self._config.table}_instance is "
                "missing or was set back; nothing was written, the next probe restores it"
            )
        check_epoch(epoch, entry.epoch)
        return bool(is_changed)

    async def _commit_pending(self) -> None:
        while batch := self._next_batch():
            failure: PersistenceError = BackendUnavailable(f"{self._name}: interrupted")
            changed: frozenset[str] | None = None
            try:
                columns = zip(*map(_row, batch), strict=True)
                ((epoch, ids),) = await self._fetch(batch[0].statement, *self._claim, *columns)
                changed = frozenset(ids)
            except PersistenceError as error:
                failure = error
            finally:
                for change in batch:
                    if change.result.done():  # the caller was cancelled
                        continue
                    if changed is None:
                        change.result.set_exception(type(failure)(*failure.args))
                    else:
                        change.result.set_result((epoch, change.entry.version in changed))

    def _next_batch(self) -> list[_Change]:
        """Take the next changes that fit one statement: of one kind, and of different objects."""
        batch: list[_Change] = []
        left: list[_Change] = []
        places: set[StoragePlace] = set()
        size = 0
        for change in self._pending:
            if change.result.done():  # the caller was cancelled
                continue
            fits = not batch or (
                change.statement is batch[0].statement
                and change.place not in places
                and len(batch) < BATCH
                and size + len(change.entry.body) <= BATCH_BYTES
            )
            if fits:
                batch.append(change)
                size += len(change.entry.body)
            else:
                left.append(change)
            # A later change of the same object must not overtake one that is left.
            places.add(change.place)
        self._pending = left
        return batch

    # Opening

    async def _prepare_tables(self) -> None:
        """Create absent tables; refuse those of another version.

        Raises:
            BackendDead: a table has another version or other columns.
        """
        names = [f"{self._config.table}{suffix}" for suffix in _COLUMNS]
        for _ in "ab":
            layout = await self._fetch(_LAYOUT, names)
            comment = layout[0][1] or ""
            version = re.fullmatch(r"kube-ccm schema (\d+)", comment)
            if version and int(version[1]) != SCHEMA:
                raise BackendDead(
                    f"{self._name}: table {names[0]} has schema {version[1]}, this version needs "
                    f"schema {SCHEMA}; use the version of kube-ccm that created it, or configure "
                    "another table"
                )
            if all(columns for columns, _ in layout):
                break
            await self._fetch(_SCHEMA)
        for name, (columns, _), expected in zip(names, layout, _COLUMNS.values(), strict=True):
            if columns != expected:
                raise BackendDead(
                    f"{self._name}: table {name} has the columns {columns}, this version needs "
                    f"{expected}; configure another table"
                )

    async def _claim_epoch(self) -> tuple[bytes, int]:
        """Raise the epoch in the store to ours, which fences former leaders.

        Returns the marker and the epoch that are stored now.
        """
        uid, epoch = self._claim
        while not (rows := await self._fetch(_CLAIM, uid, epoch)):
            await self._fetch(_MARK, uid, envelope.build_marker(uid), epoch)
        return rows[0]["marker"], rows[0]["epoch"]

    # Connections

    async def _fetch(self, query: str, *values: Any) -> Sequence[Any]:
        """Run one statement and return its rows. It may run twice, so it must be repeatable.

        Raises:
            BackendUnavailable: the statement failed; its outcome is unknown.
        """
        text = query.format(table=self._config.table, lock=SCHEMA_LOCK, schema=SCHEMA)
        why = f"no response within {RETRY_S:.0f} s"
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                for failures in itertools.count():
                    try:
                        return await self._pool.fetch(text, *values)
                    except (*_CLIENT_ERRORS, asyncpg.PostgresError, OSError) as error:
                        why = _describe_error(error)
                        if getattr(error, "sqlstate", None) not in _PASSING:
                            break
                    await asyncio.sleep(BACKOFF.delay(failures, random.Random()))
        raise BackendUnavailable(f"{self._name}: {why}")

    def _options(self) -> dict[str, Any]:
        """Return the arguments of a connection; files are read again, because they may change."""
        config = self._config
        is_private = config.allow_insecure or config.host.startswith("/")
        return {
            "host": config.host,
            "port": config.port,
            "database": config.database,
            "user": config.user,
            "password": read_text(config.password_file) if config.password_file else None,
            "ssl": False if is_private else _tls_context(config.ca_file),
            "timeout": CONNECT_S,
            "command_timeout": COMMAND_S,
        }

    async def _connect(self, name: str) -> Any:
        """Open a connection.

        Raises:
            BackendDead: `fsync` is off, so an acknowledged write may be lost.
            BackendUnavailable: a file cannot be read, or `fsync` was switched off later.
        """
        db = await asyncpg.connect(**self._options(), server_settings={"application_name": name})
        try:
            row = await db.fetchrow(_SET_UP, [*_SESSION], [*_SESSION.values()])
            if not row["is_durable"]:
                kind = BackendUnavailable if self._is_open else BackendDead
                raise kind(f"{self._name}: fsync is off, writes are not durable; enable fsync")
        except BaseException:
            db.terminate()
            raise
        return db


def _row(change: _Change) -> tuple[str | int | bytes, ...]:
    """Return the values of one change in a statement."""
    entry = change.entry
    place = (*change.place.kind, change.place.key)
    return (*place, entry.version, entry.epoch, entry.body, change.expected)


_CLIENT_ERRORS = (asyncpg.InterfaceError, asyncpg.InternalClientError)

_FORMATS = {
    "host": (
        r"/[^\0]*|[A-Za-z0-9._:%-]+",
        "a host name, an IP address, or the absolute path of the folder with the Unix socket",
    ),
    "database": (r"[^\0-\x1f]+", "the name of a database"),
    "user": (r"[^\0-\x1f]+", "the name of a database user"),
    "table": (
        r"[a-z_][a-z0-9_]{0,40}",
        "at most 41 lower-case letters, digits and _, and no leading digit",
    ),
}
"""Setting -> pattern of valid values, and advice for the error message."""


def _describe_error(error: Exception) -> str:
    """Return the cause of an error, without the data that was sent."""
    if isinstance(error, asyncpg.PostgresError):
        why = f"{type(error).__name__} ({error.sqlstate})"
        advice = _ADVICE.get(error.sqlstate or "")
        return f"{why}: {advice}" if advice else why
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{files.describe_error(error)}; see ca_file and host"
    if isinstance(error, TimeoutError):
        return "the server does not answer; see host and port"
    if isinstance(error, OSError):
        return files.describe_error(error) or type(error).__name__
    # The text of other errors may contain the data that was sent.
    return type(error).__name__


def _tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Build a TLS context that verifies certificate and host name, like libpq's verify-full."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = files.describe_error(error)
        raise BackendUnavailable(f"ca_file {ca_file} cannot be used: {why}") from None


@backend(config=PostgresConfig)
def storage(configs: Sequence[PostgresConfig], context: BackendContext) -> StoreProvider:
    """Build the provider of the backend `postgres`."""
    stores = [(config.identity(), PostgresStore(config)) for config in configs]
    return build_provider("postgres", stores, context.writer)
