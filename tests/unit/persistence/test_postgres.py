"""A database over the network: trust, durability, and outages."""

from __future__ import annotations

import asyncio
import re
import statistics
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import asyncpg
import msgspec
import pytest

from ccm.base import clock
from ccm.base.backoff import ExponentialBackoff
from ccm.base.tasks import cancel_and_join, first_of, spawn
from ccm.persistence import errors, store
from ccm.persistence import postgres as backend
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import StoreEntry, WriterIdentity
from ccm.persistence.interface import ABSENT, GVK, Version
from ccm.persistence.journal import Journal
from ccm.persistence.objects import StoragePlace, key_of
from ccm.persistence.postgres import PostgresConfig, PostgresStore
from ccm.persistence.store import Claim
from ccm.testing.persistence_harness import captured_logs
from tests import pki, postgres
from tests.generated.persistence import GUIDE
from tests.storage import Database
from tests.support import journals
from tests.unit.persistence.helpers import HERE, KIND, NAME, opened, thing
from tests.waiting import DEADLINE_S, eventually

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
        pytest.raises(errors.BackendDead, match=said) as refused,
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
        with pytest.raises(errors.BackendDead, match="rejected SSL upgrade"):
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


async def test_connection_to_a_former_primary_is_replaced(config: PostgresConfig) -> None:
    """A server that became a standby keeps the connection but refuses writes."""
    store = PostgresStore(config)
    async with opened(store, probe_s=3600) as provider:
        await store._fetch("SET default_transaction_read_only = on")
        await provider.put_object(NAME, thing())


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
            assert await store._fetch("SHOW synchronous_commit") == [(ours,)]
    async with administrator(database) as db:
        await db.execute("ALTER ROLE ccm RESET synchronous_commit")


class Wire:
    """Connections to a server that can be held up or cut between two messages.

    Attributes:
        is_stopped: set once the connections are held up or cut.
    """

    def __init__(self) -> None:
        self.is_stopped = asyncio.Event()
        self._gates: list[asyncio.Event] = []
        self._left: int | None = None
        self._cuts = False
        self.heal()

    def stop(self, after: int, *, cuts: bool = False) -> None:
        """Hold up all present connections after a number of messages, or cut them."""
        self._left, self._cuts = after, cuts

    def heal(self) -> None:
        """Let held messages through; later connections are not affected by an earlier `stop`."""
        for gate in self._gates:
            gate.set()
        self._renew()

    def _renew(self) -> None:
        self._gates.append(asyncio.Event())
        self._gates[-1].set()

    async def _passes(self, gate: asyncio.Event) -> bool:
        """Wait while the connections of the gate are held up; return whether they go on."""
        if gate is self._gates[-1] and self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                self.is_stopped.set()
                self._renew()
                if self._cuts:
                    return False
                gate.clear()
        await gate.wait()
        return True

    @asynccontextmanager
    async def serve(self, source: Path, target: Path) -> AsyncIterator[None]:
        """Forward the connections of one Unix socket to another."""
        running: set[asyncio.Task[None]] = set()

        async def copy(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
        ) -> None:
            while (data := await reader.read(1 << 20)) and await self._passes(gate):
                writer.write(data)
                await writer.drain()

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task: Any = asyncio.current_task()
            running.add(task)
            gate = self._gates[-1]
            far_reader, far_writer = await asyncio.open_unix_connection(str(target))
            try:
                with suppress(OSError):
                    await first_of(
                        copy(reader, far_writer, gate), copy(far_reader, writer, gate), name="wire"
                    )
            finally:
                running.discard(task)
                for end in (writer, far_writer):
                    end.transport.abort()

        server = await asyncio.start_unix_server(forward, source)
        try:
            yield
        finally:
            server.close()
            self.heal()
            await eventually(lambda: not running)


@pytest.fixture
async def wire(database: Database, tmp_path: Path) -> AsyncIterator[Wire]:
    """Serve the server's socket in `tmp_path` too."""
    wire, name = Wire(), f".s.PGSQL.{database.port}"
    async with wire.serve(tmp_path / name, database.socket / name):
        yield wire


@pytest.fixture
def wired(config: PostgresConfig, wire: Wire, tmp_path: Path) -> PostgresConfig:
    return msgspec.structs.replace(config, host=str(tmp_path))


def leads(store: PostgresStore, epoch: int) -> AbstractAsyncContextManager[StoreProvider]:
    return opened(store, writer=lambda: WriterIdentity(epoch=epoch), probe_s=3600)


async def test_statement_of_the_guide_gives_the_rows_to_a_renamed_lease(
    database: Database, config: PostgresConfig
) -> None:
    """The epoch is kept, so that the count of the new Lease continues it."""

    def owned(epoch: int, lease: str) -> AbstractAsyncContextManager[StoreProvider]:
        writer = WriterIdentity(epoch=epoch, lease=lease)
        return opened(PostgresStore(config), writer=lambda: writer, probe_s=3600)

    (statement,) = re.findall(r"PostgreSQL: `(UPDATE .*?)`", GUIDE.read_text())
    async with owned(5, "a/old"):
        pass
    async with administrator(database) as db:
        await db.execute("SET search_path = ccm")
        await db.execute(f"{statement} WHERE cluster_uid = '{HERE.cluster_uid}'")

    with pytest.raises(errors.BackendDead, match="a leader of epoch 5 has written"):
        async with owned(4, "a/new"):
            pass
    async with owned(5, "a/new"):
        pass


@pytest.mark.parametrize("after", range(6))
async def test_frozen_leader_does_not_keep_the_next_one_out(
    config: PostgresConfig, wired: PostgresConfig, wire: Wire, after: int
) -> None:
    """It freezes between any two messages of a write, and holds no lock meanwhile."""
    async with leads(PostgresStore(wired), 3) as old:
        key = await old.put_object(NAME, thing(size=1))
        wire.stop(after)
        writing = spawn(old.put_object(NAME, thing(size=2)), name="write")
        await eventually(lambda: wire.is_stopped.is_set() or writing.done())

        async with leads(PostgresStore(config), 4) as new:
            await new.put_object(NAME, thing(size=3))
            wire.heal()
            with suppress(errors.Fenced):
                await writing
            assert await new.get_object(NAME, KIND, key) == thing(size=3)


async def test_postgres_session_has_time_limits(config: PostgresConfig) -> None:
    """A server ends the statement of a process that froze, and releases its locks."""
    store = PostgresStore(config)
    async with opened(store):
        for setting, value in {
            "statement_timeout": "8s",
            "lock_timeout": "5s",
            "idle_in_transaction_session_timeout": "5s",
            "tcp_user_timeout": "10000",
        }.items():
            assert await store._fetch(f"SHOW {setting}") == [(value,)]


@pytest.mark.parametrize("first", [True, False])
async def test_postgres_write_whose_response_was_lost_is_recognized(
    wired: PostgresConfig, wire: Wire, *, first: bool
) -> None:
    """The write succeeded: the repeated statement finds its ID."""
    async with leads(PostgresStore(wired), 0) as store:
        _, expect = await store.put_versioned(NAME, thing("warm"), expect=ABSENT)
        _, expect = await store.put_versioned(NAME, thing("warm", size=2), expect=expect)
        wire.stop(1, cuts=True)
        obj = thing("new") if first else thing("warm", size=3)

        key, version = await store.put_versioned(NAME, obj, expect=ABSENT if first else expect)

        assert wire.is_stopped.is_set()
        assert await store.get_versioned(NAME, KIND, key) == (obj, version)


async def test_delayed_postgres_statement_has_no_effect(
    wired: PostgresConfig, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that timed out must not arrive after a later write of the same object."""
    async with leads(PostgresStore(wired), 0) as provider:
        key = await provider.put_object(NAME, thing(size=1))
        wire.stop(0)
        with monkeypatch.context() as patches:
            patches.setattr(store, "RETRY_S", 0.3)
            with pytest.raises(errors.BackendUnavailable, match="no response within"):
                await provider.put_object(NAME, thing(size=2))
        assert wire.is_stopped.is_set()
        await provider.put_object(NAME, thing(size=3))

        wire.heal()

        for _ in range(20):
            assert await provider.get_object(NAME, KIND, key) == thing(size=3)


async def test_cancelled_postgres_write_has_no_effect_later(
    database: Database, config: PostgresConfig
) -> None:
    """It waits for a lock; its session is ended before the next statement runs."""
    async with leads(PostgresStore(config), 0) as provider:
        key = await provider.put_object(NAME, thing(size=1))
        async with administrator(database) as db:
            async with db.transaction():
                await db.execute("SELECT FROM ccm.ccm_objects FOR UPDATE")
                writing = spawn(provider.put_object(NAME, thing(size=2)), name="write")
                await _until(db, "wait_event_type = 'Lock'")
                await cancel_and_join(writing)
                assert await provider.get_object(NAME, KIND, key) == thing(size=1)
            await _until(db, "state = 'active'", count=0)

        assert await provider.get_object(NAME, KIND, key) == thing(size=1)


async def _until(db: Any, condition: str, count: int = 1) -> None:
    """Wait until so many sessions of the store fulfil a condition."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE usename = 'ccm' AND {condition}"
    async with asyncio.timeout(DEADLINE_S):
        while await db.fetchval(query) != count:
            await asyncio.sleep(0.01)


async def test_postgres_calls_wait_for_their_turn(
    database: Database, config: PostgresConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a connection may take to open, while another session locks the table."""
    async with leads(PostgresStore(config), 0) as store:
        key = await store.put_object(NAME, thing())
        monkeypatch.setattr(backend, "CONNECT_S", 0.2)
        async with administrator(database) as db, db.transaction():
            await db.execute("LOCK TABLE ccm.ccm_objects IN ACCESS EXCLUSIVE MODE")
            calls = [
                *(spawn(store.get_object(NAME, KIND, key), name="get") for _ in range(20)),
                *(spawn(store.put_object(NAME, thing(f"n{at}")), name="put") for at in "abc"),
            ]
            await asyncio.sleep(5 * backend.CONNECT_S)
        for call in calls:
            await call


@asynccontextmanager
async def limited(database: Database, connections: int) -> AsyncIterator[None]:
    async with administrator(database) as db:
        await db.execute(f"ALTER ROLE ccm CONNECTION LIMIT {connections}")
        try:
            yield
        finally:
            await db.execute("ALTER ROLE ccm CONNECTION LIMIT -1")


async def test_postgres_needs_one_connection(database: Database, config: PostgresConfig) -> None:
    """A role with a limit of two may have a former leader that still runs."""
    async with limited(database, 2), leads(PostgresStore(config), 0) as former:
        key = await former.put_object(NAME, thing())
        async with leads(PostgresStore(config), 1) as provider:

            async def call(number: int) -> None:
                await provider.put_object(NAME, thing(f"n{number}"))
                assert await provider.get_object(NAME, KIND, key) == thing()

            for task in [spawn(call(number), name="call") for number in range(16)]:
                await task


async def test_postgres_call_waits_while_all_connections_are_used_by_others(
    database: Database, config: PostgresConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BACKOFF", ExponentialBackoff(base_s=0.01, cap_s=0.01))
    refusals, real = [0], asyncpg.connect

    async def connect(**options: Any) -> Any:
        try:
            return await real(**options)
        except asyncpg.TooManyConnectionsError:
            refusals[0] += 1
            raise

    async with leads(PostgresStore(config), 0) as provider, limited(database, 1):
        await _cut_all(database)
        other = await real(
            host=str(database.socket), port=database.port, user="ccm", database="postgres"
        )
        monkeypatch.setattr(asyncpg, "connect", connect)
        writing = spawn(provider.put_object(NAME, thing()), name="write")
        await eventually(lambda: refusals[0] > 3)
        assert not writing.done()

        await other.close()

        await writing
        await _cut_all(database)
        monkeypatch.setattr(store, "RETRY_S", 0.1)
        other = await real(
            host=str(database.socket), port=database.port, user="ccm", database="postgres"
        )
        with pytest.raises(errors.BackendUnavailable, match=r"53300\): .*connection limit"):
            await provider.put_object(NAME, thing())
        await other.close()


async def _cut_all(database: Database) -> None:
    async with administrator(database) as db:
        await _cut(db)
        query = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'ccm'"
        async with asyncio.timeout(DEADLINE_S):
            while await db.fetchval(query):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "COMMENT ON TABLE ccm.ccm_objects IS 'kube-ccm schema 2'",
            r"table ccm_objects has schema 2, this version needs schema 1; .*another table",
        ),
        (
            "ALTER TABLE ccm.ccm_objects RENAME body TO content",
            "table ccm_objects has the columns .*content bytea.* needs .*body bytea; configure",
        ),
        (
            "ALTER TABLE ccm.ccm_objects_instance ALTER epoch TYPE text",
            "table ccm_objects_instance has the columns .*epoch text",
        ),
    ],
)
async def test_postgres_table_of_another_version_is_refused(
    database: Database, config: PostgresConfig, change: str, said: str
) -> None:
    async with opened(PostgresStore(config)):
        pass
    async with administrator(database) as db:
        await db.execute(change)

    with pytest.raises(errors.BackendDead, match=said):
        async with opened(PostgresStore(config)):
            pass


async def test_postgres_user_needs_no_right_to_create_existing_tables(
    database: Database, config: PostgresConfig
) -> None:
    """Tables without the comment are accepted if they have the right columns."""
    async with opened(PostgresStore(config)):
        pass
    async with administrator(database) as db:
        await db.execute("REVOKE CREATE ON SCHEMA ccm FROM ccm")
        await db.execute("COMMENT ON TABLE ccm.ccm_objects IS NULL")
    async with opened(PostgresStore(config)) as store:
        await store.put_object(NAME, thing())


@pytest.mark.parametrize(
    "change",
    ["DELETE FROM ccm.ccm_objects_instance", "UPDATE ccm.ccm_objects_instance SET epoch = 0"],
)
async def test_lost_row_of_the_cluster_is_restored_by_a_probe(
    database: Database, config: PostgresConfig, change: str
) -> None:
    """Nothing is written before, and the former leader stays fenced even if it probes first."""
    former, present = PostgresStore(config), PostgresStore(config)
    async with leads(former, 3) as old, leads(present, 4) as new:
        key = await new.put_object(NAME, thing(size=1))
        async with administrator(database) as db:
            await db.execute(change)
        with pytest.raises(errors.BackendUnavailable, match=r"row of this cluster.*next probe"):
            await new.put_object(NAME, thing(size=2))
        assert await new.get_object(NAME, KIND, key) == thing(size=1)

        if change.startswith("DELETE"):
            await former.probe()
        await present.probe()

        with pytest.raises(errors.Fenced):
            await old.put_object(NAME, thing(size=3))
        await new.put_object(NAME, thing(size=4))
        assert (await new.instance_status(NAME)).status


async def test_former_leader_restores_no_lower_epoch(
    database: Database, config: PostgresConfig
) -> None:
    former = PostgresStore(config)
    async with leads(former, 3) as old, leads(PostgresStore(config), 4) as new:
        await new.put_object(NAME, thing())
        async with administrator(database) as db:
            await db.execute("DELETE FROM ccm.ccm_objects_instance")

        await former.probe()

        with pytest.raises(errors.Fenced):
            await old.put_object(NAME, thing())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"port": 99999}, "postgres.port is 99999; use a port from 1 to 65535"),
        ({"port": 0}, "postgres.port is 0; use"),
        ({"host": ""}, "postgres.host is ''; use a host name"),
        ({"host": "db example"}, "postgres.host is 'db example'; use a host name"),
        ({"host": "db..example"}, "postgres.host is 'db..example'; use a host name"),
        ({"host": "a" * 64}, "postgres.host is 'a{64}'; use a host name"),
        ({"host": "run/postgres"}, "postgres.host is 'run/postgres'; use .*absolute path"),
        ({"database": ""}, "postgres.database is ''; use the name"),
        ({"user": "a\0b"}, r"postgres.user is 'a\\x00b'; use the name"),
        ({"table": "a; DROP"}, "postgres.table is 'a; DROP'; use at most 41"),
    ],
)
def test_invalid_postgres_setting_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.BackendDead, match=said):
        PostgresStore(PostgresConfig(**{"host": "db.example"} | settings))


@pytest.mark.parametrize("host", ["db.example.", "127.0.0.1", "::1", "fe80::1%eth0", "/run/a b"])
def test_valid_postgres_host_is_accepted(host: str) -> None:
    PostgresStore(PostgresConfig(host=host))


async def test_postgres_table_may_have_the_name_of_a_keyword(config: PostgresConfig) -> None:
    async with opened(changed(config, table="order")) as store:
        await store.put_object(NAME, thing())


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
async def test_text_that_no_store_keeps_does_not_mark_postgres_down(
    config: PostgresConfig, text: str
) -> None:
    kind, no_text = GVK("g", "v1", text), cast("Version", 5)
    async with opened(PostgresStore(config)) as store:
        for call in (
            store.put_object(NAME, thing() | {"kind": text}),
            store.get_object(NAME, kind, key_of("", "one")),
            store.delete_object(NAME, kind, key_of("", "one")),
            store.get_all_objects(NAME, kind),
            store.put_versioned(NAME, thing(), expect=Version(text)),
            store.put_versioned(NAME, thing(), expect=no_text),
        ):
            with pytest.raises(errors.InvalidObject):
                await call
        assert (await store.instance_status(NAME)).status


def entry(epoch: int = 0, size: int = 2000) -> StoreEntry:
    return StoreEntry(b"x" * size, Version(str(uuid.uuid4())), epoch)


def place(name: object) -> StoragePlace:
    return StoragePlace(KIND, key_of("default", f"n{name}"))


@asynccontextmanager
async def bare(config: PostgresConfig) -> AsyncIterator[PostgresStore]:
    """Open a store without the provider on top."""
    store = PostgresStore(config)
    try:
        await store.open(Claim(HERE.cluster_uid, 0))
        yield store
    finally:
        await store.close()


async def test_concurrent_postgres_writes_fail_one_by_one(config: PostgresConfig) -> None:
    """A conflict or a fenced epoch concerns only its own write; order within an object is kept."""
    async with bare(config) as store:
        version = await store.write(place("a"), entry(), None)
        first, second = entry(), entry()
        results = await asyncio.gather(
            store.write(place("a"), entry(), ABSENT),
            store.write(place("b"), entry(), ABSENT),
            store.write(place("a"), entry(), Version("other")),
            store.write(place("a"), first, version),
            store.write(place("c"), entry(epoch=-1), None),
            store.write(place("d"), entry(), None),
            store.remove(place("d"), 0),
            store.write(place("d"), second, ABSENT),
            store.remove(place("b"), -1),
            return_exceptions=True,
        )
        kinds = [type(one) if isinstance(one, Exception) else None for one in results]
        conflict, fenced = errors.VersionConflict, errors.Fenced
        assert kinds == [conflict, None, conflict, None, fenced, None, None, None, fenced]
        stored = {name: await store.read(place(name)) for name in "abcd"}
        assert stored["b"] is not None
        assert stored["c"] is None
        for name, written in (("a", first), ("d", second)):
            assert stored[name] == (written.body, written.version)


async def test_cancelled_postgres_write_is_not_sent_later(config: PostgresConfig) -> None:
    """It waited for the statement before; later writes go on."""
    async with bare(config) as store:
        first = spawn(store.write(place("a"), entry(), None), name="first")
        await asyncio.sleep(0)  # the statement of the first is on its way
        cancelled = spawn(store.write(place("b"), entry(), ABSENT), name="cancelled")
        await asyncio.sleep(0)
        cancelled.cancel()
        await store.write(place("c"), entry(), None)
        await first
        assert await store.read(place("b")) is None


@pytest.mark.soak
async def test_a_hundred_journal_entries_cost_at_most_three_postgres_transactions(
    database: Database, config: PostgresConfig
) -> None:
    """Beside one transaction of the library with as many rows."""
    insert = "INSERT INTO bare VALUES($1, $2, $3, $4, $5, $6, $7, $8)"
    times_s: dict[str, list[float]] = {"library": [], "journal": []}

    async def measure(what: str, work: Any) -> None:
        began = clock.monotonic()
        await work
        times_s[what].append(clock.monotonic() - began)

    journal = Journal(writer=WriterIdentity)
    async with leads(PostgresStore(config), 0) as provider, administrator(database) as db:
        await db.execute("CREATE TABLE bare (LIKE ccm.ccm_objects INCLUDING ALL)")
        await journal.open(provider, NAME)
        for number in range(30):
            rows = [
                (HERE.cluster_uid, *KIND, place(f"{number}-{at}").key, one.version, 0, one.body)
                for at in range(100)
                for one in [entry(size=600)]
            ]

            async def in_one_transaction(rows: Any = rows) -> None:
                async with db.transaction():
                    await db.executemany(insert, rows)

            entries = [journals.entry(100 * number + at) for at in range(100)]
            await measure("library", in_one_transaction())
            await measure("journal", journal.put(*entries))
        await journal.close()
        await db.execute("DROP TABLE bare")
    medians = {what: statistics.median(times) for what, times in times_s.items()}
    ratio = medians["journal"] / medians["library"]
    print(f"\n100 entries, library: {1000 * medians['library']:.1f} ms, ratio: {ratio:.1f}")
    assert ratio <= 3


@pytest.mark.soak
async def test_five_thousand_postgres_writes_at_once_succeed(config: PostgresConfig) -> None:
    async with leads(PostgresStore(config), 0) as store:
        tasks = [spawn(store.put_object(NAME, thing(f"n{at}")), name="put") for at in range(5000)]
        for task in tasks:
            await task
        assert len(await store.get_all_objects(NAME, KIND)) == 5000
