"""MachineSets with lagging caches, concurrent writers and unusual machines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from ccm.base import metrics
from ccm.controllers.machineset import plan
from ccm.gardener import names
from ccm.kube.errors import TooManyRequests, Unreachable
from ccm.model.machines import SetStatus
from ccm.testing.clock import advance
from tests.unit.controllers.machinesets import MACHINES, SETS, Sets, moment
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time


async def test_machine_set_of_the_go_implementation_is_taken_over_unwritten(world: Sets) -> None:
    """The objects have the nulls and additional fields that the Go implementation writes."""
    template: dict[str, Any] = {
        "metadata": {"creationTimestamp": None, "labels": {"name": "web"}},
        "spec": {
            "class": {"apiGroup": names.GROUP, "kind": "MachineClass", "name": "small"},
            "nodeTemplate": {"metadata": {"creationTimestamp": None}, "spec": {}},
        },
    }
    owner = world.set(
        replicas=2, template=template, metadata={"finalizers": [names.FINALIZER]}, machineClass={}
    )
    for number in range(2):
        world.member(f"web-{number}", owner=owner, **template["spec"])
    frozen = {"type": "Frozen", "status": "False", "lastTransitionTime": None}
    status = {
        "replicas": 2,
        "fullyLabeledReplicas": 2,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "observedGeneration": 1,
        "machineSetCondition": [frozen],
        "lastOperation": {"lastUpdateTime": moment(-60)},
        "failedMachines": None,
    }
    world.change(f"{WEB}/status", status=status)
    await world.run(700, "machineset")

    assert world.server.writes("machines") == 0
    assert world.server.writes("machinesets") == 0


@pytest.mark.row("machineset-status-03")
async def test_observed_generation_is_written_at_once_after_scaling(world: Sets) -> None:
    world.set(replicas=1)
    async with world.running("machineset"):
        await advance(5)
        for count in (2, 3):
            world.change(WEB, spec={"replicas": count})
            await advance(0.4)
            generation = world.set_object()["metadata"]["generation"]
            assert world.set_status()["observedGeneration"] == generation


@pytest.mark.row("machineset-status-03")
async def test_replica_count_status_writes_are_batched(world: Sets) -> None:
    world.set(replicas=9)
    async with world.running("machineset"):
        await advance(5)
        before = world.server.requests["PATCH", f"{WEB}/status"]
        for name in world.here():
            world.becomes(name, "Running", state="Successful")
            await advance(0.5)
        assert world.server.requests["PATCH", f"{WEB}/status"] - before <= 3
        await advance(2)

    assert world.set_status()["readyReplicas"] == 9


WEB = f"{SETS}/web"


class Lagging(MemoryServer):
    """Server whose Machine watches deliver nothing while `shows` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.shows = asyncio.Event()
        self.shows.set()

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], **rest: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async with super().stream(path, query=query, **rest) as lines:
            yield self._held(lines) if path == MACHINES else lines

    async def _held(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            await self.shows.wait()
            yield line


@contextlib.asynccontextmanager
async def lagging(replicas: int = 0, **machines: Any) -> AsyncIterator[tuple[Sets, Lagging]]:
    """Yield a set whose controller runs and whose Machine cache may lag."""
    world = Sets()
    world.server = server = Lagging()
    world.define()
    owner = world.set(replicas=replicas)
    for name, more in machines.items():
        world.member(name, owner=owner, **more)
    async with world.running("machineset"):
        await advance(1)
        yield world, server


async def poke(world: Sets, times: int = 5) -> None:
    """Change the set to trigger a reconcile."""
    for number in range(times):
        world.change(WEB, metadata={"annotations": {"poke": str(number)}})
        await advance(1)


@pytest.mark.row("machineset-replicas-14")
async def test_lagging_cache_causes_no_duplicate_creation() -> None:
    async with lagging(3) as (world, server):
        server.shows.clear()
        world.change(WEB, spec={"replicas": 5})
        await advance(1)
        await poke(world)
        assert len(world.here()) == 5
        await advance(400)  # expected changes that the cache still lacks are read
        await poke(world)
        assert (len(world.here()), server.reads("machines")) == (5, 2)
        server.shows.set()
        await advance(5)

    assert server.requests["POST", MACHINES] == 5
    assert world.set_status()["replicas"] == 5


@pytest.mark.row("machineset-replicas-14")
async def test_lagging_cache_causes_no_further_deletion() -> None:
    async with lagging(4) as (world, server):
        server.shows.clear()
        world.change(WEB, spec={"replicas": 3})
        await advance(1)
        for name in world.here()[:2]:
            world.becomes(name, "Running", state="Successful")
        await poke(world)
        await advance(400)
        await poke(world)
        assert len(world.here()) == 3
        server.shows.set()
        await advance(5)

    assert len(world.here()) == 3


async def test_machine_deleted_before_the_cache_showed_it_is_recreated() -> None:
    async with lagging() as (world, server):
        server.shows.clear()
        world.change(WEB, spec={"replicas": 1})
        await advance(1)
        world.server.drop(f"{MACHINES}/{world.here()[0]}")
        await advance(200)
        assert world.here() == []
        await advance(400)
        assert len(world.here()) == 1


@pytest.mark.row("machineset-replicas-15")
async def test_creation_retry_after_a_lost_response_finds_the_machine() -> None:
    """The cache does not show the machine; the retry gets AlreadyExists."""
    async with lagging() as (world, server):
        original, lost = server.answer, list[str]()

        def answer(method: str, path: str, body: bytes = b"", *rest: Any) -> bytes:
            found = original(method, path, body, *rest)
            if method == "POST" and not lost:
                lost.append(path)
                raise Unreachable("cut", kind="timeout")
            return found

        server.shows.clear()
        server.answer = answer  # type: ignore[assignment, method-assign]
        world.change(WEB, spec={"replicas": 1})
        await advance(60)
        assert (len(world.here()), server.requests["POST", MACHINES]) == (1, 2)
        server.shows.set()
        await advance(5)

    assert (len(world.here()), world.set_status()["replicas"]) == (1, 1)


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
async def test_deletion_with_unknown_outcome_deletes_one_machine_only(is_done: bool) -> None:
    async with lagging(3) as (world, server):
        lost = list[str]()

        def refuse(method: str, path: str) -> Exception | None:
            if method != "DELETE" or lost:
                return None
            lost.append(path)
            if is_done:
                world.server.drop(path)
            return Unreachable("cut", kind="timeout")

        server.shows.clear()
        server.refuse = refuse
        world.change(WEB, spec={"replicas": 2})
        await advance(20)
        await poke(world)
        server.shows.set()
        await advance(120)

    assert (len(world.here()), server.requests["POST", MACHINES], len(lost)) == (2, 3, 1)


async def test_recovered_machine_in_a_stale_cache_is_not_deleted() -> None:
    kept = {"phase": "Failed", "status": {"preserveExpiryTime": moment(10)}}
    async with lagging(1, m0=kept) as (world, server):
        server.shows.clear()
        world.becomes("m0", "Running", state="Successful")
        await advance(60)
        assert server.requests["DELETE", f"{MACHINES}/m0"] > 5
        assert world.here() == ["m0"]
        server.shows.set()
        await advance(5)

    assert (world.here(), world.conditions()) == (["m0"], {})


async def test_no_other_machine_is_deleted_while_an_outcome_is_unknown() -> None:
    """After 10 s the deletion order would prefer the other machine."""
    cheap = {names.ANNOTATION_PRIORITY: "0"}
    later = {"status": {"preserveExpiryTime": moment(10)}, "annotations": cheap}
    async with lagging(2, m0={}, m1=later) as (world, server):

        def refuse(method: str, path: str) -> Exception | None:
            if method == "DELETE" and path.endswith("m0") and world.get("m0"):
                world.server.drop(path)
            return Unreachable("cut", kind="timeout") if method == "DELETE" else None

        server.shows.clear()
        server.refuse = refuse
        world.change(WEB, spec={"replicas": 1})
        await advance(20)
        server.answers()
        await poke(world, times=60)
        assert world.here() == ["m1"]


# --- other writers, and what is odd about machines ------------------------------------------------


async def test_api_server_overload_sets_only_replica_failure_until_it_ends(world: Sets) -> None:
    world.set(replicas=1)
    world.server.fails(TooManyRequests(status=429, reason="x", message="later"), "POST")
    async with world.running("machineset"):
        await advance(30)
        assert world.server.requests["POST", MACHINES] > 3
        assert list(world.conditions()) == ["ReplicaFailure"]
        world.server.answers()
        await advance(90)

    assert (len(world.here()), world.conditions()) == (1, {})


async def test_creation_chooses_another_name_when_a_foreign_machine_has_it(world: Sets) -> None:
    world.set(replicas=1)
    original, taken = world.server.answer, list[str]()

    def answer(method: str, path: str, body: bytes = b"", *rest: Any) -> bytes:
        if method == "POST" and path == MACHINES and not taken:
            made = msgspec.json.decode(body)["metadata"]["name"]
            taken.append(made)
            world.member(made, labels={"name": "api"})
        return original(method, path, body, *rest)

    world.server.answer = answer  # type: ignore[assignment, method-assign]
    await world.run(30, "machineset")

    assert [one for one in world.here() if not world.owners(one)] == taken
    assert (len(world.here()), world.set_status()["replicas"]) == (2, 1)
    assert world.reasons() == ["FailedCreate", "SuccessfulCreate"]


async def test_malformed_machine_blocks_scale_up_and_set_deletion(world: Sets) -> None:
    world.set(replicas=1)
    async with world.running("machineset"):
        await advance(1)
        unreadable = world.caches.machines._reflector.malformed_keys
        unreadable.add("default/odd")
        world.change(WEB, spec={"replicas": 2})
        await advance(5)
        assert len(world.here()) == 1
        world.server.drop(WEB)
        await advance(5)
        assert (world.here(), world.set_object() != {}) == ([], True)
        unreadable.clear()
        await advance(800)

    assert world.set_object() == {}


async def test_failures_before_the_first_sync_do_not_count_for_the_back_off(world: Sets) -> None:
    owner = world.set(replicas=3)
    for number in range(3):
        world.member(f"m{number}", owner=owner, phase="Failed")
    await world.run(5, "machineset")

    assert (len(world.here()), world.conditions()) == (3, {})


async def test_generated_machine_names_are_truncated_to_63_characters(world: Sets) -> None:
    world.set("w" * 80, replicas=1)
    await world.run(5, "machineset")

    (made,) = world.here()
    assert (len(made), made[:58]) == (63, "w" * 57 + "-")


async def test_metric_series_of_a_deleted_machine_set_are_removed(world: Sets) -> None:
    def series() -> dict[str, float]:
        lines = metrics.exposition().decode().splitlines()
        return {
            one.rpartition(" ")[0]: float(one.rpartition(" ")[2])
            for one in lines
            if one.startswith("mcm_machine_set") and "measured" in one
        }

    owner = world.set("measured", replicas=1, minReadySeconds=7)
    failed: dict[str, Any] = {"phase": "CrashLoopBackOff", "last": {"state": "Failed"}}
    world.member("m0", owner=owner, of="measured", providerID="fake:///0", **failed)
    async with world.running("machineset"):
        await advance(5)
        found = series()
        world.server.drop(f"{SETS}/measured")
        await advance(5)

    who = 'name="measured",namespace="default"'
    kinds = ("info_spec_replicas", "info_spec_min_ready_seconds", "status_ready_replicas")
    assert [found[f"mcm_machine_set_{kind}{{{who}}}"] for kind in kinds] == [1, 7, 0]
    assert any('failed_machine_provider_id="fake:///0"' in name for name in found)
    assert series() == {}


@pytest.mark.parametrize(
    ("replicas", "observed", "awaited"), [(2, 7, False), (2, 8, True), (0, 7, True)]
)
def test_status_is_awaited_for_a_new_generation_or_zero_replicas(
    replicas: int, observed: int, awaited: bool
) -> None:
    after = SetStatus(replicas=replicas, observed=observed)
    assert plan.is_awaited(SetStatus(replicas=3, observed=7), after) is awaited
