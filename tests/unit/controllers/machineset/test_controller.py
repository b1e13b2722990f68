"""Sets beside other writers, and what is odd about their machines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ccm.base import metrics
from ccm.gardener import names
from ccm.kube.errors import Invalid, TooManyRequests
from ccm.testing.clock import advance
from tests.unit.controllers.machinesets import MACHINES, SETS, Sets, moment

pytestmark = pytest.mark.virtual_time

WEB = f"{SETS}/web"
MAKE = ("POST", MACHINES)


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
    original = world.server.answer

    def answer(method: str, path: str, body: bytes = b"", *rest: Any) -> bytes:
        if method == "POST" and path == MACHINES and not taken:
            taken.append("it")
            others = {**msgspec.json.decode(body), "spec": {}}
            del others["metadata"]["ownerReferences"], others["metadata"]["labels"]
            world.server.put(path, others)
        return original(method, path, body, *rest)

    world.server.answer = answer  # type: ignore[assignment, method-assign]
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
        unreadable = world.shared.caches.machines._reflector.undecodable
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
    world.set("odd", selector={"matchExpressions": [{"key": "name", "operator": "In"}]})
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


@pytest.mark.parametrize("finalizers", [[1], 1])
async def test_a_template_that_makes_no_machine_is_what_the_server_says_of_it(
    finalizers: Any,
) -> None:
    """Each try goes out, and what came of the last one is known: no name stays in doubt."""
    world = Sets()
    metadata = {"labels": {"name": "web"}, "finalizers": finalizers}
    spec = {"class": {"kind": "MachineClass", "name": "small"}}
    world.set(replicas=1, template={"metadata": metadata, "spec": spec})
    odd = Invalid(status=422, reason="Invalid", message="metadata.finalizers: odd")
    world.server.refuse = lambda method, path: odd if (method, path) == MAKE else None
    async with world.running("machineset", "machine"):
        await advance(30)

        assert world.server.requests[MAKE] > 1
        assert "metadata.finalizers: odd" in world.conditions()["ReplicaFailure"]["message"]


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


@pytest.mark.row("machineset-status-03")
async def test_that_a_set_knows_how_many_are_wanted_is_said_at_once() -> None:
    world = Sets()
    world.set(replicas=1)
    async with world.running("machineset"):
        await advance(5)
        for count in (2, 3):
            world.change(WEB, spec={"replicas": count})
            await advance(0.4)
            generation = world.set_object()["metadata"]["generation"]
            assert world.set_status()["observedGeneration"] == generation


@pytest.mark.row("machineset-status-03")
async def test_counts_that_nobody_waits_for_are_said_now_and_then() -> None:
    world = Sets()
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
