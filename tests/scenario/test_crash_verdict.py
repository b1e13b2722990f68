"""The verdict of the crash stories finds what it is there to find; no daemon runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from ccm.model import names
from providers.sim import client, recipes, world_balancers, world_routes
from tests import servers
from tests.scenario import crash_world, harness
from tests.scenario.crash_world import Play

pytestmark = servers.only_builtin


class Scene:
    """A Service, a node with Pod ranges, and what a daemon would have made of them."""

    def __init__(self, play: Play, stage: harness.Stage) -> None:
        self.play = play
        self.balancers = stage.cloud.worlds.balancers
        self.routes = stage.cloud.worlds.routes

    async def build(self) -> None:
        await self.play.add_standing()
        await self.play.create()
        await self.play.add_node("routed", 11, ranges=self.play.ranges()[:1])
        await self.set_status("web", await self.order())
        self.route(self.play.ranges()[0])
        path = f"{harness.NODES}/{self.play.name('routed')}/status"
        condition = {"type": "NetworkUnavailable", "status": "False"}
        await self.play.send(
            "PATCH", path, {"status": {"conditions": [condition]}}, kind="strategic-merge"
        )

    async def order(self) -> world_balancers.Balancer:
        """The load balancer that the Service asks for."""
        service = msgspec.convert(await self.play.service(), cloud.Service, strict=False)
        recipe = msgspec.structs.asdict(recipes.wanted(service))
        order = client.Order(
            **recipe, name=cloud.default_load_balancer_name(service), cluster=crash_world.CLUSTER
        )
        made = self.balancers.create(
            msgspec.convert(msgspec.to_builtins(order), world_balancers.NewBalancer)
        )
        members = [f"10.0.0.{index}" for index in (1, 2, 11)]
        return self.balancers.set_members(made.id, members)

    async def set_status(self, base: str, balancer: world_balancers.Balancer) -> None:
        path = f"{crash_world.SERVICES}/{self.play.name(base)}/status"
        await self.play.send(
            "PATCH",
            path,
            {
                "metadata": {"finalizers": [names.FINALIZER_LOAD_BALANCER]},
                "status": {"loadBalancer": {"ingress": [{"ip": balancer.ingress[0].ip}]}},
            },
        )

    def route(self, destination: str) -> None:
        self.routes.create(
            world_routes.NewRoute(
                destination=destination, gateway="10.0.0.11", cluster=crash_world.CLUSTER
            )
        )

    @property
    def balancer(self) -> world_balancers.Balancer:
        [found] = self.balancers.list(cluster=crash_world.CLUSTER)
        return found


@pytest_asyncio.fixture
async def scene(api_server: servers.ApiServer, stage: harness.Stage) -> AsyncIterator[Scene]:
    async with servers.connect(api_server) as session:
        built = Scene(Play(session, stage.cloud, 7), stage)
        await built.build()
        yield built


async def test_nothing_to_complain_about(scene: Scene) -> None:
    assert await scene.play.complaints() == []


def _stray(scene: Scene) -> None:
    listener = world_balancers.Listener(protocol="TCP", port=1, target_port=1)
    scene.balancers.create(
        world_balancers.NewBalancer(
            name="astray", cluster=crash_world.CLUSTER, listeners=(listener,)
        )
    )


def _without_members(scene: Scene) -> None:
    scene.balancers.set_members(scene.balancer.id, [])


def _other_ports(scene: Scene) -> None:
    listener = world_balancers.Listener(protocol="TCP", port=1, target_port=1)
    scene.balancers.interfere(
        scene.balancer.id, world_balancers.Interference(listeners=(listener,))
    )


def _without_routes(scene: Scene) -> None:
    for route in scene.routes.list(cluster=crash_world.CLUSTER):
        scene.routes.delete(route.id)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_stray, "load balancer astray is nobody's"),
        (lambda scene: scene.balancers.remove(scene.balancer.id), "web-7 has 0 load balancers"),
        (_without_members, "web-7 has members ()"),
        (_other_ports, "the load balancer of web-7 is not what it asks for"),
        (_without_routes, "no route ('10.244.29.0/24', 'routed-7')"),
        (lambda scene: scene.route("10.244.77.0/24"), "route ('10.244.77.0/24', 'routed-7') is"),
    ],
)
async def test_harm_in_the_cloud(scene: Scene, harm: Callable[[Scene], None], said: str) -> None:
    harm(scene)
    assert [text[: len(said)] for text in await scene.play.complaints()] == [said]


async def test_harm_in_the_cluster(scene: Scene) -> None:
    await scene.play.set_finalizers("web", [])
    assert await scene.play.complaints() == ["web-7 lost our finalizer"]
    await scene.play.clear_status()
    await scene.play.delete()
    name = scene.balancer.name
    assert await scene.play.complaints() == [f"load balancer {name} is nobody's"]


async def test_a_finalizer_that_stays(scene: Scene) -> None:
    await scene.play.delete()
    assert f"{scene.play.name('web')} wants no load balancer and has our finalizer" in (
        await scene.play.complaints()
    )
