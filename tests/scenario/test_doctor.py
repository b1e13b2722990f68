"""`kube-ccm doctor`: each planted fault is reported, and healthy clusters are not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ccm.cli import doctor
from ccm.doctor import nodes
from ccm.doctor.permissions import Permission, needed_permissions
from ccm.model.times import format_micro_time
from ccm.sandbox import process, realserver
from tests import servers
from tests.manifests import shipped
from tests.scenario import load
from tests.scenario.examination import add_node, examined, finds
from tests.scenario.harness import LEASES, Environment, install, lease

OTHER_CA = Path(__file__).parent.parent / "unit" / "kube" / "certs" / "authority-one.pem"
SYSTEM = "/api/v1/namespaces/kube-system"
PODS, SECRETS, ACCOUNTS = f"{SYSTEM}/pods", f"{SYSTEM}/secrets", f"{SYSTEM}/serviceaccounts"
DEPLOYMENTS = "/apis/apps/v1/namespaces/kube-system/deployments"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAME = shipped.NAME
IMAGE = "registry.example/kube-ccm:1"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": NAME}
HERE = f"{socket.gethostname()}_1"
"""Identity of a leader on this machine."""

Plant = Callable[[Environment], Awaitable[Any]]


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


async def pod(
    env: Environment, name: str, *words: str, provider: str = "sim", node: str = "", **status: Any
) -> None:
    """A Pod with a manager, in the network of its node if it is given one."""
    container = {"name": "main", "image": IMAGE, "args": [f"--cloud-provider={provider}", *words]}
    spec = {"nodeName": node, "hostNetwork": True} if node else {}
    meta: dict[str, Any] = {"name": name, **({"labels": LABELS} if status else {})}
    body = {"metadata": meta, "spec": {"containers": [container], **spec}}
    await env.cluster.create(PODS, body)
    if status:
        one = {"name": "main", "image": IMAGE, "imageID": "", "restartCount": 0, **status}
        given = {"phase": "Running", "containerStatuses": [one]}
        await env.cluster.patch(f"{PODS}/{name}/status", {"status": given})


async def tainted(env: Environment) -> None:
    env.machine("n1")
    await env.cluster.register("n1", podCIDR="10.244.1.0/24", podCIDRs=["10.244.1.0/24"])


async def named_otherwise(env: Environment) -> None:
    env.machine("n1")
    await env.cluster.register("n1.example.com")


async def one_id_twice(env: Environment) -> None:
    await add_node(env)
    one = (await env.cluster.get("/api/v1/nodes/n1") or {})["spec"]["providerID"]
    await env.cluster.register("n3", taints=[], podCIDR="10.244.3.0/24", providerID=one)


async def led_from_another_cloud(env: Environment) -> None:
    await held(env, NAME, "aws-ccm-1_1")
    await pod(env, "aws-ccm-1", provider="aws")


async def unclaimed_service(env: Environment) -> None:
    await held(env, NAME, HERE)
    await load.create(env, load.web("web", loadBalancerClass="acme.example/fast"))


async def broken_cloud_config(env: Environment) -> None:
    env.cloud_config.write_text("url: nowhere\ntimeout: soon\n")


async def wrong_cloud_token(env: Environment) -> None:
    env.configure_cloud(token="not-the-token")


async def absent_cloud(env: Environment) -> None:
    env.configure_cloud(url=f"http://{process.LOOPBACK}:{process.pick_port()}")


async def silent_cloud(env: Environment) -> None:
    """It costs one deadline, not patience."""
    env.configure_cloud(timeout="30s")
    env.cloud.settings = msgspec.structs.replace(env.cloud.settings, latency_s=30.0)


async def nothing(env: Environment) -> None:
    """What is wrong is on the command line."""


def node(**spec: str) -> Plant:
    return lambda env: add_node(env, **spec)


PLANTED: Mapping[str, tuple[Plant, str, str, str]] = {
    "no kubeconfig": (nothing, "--kubeconfig=/none", "fail  kubeconfig: /none: ", ""),
    "unknown provider": (nothing, "--cloud-provider=sin", "fail  provider: ", "'sim'"),
    "no provider": (
        *(nothing, "--cloud-provider=", "fail  provider: "),
        "hcloud, openstack, sim, stackit",
    ),
    "no cloud config": (nothing, "--cloud-config=/none", "fail  cloud-config: ", "=/none"),
    "idle flag": (
        *(nothing, "--allocate-node-cidrs=true", "warn  flags: 4 settings given: "),
        "--allocate-node-cidrs",
    ),
    "webhooks without their gate": (
        *(nothing, "--webhooks=*", "warn  flags: 5 settings given: --webhooks=* "),
        "--feature-gates=",
    ),
    "no range": (nothing, "--cluster-cidr=", "fail  controllers: node-route-controller ", ""),
    "cloud config": (broken_cloud_config, "", "fail  cloud-config: ", "timeout is 'soon'"),
    "cloud token": (wrong_cloud_token, "", "fail  cloud: ", "the cloud rejects the credentials"),
    "absent cloud": (absent_cloud, "", "fail  cloud: ", "the cloud does not answer"),
    "silent cloud": (silent_cloud, "--timeout=6s", "fail  cloud: ", "not finished within 6 s"),
    "node of another name": (
        *(named_otherwise, "--configure-cloud-routes=false"),
        *("fail  instances: 1 of 1 node ", "n1.example.com may be the instance n1"),
    ),
    "instance gone": (
        node(providerID="sim://i-404"),
        *("", "warn  start: ", "fail  instances: 1 of 1 node has no instance: n1"),
    ),
    "node of another cloud": (
        node(providerID="aws:///eu-1/i-1"),
        *("", "warn  provider-ids: 1 of 1 node ", "n1 (aws:///eu-1/i-1)"),
    ),
    "node of no cloud": (node(providerID=""), "", "warn  kubelets: 1 of 1 node ", "n1"),
    "range outside": (
        node(podCIDR="10.99.1.0/24"),
        *("", "fail  pod-cidrs: 1 Pod range ", "n1 (10.99.1.0/24)"),
    ),
    "node without a range": (node(podCIDR=""), "", "warn  pod-cidrs: 1 of 1 node ", "n1"),
    "new node": (tainted, "", "warn  taints: 1 node ", "n1 (new)"),
    "one ID twice": (one_id_twice, "", "fail  provider-ids: 1 provider ID ", "(n1, n3)"),
    "a stranger leads": (
        *(lambda env: held(env, NAME, "far-away_1"), ""),
        *("warn  lease: ", "held by far-away_1"),
    ),
    "another cloud's leads": (led_from_another_cloud, "", "fail  lease: ", "aws-ccm-1_1"),
    "a silent one leads": (
        *(lambda env: held(env, NAME, "gone_1", silent_s=86_400), ""),
        *("warn  lease: ", "held by gone_1, not renewed for 86"),
    ),
    "another manager": (
        *(lambda env: held(env, f"acme-{NAME}", "acme_1"), ""),
        *("warn  managers: 1 other manager: ", f"acme-{NAME}, held by acme_1"),
    ),
    "a service waits": (
        lambda env: load.create(env, load.web("web")),
        *("", "warn  services: 1 Service ", "default/web"),
    ),
    "a service of nobody": (
        *(unclaimed_service, "", "warn  services: 1 Service "),
        "default/web (class acme.example/fast)",
    ),
    "no namespace": (
        *(nothing, "--leader-elect-resource-namespace=nowhere"),
        *("fail  lease: ", "nowhere"),
    ),
}
"""Planted fault, an argument, the first trouble, and another part of the output."""


@servers.only_builtin
@pytest.mark.parametrize("name", PLANTED)
async def test_doctor_reports_each_planted_fault(env: Environment, name: str) -> None:
    plant, word, trouble, also = PLANTED[name]
    await plant(env)

    told = await finds(env, trouble, *([word] if word else []))

    assert also in "\n".join(told.lines)
    assert "not-the-token" not in "\n".join(told.lines)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (nothing, []),
        (node(), []),
        (lambda env: held(env, NAME, HERE), []),
        (unclaimed_service, ["--load-balancer-classes=acme.example/fast"]),
    ],
    ids=["empty", "a node", "led from this machine", "a class that is claimed"],
)
@servers.only_builtin
async def test_doctor_reports_a_healthy_cluster_as_healthy(
    env: Environment, plant: Plant, words: list[str]
) -> None:
    await plant(env)

    told = await examined(env, *words)
    found = json.loads("\n".join((await examined(env, *words, "-o", "json")).lines))

    assert (told.troubles, told.code, found["healthy"]) == ([], 0, True)
    assert [check["check"] for check in found["checks"]] == [
        line[6:].partition(":")[0] for line in told.lines if line[:4].strip() and line[4:6] == "  "
    ]


async def test_doctor_writes_nothing(env: Environment) -> None:
    """Only reads and access reviews at the API server, only reads in the cloud."""
    await env.node("n1")
    proxy = await env.new_proxy()
    kubeconfig = env.folder / "proxied.kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=proxy.url, token=env.server.token)

    await examined(env, f"--kubeconfig={kubeconfig}")

    asked = {one.path.rpartition("/")[2] for one in proxy.log if one.method != "GET"}
    assert asked <= {"selfsubjectreviews", "selfsubjectaccessreviews"}
    assert len(proxy.log) > 10
    asked = {one.operation for one in env.calls()}
    assert asked <= {"list_instances", "get_instance", "list_balancers", "list_routes"}


async def test_doctor_reports_an_invalid_kubeconfig_or_connection(env: Environment) -> None:
    kubeconfig = env.folder / "wrong.kubeconfig"
    way = f"--kubeconfig={kubeconfig}"
    is_real = isinstance(env.server, realserver.RealServer)

    kubeconfig.write_text("clusters: [")
    told = await finds(env, f"fail  kubeconfig: {kubeconfig}: is not valid YAML", way)
    assert [line for line in told.lines if line.startswith("      skipped as a result: ")]
    assert [line for line in told.lines if line.startswith("skip")] == []

    absent = f"http://{process.LOOPBACK}:{process.pick_port()}"
    realserver.write_kubeconfig(kubeconfig, url=absent, token="x")
    told = await finds(env, f"fail  server: {absent}: ", way)
    assert any(line.startswith("ok    cloud: ") for line in told.lines)

    write = realserver.write_kubeconfig
    write(kubeconfig, url=env.server.url, token="expired", ca_file=env.server.ca_file)
    await finds(env, "fail  identity: ", way)
    if is_real:
        write(kubeconfig, url=env.server.url, token="x", ca_file=OTHER_CA)
        await finds(env, f"fail  server: {env.server.url}: its certificate is not trusted: ", way)


HANGING = """
import time
from ccm import cloud

@cloud.provider(sdk="2.0")
async def open_cloud(context):
    time.sleep(600)
    yield cloud.Cloud(name="hanging", has_cluster_id=True)
"""


@servers.only_builtin
async def test_doctor_ends_although_the_provider_blocks_the_event_loop(env: Environment) -> None:
    """Earlier results are printed before the time-out."""
    words = ["--cloud-provider=hanging", f"--kubeconfig={env.server.kubeconfig_path}"]

    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ccm.cli", "doctor", "--timeout=2s", *words),
        env={**os.environ, **install(env.folder, "hanging", HANGING)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaint = await asyncio.wait_for(child.communicate(), 50)

    assert child.returncode == 1
    assert b"\nok    provider: hanging " in said
    assert complaint.startswith(b"kube-ccm doctor: cloud-config: ")


@servers.only_builtin
async def test_doctor_reports_clock_differences_and_late_nodes(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers in whole seconds, and each request takes time."""
    ahead = await finds(env, "fail  clock: local clock is ", by=timedelta(seconds=301))
    behind = await finds(env, "warn  clock: local clock is ", by=timedelta(seconds=-20))
    told = re.search(r"is (\d+) s ahead of", ahead.troubles[0])
    assert told is not None, ahead.troubles
    assert int(told[1]) in range(295, 308)
    assert "behind" in behind.troubles[0]

    monkeypatch.setattr(nodes, "LATE_AFTER_S", -10.0)
    await tainted(env)
    await finds(env, "fail  taints: 1 node ")


# --- other managers -----------------------------------------------------------------------------


def about(told: Any, check: str) -> str:
    """The trouble of a check; empty = none."""
    return "".join(line for line in told.troubles if line[6:].startswith(f"{check}: "))


@pytest.mark.both_servers
async def test_doctor_reports_two_active_daemons_with_different_leases(env: Environment) -> None:
    await held(env, NAME, "ccm-1_1")
    await held(env, "second", "ccm-2_2")
    await pod(env, "ccm-1")
    words = ["--leader-elect-resource-name=second"]
    await pod(env, "ccm-2", *words)

    told = await examined(env)
    routes = await examined(env, "--controllers=route")
    await pod(env, "ccm-3", "--leader-elect=false", "--controllers=*,-route")
    shared = await examined(env, "--controllers=route,cloud-node")

    assert about(told, "managers").startswith("fail")
    assert "kube-system/second, held by ccm-2_2: Pod ccm-2 " in about(told, "managers")
    assert any("service-lb-controller" in line and "too" in line for line in told.lines)
    assert words[0].partition("=")[0] in "".join(told.advice(about(told, "managers")))
    assert "node-route-controller too" in "".join(routes.lines)
    assert "Pod ccm-3 " in "".join(shared.lines)


@pytest.mark.both_servers
async def test_doctor_ignores_leases_that_no_other_active_daemon_renews(
    env: Environment,
) -> None:
    """Leases of other controllers, of a stopped daemon, and our own second Lease."""
    await held(env, NAME, "node-1_1", program=NAME)
    await pod(env, "ccm-1", node="node-1")
    await held(env, "kube-controller-manager", "node-1_2", program="kube-controller-manager")
    await held(env, "cloud-provider-extraction-migration", "node-1_1", program=NAME)
    await held(env, "second", "ccm-2_2", program=NAME, silent_s=300)
    await held(env, "machine-controller", "host_3", program="machine-controller")

    assert (await examined(env)).troubles == []
    assert about(await examined(env, "--controllers=*,machine"), "managers") == ""
    near = await examined(env, "--controllers=*,machine", "--namespace=kube-system")
    assert "/machine-controller, held by host_3" in about(near, "managers")

    await held(env, "third", "host-b_2", program=NAME)
    assert f"/third, held by host-b_2, renewed by {NAME}" in about(await examined(env), "managers")


# --- the deployment -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def installed(
    env: Environment, *, ready: int = 2, provider: str = "sim", keys: tuple[str, ...] | None = None
) -> AsyncIterator[None]:
    """The base's Deployment with an image and a provider, so many replicas of it ready."""
    made = shipped.only(shipped.objects(shipped.MANIFESTS / "deployment.yaml"), "Deployment")
    container = made["spec"]["template"]["spec"]["containers"][0]
    container["image"] = IMAGE
    container["args"].append(f"--cloud-provider={provider}")
    paths = [f"{DEPLOYMENTS}/{NAME}"]
    await env.cluster.create(DEPLOYMENTS, made)
    status = {"replicas": 2, "readyReplicas": ready, "availableReplicas": ready}
    await env.cluster.patch(f"{DEPLOYMENTS}/{NAME}/status", {"status": status})
    if keys is not None:
        secret = {"metadata": {"name": "cloud-config"}, "stringData": dict.fromkeys(keys, "x")}
        await env.cluster.create(SECRETS, secret)
        paths.append(f"{SECRETS}/cloud-config")
    try:
        yield
    finally:
        for path in paths:
            await env.cluster.delete(path)


@pytest.mark.both_servers
async def test_doctor_reports_faults_of_deployment_secret_and_lease(env: Environment) -> None:
    async with installed(env, keys=("cloud.yaml",)):
        unled = await examined(env)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}
    await pod(env, "ccm-0", node="node-1", ready=False, state=waiting)
    for ready, verdict in enumerate(("fail", "warn")):
        async with installed(env, ready=ready, keys=("cloud.yaml",)):
            told = await finds(env, f"{verdict}  deployment: ")
            assert "      Pod ccm-0: ImagePullBackOff: no" in told.lines
    await env.cluster.delete(f"{PODS}/ccm-0?gracePeriodSeconds=0")
    await add_node(env)
    await held(env, NAME, "node-1_abc")
    await pod(env, "ccm-1", node="node-1", ready=True, state={"running": {}})
    async with installed(env, keys=("cloud.yaml",)):
        well = await examined(env)
    async with installed(env, provider="acme", keys=("cloud.yaml",)):
        await finds(env, "warn  deployment: ")
    async with installed(env):
        without = await finds(env, "fail  secrets: kube-system lacks the Secret cloud-config")
    async with installed(env, keys=("clouds.yaml",)):
        await finds(env, "fail  secrets: kube-system lacks the key cloud.yaml ")

    assert about(unled, "lease").startswith("warn")
    assert (well.troubles, well.code) == ([], 0)
    lines = "\n".join(well.lines)
    assert f"ok    deployment: kube-system/{NAME}, image {IMAGE}: 2 of 2 " in lines
    assert "ok    secrets: " in lines
    assert f"ok    lease: kube-system/{NAME} is held by node-1_abc: Pod ccm-1 " in lines
    assert "create secret generic cloud-config" in without.advice(without.troubles[0])[0]


# --- rights, of which only a real API server knows ------------------------------------------------


@contextlib.asynccontextmanager
async def account(env: Environment, granted: list[Permission]) -> AsyncIterator[str]:
    """The kubeconfig, as a flag, of a service account that may do this and nothing else."""
    name = "doctor-test"
    rules = [
        {
            "apiGroups": [need.group],
            "resources": [need.resource],
            "resourceNames": [need.name] if need.name else [],
            "verbs": [need.verb],
        }
        for need in granted
    ]
    meta = {"metadata": {"name": name}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}
    made: dict[str, dict[str, Any]] = {
        ACCOUNTS: meta,
        f"{RBAC}/clusterroles": {**meta, "rules": rules},
        f"{RBAC}/clusterrolebindings": {**meta, "roleRef": reference, "subjects": [subject]},
    }
    for path, body in made.items():
        await env.cluster.create(path, body)
    asked = await env.cluster.create(f"{ACCOUNTS}/{name}/token", {"spec": {}})
    file, server = env.folder / "account.kubeconfig", env.server
    token = asked["status"]["token"]
    realserver.write_kubeconfig(file, url=server.url, token=token, ca_file=server.ca_file)
    try:
        yield f"--kubeconfig={file}"
    finally:
        for path in made:
            await env.cluster.delete(f"{path}/{name}")


@servers.only_real
async def test_doctor_reports_missing_permissions_of_the_account(env: Environment) -> None:
    """With exactly the rights of its table, the account's own check passes."""
    user = "system:serviceaccount:kube-system:doctor-test"
    wanted = needed_permissions(doctor.read(["--cloud-provider=sim"]).options)
    status = ("patch", "nodes/status")
    await add_node(env)
    async with account(env, wanted) as way:
        told = await examined(env, way)
        about_others = await examined(env, way, "--as=somebody")
    granted = [need for need in wanted if (need.verb, need.resource) != status]
    async with account(env, granted) as way:
        lacking = await finds(env, f"fail  permissions: 1 of {len(wanted)} ", way)
        asked = await examined(env, f"--as={user}")
        without = await examined(env, way, "--controllers=service,cloud-node-lifecycle")
    async with account(env, []) as way:
        none = await examined(env, way)

    assert told.troubles == []
    assert f"ok    permissions: all {len(wanted)} " in "\n".join(told.lines)
    skipped = [line for line in told.lines if line.startswith("skip")]
    assert [line for line in skipped if "journal" not in line] == skipped[-1:]
    assert skipped[-1].endswith("skipped: deployment, secrets, webhooks")
    assert about(about_others, "permissions").startswith("warn")
    assert "patch nodes/status" in lacking.troubles[0]
    # Such an account belongs to a Pod, where the daemon also authenticates its callers.
    lackings = "patch nodes/status, create tokenreviews, create subjectaccessreviews"
    assert lackings in about(asked, "permissions")
    assert without.troubles == []
    # The permissions are reported alone; no other check fails for the same cause.
    fails = [line[6:].partition(":")[0] for line in none.lines if line.startswith("fail")]
    assert fails == ["permissions"]
