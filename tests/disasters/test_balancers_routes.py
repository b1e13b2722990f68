"""Load balancers and routes whose Service or node disappears without a watched deletion."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ccm.base.metrics import REGISTRY
from ccm.base.tasks import cancel_and_join, spawn
from ccm.controllers.route import plan
from ccm.model import Node, names
from ccm.runtime import deletions
from ccm.runtime.deletions import DeletionRecord, blocked_deletions
from ccm.testing.clock import advance
from tests.support import routes
from tests.support.configmap import Api
from tests.support.services import World

pytestmark = pytest.mark.virtual_time

SHOPS = [f"shop-{number}" for number in range(9)]
HOUR = 3600.0

RECKLESS = pytest.mark.parametrize("reckless", [False, True], ids=["guarded", "reckless"])
"""With and without the guard: without it, the harm is done."""


@pytest.fixture(autouse=True)
def _nothing_held() -> None:
    deletions._blocked_gauge.clear()


def held(kind: str) -> float:
    """How many deletions are held back, by the metric."""
    reason = {"Service": "services_missing", "Route": "nodes_missing"}[kind]
    labels = {"kind": kind, "reason": reason}
    return REGISTRY.get_sample_value("ccm_deletions_held", labels) or 0.0


@contextlib.asynccontextmanager
async def record(api: Api) -> AsyncIterator[DeletionRecord]:
    """A daemon's record of deletions, kept up to date."""
    made = DeletionRecord(api, namespace="kube-system", owner="lease")
    running = spawn(made.run(), name="record")
    try:
        yield made
    finally:
        await cancel_and_join(running)


# --- load balancers -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def shops(*, of: DeletionRecord | None = None, **settings: Any) -> AsyncIterator[World]:
    """Services that were served a while ago."""
    world = World()
    world.record = of
    world.node("a")
    async with world.running(**settings):
        for name in SHOPS:
            world.service(name)
        await world.pass_time(60)
        assert len(world.balancers.held) == len(SHOPS)
        world.forget()
        yield world


def lose(world: World, *lost: str) -> dict[str, Any]:
    """A new list lacks these Services."""
    before = {f"default/{name}": world.objects[f"default/{name}"] for name in lost}
    for key in before:
        world.vanish(key)
    return before


def bring_back(world: World, bodies: dict[str, Any]) -> None:
    for body in bodies.values():
        world.put(body)


@RECKLESS
async def test_load_balancers_survive_an_empty_list_of_services(reckless: bool) -> None:
    """After an outage the list is empty: deletions are blocked, with events.

    When the Services are back, they are served again; one deleted then loses its load balancer.
    """
    async with shops(allow_mass_deletion=reckless) as world:
        lost = lose(world, *SHOPS)
        await world.pass_time(HOUR)
        if reckless:
            assert world.balancers.held == {}
            return
        assert world.balancers.log == []
        assert sorted(world.events) == [(name, "Warning", "DeletionHeld") for name in SHOPS]
        assert held("Service") == len(SHOPS)

        bring_back(world, lost)
        await world.pass_time(HOUR)
        assert held("Service") == 0
        assert len(world.balancers.held) == len(SHOPS)
        world.delete("shop-0")
        await world.pass_time(60)
        assert len(world.balancers.held) == len(SHOPS) - 1


async def test_services_missing_from_the_first_pages_of_a_list_keep_load_balancers() -> None:
    """The list after the empty one is slow: Services not read yet do not count as deleted."""
    async with shops() as world:
        lost = lose(world, *SHOPS)
        await world.pass_time(60)
        late = {key: lost.pop(key) for key in ("default/shop-7", "default/shop-8")}

        bring_back(world, lost)
        await world.pass_time(30)
        assert len(world.balancers.held) == len(SHOPS)
        bring_back(world, late)
        await world.pass_time(HOUR)

        assert len(world.balancers.held) == len(SHOPS)
        assert held("Service") == 0


async def test_services_deleted_during_an_empty_list_lose_their_load_balancers() -> None:
    """Once the others are back, the missing ones count as deleted."""
    async with shops() as world:
        lost = lose(world, *SHOPS)
        await world.pass_time(60)

        bring_back(world, {key: lost[key] for key in list(lost)[2:]})
        await world.pass_time(HOUR)

        assert len(world.balancers.held) == len(SHOPS) - 2
        assert held("Service") == 0


@RECKLESS
async def test_load_balancers_survive_the_api_server_of_another_cluster(reckless: bool) -> None:
    """The address of the API server leads to a new cluster: same names, other UIDs.

    The load balancers of the old cluster, which they still serve, stay.
    """
    async with shops(allow_mass_deletion=reckless) as world:
        before = set(world.balancers.held)
        for name in SHOPS:
            world.service(name, uid=f"new-{name}")
        await world.pass_time(HOUR)

        stays = set(world.balancers.held) & before
        assert stays == (set() if reckless else before)
        assert held("Service") == (0 if reckless else len(SHOPS))


async def test_deletions_after_an_etcd_restore_wait_for_the_annotation() -> None:
    """Services created after the snapshot are gone: deletions are blocked until allowed."""
    api = Api()
    async with record(api) as made, shops(of=made) as world:
        lose(world, *SHOPS[:5])
        await world.pass_time(HOUR)
        assert len(world.balancers.held) == len(SHOPS)
        listed = blocked_deletions(api.map, "lease")["Service"]
        assert sorted(one.key for one in listed.objects) == [
            f"default/{name}" for name in SHOPS[:5]
        ]

        api.annotate(names.ANNOTATION_ALLOW_DELETION, "true")
        await world.pass_time(180)

        assert len(world.balancers.held) == 4
        assert blocked_deletions(api.map, "lease") == {}


async def test_an_earlier_allowance_does_not_apply_to_the_next_outage() -> None:
    """A deletion is allowed by annotation, which is then removed.

    A day later, the API server lists no Services.
    """
    api = Api()
    async with record(api) as made, shops(of=made) as world:
        lost = lose(world, *SHOPS[:5])
        await world.pass_time(60)
        api.annotate(names.ANNOTATION_ALLOW_DELETION, "true")
        await world.pass_time(180)
        assert len(world.balancers.held) == 4
        api.annotate(names.ANNOTATION_ALLOW_DELETION, "false")
        bring_back(world, lost)
        await world.pass_time(24 * HOUR)
        assert len(world.balancers.held) == len(SHOPS)

        lose(world, *SHOPS)
        await world.pass_time(HOUR)
        assert len(world.balancers.held) == len(SHOPS)
        assert blocked_deletions(api.map, "lease")["Service"].count == len(SHOPS)


@pytest.mark.parametrize("how", ["deleted", "no longer of that type", "few"])
async def test_expected_deletions_of_load_balancers_are_not_blocked(how: str) -> None:
    """A namespace is deleted, all Services become ClusterIP, or only a few are missing."""
    async with shops() as world:
        going = SHOPS[:3] if how == "few" else SHOPS
        for name in going:
            if how == "deleted":
                # Its finalizer was removed, too.
                world.vanish(f"default/{name}", seen=True)
            elif how == "few":
                world.vanish(f"default/{name}")
            else:
                world.change(name, type="ClusterIP")
        await world.pass_time(1)

        assert len(world.balancers.held) == len(SHOPS) - len(going)
        assert held("Service") == 0


@RECKLESS
async def test_members_survive_an_empty_list_of_nodes(
    reckless: bool,
) -> None:
    """Members stay, also those of a changed Service, until other nodes are listed.

    A node whose deletion was watched is removed.
    """
    async with shops(allow_mass_deletion=reckless) as world:
        world.remove_node("a", seen=False)
        await world.pass_time(HOUR)
        assert set(members(world)) == ({()} if reckless else {("a",)})
        if reckless:
            return
        assert world.reasons() == ["DeletionHeld"]
        world.change("shop-1", externalTrafficPolicy="Local")
        await world.pass_time(60)
        assert set(members(world)) == {("a",)}

        world.node("b")
        await world.pass_time(300)
        assert set(members(world)) == {("b",)}
        world.remove_node("b")
        await world.pass_time(60)
        assert set(members(world)) == {()}


async def test_many_missing_nodes_stay_members_for_half_an_hour() -> None:
    """A new list lacks four of nine nodes."""
    async with shops() as world:
        for number in range(8):
            world.node(f"n{number}")
        await world.pass_time(60)
        every = members(world)[0]
        assert len(every) == 9
        for name in every[:4]:
            world.remove_node(name, seen=False)
        await world.pass_time(1500)
        assert set(members(world)) == {every}
        await world.pass_time(600)
        assert set(members(world)) == {every[4:]}


async def test_a_few_missing_nodes_are_removed_from_members_within_seconds() -> None:
    """A new list lacks three of nine nodes."""
    async with shops() as world:
        for number in range(8):
            world.node(f"n{number}")
        await world.pass_time(60)
        every = members(world)[0]
        for name in every[:3]:
            world.remove_node(name, seen=False)
        await world.pass_time(15)
        assert set(members(world)) == {every[3:]}


def members(world: World) -> list[tuple[str, ...]]:
    return [given for _, given in world.balancers.held.values()]


async def test_services_that_go_missing_one_by_one_keep_load_balancers() -> None:
    """The first of many missing Services are not deleted before the others are processed."""
    async with shops(workers=5) as world:
        for name in SHOPS:
            lose(world, name)
            await world.pass_time(0.1)
        await world.pass_time(HOUR)

        assert len(world.balancers.held) == len(SHOPS)


# --- routes ---------------------------------------------------------------------------------

NODES = routes.spread(9)


def lose_nodes(env: routes.Environment, *lost: str) -> dict[str, Node]:
    before = {name: env[name] for name in lost}
    for name in lost:
        env.lose(name)
    return before


@RECKLESS
async def test_routes_survive_an_empty_list_of_nodes(reckless: bool) -> None:
    """Deletions are blocked, with events, until the nodes are back."""
    async with routes.running(NODES, allow_mass_deletion=reckless) as env:
        await advance(60)
        lost = lose_nodes(env, *NODES)
        await advance(HOUR)
        if reckless:
            assert env.cloud.routes == []
            return
        assert env.cloud.present() == set(NODES.items())
        assert sorted(env.told) == [(name, "Warning", "DeletionHeld") for name in sorted(NODES)]
        assert held("Route") == len(NODES)

        for node in lost.values():
            env.put(node)
        await advance(HOUR)
        assert held("Route") == 0
        env.drop("n0")
        await advance(60)
        assert env.cloud.present() == set(NODES.items()) - {("n0", NODES["n0"])}


@RECKLESS
async def test_routes_survive_the_loss_of_all_pod_ranges(reckless: bool) -> None:
    """`spec.podCIDRs` of all nodes was cleared: routes stay after the grace period."""
    async with routes.running(NODES, allow_mass_deletion=reckless) as env:
        await advance(60)
        for name in NODES:
            env.node(name)
        await advance(HOUR)
        assert env.cloud.present() == (set() if reckless else set(NODES.items()))
        assert held("Route") == (0 if reckless else len(NODES))

        for name, cidr in NODES.items():
            env.node(name, cidr)
        await advance(HOUR)
        assert env.cloud.present() == set(NODES.items())
        assert held("Route") == 0


async def test_nodes_missing_from_the_first_pages_of_a_list_keep_routes() -> None:
    """The list after the empty one is slow."""
    async with routes.running(NODES) as env:
        await advance(60)
        lost = lose_nodes(env, *NODES)
        await advance(60)
        late = [lost.pop(name) for name in ("n7", "n8")]
        for node in lost.values():
            env.put(node)
        await advance(40)
        assert env.cloud.present() == set(NODES.items())
        for node in late:
            env.put(node)
        await advance(HOUR)

        assert env.cloud.present() == set(NODES.items())


async def test_routes_of_nodes_with_watched_deletions_are_deleted_at_once() -> None:
    """Four of nine nodes are deleted: almost half, but each deletion was seen."""
    async with routes.running(NODES) as env:
        await advance(60)
        for name in ("n0", "n1", "n2", "n3"):
            env.drop(name)
        await advance(15)

        assert len(env.cloud.routes) == 5
        assert held("Route") == 0


async def test_routes_of_nodes_deleted_during_downtime_wait_for_the_annotation() -> None:
    """After a restart, the nodes of four of nine routes are missing without a watched deletion.

    A new route that conflicts with a blocked one is created after the deletion is allowed.
    """
    api = Api()
    stale = [
        routes.made(f"n{number}", f"10.120.{number}.0/24", f"r{number}") for number in range(9)
    ]
    left = {name: cidr for name, cidr in NODES.items() if name > "n3"}
    async with record(api) as made:
        newcomer = {"new": "10.120.0.0/24"}
        async with routes.running(left | newcomer, routes=stale, record=made) as env:
            await advance(HOUR)
            assert env.cloud.changes() == []
            listed = blocked_deletions(api.map, "lease")["Route"]
            assert [one.name for one in listed.objects] == ["n0", "n1", "n2", "n3"]

            api.annotate(names.ANNOTATION_ALLOW_DELETION, "true")
            await advance(2 * HOUR)

            assert env.cloud.present() == set((left | newcomer).items())
            assert blocked_deletions(api.map, "lease") == {}


async def test_two_daemons_share_the_config_map_of_deletions() -> None:
    """One daemon blocks route deletions; the other continues, and neither overwrites the other."""
    api = Api()
    other = DeletionRecord(api, namespace="kube-system", owner="other")
    async with record(api) as ours, routes.running(NODES, record=ours) as env:
        await advance(60)
        lose_nodes(env, *NODES)
        await advance(60)
        assert await other.reserve("Node", limit=1, window_s=600)
        await advance(HOUR)

        assert blocked_deletions(api.map, "lease")["Route"].count == len(NODES)
        assert blocked_deletions(api.map, "other") == {}
        assert not await other.reserve("Node", limit=1, window_s=2 * HOUR)


async def test_nodes_deleted_during_a_route_comparison_are_not_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deletions arrive after the nodes were read; the next comparison deletes the routes."""
    async with routes.running(NODES) as env:
        await advance(60)
        compare = plan.compare

        def slowly(*args: Any, **more: Any) -> Any:
            found = yield from compare(*args, **more)
            for name in ("n0", "n1", "n2", "n3"):
                env.drop(name)
            return found

        monkeypatch.setattr(plan, "compare", slowly)
        env.node("new", "10.120.99.0/24")
        await advance(12)
        monkeypatch.undo()
        await advance(60)

        assert len(env.cloud.routes) == 6
        assert held("Route") == 0
