"""Storage of this machine survives the end of the process at any moment, and a torn file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ccm.persistence import errors
from tests.unit.persistence.helpers import HERE, KIND, LOCAL, NAME, opened, thing

ROOT = Path(__file__).parents[3]


def killed(module: str, *words: str | Path) -> int:
    """How many processes a program killed; it looks itself at what each of them left."""
    command = [sys.executable, "-m", f"tests.unit.persistence.{module}", *map(str, words)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    print(f"\n{module}, {words[0]}: {done.stdout.strip()} killed")
    return int(done.stdout)


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("times", [3, pytest.param(300, marks=pytest.mark.soak)])
def test_killed_writer(tmp_path: Path, kind: str, times: int) -> None:
    """Nothing that was acknowledged is lost."""
    assert killed("writers", kind, tmp_path, str(times)) == times


def torn(body: bytes) -> Iterator[bytes]:
    """What half a write, or a bad disk, leaves behind."""
    yield b""
    yield body[: len(body) // 2]
    yield body[:-1]
    yield b"\0" * len(body)
    yield body + body
    yield json.dumps([1]).encode()
    yield b"[" * 100_000
    for at in range(0, len(body), max(1, len(body) // 40)):
        yield body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


async def test_torn_file(tmp_path: Path) -> None:
    """It is told apart from every healthy object, kept, and replaced by the next put."""
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
            # What is no part of the object or its place may change: who wrote it, and when.
            assert found in (None, thing(size=1))
            assert file.read_bytes() == body
        await store.put_object(NAME, thing(size=2))
        assert await store.get_object(NAME, KIND, key) == thing(size=2)


async def test_object_in_the_wrong_place(tmp_path: Path) -> None:
    """A healthy object under the name of another is none."""
    async with opened(LOCAL["file"](tmp_path)) as store:
        await store.put_object(NAME, thing("one"))
        key = await store.put_object(NAME, thing("two"))
        (one,), (two,) = tmp_path.rglob("one.json"), tmp_path.rglob("two.json")
        two.write_bytes(one.read_bytes())
        with pytest.raises(errors.CorruptObject, match="key"):
            await store.get_object(NAME, KIND, key)


async def test_full_database(tmp_path: Path) -> None:
    """What is there stays, and goes on when there is room again."""
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
async def test_damaged_database_is_dead(tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "store" / "x.db"
    async with opened(LOCAL["sqlite"](tmp_path)) as store:
        for at in range(50):
            await store.put_object(NAME, thing(f"n{at}"))
    path.write_bytes(harm(path.read_bytes()))

    with pytest.raises(errors.BackendDead, match="damaged"):
        async with opened(LOCAL["sqlite"](tmp_path)):
            pass


async def test_newer_format_is_refused(tmp_path: Path) -> None:
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
def test_killed_rotation(tmp_path: Path, kind: str, first: int, step: int) -> None:
    """Before each system call, or each statement: no secret is lost, and the next one ends it."""
    assert killed("rotation", kind, tmp_path, str(first), str(step)) >= (1 if step > 1 else 12)
