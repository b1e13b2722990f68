"""A cluster as the Go reference leaves it, and what the reference accepts of others.

The shapes are those of its writes: both labels of each pair, the cloud's addresses before the
kubelet's Hostname, its finalizer, a status with the addresses alone, its node condition. What
the API server makes of them is as on any cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ccm.cloud import default_load_balancer_name
from ccm.model import Service, names
from ccm.sandbox import kubelet
from providers.sim import balancers as recipes
from providers.sim import world, world_balancers
from tests.scenario import harness, load
from tests.scenario.harness import Environment

F = names.FINALIZER_LOAD_BALANCER
CLUSTER = "kubernetes"
RANGES = "10.244.0.0/16,fd00:244::/56"
SETTLED_AT = "2025-03-01T12:00:00Z"

FLAGS: Mapping[str, str] = {**load.FLAGS, "controllers": "*", "cluster-cidr": RANGES}
"""A daemon with all controllers."""

ROUTED: Mapping[str, str] = {
    "type": names.CONDITION_NETWORK_UNAVAILABLE,
    "status": "False",
    "reason": "RouteCreated",
    "message": "RouteController created a route",
    "lastHeartbeatTime": SETTLED_AT,
    "lastTransitionTime": SETTLED_AT,
}
"""The condition of a node with all its routes."""

FROM_A_PLUGIN: Mapping[str, str] = {
    **ROUTED,
    "reason": "CalicoIsUp",
    "message": "Calico is running on this node",
}
"""The same from a network plugin, on a node that wants no routes."""


async def place_node(
    env: Environment,
    name: str,
    *,
    ips: Sequence[str],
    ranges: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    condition: Mapping[str, str] | None = ROUTED,
) -> None:
    """A machine, its settled node, and the routes to it.

    Args:
        env: the environment.
        name: of both.
        ips: the machine's private addresses, one of each family at most.
        ranges: the node's Pod ranges; each has its route.
        labels: beside those of every node.
        taints: of the node.
        condition: its NetworkUnavailable; None = it has none.
    """
    addresses = tuple(world.Address(kind="private", value=ip) for ip in ips)
    machine = env.machine(name, addresses=addresses)
    node = kubelet.new_node(name, SETTLED_AT)
    node["metadata"]["labels"] |= {**_labels(machine), **(labels or {})}
    node["spec"] = {"providerID": f"sim://{machine.id}", "taints": list(taints)}
    if ranges:
        node["spec"] |= {"podCIDR": ranges[0], "podCIDRs": list(ranges)}
    internal = [{"type": names.ADDRESS_INTERNAL_IP, "address": ip} for ip in ips]
    node["status"]["addresses"] = [*internal, *node["status"]["addresses"]]
    for each in node["status"]["conditions"]:
        if each["type"] == names.CONDITION_READY:
            each["status"] = names.STATUS_TRUE
    node["status"]["conditions"] += [condition] if condition else []
    await env.cluster.create(harness.NODES, node)
    for destination in ranges:
        (gateway,) = [ip for ip in ips if (":" in ip) == (":" in destination)]
        place_route(env, destination, gateway)


def _labels(machine: world.Instance) -> Mapping[str, str]:
    return {
        names.LABEL_ZONE_BETA: machine.zone,
        names.LABEL_ZONE: machine.zone,
        names.LABEL_REGION_BETA: machine.region,
        names.LABEL_REGION: machine.region,
        names.LABEL_INSTANCE_TYPE_BETA: machine.type,
        names.LABEL_INSTANCE_TYPE: machine.type,
        **machine.labels,
    }


def place_route(
    env: Environment, destination: str, gateway: str, *, cluster: str = CLUSTER
) -> None:
    """A route in the cloud."""
    order = world.NewRoute(destination=destination, gateway=gateway, cluster=cluster)
    env.cloud.worlds.routes.create(order)


async def place_service(
    env: Environment,
    name: str,
    *,
    finalizers: Sequence[str] = (F,),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A Service as the reference found it, with the finalizers it has now."""
    body = load.web(name, **spec)
    metadata = {"finalizers": finalizers, "annotations": annotations, "labels": labels}
    body["metadata"] |= {key: value for key, value in metadata.items() if value}
    return await load.create(env, body)


def hold(
    env: Environment, service: Mapping[str, Any], members: Sequence[str], **altered: Any
) -> world_balancers.Balancer:
    """The load balancer that the cloud has of a Service.

    Args:
        env: the environment.
        service: whose it is.
        members: the addresses of its members.
        altered: what is otherwise than the Service asks for.
    """
    asked = msgspec.convert(service, Service)
    wanted = msgspec.to_builtins(recipes.desired_spec(asked))
    order = {**wanted, "name": default_load_balancer_name(asked), "cluster": CLUSTER, **altered}
    held = env.cloud.worlds.balancers
    made = held.create(msgspec.convert(order, world_balancers.NewBalancer))
    return held.set_members(made.id, members)


async def show(env: Environment, name: str, ingress: Sequence[Mapping[str, Any]]) -> None:
    """Write a Service's status as the reference does."""
    patch = {"status": {"loadBalancer": {"ingress": list(ingress)}}}
    await env.cluster.patch(f"{load.SERVICES}/{name}/status", patch)


async def settle_service(
    env: Environment, name: str, members: Sequence[str], **shape: Any
) -> dict[str, Any]:
    """A Service with finalizer, load balancer and status; what it is then."""
    service = await place_service(env, name, **shape)
    balancer = hold(env, service, members)
    await show(env, name, [{"ip": each.ip} for each in balancer.ingress])
    found = await env.cluster.get(f"{load.SERVICES}/{name}")
    assert found is not None
    return found


def objections(
    service: Mapping[str, Any], given: Mapping[str, Any], *, finalizers: Sequence[str]
) -> list[str]:
    """What about a Service the reference would not have left so.

    Args:
        service: as it is now.
        given: as people wrote it last.
        finalizers: what it should have.
    """
    meta, was = service["metadata"], given["metadata"]
    ingress = load.ingress(service)
    known = {"ip", "hostname", "ipMode", "ports"}
    found = {
        "finalizers": list(meta.get("finalizers") or ()) != list(finalizers),
        "labels": meta.get("labels") != was.get("labels"),
        "annotations": meta.get("annotations") != was.get("annotations"),
        "owners": "ownerReferences" in meta,
        "spec": service["spec"] != given["spec"],
        "status": set(service["status"]) != {"loadBalancer"},
        "load balancer": not set(service["status"]["loadBalancer"]) <= {"ingress"},
        "ingress": not all(set(entry) <= known for entry in ingress),
    }
    return [f"{meta['name']}: {what}" for what, wrong in found.items() if wrong]


def node_objections(
    node: Mapping[str, Any], given: Mapping[str, Any], machine: world.Instance
) -> list[str]:
    """The same of a node with routes; `given` is as its kubelet registered it."""
    meta, was = node["metadata"], given["metadata"]
    conditions, kubelets = harness.conditions(node), harness.conditions(given)
    condition = conditions.pop(names.CONDITION_NETWORK_UNAVAILABLE, {})
    taints = [each for each in given["spec"]["taints"] if each["key"] != names.TAINT_UNINITIALIZED]
    found = {
        "finalizers": "finalizers" in meta,
        "labels": meta["labels"] != {**was["labels"], **_labels(machine)},
        "annotations": meta.get("annotations") != was.get("annotations"),
        "taints": (node["spec"].get("taints") or []) != taints,
        "provider ID": node["spec"]["providerID"] != f"sim://{machine.id}",
        "other conditions": conditions != kubelets,
        "fields of the condition": set(condition) != set(ROUTED),
        "condition": any(condition.get(key) != ROUTED[key] for key in _SAID),
    }
    return [f"{meta['name']}: {what}" for what, wrong in found.items() if wrong]


_SAID = ("type", "status", "reason", "message")
