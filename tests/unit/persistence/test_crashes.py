"""Files and databases: faults of the system, and killed writers."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ccm.persistence import errors, file, local
from ccm.persistence.engine import StoreProvider
from ccm.persistence.interface import ABSENT
from ccm.persistence.objects import key_of
from tests.unit.persistence.helpers import HERE, KIND, LOCAL, NAME, opened, thing

ROOT = Path(__file__).parents[3]


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


async def test_torn_file_is_reported_as_corrupt_and_replaced_by_the_next_put(
    tmp_path: Path,
) -> None:
    """Other objects stay readable, and the damaged file is kept until the next put."""
    async with opened(LOCAL["file"](tmp_path)) as store:
        key = await store.put_object(NAME, thing(size=1))
        await store.put_object(NAME, thing("healthy"))
        (file,) = tmp_path.rglob("one.json")
        whole = file.read_bytes()
        for body in torn(whole):
            file.write_bytes(body)
            try:
                found = await store.get_object(NAME, KIND, key)
            except errors.CorruptObject:
                found = None
                assert await store.get_all_objects(NAME, KIND) == [thing("healthy")]
            # Writer and time are no part of the object, so damage there may go unnoticed.
            assert found in (None, thing(size=1))
            assert file.read_bytes() == body
        await store.put_object(NAME, thing(size=2))
        assert await store.get_object(NAME, KIND, key) == thing(size=2)


async def test_object_under_another_key_is_corrupt(tmp_path: Path) -> None:
    """An undamaged object in the file of another object is refused."""
    async with opened(LOCAL["file"](tmp_path)) as store:
        await store.put_object(NAME, thing("one"))
        key = await store.put_object(NAME, thing("two"))
        (one,), (two,) = tmp_path.rglob("one.json"), tmp_path.rglob("two.json")
        two.write_bytes(one.read_bytes())
        with pytest.raises(errors.CorruptObject, match="key"):
            await store.get_object(NAME, KIND, key)


async def test_full_database_keeps_its_objects_and_recovers(tmp_path: Path) -> None:
    """Writes succeed again once there is space."""
    async with opened(LOCAL["sqlite"](tmp_path), probe_s=3600) as store:
        key = await store.put_object(NAME, thing(size=1))
        held: Any = store._instances[NAME].store
        await held._worker.run(held._db.execute, "PRAGMA max_page_count=8")
        for obj in (thing(size=2, fill="x" * 100_000), thing("new", fill="x" * 100_000)):
            with pytest.raises(errors.BackendUnavailable, match="SQLITE_FULL"):
                await store.put_object(NAME, obj)
        assert not (await store.instance_status(NAME)).status
        assert await store.get_all_objects(NAME, KIND) == [thing(size=1)]

        await held._worker.run(held._db.execute, "PRAGMA max_page_count=10000")
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
    path = tmp_path / "store" / "x.db"
    async with opened(LOCAL["sqlite"](tmp_path)) as store:
        for at in range(50):
            await store.put_object(NAME, thing(f"n{at}"))
    path.write_bytes(harm(path.read_bytes()))

    with pytest.raises(errors.BackendDead, match="damaged"):
        async with opened(LOCAL["sqlite"](tmp_path)):
            pass


async def test_newer_storage_format_is_refused(tmp_path: Path) -> None:
    async with opened(LOCAL["file"](tmp_path)):
        pass
    marker = tmp_path / "store" / ".ccm-instance.json"
    marker.write_text(json.dumps({"format": 2, "clusterUID": HERE.cluster_uid}))

    with pytest.raises(errors.BackendDead, match=r"format 2.*upgrade"):
        async with opened(LOCAL["file"](tmp_path)):
            pass


@pytest.mark.parametrize(
    ("kind", "first", "step"),
    [
        pytest.param("file", 25, 1000, id="file"),
        pytest.param("file", 0, 1, marks=pytest.mark.soak, id="file-each"),
        pytest.param("sqlite", 0, 1, marks=pytest.mark.soak, id="sqlite-each"),
    ],
)
def test_killed_key_rotation_loses_no_secret(
    tmp_path: Path, kind: str, first: int, step: int
) -> None:
    """It is killed before a system call or statement; the next rotation completes it."""
    assert killed("rotation", kind, tmp_path, str(first), str(step)) >= (1 if step > 1 else 12)


USED = {
    "first": {"open", "write", "fsync", "close", "rename", "mkdir"},
    "replace": {"open", "write", "fsync", "close", "rename"},
    "create": {"open", "write", "fsync", "close", "link", "unlink", "mkdir"},
    "delete": {"open", "fsync", "close", "unlink"},
}
"""System calls of each operation."""

KEY = key_of("default", "one")
SMOKE = [("write", 0, errno.ENOSPC), ("fsync", 1, errno.EIO), ("rename", 0, errno.EIO)]


class Refusing:
    """`os` that refuses one call of a function."""

    def __init__(self, call: str, at: int, number: int) -> None:
        self.call, self.at, self.number = call, at, number
        self.refused = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name != self.call:
            return real

        def refusing(*given: Any, **named: Any) -> Any:
            self.at -= 1
            if self.at != -1:
                return real(*given, **named)
            self.refused = True
            if name == "close":
                real(*given)  # close fails, but the descriptor is closed nevertheless
            raise OSError(self.number, os.strerror(self.number))

        return refusing


def refuse(patches: pytest.MonkeyPatch, call: str, at: int, number: int) -> Refusing:
    shim = Refusing(call, at, number)
    for module in (file, local):
        patches.setattr(module, "os", shim)
    return shim


async def put_with(folder: Path, call: str, at: int, number: int) -> bool:
    """Put with one refused call; check the objects; return whether a call was refused."""
    async with opened(LOCAL["file"](folder), probe_s=3600) as store:
        key = await store.put_object(NAME, thing(size=1))
        with pytest.MonkeyPatch.context() as patches:
            shim = refuse(patches, call, at, number)
            try:
                await store.put_object(NAME, thing(size=2))
                allowed = [thing(size=2)]
            except errors.BackendUnavailable:
                allowed = [thing(size=1), thing(size=2)]
        assert await store.get_object(NAME, KIND, key) in allowed
        assert len(await store.get_all_objects(NAME, KIND)) == 1
        await store.put_object(NAME, thing(size=3))
    async with opened(LOCAL["file"](folder)) as store:
        assert await store.get_object(NAME, KIND, key) == thing(size=3)
        assert not list(folder.rglob(f"{file.TEMPORARY}*"))
    return shim.refused


@pytest.mark.parametrize(("call", "at", "number"), SMOKE)
async def test_failed_system_call_of_a_put_does_no_damage(
    tmp_path: Path, call: str, at: int, number: int
) -> None:
    assert await put_with(tmp_path, call, at, number)


async def do(store: StoreProvider, operation: str) -> None:
    if operation == "delete":
        await store.delete_object(NAME, KIND, KEY)
    elif operation == "create":
        await store.put_versioned(NAME, thing(size=2), expect=ABSENT)
    else:
        await store.put_object(NAME, thing(size=2))


async def refused_once(folder: Path, operation: str, call: str, at: int, number: int) -> bool:
    """Run an operation with one refused call, then again; return whether a call was refused."""
    before = thing(size=1) if operation in ("replace", "delete") else None
    after = None if operation == "delete" else thing(size=2)
    async with opened(LOCAL["file"](folder), probe_s=3600) as store:
        if before is not None:
            await store.put_object(NAME, before)
        with pytest.MonkeyPatch.context() as patches:
            shim = refuse(patches, call, at, number)
            try:
                await do(store, operation)
                allowed = [after]
            except errors.BackendUnavailable:
                allowed = [before, after]
        assert await store.get_object(NAME, KIND, KEY) in allowed
        assert await store.get_all_objects(NAME, KIND) in [[obj] if obj else [] for obj in allowed]
        try:
            await do(store, operation)
        except errors.VersionConflict:
            assert operation == "create"
        assert await store.get_object(NAME, KIND, KEY) == after
    async with opened(LOCAL["file"](folder)) as store:
        assert await store.get_object(NAME, KIND, KEY) == after
        assert not list(folder.rglob(f"{file.TEMPORARY}*"))
    return shim.refused


@pytest.mark.soak
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", sorted(set.union(*USED.values())))
@pytest.mark.parametrize("operation", USED)
async def test_failed_system_call_at_any_position_does_no_damage(
    tmp_path: Path, operation: str, call: str, number: int
) -> None:
    """The object is the old or the new one, and a second attempt succeeds.
    try does it."""
    positions = 0
    while await refused_once(tmp_path / str(positions), operation, call, positions, number):
        positions += 1

    assert bool(positions) is (call in USED[operation])


@pytest.mark.parametrize(
    ("call", "at"),
    [
        pytest.param("link", 0, id="link"),
        pytest.param("fsync", 0, marks=pytest.mark.soak, id="fsync"),
        pytest.param("fsync", 1, marks=pytest.mark.soak, id="fsync-of-the-folder"),
        pytest.param("write", 0, marks=pytest.mark.soak, id="write"),
    ],
)
async def test_failed_create_can_be_retried(tmp_path: Path, call: str, at: int) -> None:
    """The second attempt reports a conflict if the first one was completed."""
    async with opened(LOCAL["file"](tmp_path), probe_s=3600) as store:
        await store.put_object(NAME, thing("other"))
        with pytest.MonkeyPatch.context() as patches:
            assert refuse(patches, call, at, errno.EIO) is not None
            with pytest.raises(errors.BackendUnavailable):
                await store.put_versioned(NAME, thing(), expect=ABSENT)
        try:
            await store.put_versioned(NAME, thing(), expect=ABSENT)
        except errors.VersionConflict:
            assert (call, at) == ("fsync", 1)
        assert len(await store.get_all_objects(NAME, KIND)) == 2


async def test_delete_fails_until_it_is_durable(tmp_path: Path) -> None:
    """The file is unlinked, but fsync of the folder fails: the delete fails until it succeeds."""
    async with opened(LOCAL["file"](tmp_path), probe_s=3600) as store:
        key = await store.put_object(NAME, thing())
        with pytest.MonkeyPatch.context() as patches:
            refuse(patches, "fsync", 0, errno.EIO)
            with pytest.raises(errors.BackendUnavailable):
                await store.delete_object(NAME, KIND, key)
        with pytest.MonkeyPatch.context() as patches:
            again = refuse(patches, "fsync", 0, errno.EIO)
            with pytest.raises(errors.BackendUnavailable):
                await store.delete_object(NAME, KIND, key)
            assert again.refused
        await store.delete_object(NAME, KIND, key)


async def test_put_syncs_new_folders(tmp_path: Path) -> None:
    """This holds also for folders that a failed attempt created."""
    async with opened(LOCAL["file"](tmp_path), probe_s=3600) as store:
        with pytest.MonkeyPatch.context() as patches:
            refuse(patches, "fsync", 0, errno.EIO)
            with pytest.raises(errors.BackendUnavailable):
                await store.put_object(NAME, thing())
        synced: list[Path] = []
        with pytest.MonkeyPatch.context() as patches:
            real = local.sync_folder

            def sync(path: Path) -> None:
                synced.append(path)
                real(path)

            patches.setattr(local, "sync_folder", sync)
            await store.put_object(NAME, thing())
        assert tmp_path / "store" in synced


async def test_file_content_is_synced_before_its_rename(tmp_path: Path) -> None:
    """The host may lose power between any two calls."""
    calls: list[str] = []

    class Told:
        def __getattr__(self, name: str) -> Any:
            if name in ("write", "fsync", "rename", "link"):
                calls.append(name)
            return getattr(os, name)

    async with opened(LOCAL["file"](tmp_path), probe_s=3600) as store:
        await store.put_object(NAME, thing())
        with pytest.MonkeyPatch.context() as patches:
            for module in (file, local):
                patches.setattr(module, "os", Told())
            await store.put_object(NAME, thing())
    assert calls == ["write", "fsync", "rename", "fsync"]
