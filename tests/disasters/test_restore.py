"""etcd is restored from an old snapshot: nothing is deleted or created again, the rest is reported.

Objects created since the snapshot are gone, and the Lease counts fewer leaders than the storage of
the journal has seen.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import names
from ccm.sandbox import realserver
from ccm.sandbox.realserver import RealServer
from tests import servers
from tests.scenario import harness, machines
from tests.scenario.harness import Daemon, Environment, wait_for
from tests.scenario.machines import MACHINES, SERVICES
from tests.storage import settings_of
from tests.vendors import hurried

FLAGS = {
    # Without the controller that deletes VMs without a Machine by itself.
    "controllers": f"{SERVICE.name},machine,machineclass",
    "kube-api-qps": "-1",
    "journal": "delete",
    "journal-check-period": "500ms",
    "journal-grace-period": "0s",
    "journal-ephemeral-grace-period": "0s",
}
BLOCKED = "too many orphans, none is deleted"
WITHIN_S = 240.0


@pytest_asyncio.fixture
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """An API server of the test's own; parametrized with its kind."""
    folder = tmp_path / "server"
    if request.param == servers.REAL:
        made: Any = realserver.RealServer(assets=servers.require_assets(), data_dir=folder)
    else:
        servers.require_builtin()
        made = servers.BuiltinServer(folder)
    try:
        await made.start()
        yield made
    finally:
        await made.kill()


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of `--persistence-config`; parametrized with the backend."""
    settings = settings_of(request.param, request, tmp_path)
    file = tmp_path / "persistence.yaml"
    file.write_text(yaml.safe_dump({"instances": [{request.param: settings}]}))
    return file


def state_of(server: Any) -> Path:
    """The folder with the objects of an API server."""
    folder: Path = server.data_dir / "etcd" if isinstance(server, RealServer) else server.state
    return folder


async def create(env: Environment, prefix: str, vms: int, balancers: int) -> None:
    """Create Machines and Services, and wait until they have VMs and load balancers."""
    await machines.create(env.cluster, vms, f"{prefix}-")
    for number in range(balancers):
        spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
        body = {"metadata": {"name": f"{prefix}-{number}"}, "spec": spec}
        await env.cluster.create(SERVICES, body)

    async def are_served() -> bool:
        found = await env.cluster.items(MACHINES)
        services = await env.cluster.items(SERVICES)
        return all(one["spec"].get("providerID") for one in found) and all(
            one["status"]["loadBalancer"].get("ingress")
            for one in services
            if one["spec"]["type"] == "LoadBalancer"
        )

    await wait_for(are_served, "VMs and load balancers", within_s=WITHIN_S)


def resources(env: Environment) -> set[str]:
    """The IDs of all VMs and load balancers."""
    balancers = {balancer.id for balancer in env.cloud.worlds.balancers.list()}
    return balancers | {vm.id for vm in env.cloud.world.snapshot()}


async def leader(env: Environment, storage: Path) -> Daemon:
    flags = {**FLAGS, "persistence-config": str(storage)}
    daemon = await env.start_leading(flags=flags, module=hurried.__name__)
    await daemon.says("journal opened")
    return daemon


def scales() -> Iterator[Any]:
    """Servers, backends, and the number of VMs and load balancers before and after the snapshot."""
    yield pytest.param(servers.BUILTIN, "sqlite", (6, 2), (5, 1))
    for kind in (servers.BUILTIN, servers.REAL):
        marks = [pytest.mark.soak, *([pytest.mark.envtest] if kind == servers.REAL else ())]
        for backend in ("sqlite", "postgres", "s3"):
            group = pytest.mark.xdist_group(backend)
            yield pytest.param(kind, backend, (40, 8), (10, 2), marks=[*marks, group])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("journal-05", "journal-08")
@pytest.mark.parametrize(
    ("server", "storage", "early", "late"), list(scales()), indirect=["server", "storage"]
)
async def test_restored_cluster_loses_no_resource_and_reports_those_without_an_owner(
    server: Any, storage: Path, early: tuple[int, int], late: tuple[int, int], tmp_path: Path
) -> None:
    snapshot, state = tmp_path / "snapshot", state_of(server)
    async with harness.open_environment(server, tmp_path) as env:
        await machines.prepare(env)
        secret = machines.sim_secret(env.cloud.token)
        await machines.make_class(env.cluster, "small", machines.SIM, secret)
        daemon = await leader(env, storage)
        await create(env, "early", *early)
        assert await daemon.stop() == 0
        await server.stop()
        shutil.copytree(state, snapshot)
        await server.start()

        daemon = await leader(env, storage)
        await create(env, "late", *late)
        assert await daemon.stop() == 0
        daemon = await leader(env, storage)
        counted, version = await lease_and_version(env)
        held = resources(env)
        assert len(held) == sum(early) + sum(late)
        await daemon.kill()
        await server.kill()

        shutil.rmtree(state)
        shutil.copytree(snapshot, state)
        await server.start()
        found = await lease_and_version(env)
        assert (found[0] < counted, found[1] < version) == (True, True)
        env.cloud.calls.clear()
        daemon = await leader(env, storage)
        await daemon.says(BLOCKED, count=3)

        assert {line["count"] for line in daemon.lines(BLOCKED)} == {sum(late)}
        assert len({line["name"] for line in daemon.lines("orphan found")}) == sum(late)
        lease = harness.LEASE.rpartition("/")[2]
        reported = partial(env.cluster.events, lease, names.REASON_ORPHANED_RESOURCE)
        await wait_for(reported, "Events on the Lease")
        assert resources(env) == held
        assert [name for name in env.cloud.calls if name.startswith(("create", "delete"))] == []
        assert len(await env.cluster.items(MACHINES)) == early[0]
        assert await daemon.stop() == 0


async def lease_and_version(env: Environment) -> tuple[int, int]:
    """How often the Lease changed its holder, and the resource version of a list."""
    listed = await env.cluster.get(SERVICES)
    assert listed is not None
    transitions = (await env.cluster.lease()).get("leaseTransitions") or 0
    return int(transitions), int(listed["metadata"]["resourceVersion"])
