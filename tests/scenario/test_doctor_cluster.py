"""What `kube-ccm doctor` finds in the cluster: nodes, Pod ranges, Leases, Services, clocks."""

from __future__ import annotations

import re
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ccm.doctor import nodes
from ccm.model.times import format_micro_time
from tests.scenario import load
from tests.scenario.examination import (
    CIDR,
    add_node,
    examined,
    finds,
)
from tests.scenario.harness import Environment
from tests.scenario.objects import LEASES, lease

PODS = "/api/v1/namespaces/kube-system/pods"


async def held(env: Environment, name: str, holder: str, *, silent_s: float = 0.0) -> None:
    """A manager has a Lease."""
    renewed = format_micro_time(datetime.now(UTC) - timedelta(seconds=silent_s))
    made = lease(name, holderIdentity=holder, leaseDurationSeconds=15, renewTime=renewed)
    await env.cluster.create(LEASES, made)


async def test_node_without_instance(env: Environment) -> None:
    env.machine("n1")
    await env.cluster.register("n1.example.com")

    told = await finds(
        env,
        "fail  instances: 1 of 1 node has no instance: n1.example.com",
        "--configure-cloud-routes=false",
    )

    assert "      n1.example.com may be the instance n1" in told.lines
    assert "--hostname-override" in "".join(told.advice(told.troubles[0]))
    assert any("n1.example.com: it has no instance: none has its name" in x for x in told.lines)


@pytest.mark.parametrize(
    ("spec", "trouble", "detail"),
    [
        (
            {"providerID": "sim://i-404"},
            "warn  start: starting the daemon would delete Node n1, the route 10.244.1.0/24",
            "fail  instances: 1 of 1 node has no instance: n1",
        ),
        (
            {"providerID": "aws:///eu-1/i-1"},
            "warn  provider-ids: 1 of 1 node belongs to another cloud or manager: n1 (aws:///eu-1/i-1)",
            "",
        ),
        (
            {"providerID": ""},
            "warn  kubelets: 1 of 1 node has never waited for a cloud: n1",
            "",
        ),
        (
            {"podCIDR": "10.99.1.0/24"},
            f"fail  pod-cidrs: 1 Pod range lies outside --cluster-cidr={CIDR}: n1 (10.99.1.0/24)",
            "",
        ),
        (
            {"podCIDR": ""},
            "warn  pod-cidrs: 1 of 1 node has no Pod range, and so no route: n1",
            "",
        ),
    ],
    ids=["instance gone", "another cloud's", "no cloud's", "range outside", "no range"],
)
async def test_a_node_that_is_not_as_it_should_be(
    env: Environment, spec: dict[str, str], trouble: str, detail: str
) -> None:
    await add_node(env, **spec)

    assert detail in ["", *(await finds(env, trouble)).lines]


async def test_node_still_tainted(env: Environment) -> None:
    env.machine("n1")
    await env.cluster.register("n1", podCIDR="10.244.1.0/24", podCIDRs=["10.244.1.0/24"])

    told = await finds(env, "warn  taints: 1 node still tainted as uninitialized: n1 (new)")

    assert "      n1: no daemon works" in told.lines


async def test_node_tainted_for_long(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "PATIENCE_S", -10.0)
    env.machine("n1")
    await env.cluster.register("n1", podCIDR="10.244.1.0/24", podCIDRs=["10.244.1.0/24"])

    await finds(env, "fail  taints: 1 node still tainted as uninitialized: n1")


async def test_two_nodes_with_one_provider_id(env: Environment) -> None:
    await add_node(env)
    await add_node(env, "n2")
    one = (await env.cluster.get("/api/v1/nodes/n1") or {})["spec"]["providerID"]
    await env.cluster.register("n3", taints=[], podCIDR="10.244.3.0/24", providerID=one)

    told = await finds(
        env, f"fail  provider-ids: 1 provider ID of two nodes or more: {one} (n1, n3)"
    )

    assert told.code == 1


async def test_lease_held_by_a_stranger(env: Environment) -> None:
    await held(env, "cloud-controller-manager", "far-away_1")

    await finds(
        env,
        "warn  lease: kube-system/cloud-controller-manager is held by far-away_1, and no Pod of a "
        "daemon fits to it",
    )


async def test_lease_held_by_another_clouds_manager(env: Environment) -> None:
    await held(env, "cloud-controller-manager", "aws-ccm-1_1")
    await env.cluster.create(PODS, pod("aws-ccm-1", "registry/ccm:1", "aws"))

    shown = "Pod aws-ccm-1 (registry/ccm:1, --cloud-provider=aws)"
    told = await finds(
        env,
        "fail  lease: kube-system/cloud-controller-manager is held by aws-ccm-1_1, which belongs "
        f"to another cloud: {shown}",
    )

    assert told.troubles[1] == f"warn  managers: 1 beside this daemon: {shown}"


async def test_lease_held_by_a_replica_is_well(env: Environment) -> None:
    await held(env, "cloud-controller-manager", "ccm-1_1")
    await env.cluster.create(PODS, pod("ccm-1", "registry/ccm:1", "sim"))

    told = await examined(env)

    assert told.troubles == []


async def test_lease_held_by_a_daemon_of_this_machine_is_well(env: Environment) -> None:
    await held(env, "cloud-controller-manager", f"{socket.gethostname()}_1")

    assert (await examined(env)).troubles == []


async def test_lease_of_a_silent_holder(env: Environment) -> None:
    await held(env, "cloud-controller-manager", "gone_1", silent_s=300)

    await finds(
        env,
        "warn  lease: kube-system/cloud-controller-manager is held by gone_1, silent for 30",
    )


async def test_another_manager_with_a_lease_of_its_own(env: Environment) -> None:
    await held(env, "acme-cloud-controller-manager", "acme_1")

    await finds(
        env,
        "warn  managers: 1 beside this daemon: Lease kube-system/acme-cloud-controller-manager, "
        "held by acme_1",
    )


async def test_service_of_a_class_nobody_claims(env: Environment) -> None:
    await load.create(env, load.web("web", loadBalancerClass="acme.example/fast"))

    await finds(
        env,
        "warn  services: 1 Service without a load balancer, and not ours: default/web "
        "(class acme.example/fast)",
    )
    claimed = await examined(env, "--load-balancer-classes=acme.example/fast")

    assert claimed.troubles == []


async def test_clock_skew(env: Environment) -> None:
    """The server tells whole seconds, and asking takes a while."""
    ahead = await finds(env, "fail  clock: our clock is ", by=timedelta(seconds=301))
    behind = await finds(env, "warn  clock: our clock is ", by=timedelta(seconds=-20))

    told = re.search(r"is (\d+) s ahead of the API server's$", ahead.troubles[0])
    assert told is not None, ahead.troubles
    assert int(told[1]) in range(295, 308)
    assert behind.troubles[0].endswith(" s behind the API server's")


async def test_namespace_of_the_lease_missing(env: Environment) -> None:
    await finds(
        env,
        "fail  lease: the namespace nowhere of the Lease does not exist",
        "--leader-elect-resource-namespace=nowhere",
    )


def pod(name: str, image: str, provider: str) -> dict[str, Any]:
    container = {"name": "main", "image": image, "args": [f"--cloud-provider={provider}"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"containers": [container]},
    }
