"""Nodes beyond the contract."""

from __future__ import annotations

from typing import Any

import pytest

from ccm import cloud
from ccm.cloud.helpers import is_same_instance
from ccm.testing.builders import node
from providers.stackit.testing import server, servers
from providers.stackit.testing.state import PROJECT
from tests.stackit.harness import StackitHarness

OTHER = "9b1d2c3e-0000-4000-8000-000000000000"
SERVER = "70bb02f3-c11b-4321-bd78-8f8f4460f1b3"


@pytest.mark.row("stackit-node-02", "stackit-node-01")
@pytest.mark.parametrize(
    "form",
    [
        "stackit://{id}",
        "stackit://{project}/{id}",
        "openstack:///{id}",
        "openstack://eu01/{id}",
        "{id}",
    ],
)
async def test_every_form_of_a_provider_id_is_accepted(harness: StackitHarness, form: str) -> None:
    made = await harness.create()
    number = made.provider_id.rpartition("/")[2].upper()
    found = node("any", provider_id=form.format(project=PROJECT, id=number))

    metadata = await harness.project.instances.instance_metadata(found)
    await harness.delete(made)

    assert metadata is not None
    assert metadata.provider_id == made.provider_id
    assert not await harness.project.instances.instance_exists(found)
    assert not cloud.is_foreign(found.provider_id, harness.project.provider_schemes)


@pytest.mark.row("stackit-node-02")
@pytest.mark.parametrize(
    "provider_id",
    [
        f"stackit://{OTHER}/{SERVER}",
        f"openstack://eu02/{SERVER}",
        f"stackit://a/b/{SERVER}",
        "stackit://server-1",
        f"stackit:///{SERVER}",
        f"aws:///{SERVER}",
        "server-1",
    ],
)
async def test_provider_ids_of_other_projects_and_clouds_are_refused(
    harness: StackitHarness, provider_id: str
) -> None:
    found = node("any", provider_id=provider_id)
    questions: list[Any] = [
        harness.project.instances.instance_exists,
        harness.project.instances.instance_shutdown,
        harness.project.instances.instance_metadata,
    ]
    for ask in questions:
        with pytest.raises(cloud.InvalidArgument, match="provider ID"):
            await ask(found)

    assert harness.service.requests == 0


@pytest.mark.row("stackit-node-02")
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (f"stackit://{SERVER}", f"stackit://{PROJECT}/{SERVER}", True),
        (f"stackit://{PROJECT}/{SERVER}", f"stackit://{OTHER}/{SERVER}", False),
        ("openstack:///x", "openstack://region/x", True),
        ("proxmox://one/100", "proxmox://two/100", False),
        ("a://x", "b://x", False),
        ("a://x", "", False),
        ("", "", False),
        ("a://", "a://x", False),
    ],
)
def test_all_provider_id_forms_of_an_instance_are_equal(one: str, other: str, same: bool) -> None:
    assert is_same_instance(one, other) is same
    assert is_same_instance(other, one) is same


@pytest.mark.row("stackit-node-02")
async def test_new_nodes_get_the_configured_provider_id_form(harness: StackitHarness) -> None:
    harness.form = "project"
    made = await harness.create()
    async with harness.open() as project:
        assert project.instances is not None
        found = await project.instances.instance_metadata(node(made.name))

    assert found is not None
    assert found.provider_id == f"stackit://{PROJECT}/{made.provider_id.removeprefix('stackit://')}"


@pytest.mark.row("stackit-node-03")
@pytest.mark.parametrize(
    ("status", "is_off"),
    [
        ("ACTIVE", False),
        ("CREATING", False),
        ("STOPPING", False),
        ("INACTIVE", True),
        ("DEALLOCATED", True),
        ("DEALLOCATING", False),
        ("ERROR", False),
        ("HIBERNATING", False),
        (None, False),
    ],
)
async def test_only_inactive_and_deallocated_servers_are_shut_down(
    harness: StackitHarness, status: str | None, is_off: bool
) -> None:
    made = await harness.create()
    (held,) = harness.service.cloud.servers.values()
    held["status"] = status

    assert (
        await harness.project.instances.instance_shutdown(node("any", provider_id=made.provider_id))
        is is_off
    )


@pytest.mark.row("stackit-node-04")
async def test_addresses_of_the_default_network_come_first(harness: StackitHarness) -> None:
    world = harness.service.cloud
    server.add_network(world, OTHER, "a-first", "192.168.0.0/24", ipv6="2001:db8::/64")
    made = await harness.create()
    (held,) = world.servers.values()
    held["nics"].insert(0, servers._nic_details(servers.new_nic(world, OTHER), "a-first"))
    held["nics"].append(dict(held["nics"][0]))
    held["availabilityZone"] = "_eu01/zone 1_"

    found = []
    for default in ("", "k8s", OTHER):
        harness.extra = {"instance": {"defaultNetwork": default}}
        async with harness.open() as project:
            assert project.instances is not None
            found.append(await project.instances.instance_metadata(node(made.name)))

    inside, outside = ["InternalIP", "InternalIP"], ["InternalIP", "ExternalIP"]
    kinds = [[one.type for one in each.addresses] for each in found if each]
    assert kinds == [
        [*inside, *outside, "Hostname"],
        [*outside, *inside, "Hostname"],
        [*inside, *outside, "Hostname"],
    ]
    assert found[0] is not None
    assert (found[0].zone, found[0].region) == ("eu01-zone-1", "eu01")


@pytest.mark.row("stackit-node-05")
async def test_a_server_without_network_interfaces_has_no_metadata(harness: StackitHarness) -> None:
    made, other = await harness.create(), await harness.create()
    harness.service.cloud.servers[made.provider_id.rpartition("/")[2]]["nics"] = []

    with pytest.raises(cloud.Unavailable, match="network interface"):
        await harness.project.instances.instance_metadata(node(made.name))
    listed = (await harness.project.inventory.list_instances()).instances

    assert [one.name for one in listed] == [other.name]
    assert await harness.project.instances.instance_exists(node(made.name))


@pytest.mark.row("stackit-node-01", "stackit-machine-09")
async def test_a_404_of_a_proxy_does_not_mean_that_the_server_is_gone(
    harness: StackitHarness,
) -> None:
    harness.extra = {"global": {"apiEndpoints": {"iaasApi": f"{harness.url}/elsewhere"}}}
    async with harness.open() as project:
        assert project.instances is not None
        with pytest.raises(cloud.Unknown):
            await project.instances.instance_exists(node("a", provider_id=f"stackit://{SERVER}"))
