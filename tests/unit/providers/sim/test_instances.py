"""The provider's answers about nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from ccm.model import Node, NodeSpec, ObjectMeta
from providers import sim
from providers.sim import faults, server, world


@pytest_asyncio.fixture
async def provider(url: str) -> AsyncIterator[cloud.Cloud]:
    context = cloud.Context(config=f"url: {url}\ntoken: secret\ntimeout: 2s".encode())
    async with sim.open_cloud(context) as found:
        yield found


@pytest.fixture
def instances(provider: cloud.Cloud) -> sim.instances.SimInstances:
    assert isinstance(provider.instances, sim.instances.SimInstances)
    return provider.instances


def node(name: str = "a", provider_id: str = "") -> Node:
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(provider_id=provider_id))


def put(service: server.Service, name: str = "a", state: world.State = "running") -> str:
    return service.world.put(world.GivenInstance(name=name, state=state)).id


async def test_the_cloud_offers_all_but_machines(provider: cloud.Cloud) -> None:
    assert provider.name == "sim"
    offered: tuple[object, object] = (provider.instances, provider.inventory)
    assert isinstance(offered[0], cloud.InstanceStates)
    assert offered[0] is offered[1]
    balancers: object = provider.load_balancer
    assert isinstance(balancers, cloud.LoadBalancerDigests)
    assert provider.routes is not None
    assert provider.machines is None


@pytest.mark.parametrize(
    ("state", "power"),
    [
        ("starting", cloud.Power.RUNNING),
        ("running", cloud.Power.RUNNING),
        ("stopping", cloud.Power.RUNNING),
        ("stopped", cloud.Power.SHUTDOWN),
    ],
)
async def test_every_state_but_deleted_exists(
    service: server.Service,
    instances: sim.instances.SimInstances,
    state: world.State,
    power: cloud.Power,
) -> None:
    subject = node(provider_id=f"sim://{put(service, state=state)}")

    assert await instances.instance_exists(subject)
    assert await instances.instance_shutdown(subject) is (power is cloud.Power.SHUTDOWN)
    assert await instances.instance_state(subject) == cloud.InstanceState(exists=True, power=power)


@pytest.mark.parametrize("linger_s", [0.0, 60.0], ids=["gone", "lingering"])
@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "by provider ID"])
async def test_a_deleted_instance_does_not_exist(
    service: server.Service,
    instances: sim.instances.SimInstances,
    linger_s: float,
    by_name: bool,
) -> None:
    service.world.linger_s = linger_s
    deleted = put(service)
    subject = node(provider_id="" if by_name else f"sim://{deleted}")
    service.world.delete(deleted)

    assert not await instances.instance_exists(subject)
    assert await instances.instance_state(subject) == cloud.InstanceState(exists=False)
    for question in (instances.instance_shutdown, instances.instance_metadata):
        with pytest.raises(cloud.NotFound):
            await question(subject)
    assert (await instances.list_instances()).instances == []


async def test_metadata_is_complete_and_in_kubernetes_words(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    kinds: tuple[tuple[world.AddressKind, str], ...] = (
        ("public", "1.2.3.4"),
        ("private", "10.0.0.9"),
        ("private", "fd00::9"),
        ("private", "10.0.0.9"),
        ("private_dns", "a.internal"),
        ("public_dns", "a.example"),
        ("hostname", "a"),
    )
    made = service.world.put(
        world.GivenInstance(
            name="a",
            type="2 vCPU, 4 GB",
            zone="z1",
            region="r1",
            addresses=tuple(world.Address(kind=kind, value=value) for kind, value in kinds),
            labels={"example.com/rack": "7", "note": "not a label!", "/": "x"},
        )
    )

    found = await instances.instance_metadata(node())

    assert found == cloud.InstanceMetadata(
        provider_id=f"sim://{made.id}",
        instance_type="2-vCPU-4-GB",
        zone="z1",
        region="r1",
        addresses=(
            cloud.address("ExternalIP", "1.2.3.4"),
            cloud.address("InternalIP", "10.0.0.9"),
            cloud.address("InternalIP", "fd00::9"),
            cloud.address("InternalDNS", "a.internal"),
            cloud.address("ExternalDNS", "a.example"),
            cloud.address("Hostname", "a"),
        ),
        additional_labels={"example.com/rack": "7"},
    )
    assert await instances.instance_metadata(node(provider_id=f"sim://{made.id}")) == found


async def test_the_provider_id_wins_over_the_name(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    put(service, "a")
    other = put(service, "b")

    found = await instances.instance_metadata(node("a", f"sim://{other}"))

    assert found.provider_id == f"sim://{other}"


@pytest.mark.parametrize(
    "provider_id",
    ["aws:///zone/i-1", "i-1", "sim://", "sim:///i-1", "sim://i-1/../x", "sim://i 1", "SIM://i-1"],
)
async def test_an_odd_provider_id_is_refused_without_a_call(
    service: server.Service, instances: sim.instances.SimInstances, provider_id: str
) -> None:
    subject = node(provider_id=provider_id)

    for question in (
        instances.instance_exists,
        instances.instance_shutdown,
        instances.instance_metadata,
        instances.instance_state,
    ):
        with pytest.raises(cloud.InvalidArgument):
            await question(subject)

    assert service.calls.counts.total() == 0


async def test_a_name_is_matched_exactly(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    put(service, "node-10")

    assert not await instances.instance_exists(node("node-1"))


async def test_a_name_that_is_not_unique_decides_nothing(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    put(service, "a")
    twin = put(service, "a")

    with pytest.raises(cloud.FailedPrecondition):
        await instances.instance_exists(node("a"))
    service.world.delete(twin)

    assert await instances.instance_exists(node("a"))


async def test_the_listing_says_what_single_questions_say(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    for number, state in enumerate(("running", "stopped", "starting")):
        put(service, f"n{number}", state)  # type: ignore[arg-type]
    service.change_settings(msgspec.structs.replace(service.settings, page_size=2))

    listing = await instances.list_instances()

    assert listing.requests == 2
    for record in listing.instances:
        subject = node(record.name)
        assert record.metadata == await instances.instance_metadata(subject)
        assert record.power is (await instances.instance_state(subject)).power


async def test_each_question_is_one_request(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    put(service)

    await instances.instance_exists(node())
    await instances.instance_state(node())
    await instances.instance_shutdown(node())
    await instances.instance_metadata(node())

    assert service.calls.counts.total() == 4


async def test_opening_makes_no_request_and_reports_bad_config() -> None:
    with pytest.raises(cloud.ConfigError, match="token"):
        async with sim.open_cloud(cloud.Context(config=b"url: http://x")):
            pass
    async with sim.open_cloud(cloud.Context(config=b"{url: 'http://127.0.0.1:1', token: t}")):
        pass


async def test_answers_of_a_later_version_change_nothing(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    subject = node(provider_id=f"sim://{put(service)}")
    before = await instances.instance_metadata(subject)
    service.script.add(faults.Fault(kind="novelty"))

    assert await instances.instance_metadata(subject) == before
    assert await instances.instance_state(subject) == cloud.InstanceState(
        exists=True, power=cloud.Power.RUNNING
    )
    listing = await instances.list_instances()
    assert [record.metadata for record in listing.instances] == [before]
