"""The daemon takes over a cluster that the Go manager has settled on real services."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from ccm.sandbox import process
from tests import servers
from tests.openstack import takeover
from tests.openstack.lab.harness import LabHarness
from tests.openstack.lab.test_answers import RECORD
from tests.openstack.lab.test_daemon import FLAGS, WITHIN_S, LabCluster, opened
from tests.openstack.takeover import SETTINGS
from tests.scenario.harness import NODES
from tests.scenario.machines import SERVICES
from tests.waiting import due_by

MODULE = Path(__file__).parent / "gomanager"
PROGRAM = "k8s.io/cloud-provider-openstack/cmd/openstack-cloud-controller-manager"
CACHE = Path(__file__).parents[3] / ".cache"


def built() -> Path:
    """Build the Go manager of the version in `gomanager/go.mod`: minutes, the first time."""
    if not shutil.which("go"):
        pytest.skip("no `go`: the Go manager cannot be built; install Go 1.26 or newer")
    program = CACHE / PROGRAM.rpartition("/")[2]
    build = ["go", "build", "-mod=readonly", "-o", str(program), PROGRAM]
    subprocess.run(build, cwd=MODULE, check=True)
    return program


def arguments(cluster: LabCluster, folder: Path) -> Sequence[str]:
    """Flags of the Go manager, whose cloud config leaves the gateway out."""
    lab = cluster.lab
    own = lab.config().decode().replace(f"{lab.url}/identity/v3", lab.state.settings.auth_url)
    config = folder / "go.conf"
    config.write_text(own)
    return [
        f"--kubeconfig={cluster.env.server.kubeconfig_path}",
        f"--cloud-config={config}",
        "--cloud-provider=openstack",
        f"--cluster-name={FLAGS['cluster-name']}",
        f"--cluster-cidr={FLAGS['cluster-cidr']}",
        "--allocate-node-cidrs=true",
        "--configure-cloud-routes=true",
        "--concurrent-service-syncs=4",
        "--leader-elect=false",
        "--secure-port=0",
        f"--cert-dir={folder}",
        "-v=2",
    ]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("openstack-lab")
@servers.only_real
@pytest.mark.parametrize("name", SETTINGS)
async def test_a_settled_cluster_is_taken_over_without_a_write_and_made_anew_in_the_same_shape(
    api_server: servers.ApiServer, tmp_path: Path, harness: LabHarness, name: str
) -> None:
    program = await asyncio.to_thread(built)
    harness.extra["LoadBalancer"] = dict(SETTINGS[name])
    async with opened(api_server, tmp_path, harness) as cluster:
        objects = cluster.env.cluster
        nodes = await cluster.register(2)
        log = tmp_path / "go.log"
        manager = process.Child([str(program), *arguments(cluster, tmp_path)], log=log)
        try:
            await objects.initialised(*nodes, within_s=WITHIN_S)
            await cluster.routed(nodes)
            await takeover.expose(objects, name, within_s=3 * WITHIN_S)
            await due_by(30.0)  # its own annotations make the Go manager look once more
        finally:
            await manager.stop(grace_s=10)
            print(log.read_text()[-20000:])
        await harness.lab.settled()
        settled = await takeover.record(harness.lab, objects)
        made = [one["name"] for one in settled["balancers"]]
        # On a busy machine, the Go manager repeats a creation that succeeded.
        assert len(set(made)) == len(made), made
        if os.environ.get(RECORD):
            takeover.write(name, settled)

        before = Counter(harness.service.calls)
        writes = harness.service.writes
        daemon = await cluster.restart()
        await due_by(20.0)
        since = harness.service.calls - before
        print("taking over", since.total(), dict(since))
        assert harness.service.writes == writes, since
        assert takeover.written(cluster.env) == []
        assert await takeover.read_objects(objects) == {
            path: settled[path] for path in (NODES, SERVICES)
        }
        await cluster.withdraw()
        kept = [ip for ip in await harness.lab.own("floatingips") if ip["port_id"] is None]
        assert ["default/kept" in ip["description"] for ip in kept] == [True] * (name == "plain")
        for ip in kept:
            await harness.lab.call("network", "DELETE", f"/v2.0/floatingips/{ip['id']}")
        assert await cluster.remains() == []

        await takeover.register(objects, settled)
        await objects.initialised(*nodes, within_s=WITHIN_S)
        await cluster.routed(nodes)
        await takeover.expose(objects, name, within_s=3 * WITHIN_S)
        ours = await takeover.record(harness.lab, objects)
        await cluster.withdraw()
        assert await daemon.stop() == 0
    found = takeover.differences(ours, settled)
    assert not found, "\n".join(found)
