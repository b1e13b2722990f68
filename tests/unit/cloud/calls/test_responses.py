"""Responses of providers: their types, quoted secrets, and offered capabilities."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import traceback
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base import redact
from ccm.cloud import (
    Cloud,
    Credentials,
    Driver,
    Identity,
    Ingress,
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    InstanceState,
    InstanceStates,
    InstancesV2,
    Internal,
    Inventory,
    LoadBalancer,
    LoadBalancerDigests,
    LoadBalancerRecord,
    MachineDriver,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    Node,
    Power,
    Route,
    Routes,
    SpecValidation,
    Status,
    Zone,
    address,
    errors,
)
from ccm.cloud.calls import inflight, responses
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.calls.responses import find_interface_errors
from ccm.cloud.interface import Instances, Zones
from ccm.cloud.operation import ProviderCall
from ccm.testing.builders import service

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
    # A VM recorded without an ID would lead to a second VM.
    (MachineDriver.create_machine, None, "None, not a MachineInfo"),
    (MachineDriver.create_machine, MachineInfo(), "'' as provider_id, not the ID of a VM"),
    (MachineDriver.list_machines, [UNIDENTIFIED], "'' as provider_id, not the ID of a VM"),
    (MachineDriver.list_machines, [machine(identity="m", info=VM)], "'m' as identity, not an"),
    (MachineDriver.delete_machine, None, "None, not a DeleteMachineResponse"),
    (MachineDriver.get_volume_ids, "v", "'v', not a sequence of str"),
]


@pytest.mark.parametrize(("method", "answer"), GOOD)
async def test_valid_responses_pass_verification(
    method: Callable[..., object], answer: object
) -> None:
    await responses.verify(method, answer)


@pytest.mark.parametrize(("method", "answer", "told"), BAD, ids=[told for _, _, told in BAD])
async def test_invalid_response_error_describes_the_value(
    method: Callable[..., object], answer: object, told: str
) -> None:
    with pytest.raises(Internal) as caught:
        await responses.verify(method, answer)

    assert str(caught.value).startswith(f"{method.__name__} returned ")
    assert told in str(caught.value)


def test_response_of_a_synchronous_method_is_verified() -> None:
    cloud = of("load_balancer", Balancers, get_load_balancer_name=lambda *_: 7)
    with pytest.raises(Internal, match=r"^get_load_balancer_name returned 7, not text$"):
        CloudClient(cloud).compute(LoadBalancer.get_load_balancer_name, "c1", service("web"))


async def test_other_tasks_run_while_a_long_listing_is_verified() -> None:
    ran = 0

    async def tick() -> None:
        nonlocal ran
        while True:
            await asyncio.sleep(0)
            ran += 1

    ticking = asyncio.create_task(tick())
    await responses.verify(Inventory.list_instances, InstanceListing(instances=[RECORD] * 10_000))

    assert ran >= 30
    ticking.cancel()


OWNER = Identity(
    cluster="ours", pool="workers-of-the-shop", name="shop-workers-7f9c4-x2k9p", uid="u-1"
)
DATA = """#cloud-config
hostname: shop-workers-7f9c4-x2k9p
write_files:
- path: /etc/join
  content: |
    kubeadm join --token letter.sonlyletterswith --hash sha256:1234
users: [{name: ops, passwd: "correct horse battery"}]
"""


def request(data: bytes = DATA.encode(), **spec: Any) -> MachineRequest:
    return MachineRequest(
        identity=OWNER, provider_spec=spec, credentials=Credentials({}), user_data=data
    )


def operation(req: MachineRequest) -> ProviderCall:
    return ProviderCall(
        verb="create_machine", subject="u-1", arguments={"req": req}, deadline_s=60.0, change=True
    )


def shown(text: str, req: MachineRequest) -> str:
    error = errors.InvalidArgument(text)
    inflight.mask_user_data(error, operation(req))
    return str(error)


@given(st.text(min_size=60), st.integers(0, 40), st.integers(inflight.MIN_QUOTATION, 60), st.text())
def test_every_fragment_of_user_data_is_masked(
    data: str, start: int, size: int, around: str
) -> None:
    piece = data[start : start + size]
    if len(piece) < inflight.MIN_QUOTATION or piece in around + around:
        return

    assert piece not in shown(f"{around}{piece}{around}", request(data.encode()))


class OldInstances:
    async def instance_exists(self, node: Node) -> bool:
        return True

    async def instance_shutdown(self, node: Node) -> bool:
        return False

    async def instance_metadata(self, node: Node) -> None:
        return None


async def of_nodes(self: object, cluster_name: str, service: object, nodes: object) -> None: ...


async def named(self: object, cluster_name: str, service: object) -> str:
    return ""


class Balancers:
    def get_load_balancer_name(self, cluster_name: str, service: object) -> str:
        return ""

    ensure_load_balancer: Any = of_nodes
    update_load_balancer = of_nodes
    get_load_balancer = ensure_load_balancer_deleted = named


def of(field: str, base: type, **methods: object) -> Cloud:
    """Return a cloud with one capability, whose class also has these methods."""
    fields: dict[str, Any] = {field: type("Acme", (base,), methods)()}
    return Cloud(name="acme", **fields)


async def one_too_few(self: object, service: object) -> None: ...


def answers(self: object, node: Node) -> bool:
    return True


class Unensured(Balancers):
    ensure_load_balancer: Any = None


@pytest.mark.parametrize(
    ("cloud", "fault"),
    [
        (of("routes", object, list_routes=named, create_route=named), "delete_route is missing"),
        (of("load_balancer", Unensured, ensure_loadbalancer=named), "is ensure_loadbalancer missp"),
        (of("instances", OldInstances, instance_exists=True), "instance_exists is missing"),
        (of("instances", OldInstances, instance_exists=answers), "instance_exists is not async;"),
        (of("load_balancer", Balancers, get_load_balancer_name=named), "name is async; use `def`"),
        (of("load_balancer", Balancers, get_load_balancer=one_too_few), "has a wrong signature"),
        (of("instances", OldInstances, instance_state=answers), "instance_state is not async"),
        (of("load_balancer", Balancers, list_load_balancers=named), "_digest is missing"),
        (Cloud(name="acme", account=cast("Any", 7)), "account: it is 7; use text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_interface_errors_name_missing_and_malformed_methods(cloud: Cloud, fault: str) -> None:
    assert [told for told in find_interface_errors(cloud) if fault in told]


QUOTATIONS: dict[str, Callable[[str], str]] = {
    "whole": str,
    "json": lambda text: json.dumps(text)[1:-1],
    "repr": lambda text: repr(text)[1:-1],
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64-cut": lambda text: base64.b64encode(text.encode()).decode()[40:110],
    "head": lambda text: text[:40],
    "middle": lambda text: text[60:150],
    "tail": lambda text: text[-40:],
}


@pytest.mark.parametrize("where", ["user_data", "userData"])
@pytest.mark.parametrize("form", QUOTATIONS)
def test_quoted_user_data_is_masked_in_errors(form: str, where: str) -> None:
    quoted = QUOTATIONS[form](DATA)
    req = request() if where == "user_data" else request(b"", userData=DATA)

    text = shown(f"bad user data: {quoted} (at 3)", req)

    assert text.startswith("bad user data: ")
    assert text.endswith(" (at 3)")
    assert redact.MASK in text
    for piece in (
        quoted[at : at + inflight.MIN_QUOTATION]
        for at in range(len(quoted) - inflight.MIN_QUOTATION)
    ):
        assert piece not in text or piece[1:-1] in OWNER.name


@pytest.mark.parametrize("in_cause", [False, True])
async def test_create_error_and_its_causes_never_quote_user_data(in_cause: bool) -> None:
    class Quoting(Driver[None]):
        async def create_machine(self, req: MachineRequest) -> Any:
            error = RuntimeError(f"rejected: {req.user_data.decode()}")
            raise (errors.Internal("rejected") if in_cause else error) from error

    driver: Any = Quoting(None)
    with pytest.raises(errors.Internal) as caught:
        await CloudClient(Cloud(name="fake", machines=driver)).call(
            MachineDriver.create_machine, request()
        )
    text = "".join(traceback.format_exception(caught.value))
    assert "rejected" in text
    assert "correct horse" not in text + repr(request(userData=DATA))
