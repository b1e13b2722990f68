"""Servers for machines beyond the contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccm import cloud
from ccm.testing import machine_probes
from providers import hcloud
from providers.hcloud.testing import extras
from providers.hcloud.testing.state import Call
from tests.hcloud.harness import HcloudHarness


def machines_of(harness: HcloudHarness, **spec: Any) -> Any:
    found = machine_probes.machines_of(harness.project, harness)
    found.spec = {"serverType": "cx23", **spec}
    return found


@pytest.mark.row("hcloud-machine-02")
async def test_placement_groups_hold_ten_servers_and_are_deleted_when_empty(
    harness: HcloudHarness,
) -> None:
    machines = machines_of(harness, placementGroupPrefix="workers")
    groups = harness.service.cloud.placement_groups
    made = {}
    for _ in range(12):
        who = machines.identity()
        made[who] = (await machines.create(who)).provider_id

    sizes = sorted(len(one["servers"]) for one in groups.values())
    assert sizes == [2, 10]
    assert all(one["name"].startswith("workers-") for one in groups.values())
    assert all(
        one["labels"]
        == {
            "kube-ccm/cluster": machine_probes.CLUSTER,
            "kube-ccm/namespace": machine_probes.NAMESPACE,
            "kube-ccm/pool": machine_probes.POOL,
        }
        for one in groups.values()
    )
    for who, provider_id in made.items():
        await machines.delete(who, provider_id)
    assert groups == {}
    assert await harness.beside_vms() == []


@pytest.mark.row("hcloud-machine-02")
async def test_an_empty_placement_group_of_another_namespace_stays(harness: HcloudHarness) -> None:
    """Its first server may be in creation. A shared group without namespace is deleted."""
    machines = machines_of(harness, placementGroupPrefix="workers")
    who, groups = machines.identity(), harness.service.cloud.placement_groups
    made = await machines.create(who)
    (own,) = groups.values()
    for number, namespace in ((901, "theirs"), (902, "")):
        labels = {**own["labels"], "kube-ccm/namespace": namespace}
        labels = {key: text for key, text in labels.items() if text}
        groups[number] = {**own, "id": number, "name": "workers-x", "servers": []}
        groups[number]["labels"] = labels

    await machines.delete(who, made.provider_id)

    assert [one["labels"]["kube-ccm/namespace"] for one in groups.values()] == ["theirs"]


@pytest.mark.row("hcloud-machine-02")
async def test_deletion_spares_resources_of_another_cluster_in_the_project(
    harness: HcloudHarness,
) -> None:
    """Pool and even UID are the same: only the cluster label differs."""
    machines = machines_of(harness, placementGroupPrefix="w", location="fsn1", volumes=[10])
    ours = machines.identity()
    theirs = replace(machines.identity(), cluster="other", uid=ours.uid)
    for who in (ours, theirs):
        await machines.create(who)
    world = harness.service.cloud

    await machines.delete(ours)

    tables = (world.servers, world.ssh_keys, world.volumes, world.placement_groups)
    left = [one["labels"]["kube-ccm/cluster"] for table in tables for one in table.values()]
    assert left == ["other"] * len(tables)


@pytest.mark.row("hcloud-machine-02")
@pytest.mark.parametrize("lost", range(5))
@pytest.mark.parametrize("way", ["imported", "restored"])
async def test_key_and_volumes_of_a_former_identity_are_deleted(
    harness: HcloudHarness, way: str, lost: int
) -> None:
    """When the server is gone, its labels are too.

    Of the four writes until then, none or one loses its answer.
    """
    machines = machines_of(harness, location="fsn1", volumes=[10, 20])
    await machines.create(machines.identity())
    world = harness.service.cloud
    theirs = [*world.servers], [*world.volumes], [*world.ssh_keys]
    former = machines.identity()
    made = await machines.create(former)
    is_imported = way == "imported"
    new = machines.identity() if is_imported else replace(former, uid="uid-of-the-restored")
    req = machines.request(new, made.provider_id, is_imported=is_imported)
    harness.service.settings.removal_s = 60.0
    if lost:
        await harness.lose_answer(lost)
    with pytest.raises(cloud.CloudError):
        await machines.driver.delete_machine(req)
    with pytest.raises(cloud.RetryAfter):
        await machines.driver.delete_machine(req)
    world.settle(all_of_them=True)

    await machines.driver.delete_machine(req)

    assert ([*world.servers], [*world.volumes], [*world.ssh_keys]) == theirs


@pytest.mark.row("hcloud-machine-03")
async def test_a_full_spec_is_applied_to_the_server(harness: HcloudHarness) -> None:
    world = harness.service.cloud
    _, wall = extras.create_firewall(world, Call(body={"name": "wall"}))
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA=="
    extras.create_ssh_key(world, Call(body={"name": "ops", "public_key": key}))
    assert wall is not None
    machines = machines_of(
        harness,
        serverType="cax11",
        image="ubuntu-24.04",
        location="nbg1",
        datacenter=None,
        networks=["k8s"],
        firewalls=[wall["firewall"]["id"]],
        sshKeys=["ops"],
        volumes=[10],
        labels={"env": "prod"},
        assignPublicIPv4=False,
    )
    assert machines.driver.machine_metrics_labels(machines.spec) == {
        "size": "cax11",
        "location": "nbg1",
    }
    who = machines.identity()

    made = await machines.create(who)

    (server,) = world.servers.values()
    assert server["image"]["architecture"] == "arm"
    assert server["location"]["name"] == "nbg1"
    assert server["public_net"]["ipv4"] is None
    assert [one["id"] for one in server["public_net"]["firewalls"]] == [wall["firewall"]["id"]]
    assert server["labels"]["env"] == "prod"
    assert [one["name"] for one in world.ssh_keys.values()] == ["ops"]
    assert len(server["volumes"]) == 1
    assert [one.type for one in made.addresses] == ["Hostname", "ExternalIP", "InternalIP"]
    await machines.delete(who, made.provider_id)
    assert (len(world.ssh_keys), world.volumes) == (1, {})


@pytest.mark.row("hcloud-machine-03")
async def test_every_invalid_field_of_a_spec_is_reported(harness: HcloudHarness) -> None:
    wrong = {
        "image": 7,
        "location": "fsn1",
        "datacenter": "fsn1-dc14",
        "volumes": [5],
        "labels": {"kube-ccm/uid": "mine"},
        "assignPublicIPv4": False,
        "assignPublicIPv6": False,
        "flavour": "large",
    }
    driver: Any = harness.project.machines

    found = await driver.validate_spec(wrong, cloud.Credentials({}), live=True)

    fields = "datacenter flavour image labels networks secretRef serverType volumes"
    assert sorted(one.field for one in found) == fields.split()


@pytest.mark.row("hcloud-machine-03")
async def test_live_validation_reports_missing_objects_and_bad_credentials(
    harness: HcloudHarness,
) -> None:
    driver: Any = harness.project.machines
    spec = {"serverType": "cx99", "location": "mars", "networks": ["k8s", "none"]}
    good = cloud.Credentials(harness.machine_credentials())

    absent = await driver.validate_spec(spec, good, live=True)
    assert [one.field for one in absent] == ["serverType", "location", "networks"]
    # The last three fit no header.
    for token in (b"wrong", b"hunter2\nX-Admin: 1", b"hunter2" * 43_000, b"\xff"):
        bad = cloud.Credentials({"token": token})
        (refused,) = await driver.validate_spec({"serverType": "cx23"}, bad, live=True)
        assert refused.field == "secretRef"
        assert "hunter2" not in refused.message
    machines = machines_of(harness, location="mars")
    with pytest.raises(cloud.InvalidArgument, match="location: "):  # the field that was wrong
        await machines.create_once(machines.identity())
    assert harness.service.cloud.servers == {}


async def test_an_invalid_endpoint_is_refused() -> None:
    given = cloud.Context(environ={"HCLOUD_ENDPOINT": "ftp://x"})
    with pytest.raises(cloud.ConfigError, match="HCLOUD_ENDPOINT"):
        async with hcloud.open_machines(given):
            pass


async def test_a_pool_name_too_long_for_a_label_is_refused(harness: HcloudHarness) -> None:
    machines = machines_of(harness)
    with pytest.raises(cloud.InvalidArgument, match="63"):
        await machines.create(machines.identity(pool="p" * 64))
    assert harness.service.writes == 0
