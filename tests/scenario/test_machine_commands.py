"""The machine commands as processes: with one cluster, two, or no target cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ccm.sandbox import process, realserver
from providers.sim.client import MARK_CLUSTER
from tests import forkserver, servers
from tests.faults import FaultProxy, Match
from tests.manifests import account, shipped
from tests.scenario import machines
from tests.scenario.harness import (
    MACHINE_API,
    NODES,
    Cluster,
    Daemon,
    Environment,
    command_line,
    wait_for,
)
from tests.scenario.machines import DEPLOYMENTS, MACHINES

NAME, MANAGER = "machine-controller", "machine-controller-manager"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{NAME}"
TOKENS = "/api/v1/namespaces/kube-system/secrets"
FEW = 3

FLAGS: Mapping[str, str] = {
    "cloud-provider": "sim",
    "kube-api-qps": "500",
    "kube-api-burst": "1000",
    "leader-elect-lease-duration": "60s",
    "leader-elect-renew-deadline": "40s",
    "leader-elect-retry-period": "500ms",
    "address": process.LOOPBACK,
    "logging-format": "json",
    "logtostderr": "true",  # as existing command lines have it
}


async def start(env: Environment, command: str = NAME, **flags: str | Path) -> tuple[Daemon, str]:
    """A command at work, and the URL of its port."""
    port, log = process.pick_port(), env.folder / f"command-{len(env.daemons)}.log"
    given = {name.replace("_", "-"): str(value) for name, value in flags.items()}
    # Without a cloud config: the credentials come with the class, and the address does not.
    argv = command_line({**FLAGS, "port": str(port), **given})
    environ = {**os.environ, "PYTHONWARNINGS": "always", "SIM_URL": env.cloud_proxy.url}
    child = forkserver.Child(["ccm.app.machines", command, *argv], log=log, env=environ)
    daemon = Daemon(command, child)
    env.daemons.append(daemon)
    await daemon.says("became leader")
    return daemon, f"http://{process.LOOPBACK}:{port}"


async def kubeconfig(env: Environment, proxy: FaultProxy, name: str, *, token: str = "") -> Path:
    """A file with the way through a proxy."""
    path = env.folder / f"{name}.kubeconfig"
    realserver.write_kubeconfig(path, url=proxy.url, token=token or env.token)
    return path


async def own_token(env: Environment, name: str = NAME) -> str:
    """Return the token of the command's own account, which has the shipped rights."""
    if not isinstance(env.server, realserver.RealServer):
        return env.token
    folder, user = shipped.MANIFESTS / name, f"system:serviceaccount:{shipped.NAMESPACE}:{name}"
    files = [folder / f"{part}.yaml" for part in ("serviceaccount", "control", "target")]
    if (tokens := folder / "bootstrap-tokens" / "rbac.yaml").is_file():
        files += [shipped.TOKENS_POLICY, tokens]
    async with servers.connect(env.server) as session:
        await account.install(session, shipped.objects(*files), user)
        return await account.token_of(session, name)


async def page(url: str, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}{path}") as answer:
        return answer.status, await answer.text()


@pytest.mark.row("machine-command-03", "machine-command-04")
@pytest.mark.both_servers
async def test_machine_controller_runs_machines_in_one_cluster(machine_env: Environment) -> None:
    """With its own account, port and Lease, and an orderly stop."""
    env = machine_env
    proxy = await env.new_proxy()
    file = await kubeconfig(env, proxy, "own", token=await own_token(env))
    daemon, url = await start(env, target_kubeconfig=file)
    await machines.all_run(env, FEW)
    await env.cluster.delete(f"{MACHINES}/m0")
    await wait_for(lambda: left(env, FEW - 1), "Machine and VM are gone")

    assert await page(url, "/healthz") == (200, "OK")
    assert (await page(url, "/readyz"))[0] == 200
    metrics = await wait_for(lambda: counted(url, FEW - 1), "metrics count what is left")
    assert 'manager="machine-controller"' in metrics
    assert '"concurrent-syncs": "50"' in (await page(url, "/configz"))[1]
    assert await env.cluster.get(LEASE) is not None
    assert daemon.lines("setting without effect")[0]["detail"].endswith(" --logtostderr")
    told = {one.headers["user-agent"].partition("/")[0] for one in proxy.log}
    assert told == {NAME}
    # Nothing of other controllers: neither Services nor the record of deletions.
    assert proxy.requests(Match(path="/services|/configmaps")) == []
    assert await daemon.stop() == 0
    assert ((await env.cluster.get(LEASE)) or {})["spec"].get("holderIdentity", "") == ""


async def counted(url: str, count: int) -> str:
    _, told = await page(url, "/metrics")
    return told if f"\nmcm_machine_items_total {count}.0\n" in told else ""


async def left(env: Environment, count: int) -> bool:
    """Whether there are so many VMs, and as many Machines: none is still on its way out."""
    found = await env.cluster.items(MACHINES)
    return len(env.cloud.world.snapshot()) == len(found) == count


@pytest.mark.row("machine-command-03")
@pytest.mark.both_servers
async def test_machine_controller_and_manager_run_side_by_side(machine_env: Environment) -> None:
    """With an account and a Lease each: the manager creates Machines, the controller VMs."""
    env = machine_env
    proxies = [await env.new_proxy(), await env.new_proxy()]
    for name, proxy in zip((NAME, MANAGER), proxies, strict=True):
        file = await kubeconfig(env, proxy, name, token=await own_token(env, name))
        await start(env, name, target_kubeconfig=file)
    made = machines.group("MachineDeployment", "workers", FEW, strategy=machines.rolling())
    await env.cluster.create(DEPLOYMENTS, made)
    await machines.join(env, FEW)
    await wait_for(lambda: available(env), "the deployment counts them")

    # The manager follows classes and Secrets, whose changes end the pause of a set; no more.
    followed = proxies[1].requests(Match(path="/secrets|/machineclasses"))
    assert {one.method for one in followed} == {"GET"}
    writes = proxies[1].requests(Match(write=True, path="/machines$"))
    assert [one.method for one in writes] == ["POST"] * FEW
    assert proxies[0].requests(Match(path="/machinesets|/machinedeployments")) == []
    leases = LEASE.rpartition("/")[0]
    held = {one["metadata"]["name"] for one in await env.cluster.items(leases)}
    assert held == {NAME, MANAGER}
    await env.cluster.delete(f"{DEPLOYMENTS}/workers")
    await wait_for(lambda: nothing_left(env), "VMs and objects are gone")
    for daemon in env.daemons:
        assert await daemon.stop() == 0


async def nothing_left(env: Environment) -> bool:
    kinds = ("machinesets", "machinedeployments")
    found = [await env.cluster.items(f"{MACHINE_API}/{kind}") for kind in kinds]
    return not any(found) and await left(env, 0)


async def available(env: Environment) -> bool:
    found = await env.cluster.get(f"{DEPLOYMENTS}/workers") or {}
    return bool(found.get("status", {}).get("availableReplicas") == FEW)


@contextlib.asynccontextmanager
async def joined(
    env: Environment,
) -> AsyncIterator[tuple[servers.BuiltinServer, Cluster, FaultProxy]]:
    """Another cluster, which machines are to join."""
    server = servers.BuiltinServer(env.folder / "joined")
    await server.start()
    try:
        async with servers.connect(server) as session, FaultProxy(server.url) as proxy:
            yield server, Cluster(session), proxy
    finally:
        await server.kill()


@pytest.mark.row("machine-cluster-04", "machine-cluster-05")
@servers.only_builtin
async def test_machine_controller_keeps_control_and_target_cluster_apart(
    machine_env: Environment,
) -> None:
    """Machines in the control cluster, Nodes and tokens in the target cluster."""
    env = machine_env
    control = await env.new_proxy()
    async with joined(env) as (server, target, proxy):
        daemon, url = await start(
            env,
            control_kubeconfig=await kubeconfig(env, control, "control"),
            target_kubeconfig=await kubeconfig(env, proxy, "target", token=server.token),
        )
        await machines.create(env.cluster, FEW)
        await wait_for(lambda: machines.in_phase(env, "Pending", FEW), "VMs are there")
        assert len(await tokens(target)) == FEW
        await machines.join(env, FEW, cluster=target)
        await wait_for(lambda: machines.in_phase(env, "Running", FEW), "machines run")
        await wait_for(lambda: no_tokens(target), "tokens are gone")
        assert (await page(url, "/readyz?verbose"))[1].count("[+]api-server") == 2
        uid = (await target.get("/api/v1/namespaces/kube-system") or {})["metadata"]["uid"]
        assert {one.labels[MARK_CLUSTER] for one in env.cloud.world.snapshot()} == {uid}

        await target.delete(f"{NODES}/m1")
        await wait_for(lambda: left(env, FEW - 1), "a node that is deleted takes its VM with it")
        await server.stop()
        await wait_for(lambda: away(url), "the health check names the cluster that is away")
        assert await daemon.stop() == 0

    assert control.requests(Match(path=f"^{NODES}|^{TOKENS}|^/api/v1/namespaces/[^/]+$")) == []
    machine_paths = proxy.requests(Match(path="machine.sapcloud.io|/leases|/default/"))
    assert machine_paths == []


async def tokens(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        one
        for one in await cluster.items(TOKENS)
        if one["metadata"]["name"].startswith("bootstrap-token-")
    ]


async def no_tokens(cluster: Cluster) -> bool:
    return not await tokens(cluster)


async def away(url: str) -> bool:
    status, told = await page(url, "/readyz")
    return status == 500 and "[-]api-server-target failed" in told and "[+]api-server ok" in told


@pytest.mark.row("machine-cluster-01", "machine-cluster-05")
@servers.only_builtin
async def test_machine_controller_without_target_cluster_creates_only_vms(
    machine_env: Environment,
) -> None:
    env = machine_env
    proxy = await env.new_proxy()
    daemon, _ = await start(
        env, control_kubeconfig=await kubeconfig(env, proxy, "control"), target_kubeconfig="none"
    )
    await machines.create(env.cluster, FEW)
    found = await wait_for(lambda: machines.in_phase(env, "Available", FEW), "VMs are there")
    await env.cluster.delete(f"{MACHINES}/m0")
    await wait_for(lambda: left(env, FEW - 1), "Machine and VM are gone")

    assert all(one["status"]["addresses"] for one in found)
    assert not any("node" in one["metadata"].get("labels", {}) for one in found)
    assert proxy.requests(Match(path=f"^{NODES}|^{TOKENS}")) == []
    uid = (await env.cluster.get("/api/v1/namespaces/default") or {})["metadata"]["uid"]
    assert {one.labels[MARK_CLUSTER] for one in env.cloud.world.snapshot()} == {uid}
    assert await daemon.stop() == 0
