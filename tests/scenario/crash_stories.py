"""The stories in which the daemon is killed at each of its calls.

A story has a scene, which the daemon finds settled, and an act, whose calls count. Live,
the daemon works while the act happens; asleep, it starts after the act and makes up for
it, so that the calls of its start count too. While the daemon is dead, people may go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from operator import methodcaller

from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import names
from tests.scenario import crash_world, harness
from tests.scenario.crash_world import Play

Deed = Callable[[Play], Awaitable[None]]


_PERIOD_S = 0.3

BASE: Mapping[str, str] = {
    "leader-elect": "false",
    "cluster-name": crash_world.CLUSTER,
    "cluster-cidr": "10.244.0.0/16,fd00:10:244::/48",
    "load-balancer-classes": crash_world.CLAIMED,
    "load-balancer-nodes-quiet-period": "300ms",
    "concurrent-service-syncs": "4",
}
SERVICES: Mapping[str, str] = {**BASE, "controllers": SERVICE.name}
ELECTED: Mapping[str, str] = {**SERVICES, "leader-elect": "true"}
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
    flags: Mapping[str, str] = field(default_factory=lambda: SERVICES)
    provision_s: float = 0.0


_plain = methodcaller("create")
_dual_stack = methodcaller("create", ports=(80, 443), ipFamilyPolicy="RequireDualStack")
_local_policy = methodcaller("create", externalTrafficPolicy="Local")
_mixed = methodcaller(
    "create",
    ports=(("TCP", 53), ("UDP", 53)),
    loadBalancerClass=crash_world.CLAIMED,
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


_held = methodcaller("create", finalizers=(crash_world.HOLD,))


async def _delete_without_finalizer(play: Play) -> None:
    """Somebody takes our finalizer away in the moment of the deletion."""
    await play.delete()
    await play.set_finalizers("web", [crash_world.HOLD])


_lose_finalizer = methodcaller("set_finalizers", "web", [])
_lose_status = methodcaller("clear_status")
_ports = methodcaller("change", ports=(80, 443))
_annotation = methodcaller("annotate", size="large", health_check_interval="5s")
_unsupported_then_right = methodcaller("annotate", internal="true")
_restrict = methodcaller(
    "change", externalTrafficPolicy="Local", loadBalancerSourceRanges=["192.0.2.0/24"]
)
_give_up = methodcaller("change", type="ClusterIP", loadBalancerClass=None)
_claimed = methodcaller("create", loadBalancerClass=crash_world.CLAIMED)
_cluster_ip = methodcaller("create", type="ClusterIP")
_node_port = methodcaller("create", type="NodePort", finalizers=(crash_world.HOLD,))
_ask = methodcaller("change", type="LoadBalancer")


async def _three(play: Play) -> None:
    for base in ("web", "mail", "shop"):
        await play.create(base)


async def _one_of_each(play: Play) -> None:
    """One goes, one changes, one comes."""
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


STORIES = (
    # Create.
    Story(name="create", act=_plain),
    Story(name="create with two families", act=_dual_stack),
    Story(name="create with policy Local", act=_local_policy),
    Story(name="create claimed class, TCP and UDP", act=_mixed),
    Story(name="create slowly", act=_internal, provision_s=0.5),
    Story(name="create while down", act=_no_node_ports, asleep=True),
    # Change.
    Story(name="change ports", scene=_plain, act=_ports),
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
    Story(name="node with ranges comes", act=_routed_node, flags=POLLED),
    Story(
        name="routed node comes, goes while down",
        act=_routed_node,
        meanwhile=_routed_node_goes,
        flags=POLLED,
    ),
    Story(name="ranges given later", scene=_bare_node, act=_ranges, flags=POLLED),
    Story(name="routed node goes", scene=_routed_node, act=_routed_node_goes, flags=POLLED),
    Story(
        name="routed node goes before its machine",
        scene=_routed_node,
        act=_node_goes_before_its_machine,
        flags=POLLED,
    ),
    Story(name="range moves", scene=_routed_node, act=_range_moves, flags=POLLED),
    Story(name="routed node comes while down", act=_routed_node, asleep=True, flags=ROUTES),
    Story(
        name="routed node replaced while down",
        scene=_routed_node,
        act=_node_replaced,
        asleep=True,
        flags=POLLED,
    ),
    # Everything.
    Story(name="much at once while down", scene=_much, act=_much_else, asleep=True, flags=BOTH),
)
