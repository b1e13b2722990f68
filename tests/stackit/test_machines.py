"""Servers for machines beyond the contract: the vendor's driver's cases, and what is mended."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from ccm import cloud
from ccm.cloud.machines import Phase, known
from ccm.testing import machine_probes
from ccm.testing.fake_api import Fault
from ccm.testing.machine_probes import Machines
from providers.stackit import iaas, marks
from providers.stackit.testing import servers
from providers.stackit.testing.server import IMAGE, NETWORK, PROJECT
from tests.stackit.harness import StackitHarness

SERVER = "70bb02f3-c11b-4321-bd78-8f8f4460f1b3"


def of(project: cloud.Cloud, harness: StackitHarness, **spec: Any) -> Machines:
    """Machines of a class; a field that is None is left out."""
    found = machine_probes.machines_of(project, harness)
    given = {**harness.machine_spec(), "allowedAddresses": None, **spec}
    found.spec = {key: value for key, value in given.items() if value is not None}
    return found


@pytest.fixture
def orders(harness: StackitHarness, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every order of a server, as it came."""
    seen: list[dict[str, Any]] = []
    create = servers.create

    def noted(world: Any, order: dict[str, Any], place: Any) -> dict[str, Any]:
        seen.append(order)
        return create(world, order, place)

    monkeypatch.setattr(servers, "create", noted)
    return seen


@pytest.mark.row("stackit-machine-02", "stackit-machine-04")
async def test_a_bare_order(
    harness: StackitHarness, project: cloud.Cloud, orders: list[dict[str, Any]]
) -> None:
    group = of(project, harness)
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
async def test_an_option(
    harness: StackitHarness,
    project: cloud.Cloud,
    orders: list[dict[str, Any]],
    spec: dict[str, Any],
    key: str,
    value: Any,
) -> None:
    group = of(project, harness, **spec)
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
async def test_whose_user_data(
    harness: StackitHarness,
    project: cloud.Cloud,
    orders: list[dict[str, Any]],
    own: str,
    secret: bytes,
    sent: bytes,
) -> None:
    group = of(project, harness, userData=own)

    await group.driver.create_machine(group.request(group.identity(), user_data=secret))

    assert base64.b64decode(orders[0]["userData"]) == sent


@pytest.mark.row("stackit-machine-04")
async def test_a_server_that_would_never_join_is_not_ordered(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness, userData="")

    with pytest.raises(cloud.InvalidArgument, match="userData is missing"):
        await group.driver.create_machine(group.request(group.identity(), user_data=b""))

    assert harness.service.requests == 0


@pytest.mark.row("stackit-machine-02")
@pytest.mark.parametrize(
    "wrong", [{"machineType": ""}, {"imageId": ""}, {"networking": None}, {"networking": {}}]
)
async def test_an_order_that_makes_no_sense_is_not_made(
    harness: StackitHarness, project: cloud.Cloud, wrong: dict[str, Any]
) -> None:
    group = of(project, harness, **wrong)
    with pytest.raises(cloud.InvalidArgument, match=next(iter(wrong))):
        await group.create(group.identity())
    group = of(project, harness)
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
async def test_what_cards_may_send_from(
    harness: StackitHarness, project: cloud.Cloud, by: str
) -> None:
    world = harness.service.cloud
    nic = servers.new_nic(world, NETWORK, allowedAddresses=["192.0.2.0/24"])
    networking = {by: NETWORK} if by == "networkId" else {by: [nic["id"]]}
    allowed = ["10.0.0.0/8", "10.9.0.0/16"]
    group = of(project, harness, networking=networking, allowedAddresses=allowed)
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
async def test_a_crash_while_cards_are_changed(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    world = harness.service.cloud
    cards = [servers.new_nic(world, NETWORK) for _ in range(2)]
    networking = {"nicIds": [one["id"] for one in cards]}
    group = of(project, harness, networking=networking, allowedAddresses=["10.0.0.0/8"])
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
async def test_cards_fit_one_machine(harness: StackitHarness, project: cloud.Cloud) -> None:
    nic = servers.new_nic(harness.service.cloud, NETWORK)
    group = of(project, harness, networking={"nicIds": [nic["id"].upper()]})
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
async def test_no_card(harness: StackitHarness, project: cloud.Cloud) -> None:
    group = of(project, harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    held["nics"] = []

    with pytest.raises(cloud.Unavailable, match="no NICs found"):
        await group.driver.initialize_machine(group.request(who, made.provider_id))


@pytest.mark.row("stackit-machine-15", "stackit-machine-05")
async def test_the_waits_are_steps(harness: StackitHarness, project: cloud.Cloud) -> None:
    group = of(project, harness)
    await harness.slow_vms(slow=True)
    made = await group.create_once(who := group.identity())
    req = group.request(who, made.provider_id)
    server_id = made.provider_id.rpartition("/")[2]
    with pytest.raises(cloud.RetryAfter) as waiting:
        await group.driver.initialize_machine(req)
    assert waiting.value.seconds == iaas.AGAIN_S
    harness.service.cloud.settle(all_of_them=True)
    await group.driver.initialize_machine(req)

    with pytest.raises(cloud.RetryAfter):
        await group.driver.delete_machine(req)
    before = harness.service.writes
    with pytest.raises(cloud.RetryAfter):
        await group.driver.delete_machine(req)
    assert harness.service.writes == before  # it is being deleted, and not asked for again
    instances: Any = project.instances
    with pytest.raises(cloud.RetryAfter):
        await instances._api.wait_until_server_deleted(PROJECT, "eu01", server_id)
    harness.service.cloud.settle(all_of_them=True)
    await group.driver.delete_machine(req)
    await instances._api.wait_until_server_deleted(PROJECT, "eu01", server_id)
    with pytest.raises(cloud.NotFound):
        await instances._api.wait_until_server_running(PROJECT, "eu01", server_id)


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
async def test_errors_follow_from_the_status(
    harness: StackitHarness, project: cloud.Cloud, status: int, text: str, kind: type[Exception]
) -> None:
    group = of(project, harness)
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
async def test_an_order_that_names_what_is_not_there(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness, imageId=SERVER)
    with pytest.raises(cloud.FailedPrecondition, match=SERVER):
        await group.create(group.identity())


@pytest.mark.row("stackit-machine-10")
async def test_a_server_that_never_came_up_is_deleted(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness)
    harness.service.settings.hosts = 0
    made = await group.create(who := group.identity())
    with pytest.raises(cloud.ResourceExhausted, match="No valid host") as caught:
        await group.driver.initialize_machine(group.request(who, made.provider_id))
    assert known(caught.value).phase is Phase.FAILED  # so nobody waits for it any more
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
async def test_a_server_that_has_run_is_never_deleted_for_its_state(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    held.update(status="ERROR", errorMessage="resize failed")
    req = group.request(who, made.provider_id)

    with pytest.raises(cloud.FailedPrecondition, match="resize failed") as caught:
        await group.driver.initialize_machine(req)
    assert known(caught.value).phase is not Phase.FAILED  # a person may mend it
    status = await group.driver.get_machine_status(req)

    assert (status.phase, status.message) == (cloud.Phase.FAILED, "resize failed")
    assert len(await harness.vms()) == 1


@pytest.mark.row("stackit-machine-10")
async def test_a_failed_server_of_somebody_else_is_not_deleted(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness)
    given = await machine_probes.foreign(group, "given", "nobody")
    (held,) = harness.service.cloud.servers.values()
    held["status"] = "ERROR"

    request = group.request(group.identity(), given.provider_id, is_imported=True)
    with pytest.raises(cloud.FailedPrecondition, match="has run before"):
        await group.driver.initialize_machine(request)
    assert len(await harness.vms()) == 1
