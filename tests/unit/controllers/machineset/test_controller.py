"""Sets before a cache that lags, an API server that loses answers, and other writers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from ccm.base import metrics
from ccm.gardener import names
from ccm.kube.errors import ServerError, TooManyRequests, Unreachable
from ccm.testing.clock import advance
from tests.unit.controllers.machinesets import MACHINES, SETS, Sets, moment
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time

WEB = f"{SETS}/web"


class Lagging(MemoryServer):
    """Its watches of Machines tell nothing while `shows` is not set."""

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


def lagging() -> tuple[Sets, Lagging]:
    """A world whose cache of Machines may lag."""
    world = Sets()
    world.server = server = Lagging()
    world.define()
    return world, server


async def poke(world: Sets, times: int = 5) -> None:
    """Somebody changes the set, so that it is looked at."""
    for number in range(times):
        world.change(WEB, metadata={"annotations": {"poke": str(number)}})
        await advance(1)


async def test_a_cache_that_lags_makes_no_machine_twice() -> None:
    world, server = lagging()
    world.set(replicas=3)
    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        world.change(WEB, spec={"replicas": 5})
        await advance(1)
        await poke(world)
        assert len(world.here()) == 5

        await advance(400)  # what the cache should have shown long since was looked up
        await poke(world)
        assert len(world.here()) == 5
        assert server.reads("machines") == 2

        server.shows.set()
        await advance(5)

    assert server.requests["POST", MACHINES] == 5
    assert world.set_status()["replicas"] == 5


async def test_a_cache_that_lags_takes_no_further_victim() -> None:
    world, server = lagging()
    world.set(replicas=4)
    async with world.running("machineset"):
        await advance(1)
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


async def test_what_came_and_went_unseen_is_made_again() -> None:
    world, server = lagging()
    world.set(replicas=0)
    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        world.change(WEB, spec={"replicas": 1})
        await advance(1)
        gone = world.here()[0]
        world.server.drop(f"{MACHINES}/{gone}")
        await advance(200)
        assert world.here() == []
        await advance(400)
        assert len(world.here()) == 1


@pytest.mark.parametrize(
    "trouble",
    [
        Unreachable("cut", kind="timeout"),
        ServerError(status=504, reason="Timeout", message="too late"),
    ],
    ids=["no-answer", "timeout"],
)
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
async def test_a_deletion_whose_outcome_nobody_knows(trouble: Exception, is_done: bool) -> None:
    """However it went, one machine goes, and no second one for it."""
    world, server = lagging()
    world.set(replicas=3)
    lost = list[str]()

    def refuse(method: str, path: str) -> Exception | None:
        if method != "DELETE" or lost:
            return None
        lost.append(path)
        if is_done:
            server.refuse = lambda _method, _path: None
            world.server.drop(path)
        return trouble

    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        server.refuse = refuse
        world.change(WEB, spec={"replicas": 2})
        await advance(20)
        await poke(world)
        server.shows.set()
        await advance(120)

    assert lost
    assert len(world.here()) == 2
    assert server.requests["POST", MACHINES] == 3


async def test_a_creation_whose_answer_is_lost_is_found_again() -> None:
    """The cache does not show it, so the next try has to run into it."""
    world, server = lagging()
    world.set(replicas=0)
    original, lost = server._answer, list[str]()

    def answer(method: str, path: str, body: bytes, kind: str, asked: Any) -> bytes:
        found = original(method, path, body, kind, asked)
        if method == "POST" and not lost:
            lost.append(path)
            raise Unreachable("cut", kind="timeout")
        return found

    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        server._answer = answer  # type: ignore[method-assign]
        world.change(WEB, spec={"replicas": 1})
        await advance(60)
        assert len(world.here()) == 1
        assert server.requests["POST", MACHINES] == 2

        server.shows.set()
        await advance(5)

    assert len(world.here()) == 1
    assert world.set_status()["replicas"] == 1


async def test_what_the_cache_knew_before_we_asked_is_not_waited_for() -> None:
    """Somebody deletes the victim, and makes one of its name, while we write to the other one."""
    world = Sets()
    owner = world.set(replicas=2)
    world.member("m0", owner=owner)
    world.member("m1", owner=owner)

    async def meanwhile() -> None:
        if world.server.requests["PATCH", f"{MACHINES}/m1"]:
            world.server.point = nothing
            world.server.drop(f"{MACHINES}/m0")
            world.member("m0", owner=owner)
            await asyncio.sleep(0.05)

    async def nothing() -> None:
        pass

    async with world.running("machineset"):
        await advance(1)
        world.server.point = meanwhile
        template = {"spec": {"drainTimeout": "9m"}}
        world.change(WEB, spec={"replicas": 1, "template": template})
        await advance(30)

    assert len(world.here()) == 1


async def test_while_a_deletion_is_in_doubt_no_other_machine_goes() -> None:
    """Time alone makes another one the first to go."""
    world, server = lagging()
    owner = world.set(replicas=2)
    until = {"preserveExpiryTime": moment(10)}
    cheap = {names.ANNOTATION_PRIORITY: "0"}
    world.member("m0", owner=owner)
    world.member("m1", owner=owner, status=until, annotations=cheap)

    def refuse(method: str, path: str) -> Exception | None:
        if method != "DELETE":
            return None
        if path.endswith("m0") and world.get("m0"):
            world.server.drop(path)
        return Unreachable("cut", kind="timeout")

    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        server.refuse = refuse
        world.change(WEB, spec={"replicas": 1})
        await advance(20)
        server.refuse = lambda _method, _path: None
        await poke(world, times=60)

        assert world.here() == ["m1"]


async def test_a_server_in_trouble_says_nothing_about_the_machines() -> None:
    world = Sets()
    world.set(replicas=1)
    busy = TooManyRequests(status=429, reason="TooManyRequests", message="later")
    world.server.refuse = lambda method, _: busy if method == "POST" else None
    async with world.running("machineset"):
        await advance(30)
        assert world.server.requests["POST", MACHINES] > 3
        assert list(world.conditions()) == ["ReplicaFailure"]

        world.server.refuse = lambda _method, _path: None
        await advance(90)

    assert len(world.here()) == 1
    assert world.conditions() == {}


async def test_a_name_that_somebody_else_has_is_left_to_them() -> None:
    world = Sets()
    world.set(replicas=1)
    taken = list[str]()
    original = world.server._answer

    def answer(method: str, path: str, body: bytes, kind: str, asked: Any) -> bytes:
        if method == "POST" and path == MACHINES and not taken:
            taken.append("it")
            others = {**msgspec.json.decode(body), "spec": {}}
            del others["metadata"]["ownerReferences"], others["metadata"]["labels"]
            world.server.put(path, others)
        return original(method, path, body, kind, asked)

    world.server._answer = answer  # type: ignore[method-assign]
    async with world.running("machineset"):
        await advance(30)

    (foreign,) = (one for one in world.here() if not world.owners(one))
    assert "labels" not in world.get(foreign)["metadata"]
    assert len(world.here()) == 2
    assert world.set_status()["replicas"] == 1
    assert [reason for reason, _ in world.events] == ["FailedCreate", "SuccessfulCreate"]


async def test_a_machine_that_cannot_be_read_may_be_of_the_set() -> None:
    world = Sets()
    world.set(replicas=1)
    async with world.running("machineset"):
        await advance(1)
        assert world.shared is not None
        unreadable = world.shared.machines._reflector.undecodable
        unreadable.add("default/odd")
        world.change(WEB, spec={"replicas": 2})
        await advance(5)
        assert len(world.here()) == 1

        world.server.drop(WEB)
        await advance(5)
        assert world.here() == []
        assert world.set_object() != {}

        unreadable.clear()
        await advance(800)

    assert world.set_object() == {}


async def test_the_status_leaves_the_conditions_of_others_alone() -> None:
    world = Sets()
    world.set(replicas=1)
    frozen = {"type": "Frozen", "status": "True", "reason": "OverShootingReplicaCount"}
    world.change(f"{WEB}/status", status={"machineSetCondition": [frozen]})
    async with world.running("machineset"):
        await advance(5)
        world.all_become("Running")
        await advance(5)

    assert world.set_status()["readyReplicas"] == 1
    assert world.conditions() == {"Frozen": frozen}


async def test_an_orphan_that_comes_later_is_adopted_by_who_selects_it() -> None:
    world = Sets()
    owner = world.set(replicas=1)
    world.set("odd", selector={"matchExpressions": [{"key": "name", "operator": "~"}]})
    async with world.running("machineset"):
        await advance(5)
        made = world.here()[0]
        world.server.drop(f"{MACHINES}/{made}")
        world.member("late")
        await advance(5)

    assert world.owners("late") == [owner]
    assert world.here() == ["late"]


async def test_a_failure_before_the_first_look_counts_for_nothing() -> None:
    world = Sets()
    owner = world.set(replicas=3)
    for number in range(3):
        world.member(f"m{number}", owner=owner, phase="Failed")
    async with world.running("machineset"):
        await advance(5)

    assert len(world.here()) == 3
    assert world.conditions() == {}


async def test_the_series_of_a_set() -> None:
    world = Sets()
    owner = world.set("measured", replicas=1, minReadySeconds=7)
    failed = {"state": "Failed"}
    world.member(
        "m0",
        owner=owner,
        of="measured",
        phase="CrashLoopBackOff",
        last=failed,
        providerID="fake:///0",
    )
    slow = {"type": "CreationSlowed", "status": "True", "lastTransitionTime": None}
    world.change(f"{SETS}/measured/status", status={"machineSetCondition": [slow]})
    async with world.running("machineset"):
        await advance(5)
        found = series()
        world.server.drop(f"{SETS}/measured")
        await advance(5)

    who = 'name="measured",namespace="default"'
    assert found[f"mcm_machine_set_info_spec_replicas{{{who}}}"] == 1
    assert found[f"mcm_machine_set_info_spec_min_ready_seconds{{{who}}}"] == 7
    assert found[f"mcm_machine_set_status_replicas{{{who}}}"] == 1
    assert found[f"mcm_machine_set_status_ready_replicas{{{who}}}"] == 0
    assert found[f"mcm_machine_set_status_available_replicas{{{who}}}"] == 0
    assert found[f"mcm_machine_set_status_fully_labelled_replicas{{{who}}}"] == 1
    assert any('failed_machine_provider_id="fake:///0"' in name for name in found)
    assert any(name.startswith("mcm_machine_set_info{") for name in found)
    assert [name for name in series() if "measured" in name] == []


def series() -> dict[str, float]:
    """The series of sets, as they are scraped."""
    text = metrics.exposition().decode()
    lines = [
        line.rpartition(" ") for line in text.splitlines() if line.startswith("mcm_machine_set")
    ]
    return {name: float(value) for name, _, value in lines}


async def test_names_are_cut_so_that_they_fit() -> None:
    world = Sets()
    long = "w" * 80
    world.set(long, replicas=1)
    async with world.running("machineset"):
        await advance(5)

    (made,) = world.here()
    assert len(made) == 63
    assert made.startswith("w" * 57 + "-")


async def test_a_finalizer_of_the_template_is_on_the_machine() -> None:
    world = Sets()
    metadata = {"labels": {"name": "web"}, "finalizers": ["example.com/hold"]}
    spec = {"class": {"kind": "MachineClass", "name": "small"}}
    world.set(replicas=1, template={"metadata": metadata, "spec": spec})
    async with world.running("machineset"):
        await advance(5)

    assert world.machines()[0]["metadata"]["finalizers"] == ["example.com/hold"]
    assert names.FINALIZER in world.set_object()["metadata"]["finalizers"]


async def test_a_set_of_the_reference_is_taken_over_without_a_write() -> None:
    """With the nulls that Go writes, and what it writes beside what we do."""
    world = Sets()
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
    async with world.running("machineset"):
        await advance(700)

    assert world.server.writes("machines") == 0
    assert world.server.writes("machinesets") == 0
