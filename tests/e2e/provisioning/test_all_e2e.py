"""MachineDeployments of Kubermatic's API are provisioned by each provider.

Always with the fakes of the clouds. With credentials in the environment also in the real clouds,
where servers cost money:

    HZ_E2E_TOKEN                       API token of a project of the Hetzner Cloud
    STACKIT_E2E_PROJECT_ID             project of STACKIT
    STACKIT_E2E_SERVICE_ACCOUNT_KEY    content of the service account's key file
    STACKIT_E2E_IMAGE_ID               image of Ubuntu
    STACKIT_E2E_NETWORK_ID             network of the servers
    STACKIT_E2E_REGION                 region (default eu01)
    OPENSTACK_E2E_AUTH_URL             URL of Keystone
    OPENSTACK_E2E_APPLICATION_CREDENTIAL_ID, OPENSTACK_E2E_APPLICATION_CREDENTIAL_SECRET
    OPENSTACK_E2E_FLAVOR               name of a flavor
    OPENSTACK_E2E_IMAGE                image of Ubuntu, name or ID
    OPENSTACK_E2E_NETWORK              network of the servers, name or ID
    OPENSTACK_E2E_REGION               region (default: the first of the catalogue)
    E2E_SCENARIOS                      pattern of the names of scenarios (default *)

A scenario of an operating system and a version of the kubelet is `ubuntu-v1.36.2`; the others are
`unknown-os`, `unsupported-os` and `migrateUID`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.e2e.provisioning.scenarios import Cluster, Run, matrix
from tests.e2e.provisioning.targets import REAL_S, Target, targets
from tests.scenario import kubermatic

LONGEST_S = 20 * REAL_S
"""How long a real cloud may take for everything."""


def _targets() -> Iterator[Any]:
    for target in targets(os.environ):
        marks = [pytest.mark.timeout(LONGEST_S)] if target.is_real else []
        yield pytest.param(target, id=str(target), marks=marks)


@pytest.mark.row("kubermatic-e2e-01", "kubermatic-e2e-02", "kubermatic-e2e-03")
@pytest.mark.parametrize("target", list(_targets()))
async def test_provisioning_e2e(
    target: Target, api_server: servers.ApiServer, tmp_path: Path
) -> None:
    failures: dict[str, BaseException] = {}
    async with target.open(api_server, tmp_path) as site:
        await kubermatic.install(site.env)
        cluster = Cluster(target, site, secrets.token_hex(3))
        turns = asyncio.Semaphore(target.at_once)

        async def attempt(name: str, work: Callable[[], Awaitable[None]]) -> None:
            async with turns:
                try:
                    await work()
                except Exception as error:  # noqa: BLE001 - the others go on
                    failures[name] = error

        wanted = os.environ.get("E2E_SCENARIOS", "*")
        runs = [Run(cluster, scenario) for scenario in matrix(target, wanted)]
        assert runs, f"no scenario matches E2E_SCENARIOS={wanted}"
        await cluster.start()
        async with cluster.observed():
            together = [run for run in runs if not run.scenario.alone]
            await asyncio.gather(*(attempt(run.scenario.name, run.run) for run in together))
            for run in (run for run in runs if run.scenario.alone):
                await attempt(run.scenario.name, run.run)
            await attempt("clean up", cluster.clean_up)
        await cluster.stop()
        held = {kind: count for kind, count in site.held().items() if count}

    assert (failures, held) == ({}, {})


def test_real_clouds_are_tried_only_with_credentials() -> None:
    fakes = ["hetzner-fake", "stackit-fake", "openstack-fake", "sim-fake"]
    stackit = {"STACKIT_E2E_PROJECT_ID": "p", "STACKIT_E2E_SERVICE_ACCOUNT_KEY": "{}"}
    names = ("AUTH_URL", "APPLICATION_CREDENTIAL_ID", "APPLICATION_CREDENTIAL_SECRET")
    openstack = {f"OPENSTACK_E2E_{name}": "x" for name in names}
    alone = {"STACKIT_E2E_PROJECT_ID": "p", "OPENSTACK_E2E_AUTH_URL": "http://x/v3"}

    assert [str(target) for target in targets({"HZ_E2E_TOKEN": "", **alone})] == fakes
    found = [str(target) for target in targets({"HZ_E2E_TOKEN": "t", **stackit, **openstack})]
    assert found == [*fakes, "hetzner-real", "stackit-real", "openstack-real"]


def test_scenarios_are_operating_systems_by_versions_of_the_kubelet() -> None:
    hetzner = targets({})[0]

    named = [scenario.name for scenario in matrix(hetzner)]

    assert len(named) == len(set(named)) == 2 * 4 + 3
    assert {"rockylinux-v1.33.11", "unknown-os", "unsupported-os", "migrateUID"} < set(named)
    assert [scenario.name for scenario in matrix(hetzner, "ubuntu-v1.36*")] == ["ubuntu-v1.36.2"]
