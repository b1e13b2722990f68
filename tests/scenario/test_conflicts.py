"""Others write at the same time, or another machine takes the name: no write goes astray."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from ccm.model import names
from tests.faults import Call, Exchange, FaultProxy, Hold, Match, Point, Rule
from tests.scenario import harness, nodes
from tests.scenario.harness import Stage, refusal, wait_for

CONFLICT = refusal(409, reason="Conflict")

OTHERS_TAINT = {"key": "example.com/drained", "effect": "NoSchedule", "value": "yes"}


async def interfere(stage: Stage, name: str) -> None:
    """Somebody else puts a taint on the node and a label."""
    node = await stage.cluster.node(name)
    assert node is not None
    kept = list(node["spec"].get("taints") or ())
    patch = {
        "metadata": {"labels": {"example.com/by": "somebody"}},
        "spec": {"taints": [*kept, OTHERS_TAINT]},
    }
    await stage.cluster.patch(f"{harness.NODES}/{name}", patch, kind="merge")


def interference(stage: Stage, name: str) -> Call:
    """Somebody else writes the node while a write of ours is on its way."""

    async def before(_: Exchange) -> None:
        await interfere(stage, name)

    return Call(before)


def answers(wire: FaultProxy, match: Match) -> list[int | None]:
    """The answers to matching requests."""
    return [exchange.status for exchange in wire.requests(match)]


@pytest.mark.both_servers
async def test_a_conflict_on_the_status_patch(stage: Stage) -> None:
    """The node is read again and everything decided anew; it ends complete, said once."""
    wire = await stage.new_wire()
    wire.on(harness.STATUS_PATCH, CONFLICT, times=3)
    await stage.node("alpha")

    daemon = await stage.start_leading(wire=wire)
    await stage.cluster.initialised("alpha")

    assert answers(wire, harness.STATUS_PATCH) == [409, 409, 409, 200]
    assert answers(wire, harness.NODE_PATCH) == [200]
    await daemon.says("node initialised", node="alpha")
    assert len(daemon.lines("node initialised")) == 1


async def test_a_conflict_on_the_node_patch(stage: Stage) -> None:
    """Somebody taints and labels the node meanwhile: both changes survive ours, ours too."""
    wire = await stage.new_wire()
    wire.on(harness.NODE_PATCH, interference(stage, "alpha"), nth=1)
    await stage.node("alpha")

    daemon = await stage.start_leading(wire=wire)
    (node,) = await stage.cluster.initialised("alpha")

    assert answers(wire, harness.NODE_PATCH) == [409, 200]
    assert node["metadata"]["labels"]["example.com/by"] == "somebody"
    assert OTHERS_TAINT in node["spec"]["taints"]
    await daemon.says("node initialised", node="alpha")
    assert len(daemon.lines("node initialised")) == 1


async def test_a_conflict_on_the_shutdown_taint(stage: Stage) -> None:
    """The taint of a stopped machine is put on and taken off beside somebody else's."""
    wire = await stage.new_wire()
    machine = await stage.node("alpha")
    await stage.start_leading(wire=wire)
    await stage.cluster.initialised("alpha")

    wire.on(harness.NODE_PATCH, interference(stage, "alpha"), nth=1)
    stage.cloud.world.act(machine.id, "stop")
    await wait_for(
        lambda: stage.cluster.has_taint("alpha", names.TAINT_SHUTDOWN), "the shutdown taint"
    )
    assert await stage.cluster.has_taint("alpha", OTHERS_TAINT["key"])

    wire.on(harness.NODE_PATCH, CONFLICT, times=2)
    stage.cloud.world.act(machine.id, "start")
    await stage.cluster.set_ready("alpha", names.STATUS_TRUE)

    async def lifted() -> bool:
        return not await stage.cluster.has_taint("alpha", names.TAINT_SHUTDOWN)

    await wait_for(lifted, "no shutdown taint")
    assert await stage.cluster.has_taint("alpha", OTHERS_TAINT["key"])
    assert answers(wire, harness.NODE_PATCH) == [200, 409, 200, 409, 409, 200]


async def test_a_conflict_on_the_deletion(stage: Stage) -> None:
    """The next pass asks the cloud again and deletes the node."""
    wire = await stage.new_wire()
    machine = await stage.node("alpha")
    await stage.start_leading(wire=wire)
    await stage.cluster.initialised("alpha")

    wire.on(harness.NODE_DELETE, CONFLICT, nth=1)
    stage.cloud.world.delete(machine.id)

    async def gone() -> bool:
        return await stage.cluster.node("alpha") is None

    await wait_for(gone, "the node is deleted")
    assert answers(wire, harness.NODE_DELETE) == [409, 200]


async def test_another_machine_takes_the_name_while_the_node_is_deleted(stage: Stage) -> None:
    """A deletion meant for one Node never hits the next of that name."""
    wire = await stage.new_wire()
    machine = await stage.node("alpha")
    daemon = await stage.start_leading(wire=wire)
    await stage.cluster.initialised("alpha")

    async def replaced(_: Exchange) -> None:
        await stage.cluster.delete_node("alpha")
        await stage.node("alpha")

    wire.on(harness.NODE_DELETE, Call(replaced), nth=1)
    stage.cloud.world.delete(machine.id)
    await wire.wait_for(harness.NODE_DELETE, answered=True, timeout_s=harness.WAIT_S)

    (node,) = await stage.cluster.initialised("alpha")
    assert node["spec"]["providerID"] != f"sim://{machine.id}"
    assert answers(wire, harness.NODE_DELETE) == [409]
    await daemon.says("node was re-created, not deleted", node="alpha")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment of an initialisation at which it can be held.

    Attributes:
        match: which request is held.
        at: where.
        is_cloud: whether it goes to the cloud, not to the API server.
        written: how many writes the old Node has got by then.
    """

    match: Match
    at: Point = Point.BEFORE
    is_cloud: bool = False
    written: int = 0

    def hold(self, stage: Stage, release: asyncio.Event) -> Rule:
        """Hold the next request of this kind."""
        wire = stage.cloud_wire if self.is_cloud else stage.wire
        return wire.on(self.match, Hold(release, at=self.at), nth=1)


MOMENTS: Mapping[str, Moment] = {
    "the cloud has answered": Moment(
        match=Match(path="^/v1/instances", query="name=alpha"), at=Point.TOOK_EFFECT, is_cloud=True
    ),
    "addresses on their way": Moment(match=harness.STATUS_PATCH),
    "addresses written": Moment(match=harness.STATUS_PATCH, at=Point.TOOK_EFFECT, written=1),
    "provider ID on its way": Moment(match=harness.NODE_PATCH, written=1),
    "provider ID written": Moment(match=harness.NODE_PATCH, at=Point.TOOK_EFFECT, written=2),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_node_re_created_in_the_middle(stage: Stage, moment: str) -> None:
    """Node and machine are replaced mid-way: the new Node gets nothing of the old machine."""
    await stage.start_leading()
    release = asyncio.Event()
    rule = MOMENTS[moment].hold(stage, release)
    # Ready: that keeps the other controller's questions out of the picture.
    old = stage.machine("alpha")
    await stage.cluster.register("alpha", ready=names.STATUS_TRUE)

    async def held() -> bool:
        return bool(rule.fired)

    await wait_for(held, "the request to hold")
    if MOMENTS[moment].at is Point.TOOK_EFFECT:
        await asyncio.sleep(0.2)  # until the other side has answered
    await stage.cluster.delete_node("alpha")
    stage.cloud.world.delete(old.id)
    new = stage.machine("alpha")
    created = await stage.cluster.register("alpha", ready=names.STATUS_TRUE)
    release.set()
    (node,) = await stage.cluster.initialised("alpha")

    assert new.id != old.id
    assert node["metadata"]["uid"] == created["metadata"]["uid"]
    assert node["spec"]["providerID"] == f"sim://{new.id}"
    assert nodes.addresses(node)[names.ADDRESS_INTERNAL_IP] == new.addresses[0].value
    stale = [
        one
        for one in stage.wire.requests(harness.NODE_WRITE)
        if old.id.encode() in one.body or f'"{old.addresses[0].value}"'.encode() in one.body
    ]
    # What the API server took of the old machine went to the old Node, before its end.
    assert sum(one.upstream_status == 200 for one in stale) == MOMENTS[moment].written
