"""Answers of wrong kinds are told from answers."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import pytest

from ccm.cloud import (
    Identity,
    Internal,
    LoadBalancer,
    LoadBalancerDigests,
    MachineDriver,
    MachineInfo,
    MachineRecord,
    Routes,
    SpecValidation,
)
from ccm.cloud.calls import responses
from ccm.cloud.interface import InstanceStates, InstancesV2, Inventory
from ccm.cloud.legacy import Instances, Zones
from ccm.cloud.types import (
    Ingress,
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    InstanceState,
    LoadBalancerRecord,
    Power,
    Route,
    Status,
    Zone,
    address,
)

FULL = InstanceMetadata(
    provider_id="a://1",
    instance_type="big",
    addresses=[address("InternalIP", "10.0.0.1")],
    zone="z",
    region="r",
    additional_labels={"colour": "blue"},
)
RECORD = InstanceRecord(name="n", power=Power.RUNNING, metadata=FULL)

VM = MachineInfo(provider_id="a://1", addresses=FULL.addresses)
WHO = Identity(cluster="c", pool="p", name="m", uid="u")

GOOD: list[tuple[Callable[..., object], object]] = [
    (InstancesV2.instance_exists, False),
    (Instances.instance_id, ""),
    (Zones.get_zone_by_node_name, Zone(failure_domain="z", region="r")),
    (Instances.node_addresses, ()),
    (Instances.node_addresses, FULL.addresses),
    *((InstancesV2.instance_metadata, answer) for answer in (None, InstanceMetadata(), FULL)),
    (InstanceStates.instance_state, InstanceState(exists=False)),
    (InstanceStates.instance_state, InstanceState(exists=True, power=Power.SHUTDOWN)),
    (Inventory.list_instances, InstanceListing(instances=[RECORD], requests=3)),
    (LoadBalancer.get_load_balancer, None),
    (LoadBalancer.ensure_load_balancer, Status(ingress=[Ingress(ip="192.0.2.1", ip_mode="VIP")])),
    (LoadBalancer.update_load_balancer, "whatever"),
    (
        LoadBalancerDigests.list_load_balancers,
        [LoadBalancerRecord(name="a", digest="d", status=Status())],
    ),
    (Routes.list_routes, [Route(destination_cidr="10.0.0.0/24", target_node="n")]),
    (MachineDriver.create_machine, VM),
    (MachineDriver.get_machine_status, MachineInfo()),
    (MachineDriver.list_machines, [MachineRecord(identity=WHO, info=VM)]),
    (MachineDriver.get_volume_ids, ("v",)),
    (SpecValidation.validate_spec, []),
]

METADATA, LISTING = InstancesV2.instance_metadata, Inventory.list_instances
metadata: Any = InstanceMetadata  # with any fields, as a provider without type checks gives them
listing: Any = InstanceListing
record: Any = InstanceRecord
state: Any = InstanceState
zone: Any = Zone
ingress: Any = Ingress
NO_TEXT: Any = ipaddress.ip_address("10.0.0.1")
WITHOUT_METADATA = record(name="n", power=Power.RUNNING, metadata=None)
BAD_MODE = Status(ingress=[ingress(ip_mode="vip")])
balancer: Any = LoadBalancerRecord
UNTOLD = balancer(name="a", digest="d", status=None)
machine: Any = MachineRecord
UNIDENTIFIED = machine(identity=WHO, info=MachineInfo())
BAD: list[tuple[Callable[..., object], object, str]] = [
    (InstancesV2.instance_exists, None, "None, not True or False"),
    (Instances.instance_id, None, "None, not text"),
    (Zones.get_zone_by_node_name, None, "None, not a Zone"),
    (Zones.get_zone_by_node_name, zone(region=7), "7 as region, not text"),
    (Instances.node_addresses, None, "None, not a sequence of NodeAddress"),
    (Instances.node_addresses, "10.0.0.1", "'10.0.0.1', not a sequence of NodeAddress"),
    (Instances.node_addresses, ["10.0.0.1"], "'10.0.0.1', not a NodeAddress"),
    (Instances.node_addresses, [address("InternalIP", NO_TEXT)], "as address, not text"),
    (METADATA, {}, "{}, not an InstanceMetadata"),
    (METADATA, metadata(provider_id=7), "7 as provider_id, not text"),
    (METADATA, metadata(addresses=None), "None as addresses, not a sequence of NodeAddress"),
    (METADATA, metadata(additional_labels=()), "() as additional_labels, not a mapping"),
    (
        METADATA,
        metadata(additional_labels={"cores": 4}),
        "4 as additional_labels['cores'], not text",
    ),
    (InstanceStates.instance_state, None, "None, not an InstanceState"),
    (InstanceStates.instance_state, state(exists=0), "0 as exists, not True or False"),
    (InstanceStates.instance_state, state(exists=True), "None as power, not a Power"),
    (LISTING, [RECORD], "not an InstanceListing"),
    (LISTING, listing(instances=[RECORD], requests="1"), "'1' as requests, not a number"),
    (LISTING, listing(instances={}), "{} as instances, not a sequence of InstanceRecord"),
    (LISTING, listing(instances=[FULL]), "not an InstanceRecord"),
    (LISTING, listing(instances=[WITHOUT_METADATA]), "None as metadata, not an InstanceMetadata"),
    # Above all no absence: that would end a deletion with the load balancer still there.
    (LoadBalancer.get_load_balancer, False, "False, not a Status"),
    (LoadBalancer.get_load_balancer, "", "'', not a Status"),
    (LoadBalancer.get_load_balancer, [], "[], not a Status"),
    (LoadBalancer.ensure_load_balancer, None, "None, not a Status"),
    (LoadBalancer.ensure_load_balancer, BAD_MODE, "'vip' as ip_mode, not 'VIP' or 'Proxy'"),
    (LoadBalancerDigests.list_load_balancers, ["x"], "'x', not a LoadBalancerRecord"),
    (LoadBalancerDigests.list_load_balancers, [UNTOLD], "None as status, not a Status"),
    (Routes.list_routes, None, "None, not a sequence of Route"),
    # What is stored without an ID has another one made.
    (MachineDriver.create_machine, None, "None, not a MachineInfo"),
    (MachineDriver.create_machine, MachineInfo(), "'' as provider_id, not the ID of a VM"),
    (MachineDriver.list_machines, [UNIDENTIFIED], "'' as provider_id, not the ID of a VM"),
    (MachineDriver.list_machines, [machine(identity="m", info=VM)], "'m' as identity, not an"),
    (MachineDriver.delete_machine, None, "None, not a DeleteMachineResponse"),
    (MachineDriver.get_volume_ids, "v", "'v', not a sequence of str"),
]


@pytest.mark.parametrize(("method", "answer"), GOOD)
def test_right_answers_pass(method: Callable[..., object], answer: object) -> None:
    responses.verify(method, answer)


@pytest.mark.parametrize(("method", "answer", "told"), BAD, ids=[told for _, _, told in BAD])
def test_wrong_answers_are_told(method: Callable[..., object], answer: object, told: str) -> None:
    with pytest.raises(Internal) as caught:
        responses.verify(method, answer)

    assert str(caught.value).startswith(f"{method.__name__} answered ")
    assert told in str(caught.value)


@pytest.mark.parametrize("method", [InstancesV2.instance_exists, InstancesV2.instance_shutdown])
@pytest.mark.parametrize("answer", [None, 0, 1, "yes"])
def test_only_true_and_false_are_decisions(method: Callable[..., object], answer: object) -> None:
    """A forgotten return must not read as an absence."""
    with pytest.raises(Internal, match=f"answered {answer!r}, not True or False"):
        responses.verify(method, answer)
