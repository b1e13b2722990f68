"""Killed key rotations: a process that forks one rotation after the other and checks the storage.

    python -m tests.unit.persistence.rotation sqlite FOLDER FIRST STEP

prints the number of killed rotations: at step FIRST, FIRST + STEP and so on, until one completes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ccm.persistence.secrets import EncryptedSecretStore, RotationReport
from tests.unit.persistence.helpers import HERE, LOCAL, NAME, provider

OLD, NEW = b"o" * 32, b"n" * 32
SECRETS = {f"n{at}": {"token": f"needle-{at}".encode()} for at in range(3)}


@asynccontextmanager
async def opened(kind: str, folder: Path, *ring: bytes) -> AsyncIterator[EncryptedSecretStore]:
    store = EncryptedSecretStore(provider(LOCAL[kind](folder)), ring)
    await store.initialize(HERE)
    try:
        yield store
    finally:
        await store.close()


async def prepare(kind: str, folder: Path) -> None:
    async with opened(kind, folder, OLD) as store:
        for name, data in SECRETS.items():
            await store.put_secret(NAME, name, data)


async def rotate(kind: str, folder: Path, at: int) -> None:
    """Be killed before that statement of it, if it has so many."""
    count = itertools.count()

    def step(*_: str) -> None:
        if next(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    async with opened(kind, folder, NEW, OLD) as store:
        inner: Any = store._inner
        held = inner._instances[NAME].store
        await held._run(held._db.set_trace_callback, step)
        await store.rotate(NAME)
        step()


async def look(kind: str, folder: Path) -> None:
    """Check that both keys open every secret, and that a second rotation completes the first."""
    async with opened(kind, folder, NEW, OLD) as store:
        await same(store)
        assert (await store.rotate(NAME)).failed == 0
        assert await store.rotate(NAME) == RotationReport(current=len(SECRETS))
    async with opened(kind, folder, NEW) as store:
        await same(store)


async def same(store: EncryptedSecretStore) -> None:
    keys = await store.list_secrets(NAME)
    found = [await store.get_secret(NAME, key) for key in keys]
    assert {key.removeprefix("_/"): data for key, data in zip(keys, found, strict=True)} == SECRETS


def main(kind: str, folder: Path, first: int, step: int) -> int:
    asyncio.run(prepare(kind, folder / "before"))
    for killed, at in enumerate(itertools.count(first, step)):
        here = shutil.copytree(folder / "before", folder / str(at))
        if (pid := os.fork()) == 0:
            asyncio.run(rotate(kind, here, at))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        asyncio.run(look(kind, here))
        shutil.rmtree(here)
        if status == 0:
            return killed
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    raise AssertionError


if __name__ == "__main__":
    kind, place, *numbers = sys.argv[1:]
    print(main(kind, Path(place), *map(int, numbers)))
