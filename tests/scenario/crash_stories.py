"""The stories in which the daemon is killed, what people do in them, and what must hold in the end.

`Play` is one run of a story: its objects have names and ranges of their own, so that many runs
follow one another before the same API server and cloud. `complaints` is the verdict: it reads what
the API server and the cloud hold, and needs to know nothing of the story.

A story has a scene, which the daemon finds settled, and an act, whose calls count. Live, the daemon
works while the act happens; asleep, it starts after the act and makes up for it, so that the calls
of its start count too. While the daemon is dead, people may go on.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import methodcaller
from typing import Any

import aiohttp
import msgspec

from ccm import cloud
from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import Node, names
from ccm.model.times import format_time
from ccm.sandbox import kubelet
from providers.sim import balancers as recipes
from providers.sim import client, server, world, world_balancers
from tests.scenario import harness

CLUSTER = "kubernetes"
OTHERS = "somebody-else"
"""Cluster name of load balancers and routes that are not ours."""

CLAIMED = "sim.example/claimed"
UNCLAIMED = "sim.example/unclaimed"
HOLD = "example.com/hold"
"""A finalizer of another controller."""

SERVICES = "/api/v1/namespaces/default/services"
STANDING_NODES = ("standing-1", "standing-2")
BYSTANDER = "bystander"
"""A Service of a class without a controller: it is never changed."""

_KEPT = frozenset({"kubernetes", BYSTANDER})


class Play:
    """One run of a story.

    Args:
        session: with the API server, as administrator.
        service: the simulated cloud.
        number: no other run has it.
    """

    def __init__(
        self, session: aiohttp.ClientSession, service: server.Service, number: int
    ) -> None:
        self.number = number
        self._session = session
        self._cloud = service

    def name(self, base: str) -> str:
        """The name of this run's object."""
        return f"{base}-{self.number}"

    def ranges(self, index: int = 0) -> tuple[str, str]:
        """A Pod range of each family that no other node of the last runs has."""
        slot = 1 + self.number * 4 % 240 + index
        return f"10.244.{slot}.0/24", f"fd00:10:244:{slot:x}::/64"

    async def send(
        self, method: str, path: str, body: Any = None, *, kind: str = "merge"
    ) -> dict[str, Any]:
        """One request; its answer. An object that is not there makes an empty answer."""
        media = f"application/{kind}-patch+json" if method == "PATCH" else "application/json"
        async with self._session.request(
            method,
            path,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": media},
        ) as response:
            if response.status == 404:
                return {}
            assert response.status in (200, 201, 202), await response.text()
            return dict(await response.json())

    async def service(self, base: str = "web") -> dict[str, Any]:
        """A Service as it is; empty when there is none."""
        return await self.send("GET", f"{SERVICES}/{self.name(base)}")

    async def create(
        self,
        base: str = "web",
        *,
        annotations: Mapping[str, str] | None = None,
        finalizers: Sequence[str] = (),
        ports: Sequence[int | tuple[str, int]] = (80,),
        **spec: Any,
    ) -> None:
        """Create a Service of type LoadBalancer, unless `spec` says otherwise."""
        meta: dict[str, Any] = {"name": self.name(base), "annotations": annotations or {}}
        if finalizers:
            meta["finalizers"] = list(finalizers)
        given = {"type": "LoadBalancer", "ports": _ports(ports), "selector": {"app": base}, **spec}
        await self.send("POST", SERVICES, {"metadata": meta, "spec": given})

    async def change(self, base: str = "web", **spec: Any) -> None:
        """Change fields of a Service's spec; `ports` as for `create`."""
        if "ports" in spec:
            spec["ports"] = _ports(spec["ports"])
        await self.send("PATCH", f"{SERVICES}/{self.name(base)}", {"spec": spec})

    async def annotate(self, base: str = "web", **annotations: str | None) -> None:
        """Set annotations of the simulated cloud; an underscore in a name is a dash."""
        prefix = "load-balancer.sim.cloud/"
        given = {prefix + key.replace("_", "-"): value for key, value in annotations.items()}
        await self.send(
            "PATCH", f"{SERVICES}/{self.name(base)}", {"metadata": {"annotations": given}}
        )

    async def set_finalizers(self, base: str, finalizers: Sequence[str]) -> None:
        """Replace all finalizers of a Service."""
        patch = {"metadata": {"finalizers": list(finalizers)}}
        await self.send("PATCH", f"{SERVICES}/{self.name(base)}", patch)

    async def clear_status(self, base: str = "web") -> None:
        """Take a Service's addresses away."""
        patch = {"status": {"loadBalancer": {"ingress": None}}}
        await self.send("PATCH", f"{SERVICES}/{self.name(base)}/status", patch)

    async def delete(self, base: str = "web") -> None:
        """Delete a Service; its finalizers may hold it."""
        await self.send("DELETE", f"{SERVICES}/{self.name(base)}")

    async def gone(self, base: str = "web") -> None:
        """Wait until a Service is no longer there."""

        async def is_gone() -> bool:
            return not await self.service(base)

        await harness.wait_for(is_gone, f"{base} is gone")

    async def ordered(self) -> None:
        """Wait until the cloud has a load balancer of ours."""

        async def is_there() -> bool:
            return bool(self._cloud.worlds.balancers.list(cluster=CLUSTER))

        await harness.wait_for(is_there, "a load balancer is ordered")

    async def add_node(self, base: str, index: int, *, ranges: Sequence[str] = ()) -> None:
        """A machine in the cloud and its node, complete and ready.

        Args:
            base: of its name.
            index: makes its addresses, one of each family.
            ranges: Pod ranges.
        """
        await self._add_node(self.name(base), index, ranges)

    async def add_standing(self) -> None:
        """Create the objects of every run: two nodes, and foreign resources."""
        for index, name in enumerate(STANDING_NODES, 1):
            await self._add_node(name, index, ())
        foreign = {"type": "LoadBalancer", "ports": _ports((80,)), "loadBalancerClass": UNCLAIMED}
        await self.send("POST", SERVICES, {"metadata": {"name": BYSTANDER}, "spec": foreign})
        listener = world_balancers.Listener(protocol="TCP", port=80, target_port=80)
        order = world_balancers.NewBalancer(name=OTHERS, cluster=OTHERS, listeners=(listener,))
        self._cloud.worlds.balancers.create(order)
        route = world.NewRoute(destination="10.244.250.0/24", gateway="10.0.0.1", cluster=OTHERS)
        self._cloud.worlds.routes.create(route)

    async def remove_node(self, base: str, *, machine: bool = True) -> None:
        """Delete a node, and its machine."""
        await self._remove_node(self.name(base), machine=machine)

    async def set_ranges(self, base: str, ranges: Sequence[str]) -> None:
        """Set the Pod ranges of a node without any."""
        patch = {"spec": {"podCIDR": ranges[0], "podCIDRs": list(ranges)}}
        await self.send("PATCH", f"{harness.NODES}/{self.name(base)}", patch)

    async def tidy(self) -> None:
        """Delete all Services and nodes that are not standing."""
        for item in (await self.send("GET", SERVICES))["items"] or ():
            meta = item["metadata"]
            if meta["name"] in _KEPT:
                continue
            path = f"{SERVICES}/{meta['name']}"
            if HOLD in meta.get("finalizers", ()):
                rest = [name for name in meta["finalizers"] if name != HOLD]
                await self.send("PATCH", path, {"metadata": {"finalizers": rest}})
            await self.send("DELETE", path)
        for item in (await self.send("GET", harness.NODES))["items"] or ():
            if item["metadata"]["name"] not in STANDING_NODES:
                await self._remove_node(item["metadata"]["name"], machine=True)

    async def leftovers(self) -> list[str]:
        """Return objects that are left after the clean-up."""
        services = (await self.send("GET", SERVICES))["items"] or ()
        found = [
            f"Service {item['metadata']['name']} is still there"
            for item in services
            if item["metadata"]["name"] not in _KEPT
        ]
        return found + await self.complaints()

    def wipe_cloud(self) -> None:
        """Delete everything in the cloud."""
        worlds = self._cloud.worlds
        for balancer in worlds.balancers.list():
            worlds.balancers.remove(balancer.id)
        for route in worlds.routes.list():
            worlds.routes.delete(route.id)
        for machine in worlds.instances.snapshot():
            worlds.instances.delete(machine.id)

    # --- the verdict ------------------------------------------------------------------------

    async def complaints(self) -> list[str]:
        """Return deviations from the expected state after the daemon's work."""
        found = (await self.send("GET", SERVICES))["items"] or ()
        services = [msgspec.convert(item, cloud.Service, strict=False) for item in found]
        found = (await self.send("GET", harness.NODES))["items"] or ()
        nodes = [msgspec.convert(item, Node, strict=False) for item in found]
        return [*self._about_services(services, nodes), *self._about_routes(nodes)]

    def _about_services(
        self, services: Iterable[cloud.Service], nodes: Sequence[Node]
    ) -> Iterable[str]:
        balancers = [
            msgspec.convert(msgspec.to_builtins(one), client.Balancer)
            for one in self._cloud.worlds.balancers.list(cluster=CLUSTER)
        ]
        wanted: set[str] = set()
        for service in services:
            if _wants_balancer(service):
                name = cloud.default_load_balancer_name(service)
                wanted.add(name)
                mine = [one for one in balancers if one.name == name]
                yield from _about_served(service, mine, nodes)
            elif cloud.has_load_balancer_finalizer(service):
                yield f"{service.name} wants no load balancer and has our finalizer"
        for balancer in balancers:
            if balancer.name not in wanted:
                yield f"load balancer {balancer.name} is nobody's"
        if len(self._cloud.worlds.balancers.list(cluster=OTHERS)) != 1:
            yield "the load balancer of another cluster is gone"

    def _about_routes(self, nodes: Sequence[Node]) -> Iterable[str]:
        wanted = {(cidr, node.name) for node in nodes for cidr in node.spec.pod_cidrs or ()}
        present = [
            (one.destination, one.target_name)
            for one in self._cloud.worlds.routes.list(cluster=CLUSTER)
        ]
        for route in wanted - set(present):
            yield f"no route {route}"
        for each in present:
            if each not in wanted:
                yield f"route {each} is nobody's"
        if len(present) != len(set(present)):
            yield f"routes are there twice: {present}"
        for node in nodes:
            if node.spec.pod_cidrs and not _is_connected(node):
                yield f"node {node.name} is not said to be connected"
        if len(self._cloud.worlds.routes.list(cluster=OTHERS)) != 1:
            yield "the route of another cluster is gone"

    # --- nodes ------------------------------------------------------------------------------

    async def _add_node(self, name: str, index: int, ranges: Sequence[str]) -> None:
        addresses = (f"10.0.0.{index}", f"fd00:10::{index:x}")
        self._cloud.world.put(
            world.Instance(
                name=name,
                addresses=tuple(world.Address(kind="private", value=ip) for ip in addresses),
            )
        )
        node = kubelet.new_node(name, format_time(datetime.now(UTC)))
        node["spec"] = {"providerID": f"sim://zone/{name}"}
        if ranges:
            node["spec"] |= {"podCIDR": ranges[0], "podCIDRs": list(ranges)}
        node["status"]["addresses"] += [
            {"type": names.ADDRESS_INTERNAL_IP, "address": ip} for ip in addresses
        ]
        await self.send("POST", harness.NODES, node)

    async def _remove_node(self, name: str, *, machine: bool) -> None:
        await self.send("DELETE", f"{harness.NODES}/{name}")
        for one in self._cloud.world.snapshot():
            if machine and one.name == name:
                self._cloud.world.delete(one.id)


def _wants_balancer(service: cloud.Service) -> bool:
    return (
        service.type == "LoadBalancer"
        and service.spec.load_balancer_class in (None, CLAIMED)
        and not service.is_deleting
    )


def _about_served(
    service: cloud.Service, balancers: Sequence[client.Balancer], nodes: Sequence[Node]
) -> Iterable[str]:
    if not cloud.has_load_balancer_finalizer(service):
        yield f"{service.name} lost our finalizer"
    if len(balancers) != 1:
        yield f"{service.name} has {len(balancers)} load balancers"
        return
    [balancer] = balancers
    recipe = recipes.desired_spec(service)
    if recipes.actual_spec(balancer) != recipe:
        yield f"the load balancer of {service.name} is not what it asks for: {balancer}"
    eligible = [node for node in nodes if names.LABEL_EXCLUDE_BALANCERS not in node.labels]
    members = recipes.members(eligible, recipe.families)
    if tuple(sorted(balancer.members)) != members:
        yield f"{service.name} has members {balancer.members} instead of {members}"
    shown = [entry.ip for entry in service.ingress]
    if shown != [entry.ip for entry in balancer.ingress]:
        yield f"{service.name} shows {shown}, its load balancer has {balancer.ingress}"


def _is_connected(node: Node) -> bool:
    return any(
        condition.type == names.CONDITION_NETWORK_UNAVAILABLE
        and condition.status == names.STATUS_FALSE
        for condition in node.status.conditions or ()
    )


def _ports(ports: Sequence[int | tuple[str, int]]) -> list[dict[str, Any]]:
    pairs = [("TCP", port) if isinstance(port, int) else port for port in ports]
    return [
        {"name": f"{protocol.lower()}-{port}", "protocol": protocol, "port": port}
        for protocol, port in pairs
    ]


Deed = Callable[[Play], Awaitable[None]]


_PERIOD_S = 0.3

BASE: Mapping[str, str] = {
    "leader-elect": "false",
    "cluster-name": CLUSTER,
    "cluster-cidr": "10.244.0.0/16,fd00:10:244::/48",
    "load-balancer-classes": CLAIMED,
    "load-balancer-node-update-quiet-period": "300ms",
    "concurrent-service-syncs": "4",
}
BALANCED: Mapping[str, str] = {**BASE, "controllers": SERVICE.name}
ELECTED: Mapping[str, str] = {**BALANCED, "leader-elect": "true"}
ROUTES: Mapping[str, str] = {**BASE, "controllers": ROUTE.name}
POLLED: Mapping[str, str] = {
    **ROUTES,
    "feature-gates": "CloudControllerManagerWatchBasedRoutesReconciliation=false",
    "route-reconciliation-period": f"{_PERIOD_S}s",
}
"""Routes compared all the time: a change of nodes need not wait for its turn."""

BOTH: Mapping[str, str] = {
    **POLLED,
    "controllers": f"{SERVICE.name},{ROUTE.name}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One story.

    Attributes:
        name: of the story.
        act: what people do, and the daemon's calls after it count.
        meanwhile: what they do between the daemon's death and its next start.
        scene: what they did before, which is settled; None = nothing.
        asleep: the daemon starts after the act.
        flags: what every daemon is started with.
        provision_s: how long the cloud takes for a new load balancer.
    """

    name: str
    act: Deed
    scene: Deed | None = None
    meanwhile: Deed | None = None
    asleep: bool = False
    flags: Mapping[str, str] = field(default_factory=lambda: BALANCED)
    provision_s: float = 0.0


_plain = methodcaller("create")
_dual_stack = methodcaller("create", ports=(80, 443), ipFamilyPolicy="RequireDualStack")
_local_policy = methodcaller("create", externalTrafficPolicy="Local")
_mixed = methodcaller(
    "create",
    ports=(("TCP", 53), ("UDP", 53)),
    loadBalancerClass=CLAIMED,
    loadBalancerSourceRanges=["192.0.2.0/24"],
)
_internal = methodcaller("create", annotations={"load-balancer.sim.cloud/internal": "true"})
_no_node_ports = methodcaller(
    "create", allocateLoadBalancerNodePorts=False, sessionAffinity="ClientIP"
)
_delete = methodcaller("delete")


async def _change_of_mind(play: Play) -> None:
    await play.create()
    await play.ordered()
    await play.delete()


async def _recreate(play: Play) -> None:
    await play.delete()
    await play.gone()
    await play.create(ports=(8080,))


_held = methodcaller("create", finalizers=(HOLD,))


async def _delete_without_finalizer(play: Play) -> None:
    """Remove our finalizer directly after the deletion."""
    await play.delete()
    await play.set_finalizers("web", [HOLD])


_lose_finalizer = methodcaller("set_finalizers", "web", [])
_lose_status = methodcaller("clear_status")
_more_ports = methodcaller("change", ports=(80, 443))
_annotation = methodcaller("annotate", size="large", health_check_interval="5s")
_unsupported_then_right = methodcaller("annotate", internal="true")
_restrict = methodcaller(
    "change", externalTrafficPolicy="Local", loadBalancerSourceRanges=["192.0.2.0/24"]
)
_give_up = methodcaller("change", type="ClusterIP", loadBalancerClass=None)
_claimed = methodcaller("create", loadBalancerClass=CLAIMED)
_cluster_ip = methodcaller("create", type="ClusterIP")
_node_port = methodcaller("create", type="NodePort", finalizers=(HOLD,))
_ask = methodcaller("change", type="LoadBalancer")


async def _three(play: Play) -> None:
    for base in ("web", "mail", "shop"):
        await play.create(base)


async def _one_of_each(play: Play) -> None:
    """Delete one, change one, create one."""
    await play.delete("web")
    await play.change("mail", ports=(25, 465))
    await play.create("game")


async def _with_third_node(play: Play) -> None:
    await play.create()
    await play.add_node("third", 3)


_third_node = methodcaller("add_node", "third", 3)
_third_node_goes = methodcaller("remove_node", "third")


async def _node_goes_in_a_change(play: Play) -> None:
    await play.change(ports=(80, 443))
    await play.remove_node("third")


async def _exclude_node(play: Play) -> None:
    labels = {names.LABEL_EXCLUDE_BALANCERS: "true"}
    path = f"{harness.NODES}/{play.name('third')}"
    await play.send("PATCH", path, {"metadata": {"labels": labels}})


async def _routed_node(play: Play) -> None:
    await play.add_node("routed", 11, ranges=play.ranges())


_bare_node = methodcaller("add_node", "routed", 11)


async def _ranges(play: Play) -> None:
    await play.set_ranges("routed", play.ranges())


_routed_node_goes = methodcaller("remove_node", "routed")
_node_goes_before_its_machine = methodcaller("remove_node", "routed", machine=False)


async def _node_replaced(play: Play) -> None:
    """Another machine takes over name and range, with another address."""
    await play.remove_node("routed")
    await play.add_node("routed", 12, ranges=play.ranges())


async def _range_moves(play: Play) -> None:
    """The range of a node that went is given to another."""
    await play.remove_node("routed")
    await play.add_node("heir", 13, ranges=play.ranges())


async def _much(play: Play) -> None:
    await _three(play)
    await _routed_node(play)


async def _much_else(play: Play) -> None:
    await _one_of_each(play)
    await play.remove_node("routed")
    await play.add_node("heir", 13, ranges=play.ranges(1))


_routed = partial(Story, flags=POLLED)

STORIES = (
    # Create.
    Story(name="create", act=_plain),
    Story(name="create with two families", act=_dual_stack),
    Story(name="create with policy Local", act=_local_policy),
    Story(name="create claimed class, TCP and UDP", act=_mixed),
    Story(name="create slowly", act=_internal, provision_s=0.5),
    Story(name="create while down", act=_no_node_ports, asleep=True),
    # Change.
    Story(name="change ports", scene=_plain, act=_more_ports),
    Story(name="change annotations", scene=_plain, act=_annotation),
    Story(name="move to the private network", scene=_dual_stack, act=_unsupported_then_right),
    Story(name="change policy and ranges", scene=_plain, act=_restrict),
    Story(name="LoadBalancer to ClusterIP", scene=_claimed, act=_give_up),
    Story(name="LoadBalancer to ClusterIP while down", scene=_plain, act=_give_up, asleep=True),
    Story(name="ClusterIP to LoadBalancer", scene=_cluster_ip, act=_ask),
    Story(name="NodePort held by another to LoadBalancer", scene=_node_port, act=_ask),
    Story(name="finalizer taken away", scene=_plain, act=_lose_finalizer),
    Story(name="status taken away", scene=_dual_stack, act=_lose_status),
    Story(name="a node comes", scene=_plain, act=_third_node),
    Story(name="a node goes", scene=_with_third_node, act=_third_node_goes),
    Story(name="a node is excluded", scene=_with_third_node, act=_exclude_node),
    Story(name="a node goes in a change", scene=_with_third_node, act=_node_goes_in_a_change),
    Story(name="one goes, one changes, one comes", scene=_three, act=_one_of_each),
    # Delete.
    Story(name="delete", scene=_plain, act=_delete),
    Story(name="delete while down", scene=_local_policy, act=_delete, asleep=True),
    Story(name="delete while provisioning", act=_change_of_mind, provision_s=0.5),
    Story(name="delete held by another", scene=_held, act=_delete),
    Story(name="delete without our finalizer", scene=_held, act=_delete_without_finalizer),
    Story(name="delete and create again", scene=_plain, act=_recreate),
    Story(name="created, deleted while down", act=_dual_stack, meanwhile=_delete),
    Story(name="changed, deleted while down", scene=_plain, act=_restrict, meanwhile=_delete),
    Story(name="created, given up while down", act=_claimed, meanwhile=_give_up),
    # Led.
    Story(name="create by a leader", act=_plain, flags=ELECTED),
    Story(name="delete by a leader", scene=_plain, act=_delete, flags=ELECTED),
    # Routes.
    _routed(name="node with ranges comes", act=_routed_node),
    _routed(
        name="routed node comes, goes while down", act=_routed_node, meanwhile=_routed_node_goes
    ),
    _routed(name="ranges given later", scene=_bare_node, act=_ranges),
    _routed(name="routed node goes", scene=_routed_node, act=_routed_node_goes),
    _routed(
        name="routed node goes before its machine",
        scene=_routed_node,
        act=_node_goes_before_its_machine,
    ),
    _routed(name="range moves", scene=_routed_node, act=_range_moves),
    Story(name="routed node comes while down", act=_routed_node, asleep=True, flags=ROUTES),
    _routed(
        name="routed node replaced while down", scene=_routed_node, act=_node_replaced, asleep=True
    ),
    # Everything.
    Story(name="much at once while down", scene=_much, act=_much_else, asleep=True, flags=BOTH),
)
