"""Servers for machines beyond the contract: the vendor's cases, where they are, and whose."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.cloud.machines import Phase, partial_info
from ccm.testing import machine_probes
from ccm.testing.fake_api import Exchange, Fault
from ccm.testing.machine_probes import Machines
from providers.stackit import auth, iaas, machines, marks
from providers.stackit.testing import server, servers
from providers.stackit.testing.server import IMAGE, NETWORK, PROJECT
from tests.stackit.harness import StackitHarness

SERVER = "70bb02f3-c11b-4321-bd78-8f8f4460f1b3"


def of(harness: StackitHarness, project: cloud.Cloud | None = None, /, **spec: Any) -> Machines:
    """Machines of a class; a field that is None is left out."""
    found = machine_probes.machines_of(project or harness.project, harness)
    given = {**harness.machine_spec(), "allowedAddresses": None, **spec}
    found.spec = {key: value for key, value in given.items() if value is not None}
    return found


@pytest.fixture
def orders(harness: StackitHarness, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every order of a server, as it came."""
    seen: list[dict[str, Any]] = []
    check = servers._check

    def noted(world: Any, order: dict[str, Any], place: Any) -> None:
        seen.append(order)
        check(world, order, place)

    monkeypatch.setattr(servers, "_check", noted)
    return seen


@pytest.mark.row("stackit-machine-02", "stackit-machine-04")
async def test_a_minimal_spec_orders_a_server_with_labels_and_user_data(
    harness: StackitHarness, orders: list[dict[str, Any]]
) -> None:
    group = of(harness)
    who = group.identity()

    made = await group.create_once(who)

    (held,) = harness.service.cloud.servers.values()
    assert made.provider_id == f"stackit://{PROJECT}/{held['id']}"
    assert (made.node_name, made.last_known_state) == (who.name, "region=eu01")
    assert [one.type for one in made.addresses] == ["InternalIP"]
    assert orders == [
        {
            "name": who.name,
            "machineType": "c2i.2",
            "imageId": IMAGE,
            "networking": {"networkId": NETWORK},
            "bootVolume": {"deleteOnTermination": True},
            "userData": base64.b64encode(machine_probes.USER_DATA).decode(),
            "labels": {
                "kubernetes.io/machine": who.name,
                "kubernetes.io/machineclass": who.pool,
                "kube-ccm/cluster": who.cluster,
                "kube-ccm/namespace": who.namespace,
                "kube-ccm/uid": who.uid,
            },
        }
    ]


OPTIONS: list[tuple[dict[str, Any], str, Any]] = [
    ({"labels": {"a": "b", "kube-ccm/uid": "mine"}}, "labels", {"a": "b"}),
    ({"securityGroups": ["default"]}, "securityGroups", ["default"]),
    ({"userData": "#!/bin/sh"}, "userData", base64.b64encode(b"#!/bin/sh").decode()),
    ({"volumes": [IMAGE]}, "volumes", [IMAGE]),
    ({"keypairName": "ops"}, "keypairName", "ops"),
    ({"availabilityZone": "eu01-2"}, "availabilityZone", "eu01-2"),
    ({"affinityGroup": IMAGE}, "affinityGroup", IMAGE),
    ({"serviceAccountMails": ["a@example.com"]}, "serviceAccountMails", ["a@example.com"]),
    ({"agent": {"provisioned": False}}, "agent", {"provisioned": False}),
    ({"metadata": {"a": "b"}}, "metadata", {"a": "b"}),
    (
        {
            "bootVolume": {
                "size": 40,
                "performanceClass": "fast",
                "deleteOnTermination": False,
                "source": {"type": "image", "id": IMAGE},
            }
        },
        "bootVolume",
        {
            "deleteOnTermination": False,
            "size": 40,
            "performanceClass": "fast",
            "source": {"type": "image", "id": IMAGE},
        },
    ),
]


@pytest.mark.row("stackit-machine-04")
@pytest.mark.parametrize(("spec", "key", "value"), OPTIONS, ids=[one[1] for one in OPTIONS])
async def test_each_spec_option_is_part_of_the_order(
    harness: StackitHarness,
    orders: list[dict[str, Any]],
    spec: dict[str, Any],
    key: str,
    value: Any,
) -> None:
    group = of(harness, **spec)
    who = group.identity()

    await group.create_once(who)

    (order,) = orders
    found = order[key]
    if key == "labels":
        found = {name: text for name, text in found.items() if name in spec["labels"]}
        value = {**value, marks.UID: who.uid}  # whatever the class says
    assert found == value
    assert order.keys() - {key} == {
        "name",
        "machineType",
        "imageId",
        "networking",
        "bootVolume",
        "labels",
        "userData",
    } - {key}


@pytest.mark.row("stackit-machine-04")
@pytest.mark.parametrize(
    ("own", "secret", "sent"),
    [("", b"secret", b"secret"), ("own", b"", b"own"), ("own", b"secret", b"own")],
)
async def test_user_data_of_the_spec_overrides_that_of_the_secret(
    harness: StackitHarness,
    orders: list[dict[str, Any]],
    own: str,
    secret: bytes,
    sent: bytes,
) -> None:
    group = of(harness, userData=own)

    await group.driver.create_machine(group.request(group.identity(), user_data=secret))

    assert base64.b64decode(orders[0]["userData"]) == sent


@pytest.mark.row("stackit-machine-04")
async def test_creation_without_user_data_is_refused(harness: StackitHarness) -> None:
    group = of(harness, userData="")

    with pytest.raises(cloud.InvalidArgument, match="userData is missing"):
        await group.driver.create_machine(group.request(group.identity(), user_data=b""))

    assert harness.service.requests == 0


@pytest.mark.row("stackit-machine-02")
@pytest.mark.parametrize(
    "wrong", [{"machineType": ""}, {"imageId": ""}, {"networking": None}, {"networking": {}}]
)
async def test_creation_with_missing_or_too_long_values_is_refused(
    harness: StackitHarness, wrong: dict[str, Any]
) -> None:
    group = of(harness, **wrong)
    with pytest.raises(cloud.InvalidArgument, match=next(iter(wrong))):
        await group.create(group.identity())
    group = of(harness)
    group.credentials = {**harness.machine_credentials(), "project-id": b""}
    with pytest.raises(cloud.InvalidArgument, match="project-id"):
        await group.create(group.identity())
    group.credentials = None
    with pytest.raises(cloud.InvalidArgument, match="63"):
        await group.create(group.identity("n" * 64))
    with pytest.raises(cloud.InvalidArgument, match="63"):
        await group.create(group.identity(pool="p" * 64))

    assert harness.service.requests == 0


# --- initialising -------------------------------------------------------------------------------


@pytest.mark.row("stackit-machine-03")
@pytest.mark.parametrize("by", ["networkId", "nicIds"])
async def test_allowed_addresses_are_added_to_the_network_interfaces(
    harness: StackitHarness, by: str
) -> None:
    world = harness.service.cloud
    nic = servers.new_nic(world, NETWORK, allowedAddresses=["192.0.2.0/24"])
    networking = {by: NETWORK} if by == "networkId" else {by: [nic["id"]]}
    allowed = ["10.0.0.0/8", "10.9.0.0/16"]
    group = of(harness, networking=networking, allowedAddresses=allowed)
    who = group.identity()
    made = await group.create(who)
    (held,) = [one for one in world.nics.values() if one.get("device")]
    held["allowedAddresses"] = ["192.0.2.0/24", "10.9.0.0/16"]
    calls = harness.service.calls
    patch = "PATCH /v2/projects/{projectId}/regions/{region}/networks/{networkId}/nics/{nicId}"

    with pytest.raises(cloud.Uninitialized) as caught:
        await group.driver.get_machine_status(group.request(who, made.provider_id))
    await group.initialize(who, made.provider_id)
    assert held["allowedAddresses"] == ["192.0.2.0/24", "10.9.0.0/16", "10.0.0.0/8"]
    await group.initialize(who, made.provider_id)
    await group.driver.get_machine_status(group.request(who, made.provider_id))

    assert calls[patch] == 1
    carried = caught.value.partial
    assert isinstance(carried, cloud.MachineInfo)
    assert (carried.provider_id, carried.node_name) == (made.provider_id, who.name)


@pytest.mark.row("stackit-machine-03")
async def test_interface_changes_are_completed_after_a_lost_answer(harness: StackitHarness) -> None:
    world = harness.service.cloud
    cards = [servers.new_nic(world, NETWORK) for _ in range(2)]
    networking = {"nicIds": [one["id"] for one in cards]}
    group = of(harness, networking=networking, allowedAddresses=["10.0.0.0/8"])
    made = await group.create(who := group.identity())
    for number in (1, 2):
        for one in cards:
            one["allowedAddresses"] = []
        await harness.lose_answer(number)
        with pytest.raises(cloud.Unavailable):
            await group.initialize(who, made.provider_id)
        await group.initialize(who, made.provider_id)
        assert [one["allowedAddresses"] for one in cards] == [["10.0.0.0/8"]] * 2


@pytest.mark.row("stackit-machine-16")
async def test_a_network_interface_serves_one_machine_at_a_time(harness: StackitHarness) -> None:
    nic = servers.new_nic(harness.service.cloud, NETWORK)
    group = of(harness, networking={"nicIds": [nic["id"].upper()]})
    made = await group.create(first := group.identity())
    await group.create(first)
    before = harness.service.writes

    with pytest.raises(cloud.FailedPrecondition, match=r"networking\.nicIds.*networkId") as caught:
        await group.create_once(group.identity())
    assert made.provider_id.rpartition("/")[2] in str(caught.value)
    await harness.slow_vms(slow=True)
    with pytest.raises(cloud.RetryAfter):
        await group.driver.delete_machine(group.request(first, made.provider_id))
    with pytest.raises(cloud.RetryAfter):  # it is about to be free
        await group.create_once(group.identity())
    assert harness.service.writes == before + 1
    await harness.slow_vms(slow=False)
    await group.create(group.identity())

    assert len(await harness.vms()) == 1


@pytest.mark.row("stackit-machine-03")
async def test_initialization_fails_without_network_interfaces(harness: StackitHarness) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    held["nics"] = []

    with pytest.raises(cloud.Unavailable, match="no NICs found"):
        await group.driver.initialize_machine(group.request(who, made.provider_id))


@pytest.mark.row("stackit-machine-15", "stackit-machine-05")
async def test_waits_for_the_server_return_retry_after(harness: StackitHarness) -> None:
    group = of(harness)
    await harness.slow_vms(slow=True)
    made = await group.create_once(who := group.identity())
    req = group.request(who, made.provider_id)
    server_id = made.provider_id.rpartition("/")[2]
    with pytest.raises(cloud.RetryAfter) as waiting:
        await group.driver.initialize_machine(req)
    assert waiting.value.seconds == iaas.RETRY_S
    harness.service.cloud.settle(all_of_them=True)
    await group.driver.initialize_machine(req)

    with pytest.raises(cloud.RetryAfter):
        await group.driver.delete_machine(req)
    before = harness.service.writes
    with pytest.raises(cloud.RetryAfter):
        await group.driver.delete_machine(req)
    assert harness.service.writes == before  # it is being deleted, and not asked for again
    instances: Any = harness.project.instances
    with pytest.raises(cloud.RetryAfter):
        await instances._api.wait_until_server_deleted(instances._place, server_id)
    harness.service.cloud.settle(all_of_them=True)
    await group.driver.delete_machine(req)
    await instances._api.wait_until_server_deleted(instances._place, server_id)
    with pytest.raises(cloud.NotFound):
        await instances._api.wait_until_server_running(instances._place, server_id)


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.row(
    "stackit-machine-10", "stackit-machine-05", "stackit-machine-06", "stackit-machine-07"
)
@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "bad", cloud.InvalidArgument),
        (401, "who", cloud.Unauthenticated),
        (403, "no", cloud.PermissionDenied),
        (409, "busy", cloud.Aborted),
        (413, "too many", cloud.ResourceExhausted),
        (422, "bad value", cloud.InvalidArgument),
        (429, "slowly", cloud.RetryAfter),
        (500, "oh", cloud.Unavailable),
        (502, "oh", cloud.Unavailable),
        (503, "oh", cloud.Unavailable),
        (504, "late", cloud.DeadlineExceeded),
        (418, "tea", cloud.Unknown),
        (500, "No Valid Host was found", cloud.ResourceExhausted),
        (400, "Quota exceeded for cores", cloud.ResourceExhausted),
        (403, "Quota exceeded for cores", cloud.ResourceExhausted),
    ],
)
async def test_http_statuses_map_to_cloud_errors(
    harness: StackitHarness, status: int, text: str, kind: type[Exception]
) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    there = group.request(who, made.provider_id)
    harness.service.script.add(Fault(status=status, message=text, operation="* /v2*"))

    asks: Mapping[str, Any] = {
        "create": lambda: group.create_once(group.identity()),
        "initialize": lambda: group.driver.initialize_machine(there),
        "status": lambda: group.driver.get_machine_status(there),
        "delete": lambda: group.driver.delete_machine(there),
        "list": lambda: group.driver.list_machines(group.list_request()),
    }
    for name, ask in asks.items():
        with pytest.raises(kind) as caught:
            await ask()
        assert type(caught.value) is kind, name
        assert text in str(caught.value)


@pytest.mark.row("stackit-machine-10")
async def test_creation_with_an_unknown_image_is_refused(harness: StackitHarness) -> None:
    group = of(harness, imageId=SERVER)
    with pytest.raises(cloud.FailedPrecondition, match=SERVER):
        await group.create(group.identity())


@pytest.mark.row("stackit-machine-10")
async def test_a_server_that_failed_to_start_is_deleted(harness: StackitHarness) -> None:
    group = of(harness)
    harness.service.settings.hosts = 0
    made = await group.create(who := group.identity())
    with pytest.raises(cloud.ResourceExhausted, match="No valid host") as caught:
        await group.driver.initialize_machine(group.request(who, made.provider_id))
    assert partial_info(caught.value).phase is Phase.FAILED  # so nobody waits for it any more
    assert await harness.vms() == []

    await group.create(who)
    with pytest.raises(cloud.ResourceExhausted):  # found by a later creation: the same
        await group.create_once(who)
    assert await harness.vms() == []
    await group.create(who)
    (held,) = harness.service.cloud.servers.values()
    held["errorMessage"] = "the hypervisor fell over"
    with pytest.raises(cloud.Aborted, match="fell over"):
        await group.create_once(who)


@pytest.mark.row("stackit-machine-10", "stackit-machine-06")
async def test_a_server_that_has_run_is_kept_in_status_error(
    harness: StackitHarness,
) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    held.update(status="ERROR", errorMessage="resize failed")
    req = group.request(who, made.provider_id)

    with pytest.raises(cloud.FailedPrecondition, match="resize failed") as caught:
        await group.driver.initialize_machine(req)
    assert partial_info(caught.value).phase is not Phase.FAILED  # a person may mend it
    status = await group.driver.get_machine_status(req)

    assert (status.phase, status.message) == (cloud.Phase.FAILED, "resize failed")
    assert len(await harness.vms()) == 1


@pytest.mark.row("stackit-machine-10")
async def test_an_imported_server_in_status_error_is_not_deleted(harness: StackitHarness) -> None:
    group = of(harness)
    given = await machine_probes.create_foreign_vm(group, "given", "nobody")
    (held,) = harness.service.cloud.servers.values()
    held["status"] = "ERROR"

    request = group.request(group.identity(), given.provider_id, is_imported=True)
    with pytest.raises(cloud.FailedPrecondition, match="the server may hold data"):
        await group.driver.initialize_machine(request)
    assert len(await harness.vms()) == 1


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
async def test_a_malformed_provider_id_is_refused_without_a_call(
    harness: StackitHarness, provider_id: str
) -> None:
    await harness.refuses_machine_id(provider_id)


@pytest.mark.row("stackit-id-01")
async def test_the_provider_id_form_of_nodes_is_accepted_for_machines(
    harness: StackitHarness,
) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    short = f"stackit://{made.provider_id.rpartition('/')[2]}"

    assert (await group.status(who, short)).provider_id == made.provider_id
    await group.delete(who, short)
    assert await harness.vms() == []


@pytest.mark.row("stackit-machine-11")
async def test_servers_are_found_after_their_class_changes_its_region(
    harness: StackitHarness,
) -> None:
    group = of(harness)
    one, other, third = (group.identity() for _ in range(3))
    made = await group.create(one)
    await group.create(other)
    there = of(harness, region="eu02")
    there.states = group.states

    assert (await there.status(one, made.provider_id)).provider_id == made.provider_id
    await there.delete(one, made.provider_id)
    await there.delete(other)
    assert await harness.vms() == []
    moved = await there.create(third)

    assert moved.last_known_state == "region=eu02"
    assert [place[1] for place in harness.service.cloud.places.values()] == ["eu02"]


@pytest.mark.row("stackit-machine-11", "journal-06")
async def test_account_of_a_server_is_its_project_and_region(harness: StackitHarness) -> None:
    group, there = of(harness), of(harness, region="eu02")
    who = group.identity()

    def account(which: Machines) -> str:
        driver: Any = which.driver
        return str(driver.machine_account(which.request(who)))

    assert harness.project.account == account(group) == f"{PROJECT}/eu01"
    assert account(there) == f"{PROJECT}/eu02"
    await group.create(who)
    there.states = group.states  # the server stays where it is
    assert account(there) == f"{PROJECT}/eu01"
    with pytest.raises(cloud.InvalidArgument, match="region"):
        account(of(harness, region=None))


@pytest.mark.row("stackit-machine-11")
async def test_deletion_without_a_region_is_refused(harness: StackitHarness) -> None:
    group = of(harness, region=None)
    with pytest.raises(cloud.InvalidArgument, match="region"):
        await group.driver.delete_machine(group.request(group.identity(), f"stackit://{SERVER}"))


@pytest.mark.row("stackit-machine-11")
@pytest.mark.parametrize("wrong", ["region", "project", "neither is there"])
async def test_a_machine_that_was_never_ordered_is_deleted_without_a_call(
    harness: StackitHarness, wrong: str
) -> None:
    """Its class has no valid region or project, so there is no server to look for."""
    group = of(harness, region="eu01" if wrong == "project" else "eu-01")
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
async def test_a_server_is_deleted_after_its_creation_answer_was_lost(
    harness: StackitHarness, wrong: str
) -> None:
    """Although its class is invalid by then."""
    group = of(harness)
    who = group.identity()
    await harness.lose_answer(1)
    with pytest.raises(cloud.Unavailable):
        await group.create_once(who)
    assert len(await harness.vms()) == 1
    broken = of(harness, region="eu-01" if wrong == "region" else "eu01")
    broken.states = group.states
    if wrong == "project":
        broken.credentials = {**harness.machine_credentials(), "project-id": b"mine"}
        with pytest.raises(cloud.InvalidArgument, match="project-id"):
            await broken.delete(who)
        broken.credentials = None

    await broken.delete(who)

    assert await harness.vms() == []


@pytest.mark.row("stackit-machine-11")
async def test_deletion_takes_the_project_from_the_provider_id(harness: StackitHarness) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    group.credentials = {**harness.machine_credentials(), "project-id": b""}

    await group.delete(who, made.provider_id)

    assert await harness.vms() == []


@pytest.mark.row("stackit-machine-12")
async def test_a_server_of_the_vendors_driver_is_listed_but_not_adopted(
    harness: StackitHarness,
) -> None:
    """Listed without our labels: the daemon adopts it only on request."""
    group = of(harness)
    order = {
        "name": "theirs",
        "machineType": "c2i.2",
        "labels": {
            marks.StackitMachineLabel: "theirs",
            marks.StackitMachineClassLabel: "contract-pool",
            "odd": 7,
        },
    }
    made = servers.new_server(harness.service.cloud, order)

    with pytest.raises(cloud.AlreadyExists):
        await group.create(group.identity("theirs"))
    (listed,) = await group.list_vms()

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
async def test_a_server_of_the_vendors_driver_is_owned_by_machine_and_class(
    harness: StackitHarness, labels: dict[str, str], owned: bool
) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    theirs = {marks.StackitMachineLabel: who.name, marks.StackitMachineClassLabel: who.pool}
    held["labels"] = theirs | labels

    if owned:
        await group.delete(who, made.provider_id)
    else:
        with pytest.raises(cloud.NotOwned):
            await group.delete(who, made.provider_id)

    assert (await group.vm_provider_ids() == []) is owned


@pytest.mark.row("stackit-machine-07", "stackit-machine-09")
async def test_server_labels_that_are_no_text_are_ignored(harness: StackitHarness) -> None:
    group = of(harness)
    await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    for odd in (None, 7):
        held["labels"][marks.StackitMachineLabel] = odd
        (listed,) = await group.list_vms()

    assert (listed.identity.name, list(await group.list_vms(pool="none"))) == (who.name, [])


@pytest.mark.row("stackit-machine-13")
async def test_of_two_servers_of_one_machine_the_older_stays(harness: StackitHarness) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    servers.new_server(harness.service.cloud, held["_order"])

    again = await group.create(who)

    assert again.provider_id == made.provider_id
    assert await group.vm_provider_ids() == [made.provider_id]


@pytest.mark.row("stackit-machine-08")
async def test_clients_are_shared_by_service_account_key(harness: StackitHarness) -> None:
    group = of(harness)
    driver: Any = group.driver
    account = harness.service.account
    for user_data in (b"one", b"two"):
        group.credentials = {**harness.machine_credentials(), "userData": user_data}
        await group.list_vms()
    assert (len(driver.spi), account.issued) == (1, 1)

    account.rotate()
    with pytest.raises(cloud.Unauthenticated):
        await group.list_vms()
    group.credentials = None
    await group.list_vms()

    assert (len(driver.spi), account.issued) == (1, 2)


@pytest.mark.row("stackit-machine-08")
@pytest.mark.parametrize(
    "key",
    [
        *(b"", b"no json", b"[1]", b'"text"', b'{"credentials": {"kid": "k"}}'),
        # Such as would take long to read.
        *(b"[" * 100_000, b'{"credentials": "\xff"}'),
        b'{"credentials": {"privateKey": "%s"}}' % (b"A" * (auth.PEM_LIMIT + 1)),
    ],
    ids=lambda key: repr(key[:16]),
)
async def test_a_malformed_service_account_key_is_refused(
    harness: StackitHarness, key: bytes
) -> None:
    group = of(harness)
    group.credentials = {**harness.machine_credentials(), "serviceaccount.json": key}
    with pytest.raises(cloud.InvalidArgument, match=r"serviceaccount\.json"):
        await group.list_vms()


@pytest.mark.row("stackit-machine-08")
async def test_any_key_is_accepted_without_authentication(harness: StackitHarness) -> None:
    harness.service.settings.no_auth = True
    harness.variables = {"STACKIT_NO_AUTH": "true"}
    async with harness.open_machines() as opened:
        group = of(harness, opened)
        group.credentials = {**harness.machine_credentials(), "serviceaccount.json": b"[]"}
        await group.create(group.identity())

    assert (len(await harness.vms()), harness.service.account.issued) == (1, 0)


@pytest.mark.row("stackit-machine-08")
async def test_machines_use_the_iaas_endpoint_of_the_cloud_config(harness: StackitHarness) -> None:
    """The variable takes precedence; `open_machines` has no cloud config."""
    harness.variables = {"STACKIT_IAAS_ENDPOINT": ""}
    async with harness.open() as opened:
        group = of(harness, opened)
        await group.create(group.identity())
        assert len(await harness.vms()) == 1
    harness.variables = {"STACKIT_IAAS_ENDPOINT": f"{harness.url}/elsewhere"}
    async with harness.open() as opened:
        with pytest.raises(cloud.Unknown):
            await of(harness, opened).list_vms()


@pytest.mark.row("stackit-machine-14")
async def test_volume_ids_include_only_volumes_of_the_csi_driver(harness: StackitHarness) -> None:
    specs: list[dict[str, Any]] = [
        {"csi": {"driver": machines.StackitMachines.csi_driver, "volumeHandle": "v-1"}},
        {"csi": {"driver": "csi.else", "volumeHandle": "v-2"}},
        {"hostPath": {}},
    ]
    found = await harness.project.machines.get_volume_ids(cloud.GetVolumeIDsRequest(pv_specs=specs))

    assert found == ["v-1"]


@pytest.mark.row("stackit-spec-13")
async def test_live_validation_reports_missing_objects_and_bad_credentials(
    harness: StackitHarness,
) -> None:
    driver: Any = harness.project.machines
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
async def test_the_token_endpoint_in_a_class_secret_is_ignored(
    harness: StackitHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server would get a signed assertion, and the error would quote its answer."""
    asked: list[Exchange] = []
    monkeypatch.setattr(auth, "TOKEN_URL", f"{harness.url}/token")
    harness.variables = {"STACKIT_TOKEN_BASEURL": ""}
    key = msgspec.json.decode(harness.service.account.key)
    async with server.serve(server.Service(witness=asked.append)) as elsewhere:
        key["credentials"]["tokenEndpoint"] = f"{elsewhere}/token"
        async with harness.open_machines() as opened:
            group = of(harness, opened)
            group.credentials = {
                **harness.machine_credentials(),
                "serviceaccount.json": msgspec.json.encode(key),
            }
            await group.create(group.identity())

    assert (asked, harness.service.account.issued) == ([], 1)
