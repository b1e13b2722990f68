"""Others write at the same time, or another machine takes the name: no write goes astray."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from ccm.model import names
from tests.faults import Call, Exchange, FaultProxy, Hold, Match, Point, Rule
from tests.scenario import harness, nodes
from tests.scenario.harness import Environment, refusal, wait_for

CONFLICT = refusal(409, reason="Conflict")

OTHERS_TAINT = {"key": "example.com/drained", "effect": "NoSchedule", "value": "yes"}


def answers(proxy: FaultProxy, match: Match) -> list[int | None]:
    """The answers to matching requests."""
    return [exchange.status for exchange in proxy.requests(match)]


@pytest.mark.both_servers
async def test_a_conflict_on_the_status_patch(env: Environment) -> None:
    """The node is read again and everything decided anew; it ends complete, said once."""
    proxy = await env.new_proxy()
    proxy.on(harness.STATUS_PATCH, CONFLICT, times=3)
    await env.node("alpha")

    daemon = await env.start_leading(proxy=proxy)
    await env.cluster.initialised("alpha")

    assert answers(proxy, harness.STATUS_PATCH) == [409, 409, 409, 200]
    assert answers(proxy, harness.NODE_PATCH) == [200]
    await daemon.says("node initialised", node="alpha")
    assert len(daemon.lines("node initialised")) == 1


async def test_a_conflict_on_the_node_patch(env: Environment) -> None:
    """Somebody taints and labels the node meanwhile: both changes survive ours, ours too."""
    proxy = await env.new_proxy()

    async def interfere(_: Exchange) -> None:
        node = await env.cluster.node("alpha")
        assert node is not None
        patch = {
            "metadata": {"labels": {"example.com/by": "somebody"}},
            "spec": {"taints": [*node["spec"]["taints"], OTHERS_TAINT]},
        }
        await env.cluster.patch(f"{harness.NODES}/alpha", patch, kind="merge")

    proxy.on(harness.NODE_PATCH, Call(interfere), nth=1)
    await env.node("alpha")

    daemon = await env.start_leading(proxy=proxy)
    (node,) = await env.cluster.initialised("alpha")

    assert answers(proxy, harness.NODE_PATCH) == [409, 200]
    assert node["metadata"]["labels"]["example.com/by"] == "somebody"
    assert OTHERS_TAINT in node["spec"]["taints"]
    await daemon.says("node initialised", node="alpha")
    assert len(daemon.lines("node initialised")) == 1


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

    def hold(self, env: Environment, release: asyncio.Event) -> Rule:
        """Hold the next request of this kind."""
        proxy = env.cloud_proxy if self.is_cloud else env.proxy
        return proxy.on(self.match, Hold(release, at=self.at), nth=1)


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
async def test_a_node_re_created_in_the_middle(env: Environment, moment: str) -> None:
    """Node and machine are replaced mid-way: the new Node gets nothing of the old machine."""
    await env.start_leading()
    release = asyncio.Event()
    rule = MOMENTS[moment].hold(env, release)
    # Ready: that keeps the other controller's questions out of the picture.
    old = env.machine("alpha")
    await env.cluster.register("alpha", ready=names.STATUS_TRUE)

    async def held() -> bool:
        answered = MOMENTS[moment].at is Point.TOOK_EFFECT
        return any(one.upstream_status is not None or not answered for one in rule.fired)

    await wait_for(held, "the request to hold")
    await env.cluster.delete(f"{harness.NODES}/alpha")
    env.cloud.world.delete(old.id)
    new = env.machine("alpha")
    created = await env.cluster.register("alpha", ready=names.STATUS_TRUE)
    release.set()
    (node,) = await env.cluster.initialised("alpha")

    assert new.id != old.id
    assert node["metadata"]["uid"] == created["metadata"]["uid"]
    assert node["spec"]["providerID"] == f"sim://{new.id}"
    assert nodes.addresses(node)[names.ADDRESS_INTERNAL_IP] == new.addresses[0].value
    stale = [
        one
        for one in env.proxy.requests(harness.NODE_WRITE)
        if old.id.encode() in one.body or f'"{old.addresses[0].value}"'.encode() in one.body
    ]
    # What the API server took of the old machine went to the old Node, before its end.
    assert sum(one.upstream_status == 200 for one in stale) == MOMENTS[moment].written
