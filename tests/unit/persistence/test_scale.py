"""Ten thousand objects: how long, and how much memory; `make soak` prints it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ccm.base import clock
from ccm.persistence.memory import MemoryStore
from ccm.persistence.postgres import PostgresConfig, PostgresStore
from ccm.persistence.store import Store
from ccm.testing.persistence_contract import put_many
from ccm.testing.persistence_harness import stalls
from tests import postgres
from tests.contract.persistence import buckets
from tests.unit.persistence.helpers import KIND, LOCAL, NAME, opened

OBJECTS = 10_000

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def exits() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def made(kind: str, folder: Path, exits: ExitStack) -> Store:
    if kind == "memory":
        return MemoryStore()
    if kind == "s3":
        url = exits.enter_context(buckets.running())
        return next(iter(buckets.S3Harness(url, folder).stores().values()))
    if kind == "postgres":
        host = str(exits.enter_context(postgres.running()))
        return PostgresStore(PostgresConfig(host=host, database="postgres", user=postgres.USER))
    return LOCAL[kind](folder)


@pytest.mark.parametrize("kind", ["memory", *LOCAL, "postgres", "s3"])
async def test_ten_thousand(kind: str, tmp_path: Path, exits: ExitStack) -> None:
    store = await asyncio.to_thread(made, kind, tmp_path, exits)
    async with opened(store) as provider, stalls() as longest:
        before, began = memory(), clock.monotonic()
        await put_many(provider, NAME, OBJECTS)
        written = clock.monotonic()
        found: list[Any] = await provider.get_all_objects(NAME, KIND)
        listed = clock.monotonic()

    assert {one["metadata"]["name"] for one in found} == {f"n{at}" for at in range(OBJECTS)}
    assert len(found) == OBJECTS
    print(
        f"\n{kind}: put {written - began:.1f} s, list {listed - written:.1f} s, "
        f"{memory() - before:.0f} MiB, longest stall {1000 * longest():.0f} ms"
    )
    assert longest() <= 0.05


def memory() -> float:
    """MiB in use now, without what earlier tests left free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
