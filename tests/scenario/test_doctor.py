"""What `ccm doctor` finds: one planted fault after the other, and the first line about it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from ccm.base.clock import SystemClock
from ccm.cli import doctor
from ccm.doctor.needs import Need, needs
from ccm.model.times import format_micro_time
from ccm.sandbox import ports, realserver
from tests import servers
from tests.scenario.harness import Stage

CIDR = "10.244.0.0/16"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
PODS = "/api/v1/namespaces/kube-system/pods"
SERVICES = "/api/v1/namespaces/default/services"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"

WITHOUT_IDENTITY = "warn  identity: the API server does not say who we are"
"""The built-in server's one lack."""

OTHER_CA = Path(__file__).parent.parent / "unit" / "kube" / "certs" / "authority-one.pem"

only_real = pytest.mark.parametrize(
    "api_server", [pytest.param(servers.REAL, marks=pytest.mark.envtest)], indirect=True
)
only_builtin = pytest.mark.parametrize("api_server", [servers.BUILTIN], indirect=True)
"""For what has nothing to do with the API server."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the command printed, and its exit status."""

    code: int
    lines: list[str]

    @property
    def troubles(self) -> list[str]:
        """The first line of each finding that is not ok."""
        return [
            line
            for line in self.lines
            if line.startswith(("warn", "fail")) and not line.startswith(WITHOUT_IDENTITY)
        ]

    def advice(self, first: str) -> list[str]:
        """What to do next about a finding."""
        rest = self.lines[self.lines.index(first) + 1 :]
        found = []
        for line in rest:
            if not line.startswith(" "):
                break
            if line.startswith("      next: "):
                found.append(line.removeprefix("      next: "))
        return found


class Shifted(SystemClock):
    """A clock that is wrong."""

    def __init__(self, by: timedelta) -> None:
        self._by = by

    def now(self) -> datetime:
        return super().now() + self._by


async def examined(
    stage: Stage, *words: str, by: timedelta = timedelta(0), environ: Mapping[str, str] = {}
) -> Told:
    """Run the command with the flags of a daemon; later words win."""
    said = io.StringIO()
    wanted = doctor.read(
        [
            f"--kubeconfig={stage.server.kubeconfig_path}",
            "--cloud-provider=sim",
            f"--cloud-config={stage.cloud_config}",
            f"--cluster-cidr={CIDR}",
            *words,
        ]
    )
    code = await doctor.answer(wanted, said, environ=environ, clock=Shifted(by))
    print(said.getvalue())
    return Told(code=code, lines=said.getvalue().splitlines())


async def finds(stage: Stage, trouble: str, *words: str, **how: Any) -> Told:
    """Prove that the first trouble is this one, that it says what to do, and the exit status."""
    told = await examined(stage, *words, **how)
    assert told.troubles[:1] == [trouble]
    assert told.advice(trouble) != []
    assert told.code == (1 if any(line.startswith("fail") for line in told.lines) else 0)
    return told


async def add_node(stage: Stage, name: str = "n1", **spec: str) -> None:
    """A machine and its node, initialised unless the spec says otherwise."""
    machine = stage.machine(name)
    given = {"providerID": f"sim://{machine.id}", "podCIDR": "10.244.1.0/24", **spec}
    given = {key: value for key, value in given.items() if value}
    cidrs = [given["podCIDR"]] if "podCIDR" in given else []
    await stage.cluster.register(name, taints=[], podCIDRs=cidrs, **given)


async def post(stage: Stage, path: str, body: Mapping[str, Any], **headers: str) -> dict[str, Any]:
    """Create an object."""
    async with (
        servers.connect(stage.server) as session,
        session.post(path, json=body, headers=headers) as response,
    ):
        assert response.status == 201, await response.text()
        return dict(await response.json())


def lease(name: str, holder: str, *, silent_s: float = 0.0) -> dict[str, Any]:
    renewed = datetime.now(UTC) - timedelta(seconds=silent_s)
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": 15,
        "renewTime": format_micro_time(renewed),
    }
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": spec,
    }


async def test_where_all_is_well_it_says_so(stage: Stage) -> None:
    """No trouble, exit status 0; as JSON too."""
    await add_node(stage)

    told = await examined(stage)
    as_json = await examined(stage, "-o", "json")

    assert (told.troubles, told.code) == ([], 0)
    found = json.loads("\n".join(as_json.lines))
    assert found["healthy"] is True
    assert "ok    instances: 1 node looked for, each has its instance" in told.lines
    assert [check["check"] for check in found["checks"]] == [
        line[6:].partition(":")[0] for line in told.lines if line[:4].strip() and line[4:6] == "  "
    ]


async def test_nothing_is_written(stage: Stage) -> None:
    """No request but questions, at the API server and at the cloud."""
    await stage.node("n1")
    wire = await stage.new_wire()
    kubeconfig = stage.folder / "wired.kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=wire.url, token=stage.server.token)

    await examined(stage, f"--kubeconfig={kubeconfig}")

    asked = {one.path.rpartition("/")[2] for one in wire.log if one.method != "GET"}
    assert asked <= {"selfsubjectreviews", "selfsubjectaccessreviews"}
    assert len(wire.log) > 10
    assert {one.operation for one in stage.calls()} <= {"list_instances", "get_instance"}


@only_builtin
async def test_kubeconfig_missing(stage: Stage, tmp_path: Path) -> None:
    await finds(
        stage,
        f"fail  kubeconfig: {tmp_path}/none: no such file",
        f"--kubeconfig={tmp_path}/none",
    )


@only_builtin
async def test_kubeconfig_broken(stage: Stage, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("clusters: [")

    await finds(
        stage,
        f"fail  kubeconfig: {broken}: cannot be read: while parsing a flow node expected the node "
        f"content, but found '<stream end>' in \"{broken}\", line 1, column 12",
        f"--kubeconfig={broken}",
    )


@only_real
async def test_wrong_authority(stage: Stage, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=stage.server.url, token="x", ca_file=OTHER_CA)

    told = await examined(stage, f"--kubeconfig={kubeconfig}")

    # What follows are the TLS library's own words, which change from version to version.
    start, words = told.troubles[0].split(" is not trusted: ")
    assert start == f"fail  server: {stage.server.url}: its certificate"
    assert "certificate" in words
    assert told.advice(told.troubles[0]) != []
    assert told.code == 1


@only_builtin
async def test_server_unreachable(stage: Stage, tmp_path: Path) -> None:
    url = f"http://{ports.LOOPBACK}:{ports.pick_port()}"
    kubeconfig = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=url, token="x")

    told = await finds(
        stage,
        f"fail  server: {url}: nothing listens there, or no way leads there",
        f"--kubeconfig={kubeconfig}",
    )

    # The provider and its cloud are looked at all the same.
    assert any(line.startswith("ok    cloud: the cloud answers") for line in told.lines)


async def test_token_rejected(stage: Stage, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(
        kubeconfig, url=stage.server.url, token="expired", ca_file=stage.server.ca_file
    )

    await finds(
        stage,
        "fail  identity: the API server does not accept our credentials",
        f"--kubeconfig={kubeconfig}",
    )


@only_builtin
async def test_unknown_provider(stage: Stage) -> None:
    await finds(
        stage,
        "fail  provider: unknown cloud provider 'sin'; did you mean 'sim'? Installed providers: "
        "sim",
        "--cloud-provider=sin",
    )


@only_builtin
async def test_no_provider_given(stage: Stage) -> None:
    await finds(
        stage,
        "fail  provider: --cloud-provider is not given; installed: sim",
        "--cloud-provider=",
    )


@only_builtin
async def test_cloud_config_missing(stage: Stage, tmp_path: Path) -> None:
    await finds(
        stage,
        f"fail  cloud-config: --cloud-config={tmp_path}/none cannot be read: "
        "No such file or directory",
        f"--cloud-config={tmp_path}/none",
    )


@only_builtin
async def test_cloud_config_broken(stage: Stage) -> None:
    stage.cloud_config.write_text("url: nowhere\ntimeout: soon\n")

    told = await finds(
        stage,
        f"fail  cloud-config: {stage.cloud_config}: url is 'nowhere'; it must look like "
        "http://host:port",
    )

    assert any("token is missing" in line for line in told.lines)
    assert any("timeout is 'soon'" in line for line in told.lines)


@only_builtin
async def test_cloud_credentials_wrong(stage: Stage) -> None:
    stage.configure_cloud(token="not-the-token")

    told = await examined(stage)

    assert told.troubles[0].startswith("fail  cloud: the cloud does not accept the credentials: ")
    assert "not-the-token" not in "\n".join(told.lines)


@only_builtin
async def test_cloud_unreachable(stage: Stage) -> None:
    stage.configure_cloud(url=f"http://{ports.LOOPBACK}:{ports.pick_port()}")

    told = await examined(stage)

    assert told.troubles[0].startswith("fail  cloud: the cloud does not answer: ")


@only_builtin
async def test_cloud_silent(stage: Stage) -> None:
    """A cloud that accepts and says nothing costs one deadline, not patience."""
    stage.configure_cloud(timeout="30s")
    stage.cloud.settings = msgspec.structs.replace(stage.cloud.settings, latency_s=30.0)

    await finds(stage, "fail  cloud: not finished within 1 s", "--timeout=1s")


async def test_node_without_instance(stage: Stage) -> None:
    stage.machine("n1")
    await stage.cluster.register("n1.example.com")

    told = await finds(
        stage,
        "fail  instances: 1 of 1 node has no instance: n1.example.com",
        "--configure-cloud-routes=false",
    )

    assert "      n1.example.com may be the instance n1" in told.lines
    assert "--hostname-override" in "".join(told.advice(told.troubles[0]))
    assert any("n1.example.com: it has no instance: none has its name" in x for x in told.lines)


async def test_instance_gone(stage: Stage) -> None:
    await add_node(stage, providerID="sim://i-404")

    told = await finds(stage, "fail  instances: 1 of 1 node has no instance: n1")

    assert "      n1: sim://i-404 is gone" in told.lines


async def test_foreign_provider_id(stage: Stage) -> None:
    await add_node(stage, providerID="aws:///eu-1/i-1")

    await finds(
        stage,
        "warn  provider-ids: 1 of 1 node belongs to another cloud: n1 (aws:///eu-1/i-1)",
    )


async def test_kubelet_without_external(stage: Stage) -> None:
    await add_node(stage, providerID="")

    await finds(stage, "warn  kubelets: 1 of 1 node has never waited for a cloud: n1")


async def test_node_still_tainted(stage: Stage) -> None:
    stage.machine("n1")
    await stage.cluster.register("n1", podCIDR="10.244.1.0/24", podCIDRs=["10.244.1.0/24"])

    told = await finds(stage, "warn  taints: 1 node still tainted as uninitialized: n1 (new)")

    assert "      n1: no daemon works" in told.lines


HANGING = """
import time
from ccm import cloud

@cloud.provider(sdk="1.0")
async def open_cloud(context):
    time.sleep(600)
    yield cloud.Cloud(name="hanging")
"""


@only_builtin
async def test_a_provider_that_blocks_everything(stage: Stage) -> None:
    """Not even then the command hangs; what was found before is printed already."""
    site = stage.folder / "site"
    info = site / "ccm_hanging-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "ccm_hanging.py").write_text(HANGING)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ccm-hanging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ccm.providers]\nhanging = ccm_hanging:open_cloud\n")
    words = ["--cloud-provider=hanging", f"--kubeconfig={stage.server.kubeconfig_path}"]

    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ccm.cli", "doctor", "--timeout=2s", *words),
        env={**os.environ, "PYTHONPATH": str(site)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaint = await asyncio.wait_for(child.communicate(), 50)

    assert child.returncode == 1
    assert b"\nok    provider: hanging (ccm_hanging:open_cloud, ccm-hanging 1.0)\n" in said
    assert complaint == b"ccm doctor: cloud-config: hangs and cannot be cancelled, given up\n"


@only_builtin
async def test_flags_without_effect(stage: Stage) -> None:
    await finds(
        stage,
        "warn  flags: 5 settings given: --allocate-node-cidrs has no effect: no controller of this "
        "daemon hands out addresses",
        "--allocate-node-cidrs=true",
    )


@only_builtin
async def test_node_tainted_for_long(stage: Stage) -> None:
    """A server that tells no time is believed to have ours."""
    stage.machine("n1")
    await stage.cluster.register("n1", podCIDR="10.244.1.0/24", podCIDRs=["10.244.1.0/24"])

    await finds(
        stage,
        "fail  taints: 1 node still tainted as uninitialized: n1",
        by=timedelta(minutes=10),
    )


async def test_pod_range_outside(stage: Stage) -> None:
    await add_node(stage, podCIDR="10.99.1.0/24")

    await finds(
        stage,
        f"fail  pod-cidrs: 1 Pod range lies outside --cluster-cidr={CIDR}: n1 (10.99.1.0/24)",
    )


@only_builtin
async def test_no_cluster_cidr_while_routes_are_on(stage: Stage) -> None:
    await finds(
        stage,
        "fail  controllers: node-route-controller cannot start: --cluster-cidr is empty; expected "
        "the range of the cluster's Pods, like 10.244.0.0/16",
        "--cluster-cidr=",
    )


async def test_node_without_pod_range(stage: Stage) -> None:
    await add_node(stage, podCIDR="")

    await finds(stage, "warn  pod-cidrs: 1 of 1 node has no Pod range, and so no route: n1")


async def test_lease_held_by_a_stranger(stage: Stage) -> None:
    await post(stage, LEASES, lease("cloud-controller-manager", "far-away_1"))

    await finds(
        stage,
        "warn  lease: kube-system/cloud-controller-manager is held by far-away_1, and no Pod of a "
        "daemon fits to it",
    )


async def test_lease_held_by_another_clouds_manager(stage: Stage) -> None:
    await post(stage, LEASES, lease("cloud-controller-manager", "aws-ccm-1_1"))
    await post(stage, PODS, pod("aws-ccm-1", "registry/cloud-controller-manager:v1", "aws"))

    shown = "Pod aws-ccm-1 (registry/cloud-controller-manager:v1, --cloud-provider=aws)"
    told = await finds(
        stage,
        "fail  lease: kube-system/cloud-controller-manager is held by aws-ccm-1_1, which belongs "
        f"to another cloud: {shown}",
    )

    assert told.troubles[1] == f"warn  managers: 1 beside this daemon: {shown}"


async def test_lease_held_by_a_replica_is_well(stage: Stage) -> None:
    await post(stage, LEASES, lease("cloud-controller-manager", "ccm-1_1"))
    await post(stage, PODS, pod("ccm-1", "registry/ccm:1", "sim"))

    told = await examined(stage)

    assert told.troubles == []


async def test_lease_of_a_silent_holder(stage: Stage) -> None:
    await post(stage, LEASES, lease("cloud-controller-manager", "gone_1", silent_s=300))

    told = await examined(stage)

    (first,) = told.troubles
    assert first.startswith(
        "warn  lease: kube-system/cloud-controller-manager is held by gone_1, silent for 30"
    )
    assert first.endswith(" s (its lease lasts 15 s)")


async def test_another_manager_with_a_lease_of_its_own(stage: Stage) -> None:
    await post(stage, LEASES, lease("acme-cloud-controller-manager", "acme_1"))

    await finds(
        stage,
        "warn  managers: 1 beside this daemon: Lease kube-system/acme-cloud-controller-manager, "
        "held by acme_1",
    )


async def test_service_of_a_class_nobody_claims(stage: Stage) -> None:
    spec = {
        "type": "LoadBalancer",
        "loadBalancerClass": "acme.example/fast",
        "ports": [{"port": 80}],
    }
    await post(stage, SERVICES, {"metadata": {"name": "web"}, "spec": spec})

    await finds(
        stage,
        "warn  services: 1 Service without a load balancer, and not ours: default/web "
        "(class acme.example/fast)",
    )
    claimed = await examined(stage, "--load-balancer-classes=acme.example/fast")

    assert claimed.troubles == []


@only_real
async def test_clock_skew(stage: Stage) -> None:
    """The server tells whole seconds, and asking takes a while."""
    ahead = await examined(stage, by=timedelta(seconds=301))
    behind = await examined(stage, by=timedelta(seconds=-20))

    told = re.fullmatch(
        r"fail  clock: our clock is (\d+) s ahead of the API server's", ahead.troubles[0]
    )
    assert told is not None, ahead.troubles
    assert int(told[1]) in range(295, 308)
    assert ahead.advice(told[0]) != []
    assert ahead.code == 1
    told = re.fullmatch(
        r"warn  clock: our clock is (\d+) s behind the API server's", behind.troubles[0]
    )
    assert told is not None, behind.troubles
    assert behind.code == 0


async def test_namespace_of_the_lease_missing(stage: Stage) -> None:
    await finds(
        stage,
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


@contextlib.asynccontextmanager
async def account(stage: Stage, granted: list[Need]) -> AsyncIterator[Path]:
    """The kubeconfig of a service account that may do this and nothing else."""
    name = "doctor-test"
    made = [
        f"{ACCOUNTS}/{name}",
        f"{RBAC}/clusterroles/{name}",
        f"{RBAC}/clusterrolebindings/{name}",
    ]
    role = {
        "metadata": {"name": name},
        "rules": [
            {
                "apiGroups": [need.group],
                "resources": [need.resource],
                "resourceNames": [need.name] if need.name else [],
                "verbs": [need.verb],
            }
            for need in granted
        ],
    }
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    await post(stage, ACCOUNTS, {"metadata": {"name": name}})
    await post(stage, f"{RBAC}/clusterroles", role)
    await post(stage, f"{RBAC}/clusterrolebindings", binding)
    asked = await post(stage, f"{ACCOUNTS}/{name}/token", {"spec": {"expirationSeconds": 3600}})
    kubeconfig = stage.folder / "account.kubeconfig"
    realserver.write_kubeconfig(
        kubeconfig,
        url=stage.server.url,
        token=asked["status"]["token"],
        ca_file=stage.server.ca_file,
    )
    try:
        yield kubeconfig
    finally:
        async with servers.connect(stage.server) as session:
            for path in made:
                await _delete(session, path)


async def _delete(session: aiohttp.ClientSession, path: str) -> None:
    async with session.delete(path) as response:
        assert response.status == 200, await response.text()


@only_real
async def test_the_rights_that_are_needed_are_enough(stage: Stage) -> None:
    """With exactly what the table says, all is well for the account itself."""
    wanted = needs(doctor.read(["--cloud-provider=sim"]).options)
    async with account(stage, wanted) as kubeconfig:
        await add_node(stage)

        told = await examined(stage, f"--kubeconfig={kubeconfig}")
        about_others = await examined(stage, f"--kubeconfig={kubeconfig}", "--as=somebody")

    user = "system:serviceaccount:kube-system:doctor-test"
    assert told.troubles == []
    assert f"ok    permissions: all {len(wanted)} that the daemon needs are granted to {user}" in (
        told.lines
    )
    assert about_others.troubles == [
        "warn  permissions: we may not ask about the permissions of others"
    ]


@only_real
async def test_a_missing_verb(stage: Stage) -> None:
    wanted = needs(doctor.read(["--cloud-provider=sim"]).options)
    (lacking,) = (
        need for need in wanted if (need.verb, need.resource) == ("patch", "nodes/status")
    )
    lackings = (
        "patch nodes/status",
        "create tokenreviews",
        "create subjectaccessreviews",
        "get configmaps/extension-apiserver-authentication in kube-system",
    )
    first = f"fail  permissions: 1 of {len(wanted)} is missing: patch nodes/status"
    granted = [need for need in wanted if need is not lacking]
    async with account(stage, granted) as kubeconfig:
        told = await finds(stage, first, f"--kubeconfig={kubeconfig}")
        asked = await examined(stage, "--as=system:serviceaccount:kube-system:doctor-test")
        without = await examined(
            stage, f"--kubeconfig={kubeconfig}", "--controllers=service,cloud-node-lifecycle"
        )

    assert f"      {lacking}: for cloud-node-controller and node-route-controller" in told.lines
    # Such an account is a Pod's, where the daemon asks about its callers too.
    assert asked.troubles == [
        f"fail  permissions: 4 of {len(wanted) + 3} are missing: {', '.join(lackings)}"
    ]
    assert without.troubles == []


@only_real
async def test_no_rights_at_all(stage: Stage) -> None:
    """The permissions say it all; nothing else fails for the same cause."""
    async with account(stage, []) as kubeconfig:
        told = await examined(stage, f"--kubeconfig={kubeconfig}")

    fails = [line for line in told.lines if line.startswith("fail")]
    assert [line[6:].partition(":")[0] for line in fails] == ["permissions"]
