"""The driver of the simulated cloud beyond the contract (`tests/contract/test_sim.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from ccm import cloud
from ccm.cloud.machines import known
from ccm.testing.builders import node
from ccm.testing.fake_api import Fault
from providers import sim
from providers.sim import server, world, worlds
from tests.unit.providers.sim.conftest import Remote

WHO = cloud.Identity(cluster="c1", namespace="pools", pool="workers", name="m-1", uid="u-1")
OTHER = cloud.Identity(cluster="c1", pool="workers", name="m-2", uid="u-2")
VOLUMES = {"dataVolumes": [10, 20]}
RANGES = {"allowedAddresses": ["10.244.0.0/24"]}


class Asking:
    """Requests about one machine of one cluster."""

    def __init__(self, driver: sim.machines.SimMachines) -> None:
        self.driver = driver
        self.credentials = cloud.Credentials({"token": b"a-tokens-text"})

    def request(self, provider_id: str = "", **fields: Any) -> cloud.MachineRequest:
        given = {"identity": WHO, "provider_spec": {}, "credentials": self.credentials}
        return cloud.MachineRequest(provider_id=provider_id, **{**given, **fields})

    async def create(self, **fields: Any) -> cloud.MachineInfo:
        return await self.driver.create_machine(self.request(user_data=b"hi", **fields))

    async def records(self, **spec: Any) -> list[cloud.MachineRecord]:
        asked = cloud.ListMachinesRequest(
            cluster="c1", pool="workers", provider_spec=spec, credentials=self.credentials
        )
        return list(await self.driver.list_machines(asked))


@pytest_asyncio.fixture
async def asking(url: str) -> AsyncIterator[Asking]:
    async with sim.open_machines(cloud.Context(environ={"SIM_URL": url})) as opened:
        assert isinstance(opened.machines, sim.machines.SimMachines)
        yield Asking(opened.machines)


async def test_a_vm_is_as_the_spec_says_and_bears_its_identity(
    asking: Asking, service: server.Service, remote: Remote
) -> None:
    spec = {"machineType": "big", "zone": "z2", "region": "r2", "labels": {"team": "a"}}

    made = await asking.create(provider_spec=spec)

    (held,) = service.world.snapshot()
    assert (held.name, held.type, held.zone, held.region) == ("m-1", "big", "z2", "r2")
    assert held.labels == {
        "team": "a",
        "kube-ccm/cluster": "c1",
        "kube-ccm/namespace": "pools",
        "kube-ccm/pool": "workers",
        "kube-ccm/name": "m-1",
        "kube-ccm/uid": "u-1",
    }
    assert made == cloud.MachineInfo(
        provider_id=f"sim://{held.id}",
        node_name="m-1",
        addresses=(cloud.address("InternalIP", "10.0.0.1"),),
        phase=cloud.Phase.CREATING,
    )
    told = await remote.ok("GET", f"/admin/instances/{held.id}/user-data")
    assert told == {"user_data": "aGk="}
    assert dict(service.calls) == {"list_instances": 1, "create_instance": 1}


async def test_marks_are_no_labels_of_the_node(asking: Asking, provider: cloud.Cloud) -> None:
    await asking.create(provider_spec={"labels": {"team": "a"}})

    assert provider.instances is not None
    found = await provider.instances.instance_metadata(node("m-1"))

    assert found is not None
    assert found.additional_labels == {"team": "a"}


async def test_it_is_initialised_when_it_has_started(
    asking: Asking, service: server.Service
) -> None:
    service.change_settings(worlds.Settings(transition_s=60.0))
    made = await asking.create(provider_spec=RANGES)
    req = asking.request(made.provider_id, provider_spec=RANGES)

    with pytest.raises(cloud.Uninitialized) as raised:
        await asking.driver.get_machine_status(req)
    assert known(raised.value).provider_id == made.provider_id
    assert [one.initialized for one in await asking.records(**RANGES)] == [False]
    with pytest.raises(cloud.RetryAfter):
        await asking.driver.initialize_machine(req)

    service.world.update(made.provider_id[6:], world.Interference(state="running"))
    done = await asking.driver.initialize_machine(req)

    assert done.phase is cloud.Phase.RUNNING
    assert await asking.driver.get_machine_status(req) == done
    assert [one.initialized for one in await asking.records(**RANGES)] == [True]


async def test_without_ranges_there_is_nothing_to_initialise(asking: Asking) -> None:
    made = await asking.create()

    with pytest.raises(cloud.Unimplemented):
        await asking.driver.initialize_machine(asking.request(made.provider_id))


async def test_data_volumes_come_and_go_with_the_vm(
    asking: Asking, service: server.Service
) -> None:
    volumes = service.worlds.volumes
    service.script.add(Fault(kind="error", operation="create_instance", count=1, status=503))

    with pytest.raises(cloud.Unavailable):
        await asking.create(provider_spec=VOLUMES)
    half_made = volumes.list()
    made = await asking.create(provider_spec=VOLUMES)

    assert [(one.name, one.size_gib) for one in half_made] == [("m-1-0", 10), ("m-1-1", 20)]
    assert [one.id for one in volumes.list()] == [one.id for one in half_made]
    assert {one.instance for one in volumes.list()} == {made.provider_id[6:]}
    assert {one.labels["kube-ccm/uid"] for one in volumes.list()} == {"u-1"}

    await asking.driver.delete_machine(asking.request(made.provider_id))
    assert volumes.list() == []


async def test_volumes_of_a_vm_that_stays_stay(asking: Asking, service: server.Service) -> None:
    """A provider ID written by hand has another VM deleted, and that has to come to its end."""
    await asking.create(provider_spec=VOLUMES)
    other = service.world.put(world.GivenInstance(name="other"))

    request = asking.request(f"sim://{other.id}", is_imported=True)
    await asking.driver.delete_machine(request)

    assert [one.name for one in service.world.snapshot()] == ["m-1"]
    assert len(service.worlds.volumes.list()) == 2


async def test_one_of_two_with_our_name_is_ours(asking: Asking, service: server.Service) -> None:
    service.world.put(world.GivenInstance(name="m-1"))
    with pytest.raises(cloud.AlreadyExists, match="has the name m-1"):
        await asking.create()
    labels = {"kube-ccm/cluster": "c1", "kube-ccm/uid": "u-1"}
    ours = service.world.put(world.GivenInstance(name="m-1", labels=labels))

    assert (await asking.create()).provider_id == f"sim://{ours.id}"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (worlds.Settings(instance_quota=1), "quota is 1"),
        (worlds.Settings(zone_capacity=1), "zone sim-1a holds 1"),
    ],
)
async def test_what_is_used_up_is_told_and_heals(
    asking: Asking, service: server.Service, settings: worlds.Settings, told: str
) -> None:
    service.change_settings(settings)
    first = await asking.create(identity=OTHER)

    with pytest.raises(cloud.ResourceExhausted, match=told):
        await asking.create()
    service.world.delete(first.provider_id[6:])

    assert (await asking.create()).node_name == "m-1"


async def test_orders_have_a_rate_of_their_own(asking: Asking, service: server.Service) -> None:
    service.change_settings(worlds.Settings(order_rate_limit=1))
    await asking.create()

    with pytest.raises(cloud.RetryAfter) as raised:
        await asking.create(identity=OTHER)

    assert raised.value.seconds == 1.0
    await asking.records()


@pytest.mark.parametrize(
    ("kind", "phase", "reason", "joins"),
    [
        ("doomed", cloud.Phase.FAILED, "no valid host", True),
        ("deaf", cloud.Phase.CREATING, "", False),
    ],
)
async def test_vms_come_into_the_world_spoiled(
    asking: Asking,
    service: server.Service,
    kind: Any,
    phase: cloud.Phase,
    reason: str,
    joins: bool,
) -> None:
    service.script.add(Fault(kind=kind, operation="create_*", count=1, message="no valid host"))
    service.script.add(Fault(kind=kind, operation="list_*"))

    made = await asking.create()

    assert (made.phase, made.message) == (phase, reason)
    assert [one.joins for one in service.world.snapshot()] == [joins]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"machineType": 4, "zone": ""}, ["machineType: Expected `str`, got `int`", "zone: ''"]),
        ({"sise": "big"}, ["sise: no such field; there are machineType, zone, region, labels"]),
        ({"labels": {"kube-ccm/cluster": "mine"}}, ["are the cluster's marks"]),
        ({"dataVolumes": [1, 0]}, ["each must be a number of GiB above 0"]),
        ({"allowedAddresses": ["10.0.0.0/8", "x"]}, ["each must be a range like 10.244.0.0/16"]),
    ],
)
async def test_every_fault_of_a_spec_is_told(
    asking: Asking, spec: Mapping[str, Any], told: list[str]
) -> None:
    problems = await asking.driver.validate_spec(spec, asking.credentials, live=False)

    assert len(problems) == len(told)
    for problem, words in zip(problems, told, strict=True):
        assert words in str(problem)
    with pytest.raises(cloud.InvalidArgument) as raised:
        await asking.create(provider_spec=spec)
    assert str(raised.value) == "; ".join(map(str, problems))


@pytest.mark.parametrize(
    ("credentials", "told"),
    [
        ({}, "the credentials lack token"),
        ({"token": b" \n"}, "the credentials lack token"),
        ({"token": b"hunter2\xff"}, "must be one line"),
        ({"token": b"hunter2\nX-Admin: 1"}, "token of the credentials must be one line"),
        ({"token": b"hunter2" * 43_000}, "and has 301000"),
    ],
    ids=lambda value: repr(value)[:24],
)
async def test_credentials_are_checked_and_not_told(
    asking: Asking, credentials: Mapping[str, bytes], told: str
) -> None:
    given = cloud.Credentials(credentials)
    (problem,) = await asking.driver.validate_spec({}, given, live=False)

    assert problem.field == "secretRef"
    assert told in problem.message
    with pytest.raises(cloud.InvalidArgument) as raised:
        await asking.driver.create_machine(asking.request(credentials=given))
    assert "hunter2" not in f"{problem} {raised.value} {raised.value.__cause__!r}"


async def test_the_secret_of_a_class_does_not_say_where_the_cloud_is(
    asking: Asking, service: server.Service
) -> None:
    other = server.Service()
    async with server.serve(other) as elsewhere:
        given = {**asking.credentials, "url": elsewhere.encode()}
        await asking.create(credentials=cloud.Credentials(given))

    assert len(service.world.snapshot()) == 1
    assert other.calls.total() == 0


@pytest.mark.parametrize("url", ["", "nowhere", "ftp://x"])
async def test_where_the_cloud_is_has_to_be_said(url: str) -> None:
    with pytest.raises(cloud.ConfigError, match="SIM_URL is"):
        async with sim.open_machines(cloud.Context(environ={"SIM_URL": url})):
            pass


async def test_a_live_check_tries_the_credentials(asking: Asking) -> None:
    wrong = cloud.Credentials({**asking.credentials, "token": b"other"})

    (problem,) = await asking.driver.validate_spec({}, wrong, live=True)

    assert problem.field == "secretRef"
    assert await asking.driver.validate_spec({}, wrong, live=False) == []


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        ({}, {"size": "small", "zone": "sim-1a", "region": "sim-1"}),
        ({"machineType": "big"}, {"size": "big", "zone": "sim-1a", "region": "sim-1"}),
        ({"machineType": []}, {"size": "", "zone": "", "region": ""}),
    ],
)
def test_metric_labels_say_type_and_place(
    spec: Mapping[str, Any], labels: Mapping[str, str]
) -> None:
    driver = sim.machines.SimMachines(sim.machines.open_clients("http://127.0.0.1:1"))

    assert driver.machine_metrics_labels(spec) == labels


async def test_a_record_says_when_the_vm_was_made(asking: Asking, service: server.Service) -> None:
    await asking.create()
    (record,) = await asking.records()

    assert record.identity == WHO
    assert record.created is not None
    assert record.created.isoformat(timespec="milliseconds") == service.world.snapshot()[0].created
