"""From the Go reference to this daemon on a cluster with load balancers and routes, and back."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from ccm.model import names
from ccm.sandbox import realserver
from ccm.testing.apiserver import server as apiserver
from ccm.testing.apiserver import store
from tests import servers
from tests.scenario import harness, legacy, load
from tests.scenario.harness import Environment
from tests.scenario.legacy import F

pytestmark = [pytest.mark.timeout(load.LONGEST_S)]

MEMBERS = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.6")
OTHER_CLASS = "example.com/other"
PORT = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}
EXCLUDE, AUTOSCALER = names.LABEL_EXCLUDE_BALANCERS, names.TAINT_AUTOSCALER_DELETION

SETTLED: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "shared": {"finalizers": ["example.com/keep", F], "labels": {"team": "a"}},
    "local": {"externalTrafficPolicy": "Local"},
    "mixed": {"ports": [PORT, {"name": "dns", "protocol": "UDP", "port": 53}]},
    "ranges": {"loadBalancerSourceRanges": ["192.0.2.0/24", "198.51.100.7/32"]},
    "sticky": {"sessionAffinity": "ClientIP"},
    "portless": {"allocateLoadBalancerNodePorts": False},
    "hopeful": {"ipFamilyPolicy": "PreferDualStack"},
    "wishful": {"loadBalancerIP": "198.18.0.77"},
    "annotated": {
        "annotations": {
            "load-balancer.sim.cloud/internal": "true",
            "load-balancer.sim.cloud/health-check-interval": "30s",
            "example.com/owner": "somebody",
        }
    },
}
"""Services that the reference serves."""

NONE_OF_OURS: Mapping[str, Mapping[str, Any]] = {
    "inner": {"type": "ClusterIP"},
    "ported": {"type": "NodePort"},
    "alias": {"type": "ExternalName", "externalName": "www.example.com", "ports": []},
    "classed": {"loadBalancerClass": OTHER_CLASS},
}
"""Services that it leaves alone."""


async def settle_nodes(env: Environment) -> None:
    """Nodes of every kind that the reference leaves behind, with their routes."""
    place, first = legacy.place_node, "10.244.1.0/24"
    await place(env, "plain", ips=["10.0.0.1"], ranges=[first])
    await place(
        env,
        "dual",
        ips=["10.0.0.2", "fd00::2"],
        ranges=["10.244.2.0/24", "fd00:244:0:2::/64"],
    )
    await place(env, "included", ips=["10.0.0.3"], labels={EXCLUDE: "false"}, condition=None)
    await place(env, "excluded", ips=["10.0.0.4"], ranges=["10.244.4.0/24"], labels={EXCLUDE: ""})
    leaving = {"key": AUTOSCALER, "value": "1", "effect": "NoSchedule"}
    await place(env, "leaving", ips=["10.0.0.5"], ranges=["10.244.5.0/24"], taints=[leaving])
    await place(env, "plugged", ips=["10.0.0.6"], condition=legacy.FROM_A_PLUGIN)
    # Routes of the administrator and of another cluster.
    legacy.place_route(env, "192.168.7.0/24", "10.0.0.1")
    legacy.place_route(env, "10.244.1.0/24", "10.0.0.9", cluster="another")


async def started(env: Environment) -> harness.Daemon:
    """Start a daemon with all controllers, and wait until it has nothing left to do."""
    return await load.started(env, "list_balancers", "list_routes", flags=legacy.FLAGS)


def cloud_writes(env: Environment) -> Counter[str]:
    """Writes of the daemon to the cloud."""
    found = Counter(call.operation for call in env.calls())
    return Counter({one: found[one] for one in found if not one.startswith(("list_", "get_"))})


def patched(env: Environment, kind: str) -> Counter[str]:
    """Writes by the name of the object."""
    path = re.compile(rf"/{kind}/([^/]+)(/status)?$")
    found = [path.search(exchange.path) for exchange in load.writes(env)]
    return Counter(match[1] for match in found if match)


async def taken_over(env: Environment) -> None:
    """A daemon starts, and changes nothing anywhere."""
    before, cloud = await load.objects(env), env.cloud.worlds.snapshot()

    daemon = await started(env)

    assert load.ensures(daemon) == {}
    assert cloud_writes(env) == {}
    assert load.writes(env) == []
    assert await load.objects(env) == before
    assert env.cloud.worlds.snapshot() == cloud
    assert await daemon.stop() == 0


@pytest.mark.row("switch-over-03")
async def test_a_settled_cluster_of_the_reference_is_taken_over_without_a_write(
    env: Environment,
) -> None:
    await settle_nodes(env)
    for name, shape in SETTLED.items():
        await legacy.settle_service(env, name, MEMBERS, **shape)
    for name, shape in NONE_OF_OURS.items():
        await legacy.place_service(env, name, finalizers=(), **shape)
    # Served by its own controller, under the same finalizer.
    await legacy.place_service(env, "served", loadBalancerClass=OTHER_CLASS)
    await legacy.show(env, "served", [{"hostname": "lb.example.com"}])
    await taken_over(env)


BOTH_FAMILIES = "10.96.0.0/16,fd00:10:96::/112"


@contextlib.asynccontextmanager
async def dual_builtin() -> AsyncIterator[servers.ApiServer]:
    """The built-in API server, inside the test, with Services of both families."""
    networks = [ipaddress.ip_network(text) for text in BOTH_FAMILIES.split(",")]
    async with apiserver.serve(store.ObjectStore(), cluster_ips=networks, token="dual") as url:
        yield cast("servers.ApiServer", SimpleNamespace(url=url, token="dual", ca_file=None))


@pytest_asyncio.fixture(
    params=[
        servers.BUILTIN,
        pytest.param(servers.REAL, marks=[pytest.mark.envtest, pytest.mark.soak]),
    ]
)
async def dual_env(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Environment]:
    """An environment with an API server that gives Services addresses of both families."""
    opened: contextlib.AbstractAsyncContextManager[servers.ApiServer] = dual_builtin()
    if request.param == servers.REAL:
        opened = realserver.open_real_apiserver(
            servers.require_assets(),
            tmp_path / "server",
            extra_args=[f"--service-cluster-ip-range={BOTH_FAMILIES}"],
        )
    async with opened as server, harness.open_environment(server, tmp_path) as env:
        yield env


@pytest.mark.row("switch-over-07")
async def test_dual_stack_services_are_taken_over_without_a_write(dual_env: Environment) -> None:
    env = dual_env
    await settle_nodes(env)
    both = sorted([*MEMBERS, "fd00::2"])
    shapes: Mapping[str, tuple[Sequence[str], Mapping[str, Any]]] = {
        "single": (MEMBERS, {}),
        "preferring": (both, {"ipFamilyPolicy": "PreferDualStack"}),
        "requiring": (both, {"ipFamilyPolicy": "RequireDualStack"}),
        "sixth-first": (
            both,
            {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        ),
        "sixth": (["fd00::2"], {"ipFamilies": ["IPv6"]}),
    }
    for name, (members, shape) in shapes.items():
        service = await legacy.settle_service(env, name, members, **shape)
        assert len(load.ingress(service)) == len(service["spec"]["ipFamilies"])
    await taken_over(env)


@pytest.mark.row("switch-over-04")
@pytest.mark.both_servers
async def test_only_unfinished_work_of_the_reference_is_completed(
    env: Environment,
) -> None:
    await settle_nodes(env)
    await legacy.settle_service(env, "plain", MEMBERS)
    # It ended before the status was written, before the call, and before the finalizer.
    legacy.hold(env, await legacy.place_service(env, "statusless"), MEMBERS)
    await legacy.place_service(env, "unmade")
    await legacy.place_service(env, "untouched", finalizers=())
    # Changed in the cloud or the cluster, without a running manager.
    await legacy.settle_service(env, "unmarked", MEMBERS, finalizers=())
    await legacy.settle_service(env, "short", MEMBERS[1:])
    await legacy.settle_service(env, "altered", MEMBERS)
    await load.edit(env, "altered", {"spec": {"sessionAffinity": "ClientIP"}})
    # On the way out.
    await legacy.settle_service(env, "going", MEMBERS)
    await load.delete(env, "going")
    await legacy.settle_service(env, "retyped", MEMBERS)
    await load.edit(env, "retyped", {"spec": {"type": "ClusterIP"}})
    await legacy.place_service(env, "leftover", type="ClusterIP")
    await legacy.place_service(env, "held", finalizers=["example.com/keep"])
    await load.delete(env, "held")
    await legacy.place_service(env, "classed", loadBalancerClass=OTHER_CLASS)
    await load.delete(env, "classed")
    # A routed node without condition, and a node without its route.
    await legacy.place_node(
        env,
        "silent",
        ips=["10.0.0.7"],
        ranges=["10.244.7.0/24"],
        condition=None,
        labels={EXCLUDE: ""},
    )

    daemon = await started(env)

    assert load.ensures(daemon) == dict.fromkeys(
        [f"default/{name}" for name in ("unmade", "untouched", "short", "altered")], 1
    )
    assert patched(env, "services") == {
        "statusless": 1,
        "unmade": 1,
        "untouched": 2,
        "unmarked": 1,
        "going": 1,
        "retyped": 1,
        "leftover": 1,
    }
    assert patched(env, "nodes") == {"silent": 1}
    assert cloud_writes(env) == {
        "create_balancer": 2,
        "set_members": 3,
        "change_balancer": 1,
        "delete_balancer": 2,
    }
    found = await load.services_of_people(env)
    assert "going" not in found
    for name in ("plain", "statusless", "unmade", "untouched", "unmarked", "short", "altered"):
        assert load.shows_address(found[name], load.balancers(env)), name
        assert found[name]["metadata"]["finalizers"] == [F]
    for name in ("retyped", "leftover"):
        assert "finalizers" not in found[name]["metadata"]
        assert found[name]["status"] == {"loadBalancer": {}}
    assert found["held"]["metadata"]["finalizers"] == ["example.com/keep"]
    assert found["classed"]["metadata"]["finalizers"] == [F]
    assert await daemon.stop() == 0


@pytest.mark.row("switch-over-05")
async def test_settled_objects_have_the_shapes_of_the_reference(env: Environment) -> None:
    """No field, label, annotation or finalizer that the reference does not know."""
    hosts = {"alpha": "10.244.1.0/24", "beta": "10.244.2.0/24"}
    machines = {name: env.machine(name) for name in hosts}
    registered = {
        name: await env.cluster.register(
            name, ready=names.STATUS_TRUE, podCIDR=cidr, podCIDRs=[cidr]
        )
        for name, cidr in hosts.items()
    }
    given = {
        name: await legacy.place_service(env, name, **{"finalizers": (), **shape})
        for name, shape in {**SETTLED, **NONE_OF_OURS}.items()
    }
    daemon = await load.start(env, flags=legacy.FLAGS)
    await load.settled(env, services=len(SETTLED), members=len(hosts), but=["classed"])
    await load.routed(env)
    # One leaves again, and one no longer wants a load balancer.
    await load.delete(env, "local")
    await load.edit(env, "mixed", {"spec": {"type": "ClusterIP"}})
    given["mixed"] = (await load.services_of_people(env))["mixed"]
    await harness.wait_for(
        lambda: holds(env, len(SETTLED) - 2), "two leave", within_s=load.PATIENCE_S
    )
    await load.quiet(env)
    assert await daemon.stop() == 0

    found = await load.services_of_people(env)
    assert found.keys() == given.keys() - {"local"}
    served = SETTLED.keys() - {"local", "mixed"}
    wanted = {name: list(SETTLED[name].get("finalizers", [F])) for name in served}
    assert {name for name, service in found.items() if load.ingress(service)} == served
    assert [
        objection
        for name, service in found.items()
        for objection in legacy.objections(service, given[name], finalizers=wanted.get(name, ()))
    ] == []
    assert [
        objection
        for node in await env.cluster.items(harness.NODES)
        for objection in legacy.node_objections(
            node, registered[node["metadata"]["name"]], machines[node["metadata"]["name"]]
        )
    ] == []
    # Given up, so that another may lead at once.
    lease = await env.cluster.lease()
    assert lease["holderIdentity"] == ""
    known = {
        *("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime"),
        "leaseTransitions",
    }
    assert set(lease) <= known


async def holds(env: Environment, count: int) -> bool:
    """Whether the cloud has so many load balancers."""
    return len(load.balancers(env)) == count
