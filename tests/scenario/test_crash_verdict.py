"""The verdict of the crash stories finds what it is there to find; no daemon runs."""

from __future__ import annotations

from ccm.model import names
from providers.sim import world_balancers
from tests import servers
from tests.scenario import crash_stories, harness, legacy
from tests.scenario.crash_stories import Play


@servers.only_builtin
async def test_harm_is_found(api_server: servers.ApiServer, env: harness.Environment) -> None:
    """A Service, a node with Pod ranges, and what a daemon would have made of them; then harm after
    harm, in the cloud and in the cluster."""
    balancers, routes = env.cloud.worlds.balancers, env.cloud.worlds.routes
    listener = world_balancers.Listener(protocol="TCP", port=1, target_port=1)
    async with servers.connect(api_server) as session:
        play = Play(session, env.cloud, 7)

        async def found(*said: str) -> None:
            complaints = await play.complaints()
            assert [text[: len(one)] for text, one in zip(complaints, said, strict=True)] == [*said]

        await play.add_standing()
        await play.create()
        await play.add_node("routed", 11, ranges=play.ranges()[:1])
        held = legacy.hold(env, await play.service(), [f"10.0.0.{one}" for one in (1, 2, 11)])
        await play.set_finalizers("web", [names.FINALIZER_LOAD_BALANCER])
        await legacy.show(env, play.name("web"), [{"ip": held.ingress[0].ip}])
        legacy.place_route(env, play.ranges()[0], "10.0.0.11")
        condition = {"type": "NetworkUnavailable", "status": "False"}
        path = f"{harness.NODES}/{play.name('routed')}/status"
        await env.cluster.patch(path, {"status": {"conditions": [condition]}})
        await found()

        legacy.place_route(env, "10.244.77.0/24", "10.0.0.11")
        await found("route ('10.244.77.0/24', 'routed-7') is")
        for route in routes.list(cluster=crash_stories.CLUSTER):
            routes.delete(route.id)
        await found("no route ('10.244.29.0/24', 'routed-7')")
        legacy.place_route(env, play.ranges()[0], "10.0.0.11")

        stray = world_balancers.NewBalancer(
            name="astray", cluster=crash_stories.CLUSTER, listeners=(listener,)
        )
        made = balancers.create(stray)
        await found("load balancer astray is nobody's")
        balancers.remove(made.id)
        balancers.interfere(held.id, world_balancers.Interference(listeners=(listener,)))
        await found("the load balancer of web-7 is not what it asks for")
        balancers.interfere(held.id, world_balancers.Interference(listeners=held.listeners))
        balancers.set_members(held.id, [])
        await found("web-7 has members ()")
        balancers.set_members(held.id, held.members)
        await play.set_finalizers("web", [])
        await found("web-7 lost our finalizer")
        await play.set_finalizers("web", [names.FINALIZER_LOAD_BALANCER])
        await play.delete()
        await found("web-7 wants no load balancer and has our", f"load balancer {held.name} is")
        await play.set_finalizers("web", [])
        await found(f"load balancer {held.name} is nobody's")
