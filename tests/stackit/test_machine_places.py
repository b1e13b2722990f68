"""Where servers of machines are, whose they are, and who may ask."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.testing.fake_api import Exchange
from providers.stackit import auth, machines, marks
from providers.stackit.testing import server, servers
from providers.stackit.testing.server import PROJECT
from tests.stackit.harness import StackitHarness
from tests.stackit.test_machines import SERVER, of


@pytest.mark.row("stackit-id-01")
@pytest.mark.parametrize(
    "provider_id",
    [
        "stackit://",
        "stackit://project",
        f"stackit:///{SERVER}",
        f"stackit://{PROJECT}/",
        f"stackit://{PROJECT}/{SERVER}/more",
        f"stackit://{PROJECT}/server",
        f"aws://{PROJECT}/{SERVER}",
        f"openstack://eu01/{SERVER}",
        "invalid-format",
        "stackit:/",
    ],
)
async def test_a_malformed_provider_id(
    harness: StackitHarness, project: cloud.Cloud, provider_id: str
) -> None:
    group = of(project, harness)
    req = group.request(group.identity(), provider_id)
    for ask in (
        group.driver.get_machine_status,
        group.driver.delete_machine,
        group.driver.initialize_machine,
    ):
        with pytest.raises(cloud.InvalidArgument):
            await ask(req)
    assert harness.service.requests == 0


@pytest.mark.row("stackit-id-01")
async def test_the_form_of_nodes_is_read_too(harness: StackitHarness, project: cloud.Cloud) -> None:
    group = of(project, harness)
    made = await group.create(who := group.identity())
    short = f"stackit://{made.provider_id.rpartition('/')[2]}"

    assert (await group.status(who, short)).provider_id == made.provider_id
    await group.delete(who, short)
    assert await harness.vms() == []


@pytest.mark.row("stackit-machine-11")
async def test_a_class_that_moves_leaves_no_server_behind(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness)
    one, other, third = (group.identity() for _ in range(3))
    made = await group.create(one)
    await group.create(other)
    there = of(project, harness, region="eu02")
    there.states = group.states

    assert (await there.status(one, made.provider_id)).provider_id == made.provider_id
    await there.delete(one, made.provider_id)
    await there.delete(other)
    assert await harness.vms() == []
    moved = await there.create(third)

    assert moved.last_known_state == "region=eu02"
    assert [place[1] for place in harness.service.cloud.places.values()] == ["eu02"]


@pytest.mark.row("stackit-machine-11")
async def test_no_region_at_all(harness: StackitHarness, project: cloud.Cloud) -> None:
    group = of(project, harness, region=None)
    with pytest.raises(cloud.InvalidArgument, match="region"):
        await group.driver.delete_machine(group.request(group.identity(), f"stackit://{SERVER}"))


@pytest.mark.row("stackit-machine-11")
@pytest.mark.parametrize("wrong", ["region", "project", "neither is there"])
async def test_a_machine_that_was_never_ordered_goes(
    harness: StackitHarness, project: cloud.Cloud, wrong: str
) -> None:
    """Its class names no place, so there is nothing to ask for, and nothing to correct first."""
    group = of(project, harness, region="eu01" if wrong == "project" else "eu-01")
    if wrong != "region":
        group.credentials = {**harness.machine_credentials(), "project-id": b"mine"}
    who = group.identity()
    with pytest.raises(cloud.InvalidArgument):
        await group.create_once(who)

    with pytest.raises(cloud.NotFound):
        await group.status(who)
    await group.delete(who)

    assert harness.service.requests == 0


@pytest.mark.row("stackit-machine-11")
@pytest.mark.parametrize("wrong", ["region", "project"])
async def test_an_order_whose_answer_is_lost_is_remembered(
    harness: StackitHarness, project: cloud.Cloud, wrong: str
) -> None:
    """A class that is broken since does not let its server be forgotten."""
    group = of(project, harness)
    who = group.identity()
    await harness.lose_answer(1)
    with pytest.raises(cloud.Unavailable):
        await group.create_once(who)
    assert len(await harness.vms()) == 1
    broken = of(project, harness, region="eu-01" if wrong == "region" else "eu01")
    broken.states = group.states
    if wrong == "project":
        broken.credentials = {**harness.machine_credentials(), "project-id": b"mine"}
        with pytest.raises(cloud.InvalidArgument, match="project-id"):
            await broken.delete(who)
        broken.credentials = None

    await broken.delete(who)

    assert await harness.vms() == []


@pytest.mark.row("stackit-machine-11")
async def test_a_provider_id_says_its_project(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness)
    made = await group.create(who := group.identity())
    group.credentials = {**harness.machine_credentials(), "project-id": b""}

    await group.delete(who, made.provider_id)

    assert await harness.vms() == []


@pytest.mark.row("stackit-machine-12")
async def test_a_server_of_the_vendors_driver(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    """Listed without a marker, for the daemon to take over when it is told to; never by itself."""
    group = of(project, harness)
    order = {
        "name": "theirs",
        "machineType": "c2i.2",
        "labels": {
            marks.StackitMachineLabel: "theirs",
            marks.StackitMachineClassLabel: "contract-pool",
            "odd": 7,
        },
    }
    made = servers.make(harness.service.cloud, order)

    with pytest.raises(cloud.AlreadyExists):
        await group.create(group.identity("theirs"))
    (listed,) = await group.listed()

    assert listed.identity == cloud.Identity(
        cluster="", pool="contract-pool", name="theirs", uid=""
    )
    assert listed.info.provider_id == f"stackit://{PROJECT}/{made['id']}"
    assert harness.service.writes == 0


@pytest.mark.parametrize(
    ("labels", "owned"),
    [
        ({}, True),
        ({marks.StackitMachineLabel: "another"}, False),
        ({marks.StackitMachineClassLabel: "another"}, False),
        ({marks.CLUSTER: "another"}, False),
    ],
)
async def test_a_server_of_the_vendors_driver_is_known_by_machine_and_class(
    harness: StackitHarness, project: cloud.Cloud, labels: dict[str, str], owned: bool
) -> None:
    group = of(project, harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    theirs = {marks.StackitMachineLabel: who.name, marks.StackitMachineClassLabel: who.pool}
    held["labels"] = theirs | labels

    if owned:
        await group.delete(who, made.provider_id)
    else:
        with pytest.raises(cloud.NotOwned):
            await group.delete(who, made.provider_id)

    assert (await group.held() == []) is owned


@pytest.mark.row("stackit-machine-07", "stackit-machine-09")
async def test_labels_that_are_no_text(harness: StackitHarness, project: cloud.Cloud) -> None:
    group = of(project, harness)
    await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    for odd in (None, 7):
        held["labels"][marks.StackitMachineLabel] = odd
        (listed,) = await group.listed()

    assert (listed.identity.name, list(await group.listed(pool="none"))) == (who.name, [])


@pytest.mark.row("stackit-machine-13")
async def test_of_two_servers_of_one_machine_the_older_stays(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    servers.make(harness.service.cloud, held["_order"])

    again = await group.create(who)

    assert again.provider_id == made.provider_id
    assert await group.held() == [made.provider_id]


@pytest.mark.row("stackit-machine-08")
async def test_one_client_for_each_key(harness: StackitHarness, project: cloud.Cloud) -> None:
    group = of(project, harness)
    driver: Any = group.driver
    account = harness.service.account
    for user_data in (b"one", b"two"):
        group.credentials = {**harness.machine_credentials(), "userData": user_data}
        await group.listed()
    assert (len(driver.spi), account.issued) == (1, 1)

    account.rotate()
    with pytest.raises(cloud.Unauthenticated):
        await group.listed()
    group.credentials = None
    await group.listed()

    assert (len(driver.spi), account.issued) == (1, 2)


@pytest.mark.row("stackit-machine-08")
@pytest.mark.parametrize(
    "key", [b"", b"no json", b"[1]", b'"text"', b'{"credentials": {"kid": "k"}}']
)
async def test_a_key_that_is_none(
    harness: StackitHarness, project: cloud.Cloud, key: bytes
) -> None:
    group = of(project, harness)
    group.credentials = {**harness.machine_credentials(), "serviceaccount.json": key}
    with pytest.raises(cloud.InvalidArgument, match=r"serviceaccount\.json"):
        await group.listed()


@pytest.mark.row("stackit-machine-08")
async def test_without_credentials_any_key_will_do(harness: StackitHarness) -> None:
    harness.service.settings.no_auth = True
    harness.variables = {"STACKIT_NO_AUTH": "true"}
    async with harness.open_machines() as opened:
        group = of(opened, harness)
        group.credentials = {**harness.machine_credentials(), "serviceaccount.json": b"[]"}
        await group.create(group.identity())

    assert (len(await harness.vms()), harness.service.account.issued) == (1, 0)


@pytest.mark.row("stackit-machine-08")
async def test_machines_are_where_the_cloud_config_says(harness: StackitHarness) -> None:
    """A variable goes before it; who opens the driver alone has nothing else."""
    harness.variables = {"STACKIT_IAAS_ENDPOINT": ""}
    async with harness.open() as opened:
        group = of(opened, harness)
        await group.create(group.identity())
        assert len(await harness.vms()) == 1
    harness.variables = {"STACKIT_IAAS_ENDPOINT": f"{harness.url}/elsewhere"}
    async with harness.open() as opened:
        with pytest.raises(cloud.Unknown):
            await of(opened, harness).listed()


@pytest.mark.row("stackit-machine-14")
async def test_volumes(project: cloud.Cloud) -> None:
    assert project.machines is not None
    specs: list[dict[str, Any]] = [
        {"csi": {"driver": machines.StackitMachines.csi_driver, "volumeHandle": "v-1"}},
        {"csi": {"driver": "csi.else", "volumeHandle": "v-2"}},
        {"hostPath": {}},
    ]
    found = await project.machines.get_volume_ids(cloud.GetVolumeIDsRequest(pv_specs=specs))

    assert found == ["v-1"]


@pytest.mark.row("stackit-spec-13")
async def test_a_live_look_at_a_spec(harness: StackitHarness, project: cloud.Cloud) -> None:
    driver: Any = project.machines
    spec = {**harness.machine_spec(), "networking": {"networkId": SERVER}, "imageId": SERVER}
    good = cloud.Credentials(harness.machine_credentials())
    bad = cloud.Credentials({**good, "serviceaccount.json": b"{}"})

    absent = await driver.validate_spec(spec, good, live=True)
    refused = await driver.validate_spec(harness.machine_spec(), bad, live=True)
    silent = await driver.validate_spec(spec, good, live=False)

    assert [one.field for one in absent] == ["networking.networkId", "imageId"]
    assert [one.field for one in refused] == ["secretRef"]
    assert silent == []
    assert driver.machine_metrics_labels({"machineType": "c2i.2", "availabilityZone": 7}) == {
        "size": "c2i.2",
        "zone": "",
    }


@pytest.mark.row("stackit-machine-08")
async def test_the_key_of_a_class_does_not_say_where_tokens_come_from(
    harness: StackitHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server would get a signed assertion, and its answer would stand in the error."""
    asked: list[Exchange] = []
    monkeypatch.setattr(auth, "TOKEN_URL", f"{harness.url}/token")
    harness.variables = {"STACKIT_TOKEN_BASEURL": ""}
    key = msgspec.json.decode(harness.service.account.key)
    async with server.serve(server.Service(witness=asked.append)) as elsewhere:
        key["credentials"]["tokenEndpoint"] = f"{elsewhere}/token"
        async with harness.open_machines() as opened:
            group = of(opened, harness)
            group.credentials = {
                **harness.machine_credentials(),
                "serviceaccount.json": msgspec.json.encode(key),
            }
            await group.create(group.identity())

    assert (asked, harness.service.account.issued) == ([], 1)


@pytest.mark.row("stackit-machine-08")
async def test_a_key_that_takes_long_to_read_is_refused(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    key = msgspec.json.decode(harness.service.account.key)
    key["credentials"]["privateKey"] = "A" * (auth.PEM_LIMIT + 1)
    group = of(project, harness)
    for text in (msgspec.json.encode(key), b"[" * 100_000, b'{"credentials": "\xff"}'):
        group.credentials = {**harness.machine_credentials(), "serviceaccount.json": text}
        with pytest.raises(cloud.InvalidArgument, match=r"serviceaccount\.json"):
            await group.listed()
