"""SQLite: moved and damaged files, network file systems, and files with many objects."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ccm.base import clock
from ccm.persistence import errors, local
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.sqlite import SqliteStore
from ccm.testing.persistence_harness import captured_logs
from tests.generated.persistence import GUIDE
from tests.unit.persistence.helpers import KIND, NAME, opened, thing
from tests.waiting import DEADLINE_S


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store" / "x.db"


def move(file: Path) -> None:
    file.rename(file.with_name("moved.db"))


def replace(file: Path) -> None:
    copy = file.with_name("copy.db")
    shutil.copy(file, copy)
    copy.rename(file)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("change", [move, replace, os.unlink])
async def test_file_that_lost_its_path_takes_no_more_writes(
    file: Path, change: Callable[[Path], None]
) -> None:
    """The next process would not find them."""
    async with opened(SqliteStore(file), probe_s=3600) as store:
        key = await store.put_object(NAME, thing())
        change(file)
        for call in (
            store.put_object(NAME, thing("two")),
            store.delete_object(NAME, KIND, key),
        ):
            with pytest.raises(errors.BackendUnavailable, match="moved, deleted or replaced"):
                await call
        assert not (await store.instance_status(NAME)).status
        assert await store.get_all_objects(NAME, KIND) == [thing()]


async def test_file_that_is_replaced_while_it_is_opened_takes_no_writes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open connection has the file that lost its path."""
    async with opened(SqliteStore(file)):
        pass
    connect = sqlite3.connect

    def connect_and_replace(*words: Any, **settings: Any) -> Any:
        monkeypatch.undo()
        db = connect(*words, **settings)
        replace(file)
        return db

    monkeypatch.setattr(sqlite3, "connect", connect_and_replace)
    with pytest.raises(errors.BackendDead, match="moved, deleted or replaced"):
        async with opened(SqliteStore(file)):
            pass
    async with opened(SqliteStore(file)) as store:
        await store.put_object(NAME, thing())


async def test_database_of_another_program_is_not_changed(file: Path) -> None:
    """Not even its journal mode."""
    file.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE theirs(a)")
    file.chmod(0o600)
    before = file.read_bytes()

    with pytest.raises(errors.BackendDead, match=r"x.db is a database of another program; conf"):
        async with opened(SqliteStore(file)):
            pass

    assert file.read_bytes() == before


async def test_file_that_loses_its_marker_takes_no_more_writes(file: Path) -> None:
    async with opened(SqliteStore(file)) as store:
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("DELETE FROM instance")
        with pytest.raises(errors.BackendDead, match="marker is missing; see the recovery guide"):
            await store.put_object(NAME, thing())
        assert not (await store.instance_status(NAME)).status
    with pytest.raises(errors.BackendDead, match="marker is damaged; see the recovery guide"):
        async with opened(SqliteStore(file)):
            pass


async def test_statement_of_the_guide_gives_the_file_to_a_renamed_lease(file: Path) -> None:
    """The epoch is kept, so that the count of the new Lease continues it."""
    (statement,) = re.findall(r"SQLite: `(UPDATE .*?)`", GUIDE.read_text())
    async with opened(SqliteStore(file), writer=lambda: WriterIdentity(epoch=5, lease="a/old")):
        pass
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(statement)

    with pytest.raises(errors.BackendDead, match="a leader of epoch 5 has written"):
        async with opened(SqliteStore(file), writer=lambda: WriterIdentity(epoch=4, lease="a/new")):
            pass
    async with opened(SqliteStore(file), writer=lambda: WriterIdentity(epoch=5, lease="a/new")):
        pass


async def test_damage_that_a_call_meets_stops_all_calls(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the integrity check finds it."""
    monkeypatch.setattr(SqliteStore, "_is_intact", lambda _: True)
    async with opened(SqliteStore(file)) as store:
        for at in range(50):
            await store.put_object(NAME, thing(f"n{at}", fill="x" * 500))
    body = file.read_bytes()
    file.write_bytes(body[: 4 * 4096] + b"\xff" * (len(body) - 4 * 4096))
    async with opened(SqliteStore(file), probe_s=3600) as store:
        with pytest.raises(errors.BackendDead, match=r"x.db is damaged; see the recovery guide"):
            await store.get_all_objects(NAME, KIND)
        with pytest.raises(errors.BackendDead, match=r"x.db is damaged"):
            await store.put_object(NAME, thing())


@pytest.mark.parametrize("path", ["x.db", "/store/a\0b"])
def test_sqlite_path_must_be_absolute(path: str) -> None:
    with pytest.raises(errors.BackendDead, match=r"sqlite.path is '.*'; use an absolute path"):
        SqliteStore(Path(path))


async def test_folder_in_the_place_of_the_file_is_refused(file: Path) -> None:
    file.parent.mkdir(mode=0o700)
    file.mkdir()
    with pytest.raises(errors.BackendDead, match=r"x.db must be a file"):
        async with opened(SqliteStore(file)):
            pass


async def test_probe_notices_that_the_file_was_moved_away_and_back(file: Path) -> None:
    async with opened(SqliteStore(file), probe_s=0.01) as store:

        async def is_up() -> bool:
            return (await store.instance_status(NAME)).status

        async def is_down() -> bool:
            return not await is_up()

        move(file)
        await until(is_down)
        file.with_name("moved.db").rename(file)
        await until(is_up)
        await store.put_object(NAME, thing())


async def pragma(store: StoreProvider, name: str) -> Any:
    held: Any = store._instances[NAME].store
    return await held._run(held._pragma, name)


async def test_journal_on_a_network_file_system_is_a_rollback_journal(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that had a write-ahead log is converted."""
    async with opened(SqliteStore(file)) as store:
        assert (await pragma(store, "journal_mode"), await pragma(store, "synchronous")) == (
            "wal",
            2,
        )
        await store.put_object(NAME, thing())
    monkeypatch.setattr(local, "is_on_network", lambda _: True)
    async with opened(SqliteStore(file)) as store:
        assert (await pragma(store, "journal_mode"), await pragma(store, "synchronous")) == (
            "delete",
            3,
        )
        await store.put_object(NAME, thing("two"))
        assert len(await store.get_all_objects(NAME, KIND)) == 2
    damage(file)
    with pytest.raises(errors.BackendDead, match="damaged"):
        async with opened(SqliteStore(file)):
            pass


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("nfs4", True), ("cifs", True), ("fuse.sshfs", True), ("ext4", False), ("fuseblk", False)],
)
def test_network_file_systems_are_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, expected: bool
) -> None:
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = (
        "22 27 0:9999 / /other rw - nfs4 server:/other rw\n"
        f"31 27 {number} / /a\\040b rw,relatime shared:1 - {kind} server:/x rw\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda _: mounts)

    assert local.is_on_network(tmp_path) is expected


def damage(file: Path) -> None:
    """Overwrite the last page of the file, which opening it does not read."""
    body = bytearray(file.read_bytes())
    body[-4096:] = b"\xff" * 4096
    file.write_bytes(body)


async def test_damage_found_after_opening_stops_all_calls(file: Path) -> None:
    async with opened(SqliteStore(file)) as store:
        for at in range(200):
            await store.put_object(NAME, thing(f"n{at}", fill="x" * 500))
    damage(file)
    async with opened(SqliteStore(file), probe_s=0.01) as store:

        async def is_dead() -> bool:
            try:
                await store.put_object(NAME, thing("n0"))
            except errors.BackendDead as error:
                return "is damaged; see the recovery guide" in str(error)
            except errors.BackendUnavailable:
                pass
            return False

        await until(is_dead)
        assert not (await store.instance_status(NAME)).status
        with pytest.raises(errors.BackendDead):
            await store.get_all_objects(NAME, KIND)


class SlowCheck(sqlite3.Connection):
    """Connection whose check takes many seconds, as of a large file that is not cached.

    The first interruption comes before the statement runs, and so has no effect. No progress
    handler is called, as by SQLite before version 3.41 while it reads the pages.
    """

    was_interrupted: threading.Event

    def set_progress_handler(self, *_: Any) -> None:
        pass

    def interrupt(self) -> None:
        super().interrupt()
        self.was_interrupted.set()

    def execute(self, *_: Any) -> sqlite3.Cursor:
        self.was_interrupted.wait(DEADLINE_S)
        rows = "SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 100000000"
        return super().execute(f"WITH RECURSIVE n(x) AS ({rows}) SELECT max(x) FROM n")


async def test_open_writes_and_close_do_not_wait_for_the_integrity_check(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is ended, which is no fault."""
    monkeypatch.setattr(SlowCheck, "was_interrupted", threading.Event(), raising=False)
    connect = sqlite3.connect

    def connect_slowly(*words: Any, **settings: Any) -> Any:
        if settings.get("uri"):
            settings["factory"] = SlowCheck
        return connect(*words, **settings)

    monkeypatch.setattr(sqlite3, "connect", connect_slowly)
    with captured_logs() as logged:
        async with asyncio.timeout(DEADLINE_S), opened(store := SqliteStore(file)) as provider:
            await provider.put_object(NAME, thing())
    assert store._checking is not None
    assert store._checking.done()
    assert "integrity" not in logged()
    assert "damaged" not in logged()


async def test_storage_is_closed_although_its_integrity_check_was_cancelled(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    monkeypatch.setattr(SqliteStore, "_is_intact", lambda _: ends.wait(DEADLINE_S))
    async with opened(store := SqliteStore(file)):
        assert store._checking is not None
        store._checking.cancel()
        ends.set()
    assert store._connection is None


async def test_integrity_check_that_fails_is_logged(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage stays in use."""

    def fail(_: SqliteStore) -> bool:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(SqliteStore, "_is_intact", fail)
    with captured_logs() as logged:
        async with opened(store := SqliteStore(file)) as provider:
            assert store._checking is not None
            await store._checking
            await provider.put_object(NAME, thing())
    assert "storage integrity was not checked" in logged()
    assert "OperationalError" in logged()


MANY = 1_000_000


def rows() -> Iterator[tuple[Any, ...]]:
    for at in range(MANY):
        yield (*KIND, f"default/n{at:07}", f"{at}", 0, b"x" * 300)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_million_objects_are_opened_within_two_seconds(file: Path) -> None:
    """With a cold cache. They are closed as fast, because that ends the integrity check."""
    async with opened(SqliteStore(file)):
        pass
    with closing(sqlite3.connect(file)) as db, db:
        db.executemany("INSERT INTO objects VALUES(?, ?, ?, ?, ?, ?, ?)", rows())
    handle = os.open(file, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)

    began = clock.monotonic()
    async with opened(SqliteStore(file)) as store:
        took_s = clock.monotonic() - began
        await store.put_object(NAME, thing())
    closed_s = clock.monotonic() - began

    print(f"\n{MANY} objects: opened in {took_s:.2f} s, closed after {closed_s:.2f} s")
    assert took_s <= 2
    assert closed_s <= 2
