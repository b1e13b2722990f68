"""Store in a table of a PostgreSQL database. Several clusters can share the table; each reads and
writes only its own rows.

Each call is one repeatable statement. No transaction spans several round trips, so a frozen leader
keeps no lock. A statement that changes an object also locks the cluster's row and checks its epoch:
once a newer leader has opened the store, a former leader can no longer write. All calls share one
connection, one at a time. A server that does not flush to disk is rejected.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import uuid
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import msgspec

from ccm.base import files, log
from ccm.persistence import store
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.errors import BackendDead, BackendUnavailable, VersionConflict
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
from ccm.persistence.objects import MAX_ENVELOPE, StoragePlace
from ccm.persistence.registry import store_backend
from ccm.persistence.store import Claim, Page, StoredRecord, check_epoch

PAGE = 200
"""Objects per statement of a listing; a whole page is in memory."""

CONNECT_S = 5.0
COMMAND_S = 10.0
CLOSE_S = 1.0
"""Deadlines in seconds of a connection attempt, a statement, and the end of a connection. The
server ends a statement after 8 s (`_SET_UP`), so its error arrives before our deadline."""

MAX_ATTEMPTS = 4
"""Maximum attempts to claim the store while other processes claim it; few, because only leaders and
commands do."""

SCHEMA = 1
"""Version of the tables, stored as the comment of the table of objects."""

SCHEMA_LOCK = 0x63636D31
"""ID of the advisory lock for the creation of the schema, since two processes may create it at the
same time: `ccm1` in ASCII."""

_SET_UP = """
SELECT current_setting('fsync') = 'on', (
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE application_name = $1 AND pid <> pg_backend_pid()
), set_config('synchronous_commit', CASE current_setting('synchronous_commit')
    WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
set_config('statement_timeout', '8s', false), set_config('lock_timeout', '5s', false),
set_config('idle_in_transaction_session_timeout', '5s', false),
set_config('tcp_user_timeout', '10000', false)
"""
"""Statement that prepares a connection; returns whether writes are durable.

The statement also ends earlier connections of this store. A statement on one of them, whose outcome
is unknown, must not take effect after a later statement. The time limits are for a process or
network that freezes: the server then ends the statement, and releases its locks."""

_SCHEMA = """
DO $$ BEGIN
PERFORM pg_advisory_xact_lock({lock});
IF to_regclass('{table}_instance') IS NULL THEN
    CREATE TABLE "{table}_instance"(
        cluster_uid text PRIMARY KEY, marker bytea NOT NULL, epoch bigint NOT NULL);
END IF;
IF to_regclass('{table}') IS NULL THEN
    CREATE TABLE "{table}"(
        cluster_uid text, grp text, version text, kind text, key text COLLATE "C",
        write_id text NOT NULL, epoch bigint NOT NULL, body bytea NOT NULL,
        PRIMARY KEY(cluster_uid, grp, version, kind, key));
    COMMENT ON TABLE "{table}" IS 'kube-ccm schema {schema}';
END IF;
END $$
"""
_COLUMNS = {
    "": "cluster_uid text, grp text, version text, kind text, key text, "
    "write_id text, epoch bigint, body bytea",
    "_instance": "cluster_uid text, marker bytea, epoch bigint",
}
"""Suffix of a table's name -> its columns."""

_LAYOUT = """
SELECT obj_description($1::text::regclass, 'pg_class'), (
    SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
    FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped)
"""
"""Comment and columns of a table."""

_MARKER = 'SELECT marker FROM "{table}_instance" WHERE cluster_uid = $1'
_CLAIM = """
INSERT INTO "{table}_instance" AS stored VALUES(
    $1, $2, greatest($3::bigint, (SELECT max(epoch) FROM "{table}" WHERE cluster_uid = $1)))
ON CONFLICT(cluster_uid) DO UPDATE
SET marker = excluded.marker, epoch = greatest(stored.epoch, excluded.epoch)
WHERE stored.marker IN (excluded.marker, $4::bytea)
RETURNING epoch
"""
"""$4: the marker that was read; the statement does nothing if another process has changed it.

The epoch of the row is at least that of all objects. Otherwise a former leader could restore a
row that an operator deleted, with its own lower epoch, and write again."""

_HAS_CLUSTERS = "SELECT to_regclass('{table}_instance') IS NOT NULL"
_CLUSTERS = 'SELECT cluster_uid FROM "{table}_instance" ORDER BY cluster_uid'

_AT = "cluster_uid = $1 AND grp = $2 AND version = $3 AND kind = $4 AND key"
_READ = f'SELECT body, write_id FROM "{{table}}" WHERE {_AT} = $5'  # noqa: S608 - ours
_LIST = f'SELECT key, body, write_id FROM "{{table}}" WHERE {_AT} > $5 ORDER BY key LIMIT $6'  # noqa: S608 - ours


def _change(text: str) -> str:
    """Return a statement that makes a change if no newer leader has opened the store.

    Parameters of the statement: cluster and place ($1 to $5), epoch of the claim ($6), epoch of the
    writer ($7), ID of the write ($8), and envelope ($9).

    Columns of its only row: the epoch in the store, and whether an object was changed. The epoch is
    NULL if the row of the cluster is missing or its epoch was set back.
    """
    return f"""
WITH leader AS (SELECT epoch FROM "{{table}}_instance"
    WHERE cluster_uid = $1 AND epoch >= $6::bigint FOR SHARE),
changed AS ({text} RETURNING true)
SELECT (SELECT epoch FROM leader), EXISTS(SELECT FROM changed)
"""  # noqa: S608 - ours


# The conditions accept the ID of this write, too: a repetition succeeds if the first run did.
_PUT = _change("""
INSERT INTO "{table}" AS stored(cluster_uid, grp, version, kind, key, epoch, write_id, body)
SELECT $1, $2::text, $3::text, $4::text, $5::text, $7::bigint, $8::text, $9::bytea
FROM leader WHERE leader.epoch <= $7::bigint
ON CONFLICT(cluster_uid, grp, version, kind, key) DO UPDATE
SET epoch = excluded.epoch, write_id = excluded.write_id, body = excluded.body
WHERE $10::bool OR stored.write_id = excluded.write_id""")
"""$10: whether the write may replace an object."""
_REPLACE = _change(f"""
UPDATE "{{table}}" AS stored SET epoch = $7::bigint, write_id = $8, body = $9 FROM leader
WHERE leader.epoch <= $7::bigint AND {_AT} = $5 AND stored.write_id IN ($8, $10)""")  # noqa: S608 - ours
"""$10: the version that the write may replace."""
_DELETE = _change(f"""
DELETE FROM "{{table}}" USING leader WHERE leader.epoch <= $7::bigint AND {_AT} = $5""")  # noqa: S608 - ours

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

_TEMPORARY = frozenset({"40001", "40P01", "53300", "55P03", "57P03"})
"""SQLSTATEs of a statement that changed nothing and may succeed soon: conflicts of locks, too many
connections, and a server that starts."""

_LOST = re.compile("08|57P|25006")
"""SQLSTATEs after which the connection cannot be used; 25006: `host` may lead to a new primary."""

_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

_LABEL = "[A-Za-z0-9_-]{1,63}"
_FORMATS = {
    "host": (
        rf"/[^\0]*|{_LABEL}(\.{_LABEL})*\.?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?",
        "a host name, an IP address, or the absolute path of the folder with the Unix socket",
    ),
    "port": (store.PORT, "a port from 1 to 65535"),
    "database": (r"[^\0-\x1f]+", "the name of a database"),
    "user": (r"[^\0-\x1f]+", "the name of a database user"),
    "table": (
        r"[a-z_][a-z0-9_]{0,40}",
        "at most 41 lower-case letters, digits and _, and no leading digit",
    ),
}
"""Setting -> pattern of valid values, and advice for the error message."""


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


class PostgresStore:
    """Store in a table.

    Args:
        config: settings of the database.

    Raises:
        BackendDead: a setting is invalid.
    """

    def __init__(self, config: PostgresConfig) -> None:
        self.capabilities = frozenset({CAS, FENCING, SHARED})
        self.max_bytes = MAX_ENVELOPE
        store.check_settings("postgres", config, _FORMATS)
        self._config = config
        self._name = f"database {config.database} at {config.host}"
        self._application = f"kube-ccm {uuid.uuid4()}"
        self._claim = Claim("", 0)
        self._connection: Any = None
        # asyncpg runs one statement at a time on a connection.
        self._connection_lock = asyncio.Lock()
        if config.allow_insecure:
            log.logger("persistence").warning("database is used without TLS", source=self._name)

    async def open(self, claim: Claim) -> None:
        """See `Store.open`."""
        self._claim = claim
        await self._prepare_tables()
        check_epoch(await self._claim_epoch(), claim.epoch)

    async def probe(self) -> None:
        """See `Store.probe`; also restores a lost row of the cluster."""
        await self._claim_epoch()

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """See `Store.read`."""
        rows = await self._fetch(_READ, self._claim.cluster_uid, *place.kind, place.key)
        return StoredRecord(bytes(rows[0][0]), Version(rows[0][1])) if rows else None

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """See `Store.write`."""
        is_put = expect is None or expect is ABSENT
        change, condition = (_PUT, expect is None) if is_put else (_REPLACE, expect)
        values = (entry.epoch, entry.version, entry.body, condition)
        if not await self._execute(change, place, *values):
            raise VersionConflict("the object was changed concurrently")
        return entry.version

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        """See `Store.remove`."""
        await self._execute(_DELETE, place, epoch)

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        last = ""
        while rows := await self._fetch(_LIST, self._claim.cluster_uid, *kind, last, PAGE):
            yield [
                (StoragePlace(kind, ObjectKey(key)), StoredRecord(bytes(body), Version(version)))
                for key, body, version in rows
            ]
            last = rows[-1]["key"]

    async def clusters(self, wanted: str) -> Collection[str]:  # noqa: ARG002
        """See `ClusterListing.clusters`."""
        ((exists,),) = await self._fetch(_HAS_CLUSTERS)
        return [row[0] for row in await self._fetch(_CLUSTERS)] if exists else ()

    async def close(self) -> None:
        """See `Store.close`."""
        if self._connection is not None:
            with suppress(*_FAILURES):
                await self._connection.close(timeout=CLOSE_S)

    async def _execute(self, change: str, place: StoragePlace, epoch: int, *values: Any) -> bool:
        """Make a change, and return whether an object was changed."""
        claim, at = self._claim, (*place.kind, place.key)
        rows = await self._fetch(change, claim.cluster_uid, *at, claim.epoch, epoch, *values)
        ((stored, is_changed),) = rows
        if stored is None:
            raise BackendUnavailable(
                f"{self._name}: the row of this cluster in {self._config.table}_instance is "
                "missing or was set back; nothing was written, the next probe restores it"
            )
        check_epoch(stored, epoch)
        return bool(is_changed)

    # Opening

    async def _prepare_tables(self) -> None:
        """Create absent tables; refuse those of another version.

        Raises:
            BackendDead: a table has another version or other columns.
        """
        await self._fetch(_SCHEMA)
        for suffix, expected in _COLUMNS.items():
            table = self._config.table + suffix
            ((comment, columns),) = await self._fetch(_LAYOUT, table)
            version = re.fullmatch(r"kube-ccm schema (\d+)", comment or "")
            if version and int(version[1]) != SCHEMA:
                raise BackendDead(
                    f"{self._name}: table {table} has schema {version[1]}, this version needs "
                    f"schema {SCHEMA}; use the version of kube-ccm that created it, or configure "
                    "another table"
                )
            if columns != expected:
                raise BackendDead(
                    f"{self._name}: table {table} has the columns {columns}, this version needs "
                    f"{expected}; configure another table"
                )

    async def _claim_epoch(self) -> int:
        """Raise the epoch in the store to ours, which fences former leaders; return the epoch.

        Raises:
            BackendDead: see `store.own_marker`; the epoch is unchanged.
        """
        claim = self._claim
        for _ in range(MAX_ATTEMPTS):
            rows = await self._fetch(_MARKER, claim.cluster_uid)
            stored = bytes(rows[0][0]) if rows else None
            marker = store.own_marker(stored, claim, self._name)
            values = (claim.cluster_uid, marker, claim.epoch, stored)
            if rows := await self._fetch(_CLAIM, *values):
                return int(rows[0][0])
        raise BackendUnavailable(f"{self._name}: too many concurrent claims by other leaders")

    # The connection

    async def _fetch(self, query: str, *values: Any) -> Sequence[Any]:
        """Run one repeatable statement and return its rows; it may run several times.

        Raises:
            BackendUnavailable: the statement failed; its outcome is unknown.
        """
        text = query.format(table=self._config.table, lock=SCHEMA_LOCK, schema=SCHEMA)
        run = partial(self._run, text, values)
        return await store.retry(self._name, run, _FAILURES, _explain)

    async def _run(self, text: str, values: Sequence[Any]) -> Sequence[Any]:
        async with self._connection_lock:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect()
            try:
                rows: Sequence[Any] = await self._connection.fetch(text, *values)
                return rows
            except BaseException as error:
                # Without a response, the outcome is unknown, and a new connection ends this one.
                if _is_lost(error):
                    self._connection.terminate()
                raise

    async def _connect(self) -> Any:
        """Open a connection.

        Raises:
            BackendDead: `fsync` is off, so an acknowledged write may be lost.
            BackendUnavailable: a file cannot be read.
        """
        db = await asyncpg.connect(**self._options())
        try:
            if not await db.fetchval(_SET_UP, self._application):
                raise BackendDead(
                    f"{self._name}: fsync is off, writes are not durable; enable fsync"
                )
        except BaseException:
            db.terminate()
            raise
        return db

    def _options(self) -> dict[str, Any]:
        """Return the arguments of a connection; files are read again, because they may change."""
        config = self._config
        is_private = config.allow_insecure or config.host.startswith("/")
        return {
            **{name: getattr(config, name) for name in ("host", "port", "database", "user")},
            "password": read_text(config.password_file) if config.password_file else None,
            "ssl": False if is_private else _tls_context(config.ca_file),
            "timeout": CONNECT_S,
            "command_timeout": COMMAND_S,
            "server_settings": {"application_name": self._application},
        }


def _is_lost(error: BaseException) -> bool:
    is_response = isinstance(error, asyncpg.PostgresError)
    return not is_response or bool(_LOST.match(getattr(error, "sqlstate", None) or ""))


def _explain(error: Exception, failures: int) -> tuple[str, bool]:
    """Return the cause of a failure, and whether the statement may succeed soon."""
    state = getattr(error, "sqlstate", None) or ""
    # The server may have closed the connection while it was idle: retry once.
    is_temporary = state in _TEMPORARY or (failures == 0 and _is_lost(error))
    # The text of most errors may contain the data that was sent.
    why = type(error).__name__
    if state:
        why = f"{why} ({state})" + (f": {_ADVICE[state]}" if state in _ADVICE else "")
    elif isinstance(error, TimeoutError):
        why = "the server does not answer; see host and port"
    elif isinstance(error, ssl.SSLCertVerificationError):
        why = f"{files.describe_error(error)}; see ca_file and host"
    elif isinstance(error, OSError):
        why = files.describe_error(error) or why
    return why, is_temporary


def _tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Build a TLS context that verifies certificate and host name, like libpq's verify-full."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = files.describe_error(error)
        raise BackendUnavailable(f"ca_file {ca_file} cannot be used: {why}") from None


storage = store_backend(
    "postgres", PostgresConfig, PostgresStore, ("host", "port", "database", "table")
)
