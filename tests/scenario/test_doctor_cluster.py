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

IMAGE = "registry/ccm:1"
PODS = "/api/v1/namespaces/kube-system/pods"
NAME = "cloud-controller-manager"
BESIDE = "1 beside this daemon: Lease kube-system"


async def held(
    env: Environment, name: str, holder: str, *, silent_s: float = 0.0, program: str = "test"
) -> None:
    """A manager has a Lease, which it wrote under the name of that program."""
    renewed = format_micro_time(datetime.now(UTC) - timedelta(seconds=silent_s))
    made = lease(name, holderIdentity=holder, leaseDurationSeconds=60, renewTime=renewed)
    made["metadata"]["managedFields"] = [
        {
            "manager": program,
            "operation": "Update",
            "apiVersion": "coordination.k8s.io/v1",
            "time": f"{renewed[:19]}Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:holderIdentity": {}, "f:renewTime": {}}},
        }
    ]
    await env.cluster.create(f"{LEASES}?fieldManager={program}", made)


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
    assert told.advice(told.troubles[0])[0].startswith("start the daemon")


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


@pytest.mark.both_servers
async def test_two_daemons_with_a_lease_each_whatever_its_name(env: Environment) -> None:
    await held(env, NAME, "ccm-1_1")
    await held(env, "second", "ccm-2_2")
    await env.cluster.create(PODS, pod("ccm-1", IMAGE, "sim"))
    words = ["--leader-elect-resource-name=second"]
    await env.cluster.create(PODS, pod("ccm-2", IMAGE, "sim", *words))

    told = await finds(
        env,
        f"fail  managers: {BESIDE}/second, held by ccm-2_2: Pod ccm-2 ",
    )
    routes = await examined(env, "--controllers=route")
    words.append("--controllers=*,-route")
    await env.cluster.create(PODS, pod("ccm-3", IMAGE, "sim", "--leader-elect=false", *words[1:]))
    shared = await examined(env, "--controllers=route,cloud-node")

    assert any("service-lb-controller" in line and "too" in line for line in told.lines)
    assert "--leader-elect-resource-name" in "".join(told.advice(told.troubles[0]))
    assert "node-route-controller too" in "".join(routes.lines)
    assert "Pod ccm-3 (registry/ccm:1, --cloud-provider=sim) without leader election: runs " in (
        "".join(shared.lines)
    )


@pytest.mark.both_servers
async def test_a_second_daemon_that_is_no_pod_is_known_by_what_it_renews(env: Environment) -> None:
    await held(env, NAME, "host-a_1", program=NAME)
    await held(env, "second", "host-b_2", program=NAME)

    told = await examined(env)

    second = f"warn  managers: {BESIDE}/second, held by host-b_2, renewed by {NAME}"
    assert second in told.troubles


@pytest.mark.both_servers
async def test_leases_of_others_are_no_managers(env: Environment) -> None:
    """Not of other controllers, of a daemon that stopped, or of ours under a second name."""
    await held(env, NAME, "node-1_1", program=NAME)
    await env.cluster.create(PODS, pod("ccm-1", IMAGE, "sim", node="node-1"))
    await held(env, "kube-controller-manager", "node-1_2", program="kube-controller-manager")
    await held(env, "cloud-provider-extraction-migration", "node-1_1", program=NAME)
    await held(env, "second", "ccm-2_2", program=NAME, silent_s=300)
    await held(env, "machine-controller", "host_3", program="machine-controller")

    assert (await examined(env)).troubles == []
    far = await examined(env, "--controllers=*,machine")
    assert not [line for line in far.troubles if "managers" in line]
    near = await examined(env, "--controllers=*,machine", "--namespace=kube-system")
    found = [line for line in near.troubles if "managers" in line]
    assert len(found) == 1
    assert found[0].startswith(f"warn  managers: {BESIDE}/machine-controller, held by host_3")


async def test_services_that_wait_while_no_daemon_works(env: Environment) -> None:
    await load.create(env, load.web("web"))

    told = await finds(
        env, "warn  services: 1 Service waits for a daemon, and none works: default/web"
    )
    assert told.advice(told.troubles[0])[0].startswith("start the daemon")

    await held(env, NAME, f"{socket.gethostname()}_1")
    assert (await examined(env)).troubles == []


async def test_service_of_a_class_nobody_claims(env: Environment) -> None:
    await held(env, NAME, f"{socket.gethostname()}_1")
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


def pod(name: str, image: str, provider: str, *words: str, node: str = "") -> dict[str, Any]:
    """A Pod with a manager, in the network of its node if it is given one."""
    container = {"name": "main", "image": image, "args": [f"--cloud-provider={provider}", *words]}
    spec = {"nodeName": node, "hostNetwork": True} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"containers": [container], **spec},
    }
