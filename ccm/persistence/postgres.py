"""Store in a table of a PostgreSQL database. Several clusters can share the table; each reads and
writes only its own rows.

Each write transaction also locks the cluster's row with the epoch: once a newer leader has opened
the store, a former leader can no longer write. A server that does not flush to disk is rejected.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import msgspec

from ccm.base import files, log
from ccm.persistence import envelope
from ccm.persistence.engine import StoreProvider, build_provider
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
from ccm.persistence.objects import StoragePlace
from ccm.persistence.registry import BackendContext, backend
from ccm.persistence.store import Claim, Page, StoredRecord, check_epoch

PAGE = 200
POOL = 4
CONNECT_S = 5.0
COMMAND_S = 10.0
SCHEMA_LOCK = 0x63636D31
"""Advisory lock ID for the creation of the schema: `ccm1` in ASCII."""

_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS {table}_instance(
    cluster_uid text PRIMARY KEY, marker bytea NOT NULL, epoch bigint NOT NULL);
CREATE TABLE IF NOT EXISTS {table}(
    cluster_uid text, grp text, version text, kind text, key text COLLATE "C",
    write_id text NOT NULL, epoch bigint NOT NULL, body bytea NOT NULL,
    PRIMARY KEY(cluster_uid, grp, version, kind, key));
"""
_AT = "cluster_uid = $1 AND grp = $2 AND version = $3 AND kind = $4 AND key"
_COLUMNS = "(cluster_uid, grp, version, kind, key, write_id, epoch, body)"
_INSERT = f"INSERT INTO {{table}}{_COLUMNS} VALUES($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT"
_COLUMNS_OF_KEY = "(cluster_uid, grp, version, kind, key)"
_SET = "write_id = $6, epoch = $7, body = $8"
_LIST = f"SELECT key, body, write_id FROM {{table}} WHERE {_AT} > $5 ORDER BY key LIMIT $6"  # noqa: S608 - ours
_UPDATE = f"UPDATE {{table}} SET {_SET} WHERE {_AT} = $5 AND write_id = $9"  # noqa: S608 - ours


_ADVICE = {
    "28P01": "see user and password_file",
    "28000": "pg_hba.conf of the server rejects this connection",
    "3D000": "the database does not exist",
    "42501": "the user must be allowed to create tables, or the tables must exist",
}
"""SQLSTATE -> advice for the error message."""


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


class PostgresStore:
    """Store in a table.

    Args:
        config: settings of the database.

    Raises:
        BackendDead: the name of the table is invalid.
    """

    def __init__(self, config: PostgresConfig) -> None:
        self.capabilities = frozenset({CAS, FENCING, SHARED})
        if not _TABLE.fullmatch(config.table):
            raise BackendDead(
                f"table {config.table!r}: use at most 41 lower-case letters, digits and _, and no "
                "leading digit"
            )
        self._config = config
        self._name = f"database {config.database} at {config.host}"
        self._pool: Any = None
        self._cluster = ""
        if config.allow_insecure:
            log.logger("persistence").warning("database is used without TLS", source=self._name)

    async def open(self, claim: Claim) -> None:
        """See `Store.open`."""
        self._cluster = claim.cluster_uid
        await self.close()
        with self._convert_errors():
            self._pool = await asyncpg.create_pool(**self._options(), init=self._ensure_durable)
        async with self._transaction() as db:
            await db.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
            await db.execute(_SCHEMA.format(table=self._config.table))
            await self._claim(db, claim)

    async def probe(self) -> None:
        """See `Store.probe`."""
        async with self._transaction() as db:
            query = self._sql("UPDATE {table}_instance SET epoch = epoch WHERE cluster_uid = $1")
            await db.execute(query, self._cluster)

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """See `Store.read`."""
        query = self._sql(f"SELECT body, write_id FROM {{table}} WHERE {_AT} = $5")  # noqa: S608 - ours
        async with self._transaction() as db:
            row = await db.fetchrow(query, *self._key_values(place))
        return None if row is None else StoredRecord(bytes(row["body"]), Version(row["write_id"]))

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """See `Store.write`."""
        values: tuple[Any, ...] = (*self._key_values(place), entry.version, entry.epoch, entry.body)
        if expect is None:
            statement = f"{_INSERT}{_COLUMNS_OF_KEY} DO UPDATE SET {_SET}"
        elif expect is ABSENT:
            statement = f"{_INSERT} DO NOTHING"
        else:
            statement = _UPDATE
            values = (*values, expect)
        async with self._transaction() as db:
            await self._check_leader(db, entry.epoch)
            written = await db.fetchval(self._sql(f"{statement} RETURNING 1"), *values)
        if written is None:
            raise VersionConflict("the object was changed concurrently")
        return entry.version

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        """See `Store.remove`."""
        async with self._transaction() as db:
            await self._check_leader(db, epoch)
            query = self._sql(f"DELETE FROM {{table}} WHERE {_AT} = $5")  # noqa: S608 - ours
            await db.execute(query, *self._key_values(place))

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        query = self._sql(_LIST)
        last = ""
        while True:
            async with self._transaction() as db:
                rows = await db.fetch(query, self._cluster, *kind, last, PAGE)
            if not rows:
                return
            yield [
                (StoragePlace(kind, ObjectKey(key)), StoredRecord(bytes(body), Version(version)))
                for key, body, version in rows
            ]
            last = rows[-1]["key"]

    async def close(self) -> None:
        """See `Store.close`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with self._convert_errors():
                await pool.close()

    def _key_values(self, place: StoragePlace) -> tuple[str, ...]:
        return (self._cluster, *place.kind, place.key)

    def _sql(self, text: str) -> str:
        return text.format(table=self._config.table)

    def _options(self) -> dict[str, Any]:
        config = self._config
        options: dict[str, Any] = {
            "host": config.host,
            "port": config.port,
            "database": config.database,
            "user": config.user,
            "min_size": 0,
            "max_size": POOL,
            "timeout": CONNECT_S,
            "command_timeout": COMMAND_S,
            "ssl": False,
            "reset": _keep_settings,
        }
        if config.password_file:
            # Read for each connection, because the file may change.
            options["password"] = partial(read_text, config.password_file)
        if not (config.allow_insecure or config.host.startswith("/")):
            options["ssl"] = _tls_context(config.ca_file)
        return options

    async def _ensure_durable(self, db: Any) -> None:
        """Require `fsync` on the server, and enable `synchronous_commit` for the connection.

        Raises:
            BackendDead: `fsync` is off, so an acknowledged write may be lost.
        """
        if await db.fetchval("SHOW fsync") != "on":
            raise BackendDead(f"{self._name}: fsync is off, writes are not durable; enable fsync")
        if await db.fetchval("SHOW synchronous_commit") != "remote_apply":
            await db.execute("SET synchronous_commit = on")

    async def _claim(self, db: Any, claim: Claim) -> None:
        insert = "INSERT INTO {table}_instance VALUES($1, $2, $3) ON CONFLICT DO NOTHING"
        marker = envelope.build_marker(claim.cluster_uid)
        await db.execute(self._sql(insert), claim.cluster_uid, marker, claim.epoch)
        query = "SELECT marker, epoch FROM {table}_instance WHERE cluster_uid = $1 FOR UPDATE"
        row = await db.fetchrow(self._sql(query), claim.cluster_uid)
        envelope.check_marker(bytes(row["marker"]), claim.cluster_uid, self._name)
        check_epoch(row["epoch"], claim.epoch)
        update = "UPDATE {table}_instance SET epoch = $2 WHERE cluster_uid = $1"
        await db.execute(self._sql(update), claim.cluster_uid, claim.epoch)

    async def _check_leader(self, db: Any, epoch: int) -> None:
        """Check the leader's epoch, and lock the row of the cluster.

        A newer leader can open the store only after this transaction.
        """
        query = "SELECT epoch FROM {table}_instance WHERE cluster_uid = $1 FOR SHARE"
        stored_epoch = await db.fetchval(self._sql(query), self._cluster)
        check_epoch(stored_epoch, epoch)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        if self._pool is None:
            raise BackendUnavailable(f"{self._name} is not open")
        with self._convert_errors():
            async with self._pool.acquire(timeout=CONNECT_S) as db, db.transaction():
                yield db

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert errors of asyncpg to BackendUnavailable, without the data that was sent."""
        try:
            yield
        except asyncpg.PostgresError as error:
            why = f"{type(error).__name__} ({error.sqlstate})"
            if (advice := _ADVICE.get(error.sqlstate or "")) is not None:
                why += f": {advice}"
        except ssl.SSLCertVerificationError as error:
            why = f"{files.describe_error(error)}; see ca_file and host"
        except OSError as error:
            why = files.describe_error(error) or type(error).__name__
        except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            # The text of these errors may contain the data that was sent.
            why = type(error).__name__
        else:
            return
        raise BackendUnavailable(f"{self._name}: {why}") from None


async def _keep_settings(db: object) -> None:
    """Keep a connection's session settings: asyncpg's reset would undo `synchronous_commit`."""


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
