"""Storage in files, with the system refusing: whatever fails, an object is the old or the new."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ccm.persistence import errors, file, places
from ccm.persistence.engine import StoreProvider
from ccm.persistence.interface import ABSENT
from ccm.persistence.keys import key_of
from tests.unit.persistence.helpers import KIND, LOCAL, NAME, opened, thing

USED = {
    "first": {"open", "write", "fsync", "close", "rename", "mkdir"},
    "replace": {"open", "write", "fsync", "close", "rename"},
    "create": {"open", "write", "fsync", "close", "link", "unlink", "mkdir"},
    "delete": {"open", "fsync", "close", "unlink"},
}
"""What is done -> the system calls of it."""

KEY = key_of("default", "one")
SMOKE = [("write", 0, errno.ENOSPC), ("fsync", 1, errno.EIO), ("rename", 0, errno.EIO)]


class Refusing:
    """`os`, refusing one call of a name."""

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
                real(*given)  # it fails, and the handle is gone all the same
            raise OSError(self.number, os.strerror(self.number))

        return refusing


def refuse(patches: pytest.MonkeyPatch, call: str, at: int, number: int) -> Refusing:
    shim = Refusing(call, at, number)
    for module in (file, places):
        patches.setattr(module, "os", shim)
    return shim


async def put_with(folder: Path, call: str, at: int, number: int) -> bool:
    """A put with one refusal; whether it was refused. Checks that no harm was done."""
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
async def test_refused_put(tmp_path: Path, call: str, at: int, number: int) -> None:
    assert await put_with(tmp_path, call, at, number)


async def do(store: StoreProvider, operation: str) -> None:
    if operation == "delete":
        await store.delete_object(NAME, KIND, KEY)
    elif operation == "create":
        await store.put_versioned(NAME, thing(size=2), expect=ABSENT)
    else:
        await store.put_object(NAME, thing(size=2))


async def refused_once(folder: Path, operation: str, call: str, at: int, number: int) -> bool:
    """Do it with one refusal, then again; whether there was something to refuse."""
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
async def test_refused_at_every_position(
    tmp_path: Path, operation: str, call: str, number: int
) -> None:
    """Until there is no further one to refuse: the object is the old or the new, and a second
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
async def test_refused_create(tmp_path: Path, call: str, at: int) -> None:
    """A create that failed may be tried again, and then knows whether it is there."""
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


async def test_delete_is_not_done_before_it_is_durable(tmp_path: Path) -> None:
    """The name is gone, but the folder could not be synced: it tells so, and tries again."""
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


async def test_new_folders_are_durable_before_the_put_is(tmp_path: Path) -> None:
    """Also when the attempt that made them came no further."""
    async with opened(LOCAL["file"](tmp_path), probe_s=3600) as store:
        with pytest.MonkeyPatch.context() as patches:
            refuse(patches, "fsync", 0, errno.EIO)
            with pytest.raises(errors.BackendUnavailable):
                await store.put_object(NAME, thing())
        synced: list[Path] = []
        with pytest.MonkeyPatch.context() as patches:
            real = places.sync_folder

            def sync(path: Path) -> None:
                synced.append(path)
                real(path)

            patches.setattr(places, "sync_folder", sync)
            await store.put_object(NAME, thing())
        assert tmp_path / "store" in synced


async def test_bytes_are_durable_before_the_name(tmp_path: Path) -> None:
    """Power may be lost between any two calls."""
    calls: list[str] = []

    class Told:
        def __getattr__(self, name: str) -> Any:
            if name in ("write", "fsync", "rename", "link"):
                calls.append(name)
            return getattr(os, name)

    async with opened(LOCAL["file"](tmp_path), probe_s=3600) as store:
        await store.put_object(NAME, thing())
        with pytest.MonkeyPatch.context() as patches:
            for module in (file, places):
                patches.setattr(module, "os", Told())
            await store.put_object(NAME, thing())
    assert calls == ["write", "fsync", "rename", "fsync"]
