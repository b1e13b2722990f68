"""A database over the network: trust, durability, and outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from ccm.persistence import errors
from ccm.persistence.postgres import PostgresConfig, PostgresStore
from ccm.testing.persistence_harness import captured_logs
from tests import pki, postgres
from tests.storage import Database
from tests.unit.persistence.helpers import KIND, NAME, opened, thing
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.xdist_group("postgres")

PASSWORD = "needle-of-a-password-4471"


@asynccontextmanager
async def administrator(database: Database) -> AsyncIterator[Any]:
    db = await asyncpg.connect(
        host=str(database.socket), port=database.port, user=postgres.USER, ssl=False
    )
    try:
        yield db
    finally:
        await db.close()


@pytest.fixture
async def config(database: Database, tmp_path: Path) -> AsyncIterator[PostgresConfig]:
    """Return the configuration of a TLS connection, as a user who may create tables."""
    async with administrator(database) as db:
        await db.execute("DROP OWNED BY ccm" if await _is_there(db) else "CREATE ROLE ccm LOGIN")
        await db.execute(f"ALTER ROLE ccm PASSWORD '{PASSWORD}'")
        await db.execute("CREATE SCHEMA IF NOT EXISTS ccm AUTHORIZATION ccm")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    yield PostgresConfig(
        host="127.0.0.1",
        port=database.port,
        database="postgres",
        password_file=tmp_path / "password",
        ca_file=database.ca,
    )
    await _all_closed()


async def _all_closed() -> None:
    """Wait until TLS connections are closed: a refused one gets the server's close late."""
    loop: Any = asyncio.get_running_loop()
    async with asyncio.timeout(DEADLINE_S):
        while any(one._sock is not None for one in loop._transports.values()):
            await asyncio.sleep(0.01)


async def _is_there(db: Any) -> bool:
    return bool(await db.fetchval("SELECT true FROM pg_roles WHERE rolname = 'ccm'"))


def changed(config: PostgresConfig, **settings: Any) -> PostgresStore:
    return PostgresStore(msgspec.structs.replace(config, **settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({"ca_file": "other"}, r"certificate verify failed.*ca_file", id="other-ca"),
        pytest.param({"ca_file": None}, r"certificate verify failed.*ca_file", id="no-ca"),
        pytest.param({"host": "localhost"}, r"not valid for 'localhost'", id="other-name"),
        pytest.param({"ca_file": "absent"}, r"absent.*No such file", id="absent-ca"),
        pytest.param({"ca_file": "password"}, r"password.*PEM|certificate", id="no-pem"),
        pytest.param({"password_file": "other"}, r"28P01.*password_file", id="wrong-password"),
        pytest.param({"allow_insecure": True}, r"28000.*pg_hba", id="without-tls"),
        pytest.param({"database": "none"}, r"3D000.*database does not exist", id="no-database"),
        pytest.param({"password_file": "absent"}, r"absent cannot be read", id="no-password"),
    ],
)
async def test_postgres_connection_error_names_the_setting(
    config: PostgresConfig,
    settings: dict[str, Any],
    said: str,
    tmp_path: Path,
) -> None:
    """The error never contains the password."""
    pki.Authority(tmp_path, "other")
    (tmp_path / "other.crt").rename(tmp_path / "other")
    files = {name: tmp_path / value for name, value in settings.items()
             if name.endswith("_file") and value}  # fmt: skip

    with (
        captured_logs() as logged,
        pytest.raises(errors.NoInstanceReachable, match=said) as refused,
    ):
        async with opened(changed(config, **settings | files)):
            pass

    whole = "".join(map(repr, _causes(refused.value))) + str(refused.value) + logged()
    assert PASSWORD not in whole


def _causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found


async def test_postgres_server_without_fsync_is_refused(
    database: Database, config: PostgresConfig
) -> None:
    async def set_fsync(value: str) -> None:
        async with administrator(database) as db:
            await db.execute(f"ALTER SYSTEM SET fsync = {value}")
            await db.execute("SELECT pg_reload_conf()")
        while True:  # new connections know it once the server has read it
            async with administrator(database) as db:
                if await db.fetchval("SHOW fsync") == value:
                    return

    await set_fsync("off")
    try:
        with pytest.raises(errors.BackendDead, match="fsync is off"):
            async with opened(PostgresStore(config)):
                pass
    finally:
        await set_fsync("on")


async def test_postgres_server_without_tls_is_refused(config: PostgresConfig) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"N")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(errors.NoInstanceReachable, match="rejected SSL upgrade"):
            async with opened(changed(config, port=port)):
                pass


async def _cut(db: Any) -> None:
    await db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ccm'")


async def test_postgres_password_file_is_reread_for_each_connection(
    database: Database, config: PostgresConfig
) -> None:
    """The kubelet replaces the content of mounted files in place."""
    async with opened(PostgresStore(config), probe_s=3600) as store:
        async with administrator(database) as db:
            await db.execute("ALTER ROLE ccm PASSWORD 'another-needle'")
            await _cut(db)
        assert config.password_file is not None
        config.password_file.write_text("another-needle")
        # This call may be the first to notice the closed connection.
        with suppress(errors.BackendUnavailable):
            await store.put_object(NAME, thing())
        await store.put_object(NAME, thing())


async def test_closed_postgres_connection_fails_at_most_one_call(
    database: Database, config: PostgresConfig
) -> None:
    """The next call uses a new connection."""
    async with opened(PostgresStore(config), probe_s=3600) as store:
        key = await store.put_object(NAME, thing(size=1))
        async with administrator(database) as db:
            await _cut(db)
        try:
            await store.put_object(NAME, thing(size=2))
        except errors.BackendUnavailable:
            assert not (await store.instance_status(NAME)).status
        assert await store.get_object(NAME, KIND, key) in (thing(size=1), thing(size=2))
        await store.put_object(NAME, thing(size=3))
        assert await store.get_object(NAME, KIND, key) == thing(size=3)
        assert (await store.instance_status(NAME)).status


@pytest.mark.parametrize(("default", "ours"), [("off", "on"), ("remote_apply", "remote_apply")])
async def test_postgres_commits_are_synchronous_whatever_the_default(
    database: Database, config: PostgresConfig, default: str, ours: str
) -> None:
    """The setting holds for every use of a connection; a stricter one than `on` is kept."""
    async with administrator(database) as db:
        await db.execute(f"ALTER ROLE ccm SET synchronous_commit = {default}")
    store = PostgresStore(config)
    async with opened(store):
        for _ in range(3):
            async with store._transaction() as db:
                assert await db.fetchval("SHOW synchronous_commit") == ours
    async with administrator(database) as db:
        await db.execute("ALTER ROLE ccm RESET synchronous_commit")
