"""What the provider says about nodes beyond the contract (`tests/contract/test_sim.py`)."""

from __future__ import annotations

import pytest

from ccm import cloud
from ccm.model import Node
from ccm.testing import builders
from providers import sim
from providers.sim import server, world


@pytest.fixture
def instances(provider: cloud.Cloud) -> sim.instances.SimInstances:
    assert isinstance(provider.instances, sim.instances.SimInstances)
    return provider.instances


def node(name: str = "a", provider_id: str = "") -> Node:
    return builders.node(name, provider_id=provider_id)


async def test_the_cloud_offers_all_there_is(provider: cloud.Cloud) -> None:
    assert provider.name == "sim"
    offered: tuple[object, object] = (provider.instances, provider.inventory)
    assert isinstance(offered[0], cloud.InstanceStates)
    assert offered[0] is offered[1]
    balancers: object = provider.load_balancer
    assert isinstance(balancers, cloud.LoadBalancerDigests)
    assert provider.routes is not None
    machines: object = provider.machines
    assert isinstance(machines, cloud.SpecValidation)
    assert isinstance(machines, cloud.MachineMetrics)


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


@pytest.mark.parametrize(
    "provider_id",
    ["aws:///zone/i-1", "i-1", "sim://", "sim:///i-1", "sim://i-1/../x", "sim://i 1", "SIM://i-1"],
)
async def test_an_odd_provider_id_is_refused_without_a_call(
    service: server.Service, instances: sim.instances.SimInstances, provider_id: str
) -> None:
    with pytest.raises(cloud.InvalidArgument):
        await instances.instance_state(node(provider_id=provider_id))

    assert service.calls.counts.total() == 0


async def test_a_question_is_one_request_and_a_name_that_is_not_unique_decides_nothing(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    _, twin = (service.world.put(world.GivenInstance(name="a")).id for _ in range(2))
    questions = (
        *(instances.instance_exists, instances.instance_state),
        *(instances.instance_shutdown, instances.instance_metadata),
    )

    for question in questions:
        with pytest.raises(cloud.FailedPrecondition):
            await question(node())
    service.world.delete(twin)
    for question in questions:
        assert await question(node()) is not None

    assert service.calls.counts.total() == 8
