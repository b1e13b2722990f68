"""Storage behaves like a dictionary, and stays fast and small with ten thousand objects."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import re
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ccm.base import clock
from ccm.persistence import errors
from ccm.persistence.interface import ABSENT
from ccm.persistence.memory import MemoryStore
from ccm.persistence.objects import key_of
from ccm.persistence.postgres import PostgresConfig, PostgresStore
from ccm.persistence.s3 import S3Store
from ccm.persistence.store import Store
from ccm.testing.persistence_contract import put_many
from ccm.testing.persistence_harness import measure_stalls
from tests import postgres
from tests.contract.persistence import buckets
from tests.unit.persistence.helpers import HERE, KIND, LOCAL, NAME, opened, provider, thing

NAMES = st.sampled_from(["a", "A", "b.c", "ü", "x" * 253])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=5,
)  # fmt: skip
STEPS = {"ci": (3, 12), "soak": (130, 60)}
"""Runs, and the most steps of each; some runs end sooner, but so many are taken in all:"""

LEAST = {"ci": 3, "soak": 5000}


class Model(RuleBasedStateMachine):
    """One kind of storage compared with a dictionary."""

    make: Callable[[Path], Store]
    """A store over storage of that folder's."""

    taken = 0
    """Steps of all runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.known: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self.open()

    def open(self) -> None:
        store = type(self).make(Path(self.folder.name))
        self.provider = provider(store, probe_s=3600)
        self.runner.run(self.provider.initialize(HERE))

    @rule(name=NAMES, value=VALUES)
    def put(self, name: str, value: Any) -> None:
        self.runner.run(self.provider.put_object(NAME, thing(name, value=value)))
        self.known[name] = value
        self.versions.pop(name, None)

    @rule(name=NAMES, value=VALUES, is_right=st.booleans())
    def put_if(self, name: str, value: Any, is_right: bool) -> None:
        is_there = name in self.known
        expect: Any = self.versions.get(name) if is_there else ABSENT
        if not is_right or expect is None:
            expect = ABSENT if is_there else "never"
        put = self.provider.put_versioned(NAME, thing(name, value=value), expect=expect)
        should = expect == (self.versions.get(name) if is_there else ABSENT)
        try:
            _, self.versions[name] = self.runner.run(put)
            assert should
            self.known[name] = value
        except errors.VersionConflict:
            assert not should

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.runner.run(self.provider.delete_object(NAME, KIND, key_of("default", name)))
        self.known.pop(name, None)
        self.versions.pop(name, None)

    @rule(name=NAMES)
    def get(self, name: str) -> None:
        found = self.runner.run(self.provider.get_object(NAME, KIND, key_of("default", name)))
        wanted = thing(name, value=self.known[name]) if name in self.known else None
        assert found == wanted

    @rule()
    def restart(self) -> None:
        self.runner.run(self.provider.close())
        self.open()

    @invariant()
    def same(self) -> None:
        type(self).taken += 1
        found = self.runner.run(self.provider.get_all_objects(NAME, KIND))
        assert {o["metadata"]["name"]: o["spec"]["value"] for o in found} == self.known

    def teardown(self) -> None:
        self.runner.run(self.provider.close())
        self.runner.close()
        self.folder.cleanup()


def remembered() -> Callable[[Path], Store]:
    """Return a factory that keeps one in-memory store for each folder."""
    held: dict[Path, MemoryStore] = {}
    return lambda folder: held.setdefault(folder, MemoryStore())


def play(make: Callable[[Path], Store], length: str) -> None:
    runs, steps = STEPS[length]
    machine: type[Model] = type("Machine", (Model,), {"make": staticmethod(make)})
    with_steps = settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize="CI" in os.environ,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=with_steps)
    # Each run also checks the invariant before its first step.
    assert machine.taken - runs >= LEAST[length]


@pytest.mark.parametrize("kind", ["memory", *LOCAL])
@pytest.mark.parametrize("length", ["ci", pytest.param("soak", marks=pytest.mark.soak)])
def test_local_store_behaves_like_a_dictionary(kind: str, length: str) -> None:
    play(remembered() if kind == "memory" else LOCAL[kind], length)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_postgres_store_behaves_like_a_dictionary() -> None:
    with postgres.running() as host:

        def make(folder: Path) -> Store:
            table = re.sub("[^a-z0-9]", "_", folder.name.lower())
            return PostgresStore(
                PostgresConfig(
                    host=str(host), database="postgres", user=postgres.USER, table=f"t{table}"
                )
            )

        play(make, "soak")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_s3_store_behaves_like_a_dictionary(tmp_path: Path) -> None:
    with buckets.running() as url:
        config = next(iter(buckets.S3Harness(url, tmp_path).configs.values()))
        play(lambda folder: S3Store(msgspec.structs.replace(config, prefix=folder.name)), "soak")


OBJECTS = 10_000


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


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["memory", *LOCAL, "postgres", "s3"])
async def test_ten_thousand_objects_do_not_stall_the_event_loop(
    kind: str, tmp_path: Path, exits: ExitStack
) -> None:
    store = await asyncio.to_thread(made, kind, tmp_path, exits)
    async with opened(store) as provider, measure_stalls() as longest:
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
    """Return the MiB in use now, without memory that earlier tests freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
