"""The verdict of the crash stories finds what it is there to find; no daemon runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from ccm.model import names
from providers.sim import world_balancers
from tests import servers
from tests.scenario import crash_world, harness, legacy
from tests.scenario.crash_world import Play

pytestmark = servers.only_builtin


class Scene:
    """A Service, a node with Pod ranges, and what a daemon would have made of them."""

    def __init__(self, play: Play, env: harness.Environment) -> None:
        self.play = play
        self.env = env
        self.balancers = env.cloud.worlds.balancers
        self.routes = env.cloud.worlds.routes

    async def build(self) -> None:
        play, env = self.play, self.env
        await play.add_standing()
        await play.create()
        await play.add_node("routed", 11, ranges=play.ranges()[:1])
        members = [f"10.0.0.{index}" for index in (1, 2, 11)]
        held = legacy.hold(env, await play.service(), members)
        await play.set_finalizers("web", [names.FINALIZER_LOAD_BALANCER])
        await legacy.show(env, play.name("web"), [{"ip": held.ingress[0].ip}])
        self.route(play.ranges()[0])
        condition = {"type": "NetworkUnavailable", "status": "False"}
        path = f"{harness.NODES}/{play.name('routed')}/status"
        await env.cluster.patch(path, {"status": {"conditions": [condition]}})

    def route(self, destination: str) -> None:
        legacy.place_route(self.env, destination, "10.0.0.11")

    @property
    def balancer(self) -> world_balancers.Balancer:
        [found] = self.balancers.list(cluster=crash_world.CLUSTER)
        return found


@pytest_asyncio.fixture
async def scene(api_server: servers.ApiServer, env: harness.Environment) -> AsyncIterator[Scene]:
    async with servers.connect(api_server) as session:
        built = Scene(Play(session, env.cloud, 7), env)
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
