"""What a roll writes: each fact about a machine once, and together what comes together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from ccm.gardener import names
from ccm.testing.clock import advance
from tests.unit.controllers.machinedeployments import (
    HOLD,
    MACHINES,
    NODES,
    Rolling,
    all_run,
    rolling,
    template,
)
from tests.unit.controllers.machines import TOKENS

pytestmark = pytest.mark.virtual_time

COUNT = 6
ACT = ("machine", "machineset", "machinedeployment")
"""Who does something about machines. The classes are as the tests make them."""

HELD = {HOLD: "true", f"{HOLD}-by-mcm": "true"}


def told(world: Rolling, since: Mapping[tuple[str, str], int]) -> Counter[tuple[str, str]]:
    """Requests that change something, by method and kind, since there were so many."""
    found: Counter[tuple[str, str]] = Counter()
    for (method, path), count in world.server.requests.items():
        for of in (MACHINES, NODES, TOKENS):
            if method != "GET" and f"{path}/".startswith(f"{of}/"):
                part = "/status" if path.endswith("/status") else ""
                kind = of.rpartition("/")[2] + part
                found[method, kind] += count - since.get((method, path), 0)
    return +found


async def rolled() -> tuple[Rolling, Mapping[tuple[str, str], int]]:
    """A roll of machines that join together, and what was asked before it."""
    world = Rolling()
    world.drains_really = True
    world.boot_s = 3.0
    world.deployment(replicas=COUNT, strategy=rolling(2, 1))
    async with world.at_work(*ACT):
        await advance(30)
        assert world.working() == COUNT
        before = dict(world.server.requests)
        world.edit(template=template("large"))
        await advance(120)
    assert (world.kinds(), world.working()) == ({"large": COUNT}, COUNT)
    return world, before


@pytest.mark.row("rollout-autoscaler-08")
async def test_no_node_stays_held_when_the_roll_is_over() -> None:
    world, _ = await rolled()

    assert world.shared is not None
    sets = [one["metadata"]["uid"] for one in world.sets()]
    assert [world.shared.caches.arrivals.notes(one) for one in sets] == [{}, {}]
    assert len(world.nodes()) == COUNT
    for one in world.nodes():
        assert not HELD.keys() & (one["metadata"].get("annotations") or {}).keys()


@pytest.mark.row("rollout-autoscaler-08")
async def test_a_node_that_joins_in_a_roll_is_held_at_once() -> None:
    world = Rolling()
    world.boot_s = 3.0
    world.deployment(replicas=2, strategy=rolling(1, 0))
    async with world.at_work():
        await advance(30)
        world.edit(template=template("large"))
        old = {one["metadata"]["name"] for one in world.nodes()}
        seen: list[dict[str, str]] = []
        while not seen:
            await advance(0.1)
            fresh = [one for one in world.nodes() if one["metadata"]["name"] not in old]
            # The machine controller alone: the deployment has not seen it work yet.
            seen = [
                one["metadata"].get("annotations") or {}
                for one in fresh
                if names.FINALIZER_NODE in one["metadata"].get("finalizers", ())
            ]

    assert HELD.items() <= seen[0].items()


@pytest.mark.row("rollout-event-05")
async def test_machines_that_come_together_are_one_step() -> None:
    world = Rolling()
    world.deployment(replicas=4, strategy=rolling(2, 0))
    async with world.running("machineset", "machinedeployment"):
        await all_run(world)
        await all_run(world)
        world.edit(template=template("large"))
        await advance(2)
        world.events.clear()
        fresh = [
            one["metadata"]["name"]
            for one in world.machines()
            if one["spec"]["class"]["name"] == "large"
        ]
        world.becomes(fresh[0], "Running", state="Successful")
        await advance(0.4)
        assert [reason for reason, _ in world.events] == []
        world.becomes(fresh[1], "Running", state="Successful")
        await advance(0.5)

    assert world.sizes() == {"small": 2, "large": 2}
    assert next(reason for reason, _ in world.events) == "ScalingMachineSet"


@pytest.mark.row("rollout-autoscaler-08")
async def test_a_node_that_is_held_late_is_let_go() -> None:
    """The roll ended between the decision to hold it, and the write."""
    world = Rolling()
    world.boot_s = 1.0
    world.deployment(replicas=1)
    async with world.at_work():
        await advance(30)
        (name,) = world.here()
        world.change(f"{NODES}/{name}", metadata={"annotations": HELD})
        await advance(5)

    assert not HELD.keys() & (world.node_object(name)["metadata"].get("annotations") or {}).keys()


@pytest.mark.row("machineset-create-06")
@pytest.mark.parametrize(
    ("kind", "which", "claims"),
    [
        ("small", ACT, True),
        ("loose", ACT, False),  # The class could go any moment, and its machines could not.
        ("unknown", ACT, False),
        ("small", ACT[1:], False),  # Nobody here would let it go.
    ],
    ids=["of-use", "not-held", "unknown", "alone"],
)
async def test_a_machine_bears_its_claim_from_the_beginning(
    kind: str, which: tuple[str, ...], claims: bool
) -> None:
    world = Rolling()
    world.machine_class("loose", metadata={"name": "loose"})
    world.secret("loose")
    bodies: list[Any] = []
    original = world.server.answer

    def answer(method: str, path: str, body: bytes = b"", *rest: Any) -> bytes:
        if (method, path) == ("POST", MACHINES):
            bodies.append(msgspec.json.decode(body)["metadata"])
        return original(method, path, body, *rest)

    world.server.answer = answer  # type: ignore[assignment, method-assign]
    world.deployment(replicas=1, template=template(kind))
    async with world.running(*which):
        await advance(1)

    (found,) = bodies
    assert found.get("finalizers", []) == ([names.FINALIZER] if claims else [])
    claim = {names.ANNOTATION_PRIORITY, names.ANNOTATION_TOKEN_ID, names.ANNOTATION_CREATION}
    notes = claim if claims else set()
    assert found["annotations"].keys() == notes
