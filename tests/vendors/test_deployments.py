"""MachineDeployments with STACKIT's driver, as the vendor tries its own: scaled, rolled, deleted;
and a cloud that has no room."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from providers.stackit.testing import server
from providers.stackit.testing.state import Settings
from tests import servers
from tests.scenario.machines import ALL_CONTROLLERS, Fleet, make_class, prepare
from tests.vendors.clouds import Stackit

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@contextlib.asynccontextmanager
async def at_work(
    api_server: servers.ApiServer, folder: Path, fake: server.Service
) -> AsyncIterator[Fleet]:
    """Classes `one` and `two`, kubelets, and a daemon that leads."""
    vendor = Stackit(fake)
    kinds = ",".join((*vendor.kinds, *ALL_CONTROLLERS))
    vendor.flags = {"controllers": kinds}
    async with (
        vendor.opened(api_server, folder) as (env, _),
        servers.connect(env.server) as session,
    ):
        await prepare(env)
        fleet = Fleet(session, boot_s=0.2)
        for kind, size in (("one", "c2i.2"), ("two", "c2i.4")):
            cattle = vendor.pool(machineType=size)
            await make_class(env.cluster, kind, cattle.spec, cattle.secret, provider="stackit")
        daemon = await env.start_leading(**vendor.how)
        async with fleet.at_work():
            yield fleet
            assert await daemon.stop() == 0


@pytest.mark.row("stackit-machine-17")
async def test_a_machine_deployment_scales_rolls_and_is_deleted(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    """Scale to 0, 1, 6 and quickly to 2 machines, roll to another class and 4, and delete."""
    fake = server.Service(Settings(boot_s=1.0, removal_s=0.5))
    async with at_work(api_server, tmp_path, fake) as fleet:
        await fleet.deploy(0, kind="one", surge=1, unavailable=1)
        for count in (1, 6):
            await fleet.edit(replicas=count)
            await fleet.until(lambda one, n=count: one.all_run("one", n))  # type: ignore[misc]
        await fleet.edit(replicas=2)
        await fleet.until(lambda one: one.all_run("one", 2))
        await fleet.edit(replicas=4, template={"spec": {"class": {"name": "two"}}})
        await fleet.until(lambda one: one.all_run("two", 4), within_s=180)
        sizes = {one["machineType"] for one in fake.cloud.servers.values()}
        conditions = {one["type"] for one in (await fleet.said())["conditions"]}
        await fleet.delete()
        await fleet.until(lambda one: one.all_run("two", 0))

    assert sizes == {"c2i.4"}
    assert "Frozen" not in conditions
    assert (fake.cloud.servers, fake.cloud.nics, fake.cloud.volumes) == ({}, {}, {})


@pytest.mark.row("stackit-machine-18")
async def test_failed_servers_are_replaced_with_back_off_until_there_is_capacity(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    """Servers that fail are deleted and replaced at growing intervals."""
    fake = server.Service(Settings(boot_s=0.5, hosts=1))
    async with at_work(api_server, tmp_path, fake) as fleet:
        await fleet.deploy(2, kind="one", surge=1, unavailable=1)
        orders = "POST /v2/projects/{projectId}/regions/{region}/servers"
        # One that runs, three in a row that do not, and what was on its way with them.
        await fleet.until(lambda _: fake.calls[orders] >= 4)
        took_s = await fleet.until(lambda one: one.kinds().get("one") == {"Running": 1})
        assert fake.calls[orders] <= 6
        assert len(fake.cloud.servers) == 1
        fake.settings.hosts = 10
        more_s = await fleet.until(lambda one: one.all_run("one", 2), within_s=150)
        print(f"{fake.calls[orders]} orders; settled after {took_s:.1f} s, {more_s:.1f} s more")
        await fleet.delete()
        await fleet.until(lambda one: one.all_run("one", 0))

    assert (fake.cloud.servers, fake.cloud.nics) == ({}, {})
