"""SQLite: faults of the system, and killed writers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ccm.persistence import errors
from ccm.persistence.engine import StoreProvider
from ccm.persistence.objects import StoragePlace, key_of
from ccm.testing.persistence_harness import captured_logs
from tests.unit.persistence.helpers import HERE, KIND, LOCAL, NAME, opened, thing
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]
KEY = key_of("default", "n1")


def killed(module: str, *words: str | Path) -> int:
    """Return the number of killed processes; the program checks the storage after each kill."""
    command = [sys.executable, "-m", f"tests.unit.persistence.{module}", *map(str, words)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    print(f"\n{module}, {words[0]}: {done.stdout.strip()} killed")
    return int(done.stdout)


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("times", [3, pytest.param(300, marks=pytest.mark.soak)])
def test_killed_writer_loses_no_acknowledged_object(tmp_path: Path, kind: str, times: int) -> None:
    """The writer is killed repeatedly; its objects are checked after each kill."""
    assert killed("writers", kind, tmp_path, str(times)) == times


def torn(body: bytes) -> Iterator[bytes]:
    """Return damaged variants of a file: partial writes and disk faults."""
    yield b""
    yield body[: len(body) // 2]
    yield body[:-1]
    yield b"\0" * len(body)
    yield body + body
    yield json.dumps([1]).encode()
    yield b"[" * 100_000
    for at in range(0, len(body), max(1, len(body) // 40)):
        yield body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


async def change(store: StoreProvider, body: bytes, name: str = "one") -> None:
    """Replace stored bytes, bypassing the provider."""
    held: Any = store._instances[NAME].store
    query = "UPDATE objects SET body = ? WHERE key = ?"
    await held._run(held._db.execute, query, (body, f"default/{name}"))


async def test_torn_record_is_reported_as_corrupt_and_replaced_by_the_next_put(
    tmp_path: Path,
) -> None:
    """Other objects stay readable, and the damaged bytes are kept until the next put."""
    async with opened(LOCAL["sqlite"](tmp_path)) as store:
        key = await store.put_object(NAME, thing(size=1))
        await store.put_object(NAME, thing("healthy"))
        held: Any = store._instances[NAME].store
        place = StoragePlace(KIND, key)
        whole = (await held.read(place)).body
        for body in torn(whole):
            await change(store, body)
            try:
                found = await store.get_object(NAME, KIND, key)
            except errors.CorruptObject:
                found = None
                assert await store.get_all_objects(NAME, KIND) == [thing("healthy")]
            # Writer and time are no part of the object, so damage there may go unnoticed.
            assert found in (None, thing(size=1))
            assert (await held.read(place)).body == body
        await store.put_object(NAME, thing(size=2))
        assert await store.get_object(NAME, KIND, key) == thing(size=2)


async def test_damaged_object_is_logged_with_kind_and_key(tmp_path: Path) -> None:
    """An operator has to find it, whether it was read by itself or in a listing."""
    async with opened(LOCAL["sqlite"](tmp_path)) as store:
        key = await store.put_object(NAME, thing())
        await change(store, b"{}")
        for call in (store.get_object(NAME, KIND, key), store.get_all_objects(NAME, KIND)):
            with captured_logs() as logged, contextlib.suppress(errors.CorruptObject):
                await call
            assert "damaged stored object found" in logged()
            assert f"{KIND.api_version} {KIND.kind}" in logged()
            assert key in logged()


async def test_object_under_another_key_is_corrupt(tmp_path: Path) -> None:
    """An undamaged object at the place of another object is refused."""
    async with opened(LOCAL["sqlite"](tmp_path)) as store:
        key = await store.put_object(NAME, thing("one"))
        other = await store.put_object(NAME, thing("two"))
        held: Any = store._instances[NAME].store
        await change(store, (await held.read(StoragePlace(KIND, key))).body, "two")
        with pytest.raises(errors.CorruptObject, match="key"):
            await store.get_object(NAME, KIND, other)


async def test_full_database_keeps_its_objects_and_recovers(tmp_path: Path) -> None:
    """Writes succeed again once there is space."""
    async with opened(LOCAL["sqlite"](tmp_path), probe_s=3600) as store:
        key = await store.put_object(NAME, thing(size=1))
        held: Any = store._instances[NAME].store
        await held._run(held._db.execute, "PRAGMA max_page_count=8")
        for obj in (thing(size=2, fill="x" * 100_000), thing("new", fill="x" * 100_000)):
            with pytest.raises(
                errors.BackendUnavailable, match=r"/x.db: .*SQLITE_FULL; no space for"
            ):
                await store.put_object(NAME, obj)
        assert not (await store.instance_status(NAME)).status
        assert await store.get_all_objects(NAME, KIND) == [thing(size=1)]

        await held._run(held._db.execute, "PRAGMA max_page_count=10000")
        await store.put_object(NAME, thing(size=3, fill="x" * 100_000))
        assert await store.get_object(NAME, KIND, key) == thing(size=3, fill="x" * 100_000)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda body: body[:100] + b"\xff" * 9000 + body[9100:], id="overwritten"),
        pytest.param(lambda body: body[: len(body) // 2], id="truncated"),
        pytest.param(lambda body: b"\0" * len(body), id="zeros"),
        pytest.param(lambda body: b"no database" * 1000, id="something-else"),
    ],
)
async def test_damaged_database_is_refused(tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    """It is not opened, or no call succeeds once its integrity is checked."""
    path = tmp_path / "store" / "x.db"
    async with opened(LOCAL["sqlite"](tmp_path)) as store:
        for at in range(50):
            await store.put_object(NAME, thing(f"n{at}"))
    path.write_bytes(harm(path.read_bytes()))

    async def use() -> None:
        async with opened(LOCAL["sqlite"](tmp_path)) as store, asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(errors.BackendUnavailable, errors.CorruptObject):
                    await store.get_object(NAME, KIND, KEY)
                await asyncio.sleep(0.01)

    with pytest.raises(errors.BackendDead, match="damaged"):
        await use()


@pytest.mark.parametrize("free", [0, 1 << 30])
async def test_error_names_the_full_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """SQLite reports such an error under several names; the file stays readable."""
    async with opened(LOCAL["sqlite"](tmp_path), probe_s=3600) as store:
        key = await store.put_object(NAME, thing())
        held: Any = store._instances[NAME].store
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("ccm.persistence.sqlite.shutil.disk_usage", lambda _: usage)

        def refuse(*_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(held, "_remove", refuse)
            with pytest.raises(errors.BackendUnavailable) as refused:
                await store.delete_object(NAME, KIND, key)
        assert ("no space for" in str(refused.value)) is (free == 0)
        assert await store.get_object(NAME, KIND, key) == thing()
        await store.delete_object(NAME, KIND, key)


async def test_newer_storage_format_is_refused(tmp_path: Path) -> None:
    async with opened(LOCAL["sqlite"](tmp_path)):
        pass
    marker = json.dumps({"format": 2, "clusterUID": HERE.cluster_uid})
    with closing(sqlite3.connect(tmp_path / "store" / "x.db")) as db, db:
        db.execute("UPDATE instance SET marker = ?", (marker,))

    with pytest.raises(errors.BackendDead, match=r"format 2.*upgrade"):
        async with opened(LOCAL["sqlite"](tmp_path)):
            pass


@pytest.mark.parametrize(
    ("first", "step"),
    [
        pytest.param(2, 1000, id="one"),
        pytest.param(0, 1, marks=pytest.mark.soak, id="each"),
    ],
)
def test_killed_key_rotation_loses_no_secret(tmp_path: Path, first: int, step: int) -> None:
    """It is killed before a statement; the next rotation completes it."""
    assert killed("rotation", "sqlite", tmp_path, str(first), str(step)) >= (1 if step > 1 else 12)
