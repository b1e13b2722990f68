"""A real Prometheus scrapes the daemon: every expression of dashboards and alerts has data.

Each alert is asked for before its cause is there, and then until it has data. How long its
condition has to last is for `tests.manifests.test_alerts`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ccm.model import names
from ccm.model.times import format_time
from ccm.sandbox import process, realserver
from ccm.testing.fake_api import Fault
from providers.sim import client
from tests import prometheus, servers
from tests.faults import Cut, Match, Respond
from tests.manifests import shipped
from tests.manifests.test_alerts import PREFIX
from tests.manifests.test_metrics import DASHBOARDS, dashboard
from tests.scenario import harness, kubermatic, load, machines
from tests.scenario.harness import MACHINE_API, NODES, Environment, wait_for
from tests.scenario.machines import Fleet

JOB = f"{shipped.NAME}-metrics"
LOWERED: Mapping[str, tuple[str, str]] = {
    "DrainHangs": ("> 3600", "> 0"),
    "MachineNotDeleted": ("> 10800", "> 0"),
    "WorkerStuck": ("> 1200", "> 0.3"),
}
"""Thresholds that take longer than a test."""

CONTROLLERS = ",".join(
    ("*", *machines.ALL_CONTROLLERS, *(one for one in kubermatic.FLAGS["controllers"].split(",")))
)
FLAGS: Mapping[str, str] = {
    "controllers": CONTROLLERS,
    "cluster-cidr": "10.244.0.0/16",
    "cluster-id": "blue",
    "kube-api-qps": "10000",
    "kube-api-burst": "20000",
    "route-reconciliation-min-interval": "500ms",
    "load-balancer-node-update-quiet-period": "200ms",
    "machine-safety-orphan-vms-period": "1s",
    "machine-safety-overshooting-period": "1s",
    "machine-safety-apiserver-statuscheck-period": "5s",
    "machine-safety-apiserver-statuscheck-timeout": "5s",
    "safety-up": "0",
    "join-cluster-timeout": "3s",
}

REVIEW = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "TokenReview",
    "status": {"authenticated": True, "user": {"username": "scraper"}},
}
"""Of the token of Prometheus; the built-in API server reviews none."""

CLOGGED = """
import asyncio, time
from ccm import cloud
from ccm.cloud.blocking import MAX_THREADS, blocking

class Instances:
    async def instance_exists(self, node):
        return True

    async def instance_shutdown(self, node):
        return False

    async def instance_metadata(self, node):
        await asyncio.gather(*(blocking(time.sleep, 300) for _ in range(MAX_THREADS)))

@cloud.provider(sdk="2.0")
async def open_cloud(context):
    limits = cloud.Limits(
        deadlines_s={"instance_metadata": 1.0}, rate=cloud.Rate(qps=100.0, burst=100)
    )
    yield cloud.Cloud(name="clogged", instances=Instances(), has_cluster_id=True, limits=limits)
"""
"""A provider whose library hangs."""


class Watched:
    """What Prometheus is asked.

    Attributes:
        unseen: expressions of the dashboards that had no data yet.
    """

    def __init__(self, server: prometheus.Server, home: Path) -> None:
        self._server = server
        rules = shipped.only(
            shipped.parsed(shipped.rendered(home, {"prometheusRule": {"enabled": True}})),
            "PrometheusRule",
        )
        self.alerts: dict[str, str] = {
            rule["alert"].removeprefix(PREFIX): rule["expr"]
            for group in rules["spec"]["groups"]
            for rule in group["rules"]
        }
        self.not_fired = set(self.alerts)
        self.unseen = {
            one.replace("$job", JOB).replace("$__rate_interval", "15m")
            for file in DASHBOARDS
            for one in dashboard(file)
        }

    async def look(self) -> bool:
        """Ask for the expressions that had no data yet; whether there are none left."""
        for one in sorted(self.unseen):
            if await self._server.values(one):
                self.unseen.discard(one)
        return not self.unseen

    async def firing(self) -> set[str]:
        """The alerts whose expressions have data."""
        return {name for name, one in self.alerts.items() if await self._server.values(one)}

    @contextlib.asynccontextmanager
    async def case(self, *alerts: str) -> AsyncIterator[None]:
        """In the block, their cause comes; their expressions have data afterwards, not before."""

        async def is_calm() -> bool:
            return not (await self.firing()).intersection(alerts)

        await wait_for(is_calm, f"no data of {alerts}", within_s=load.PATIENCE_S)
        yield
        for name in alerts:
            before, after = LOWERED.get(name, ("", ""))
            assert before in self.alerts[name]
            expression = self.alerts[name].replace(before, after) if before else self.alerts[name]

            async def has_data(asked: str = expression) -> list[float]:
                return await self._server.values(asked)

            await wait_for(has_data, f"data of {name}: {expression}", within_s=load.PATIENCE_S)
            self.not_fired.discard(name)
        await self.look()


async def prepare(env: Environment) -> None:
    """Both machine APIs, and a node, a route, a Service and machines that are well."""
    await machines.prepare(env)
    await kubermatic.install(env)
    await machines.make_class(
        env.cluster, "small", machines.SIM, machines.sim_secret(env.cloud.token)
    )
    for number in range(6):
        await add_node(env, number)
    await load.create(env, load.web("web"))


async def start(
    env: Environment, port: int, flags: Mapping[str, str], site: Mapping[str, str] | None = None
) -> harness.Daemon:
    """A daemon that leads, and serves its metrics to Prometheus at the port."""
    proxy, reviewer = await env.new_proxy(), env.folder / "reviewer.kubeconfig"
    realserver.write_kubeconfig(reviewer, url=proxy.url, token=env.token)
    proxy.on(Match(method="POST", path="/tokenreviews$"), Respond(201, REVIEW))
    serving = {
        "secure-port": str(port),
        "authentication-kubeconfig": str(reviewer),
        "authentication-skip-lookup": "true",
        "authorization-always-allow-paths": "/metrics",
    }
    return await env.start_leading(flags={**flags, **serving}, proxy=proxy, env=site)


async def add_node(env: Environment, number: int) -> None:
    cidr = f"10.244.{number}.0/24"
    spec = {"podCIDR": cidr, "podCIDRs": [cidr]}
    await env.node(f"n{number}", ready=names.STATUS_TRUE, **spec)


async def balanced(env: Environment) -> bool:
    found = await load.services_of_people(env)
    return all(
        one.get("status", {}).get("loadBalancer", {}).get("ingress") for one in found.values()
    )


def fail(env: Environment, operation: str = "*", **fault: Any) -> None:
    """Calls of an operation of the cloud fail from now on, until `env.cloud.heal()`."""
    env.cloud.script.add(Fault(**{"kind": "error", "status": 500, "operation": operation, **fault}))


async def cloud_troubles(env: Environment, watched: Watched) -> None:
    """The alerts about nodes, Services, routes and the cloud."""
    async with watched.case("CloudFails", "NodesUninitialized", "ServicesFail", "OrphanChecksFail"):
        fail(env)
        await add_node(env, 10)
        await load.create(env, load.web("late"))
    env.cloud.heal()
    async with watched.case("RoutesMissing"):
        fail(env, "create_route")
        await add_node(env, 11)
    env.cloud.heal()
    async with watched.case("WorkerStuck"):
        fail(env, kind="latency", delay_s=1.5)
        await add_node(env, 12)
    env.cloud.heal()
    async with watched.case("CredentialsRefused"):
        token, env.cloud.token = env.cloud.token, "another"
        await add_node(env, 13)
    env.cloud.token = token
    async with watched.case("ConfigurationRefused"):
        content = env.cloud_config.read_text()
        env.cloud_config.write_text("url: [")
    env.cloud_config.write_text(content)
    forbidden = env.proxy.on(harness.STATUS_PATCH, harness.refusal(403, reason="Forbidden"))
    async with watched.case("Forbidden"):
        await add_node(env, 14)
    env.proxy.remove(forbidden)
    cut = env.proxy.on(Match(path=f"^{NODES}$"), Cut())
    env.proxy.cut_connections()
    await env.proxy.wait_for(Match(path=f"^{NODES}$", where=lambda one: one.status is None))
    env.proxy.remove(cut)


async def nodes_vanish(env: Environment, watched: Watched) -> None:
    """So many at once that none is deleted."""
    async with watched.case("DeletionsHeld"):
        for instance in env.cloud.world.snapshot():
            if instance.name.startswith("n"):
                env.cloud.world.delete(instance.id, at_once=True)
        for number in range(6):
            await env.cluster.set_ready(f"n{number}", names.STATUS_UNKNOWN)


async def machine_troubles(env: Environment, watched: Watched, fleet: Fleet) -> None:
    """The alerts about Gardener's machines."""
    cluster = env.cluster
    starved = machines.group(
        *("MachineDeployment", "starved", 1),
        strategy=machines.rolling(),
        progressDeadlineSeconds=2,
    )
    async with watched.case("MachinesNotCreated", "MachinesUnavailable", "RolloutStuck"):
        fail(env, "create_instance")
        await cluster.create(machines.DEPLOYMENTS, starved)
    env.cloud.heal()
    await cluster.delete(f"{machines.DEPLOYMENTS}/starved")
    await fleet.until(lambda one: not one.kinds())

    await fleet.deploy(2, kind="small", surge=1, unavailable=0)
    await fleet.until(lambda one: one.all_run("small", 2))
    first = min(await machines.names_of(cluster))
    pod = {
        "metadata": {"name": "p", "labels": {"app": "web"}},
        "spec": {"nodeName": first, "containers": [{"name": "c", "image": "i"}]},
    }
    await cluster.create(machines.PODS, pod)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await cluster.patch(f"{machines.PODS}/p/status", {"status": ready})
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    await cluster.create(machines.BUDGETS, {"metadata": {"name": "b"}, "spec": budget})
    async with watched.case("DrainHangs", "MachineTerminates", "MachineSetsFrozen"):
        await cluster.delete(f"{machines.MACHINES}/{first}")
    await cluster.delete(f"{machines.BUDGETS}/b")
    await cluster.delete(f"{machines.PODS}/p?gracePeriodSeconds=0")
    await fleet.until(lambda one: one.all_run("small", 2))

    template = {"spec": {**machines.of("small"), "healthTimeout": "1s"}}
    await fleet.edit(template=template)
    async with watched.case("ReplacementsWait"):
        fail(env, "create_instance")
        for name in await machines.names_of(cluster):
            await cluster.set_ready(name, names.STATUS_UNKNOWN)
    env.cloud.heal()
    await fleet.until(lambda one: one.all_run("small", 2))

    async with watched.case("MachinesFrozen"):
        probe = env.proxy.on(Match(path="kube-ccm-probe"), harness.refusal(503))
    env.proxy.remove(probe)

    async with watched.case("MachineClassesInvalid"):
        secret = machines.sim_secret(env.cloud.token)
        await machines.make_class(cluster, "wrong", {"machineType": 5}, secret)
    await cluster.delete(f"{MACHINE_API}/machineclasses/wrong")

    async with watched.case("OrphansHeld"):
        created = format_time(datetime.now(UTC) - timedelta(hours=2))
        for number in range(100):
            labels = {
                client.MARK_CLUSTER: "blue",
                client.MARK_NAMESPACE: "default",
                client.MARK_POOL: "small",
                client.MARK_NAME: f"lost-{number}",
                client.MARK_UID: f"uid-{number}",
            }
            env.machine(f"lost-{number}", labels=labels, created=created)


async def kubermatic_troubles(env: Environment, watched: Watched) -> None:
    """The alerts about Kubermatic's machines, which never join."""
    await kubermatic.write_user_data(env.cluster, "workers")
    api = kubermatic.FLEET.api
    objects = api.simulated(env.cloud.token)
    await env.cluster.create(kubermatic.SECRETS, objects[0])
    async with watched.case("MachinesFail"):
        await env.cluster.create(kubermatic.DEPLOYMENTS, api.deployment(2, objects))
    async with watched.case("MachineNotDeleted"):
        fail(env, "delete_instance")
        await env.cluster.delete(f"{kubermatic.DEPLOYMENTS}/workers")
    env.cloud.heal()

    async def gone() -> bool:
        return not await env.cluster.items(kubermatic.MACHINES)

    await wait_for(gone, "machines of Kubermatic's API are gone")


@pytest.mark.soak
@pytest.mark.timeout(1200)
@servers.only_builtin
async def test_every_expression_has_data_in_its_scenario(env: Environment, tmp_path: Path) -> None:
    port, other = process.pick_port(), process.pick_port()
    env.configure_cloud(timeout="60s")  # a busy machine is slow
    await prepare(env)
    async with (
        prometheus.running(tmp_path, JOB, [port, other], token="scraper") as server,
        servers.connect(env.server) as session,
        Fleet(session, boot_s=0.1).at_work() as fleet,
    ):
        watched = Watched(server, tmp_path)
        daemon = await start(env, port, FLAGS)
        await env.cluster.initialised(*(f"n{number}" for number in range(6)))
        await wait_for(lambda: balanced(env), "the Service has an address")

        async def calm() -> bool:
            return await watched.firing() == set()

        await wait_for(calm, "no alert")
        await cloud_troubles(env, watched)
        # Machines fail in a case of the other API, too.
        await kubermatic_troubles(env, watched)
        await machine_troubles(env, watched, fleet)
        await nodes_vanish(env, watched)
        async with watched.case("WithoutLeader"):
            assert await daemon.stop() == 0

        site = harness.install(env.folder, "clogged", CLOGGED)
        async with watched.case("CallsLeftBehind", "ThreadsUsedUp"):
            await start(env, other, {"cloud-provider": "clogged"}, site)
            await env.cluster.register("clogged")
        with contextlib.suppress(AssertionError):
            await wait_for(watched.look, "data of all expressions", within_s=30.0)

    assert watched.unseen == set()
    assert watched.not_fired == set()
