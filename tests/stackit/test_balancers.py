"""Load balancers of STACKIT: annotations, names, members."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from ccm import cloud
from ccm.testing.builders import DEFAULT_PORT, node
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import HTTPS, UDP, deleted, ensured, updated
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER
from ccm.testing.probes import nodes as make_nodes
from providers.stackit import balancer_specs, config
from providers.stackit import service_annotations as ann
from providers.stackit.service_annotations import FLAVORS, PLANS
from tests.stackit.balancing import (
    EFFECTS,
    FLAVOR,
    METRICS,
    NAME,
    OTHER_NETWORK,
    UID,
    at,
    only,
    service,
)
from tests.stackit.harness import StackitHarness
from tests.support.vendor import balancer_of

SETTINGS = config.LoadBalancer(network_id=OTHER_NETWORK)


def wanted(found: cloud.Service, *nodes: cloud.Node) -> balancer_specs.BalancerSpec:
    return balancer_specs.desired_spec(found, nodes, SETTINGS)


@pytest.mark.row("stackit-balancer-21")
@pytest.mark.parametrize(
    ("asked", "path", "value"), EFFECTS, ids=[f"{p}-{n}" for n, (_, p, _) in enumerate(EFFECTS)]
)
async def test_an_annotation_has_its_effect(
    harness: StackitHarness, asked: cloud.Service, path: str, value: Any
) -> None:
    nodes = await harness.nodes(1)

    await ensured(harness.balancer, asked, nodes)

    assert at(only(harness), path) == value
    await harness.in_vain(asked, nodes)


@pytest.mark.row("stackit-balancer-21")
def test_the_annotation_schema_refuses_malformed_values() -> None:
    by_name = {one.name: one for one in ann.SCHEMA}

    taken = [one for one, text in TYPED.items() if not one.fault(text)]
    assert taken == [ann.OLD_RANGES]  # has no form, and is refused with its Service
    assert len(by_name) == 31
    assert all(f"| `{name}` |" in ann.table() for name in by_name)


@pytest.mark.row("stackit-balancer-10")
@pytest.mark.parametrize(
    ("new", "old", "right", "other"),
    [
        ("internal-lb", "internalLB", "true", "false"),
        ("external-address", "existingFloatingIP", "192.0.2.7", "192.0.2.8"),
        ("tcp-proxy-protocol", "tcpProxyProtocol", "true", "false"),
        ("tcp-idle-timeout", "tcpIdleTimeout", "60s", "61s"),
        ("udp-idle-timeout", "udpIdleTimeout", "60s", "61s"),
        ("tcp-proxy-protocol-ports-filter", "tcpProxyProtocolPortsFilter", "80", "81"),
    ],
)
def test_contradicting_legacy_annotations_are_refused(
    new: str, old: str, right: str, other: str
) -> None:
    def asked(said_new: str, said_old: str) -> cloud.Service:
        given = {f"{ann.PREFIX}{new}": said_new, f"{ann.LEGACY}{old}": said_old}
        given = {f"{ann.PREFIX}tcp-proxy-protocol": "true", **given}
        return build_service(uid=UID, annotations=given)

    assert wanted(asked(right, right)).name == NAME
    with pytest.raises(cloud.InvalidArgument) as caught:
        wanted(asked(right, other))
    assert f"{ann.PREFIX}{new}" in str(caught.value)
    assert f"{ann.LEGACY}{old}" in str(caught.value)


@pytest.mark.row("stackit-balancer-10")
@pytest.mark.parametrize("old", ["internalLB", "tcpProxyProtocol", "tcpIdleTimeout"])
def test_a_malformed_legacy_annotation_is_ignored(old: str) -> None:
    assert wanted(service({old: "perhaps"})) == wanted(service())
    assert wanted(service({old: "perhaps"}, internal_lb="true")).internal


@pytest.mark.row("stackit-balancer-06")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("web", f"k8s-svc-{UID}-web"),
        ("n" * 18, f"k8s-svc-{UID}-{'n' * 18}"),
        ("n" * 19, f"k8s-svc-{UID}-{'n' * 18}"),
        ("a-service-called-x--y", f"k8s-svc-{UID}-a-service-called-x"),
        ("ends-in-a-dash--x", f"k8s-svc-{UID}-ends-in-a-dash--x"),
    ],
)
def test_load_balancer_names_are_cut_to_valid_labels(name: str, found: str) -> None:
    assert balancer_specs.balancer_name(build_service(name, uid=UID)) == found
    assert len(found) <= 63


@pytest.mark.row("stackit-balancer-07")
def test_listeners_follow_the_ports_of_the_service() -> None:
    bare = msgspec.structs.replace(DEFAULT_PORT, name="")
    found = wanted(build_service(ports=[bare, UDP]))

    assert [one.target_pool for one in found.listeners] == ["port-tcp-80", "mdns"]
    assert [one.protocol for one in found.listeners] == ["PROTOCOL_TCP", "PROTOCOL_UDP"]
    assert found.listeners[1].udp is not None
    assert (found.listeners[1].udp.idle_timeout, found.listeners[1].tcp) == ("120s", None)
    for field, value in (("protocol", "SCTP"), ("node_port", 0)):
        port = msgspec.structs.replace(DEFAULT_PORT, **{field: value})
        with pytest.raises(cloud.InvalidArgument, match="port 80"):
            wanted(build_service(ports=[port]))


@pytest.mark.row("stackit-balancer-08")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("node-1", "node-1"),
        ("n" * 63, "n" * 63),
        ("n" * 64, "n" * 54 + "-" + sha256(b"n" * 64).hexdigest()[:7]),
        ("a.b", "a-b-" + sha256(b"a.b").hexdigest()[:7]),
    ],
)
def test_long_and_dotted_target_names_are_hashed(name: str, found: str) -> None:
    assert balancer_specs.target_name(name) == found


@pytest.mark.row("stackit-balancer-08")
def test_targets_are_the_first_internal_addresses() -> None:
    kinds = [("ExternalIP", "192.0.2.1"), ("InternalIP", "10.0.0.5"), ("InternalIP", "10.0.0.4")]
    one = node("one", addresses=[cloud.address(*each) for each in kinds])
    bare = node("bare", addresses=[cloud.address("Hostname", "bare")])

    (pool,) = wanted(service(), one, bare).pools

    assert balancer_specs.members(pool) == [("one", "10.0.0.5")]


@pytest.mark.row("stackit-balancer-09")
@pytest.mark.parametrize(
    ("on", "ports", "proxied"),
    [
        (None, None, []),
        ("false", "80", []),
        ("true", None, [80, 443]),
        ("true", "", []),
        ("true", "443", [443]),
        ("true", " 80 , 443 ", [80, 443]),
        ("true", "5353", []),
    ],
)
def test_the_proxy_protocol_covers_only_the_filtered_tcp_ports(
    on: str | None, ports: str | None, proxied: list[int]
) -> None:
    asked = {"tcp_proxy_protocol": on, "tcp_proxy_protocol_ports_filter": ports}
    https = msgspec.structs.replace(DEFAULT_PORT, name="https", port=443)
    given = service(**{name: text for name, text in asked.items() if text is not None}).annotations
    found = wanted(build_service(annotations=given, ports=[DEFAULT_PORT, https, UDP]))

    assert [one.port for one in found.listeners if "PROXY" in one.protocol] == proxied
    assert found.listeners[2].protocol == "PROTOCOL_UDP"


@pytest.mark.row("stackit-balancer-11")
def test_the_legacy_flavor_id_maps_to_a_plan() -> None:
    assert wanted(service({"flavorId": FLAVOR})).plan == "p50"
    assert wanted(service({"flavorId": FLAVOR}, service_plan_id="p750")).plan == "p750"
    assert {wanted(service({"flavorId": one})).plan for one in FLAVORS} == set(PLANS)
    with pytest.raises(cloud.InvalidArgument, match="flavorId"):
        wanted(service({"flavorId": OTHER_NETWORK}))


@pytest.mark.row("stackit-balancer-12")
async def test_legacy_annotations_without_effect_are_logged(harness: StackitHarness) -> None:
    old = {one.name.removeprefix(ann.LEGACY): "x" for one in ann.UNSUPPORTED}

    with capture_logs() as lines:
        await ensured(harness.balancer, service({**old, "flavorId": FLAVOR}), [])

    first, second = lines
    assert first["annotations"].split(", ") == [one.name for one in ann.UNSUPPORTED]
    assert (len(ann.UNSUPPORTED), len(first["annotations"]) < 1024) == (12, True)
    assert (first["service"], second["plan"]) == ("default/web", "p50")


@pytest.mark.row("stackit-balancer-18")
@pytest.mark.parametrize(
    ("ranges", "old", "found"),
    [
        ([], None, ()),
        (["10.0.0.0/8"], None, ("10.0.0.0/8",)),
        ([], "10.0.0.0/8, 192.0.2.0/24", ("10.0.0.0/8", "192.0.2.0/24")),
        (["172.16.0.0/12"], "10.0.0.0/8", ("172.16.0.0/12",)),
    ],
)
def test_source_ranges_of_the_spec_override_the_legacy_annotation(
    ranges: list[str], old: str | None, found: tuple[str, ...]
) -> None:
    given = {ann.OLD_RANGES.name: old} if old else {}
    asked = build_service(annotations=given, load_balancer_source_ranges=ranges)

    assert wanted(asked).ranges == found


@pytest.mark.row("stackit-balancer-18")
async def test_source_ranges_are_cleared(harness: StackitHarness) -> None:
    asked = build_service(uid=UID, load_balancer_source_ranges=["10.0.0.0/8"])
    await ensured(harness.balancer, asked, [])
    assert at(only(harness), "options.accessControl.allowedSourceRanges") == ["10.0.0.0/8"]

    await ensured(harness.balancer, service(), [])

    assert not at(only(harness), "options.accessControl.allowedSourceRanges")
    await harness.in_vain(service(), [])


@pytest.mark.row("stackit-balancer-18")
def test_a_malformed_source_range_is_refused() -> None:
    with pytest.raises(cloud.InvalidArgument, match="everybody"):
        wanted(build_service(load_balancer_source_ranges=["everybody"]))


@pytest.mark.row("stackit-balancer-20")
@pytest.mark.parametrize(
    ("asked", "field", "mode"),
    [
        ({}, "externalAddress", None),
        ({"ip_mode_proxy": "true"}, "externalAddress", "Proxy"),
        ({"internal_lb": "true"}, "privateAddress", None),
        ({"internal_lb": "true", "external_address": "192.0.2.7"}, "privateAddress", None),
        ({"external_address": "192.0.2.7"}, "externalAddress", None),
    ],
)
async def test_the_status_shows_the_external_or_the_internal_address(
    harness: StackitHarness,
    asked: dict[str, str],
    field: str,
    mode: str | None,
) -> None:
    status = await ensured(harness.balancer, service(**asked), [])

    (ingress,) = status.ingress
    assert (ingress.ip, ingress.hostname, ingress.ip_mode) == (only(harness)[field], "", mode)


@pytest.mark.row("stackit-balancer-20")
async def test_a_service_of_another_load_balancer_class_is_ignored(harness: StackitHarness) -> None:
    balancer, asked = harness.balancer, service({"className": "yawol"})
    with pytest.raises(cloud.ImplementedElsewhere):
        await balancer.ensure_load_balancer(CLUSTER, asked, [])
    with pytest.raises(cloud.NotFound):
        await balancer.update_load_balancer(CLUSTER, asked, [])
    assert await balancer.get_load_balancer(CLUSTER, asked) is None
    await deleted(balancer, asked)

    assert harness.service.cloud.balancers == {}


@pytest.mark.row("stackit-balancer-20")
async def test_a_load_balancer_is_still_managed_after_its_class_changes(
    harness: StackitHarness,
) -> None:
    """An existing load balancer is updated, and deleted with its Service."""
    balancer, nodes = harness.balancer, await harness.nodes(2)
    await ensured(balancer, service({"className": "stackit"}), nodes[:1])
    asked = service({"className": "yawol"}, service_plan_id="p50")

    status = await ensured(balancer, asked, nodes)
    assert (len(status.ingress), only(harness)["planId"]) == (1, "p50")
    (listed,) = await balancer.list_load_balancers(CLUSTER)
    assert listed.digest == balancer.load_balancer_digest(CLUSTER, asked, nodes)
    await updated(balancer, asked, nodes[1:])
    assert [one["displayName"] for one in only(harness)["targetPools"][0]["targets"]] == [
        nodes[1].name
    ]
    assert await balancer.get_load_balancer(CLUSTER, asked) is not None
    await deleted(balancer, asked)

    assert harness.service.cloud.balancers == {}


@pytest.mark.row("stackit-balancer-21")
def test_an_empty_listener_network_annotation_counts_as_unset() -> None:
    assert wanted(service(listener_network="")) == wanted(service())


SCTP = msgspec.structs.replace(DEFAULT_PORT, name="sctp", port=81, protocol="SCTP")

TYPED: dict[Any, str] = {
    ann.INTERNAL: "perhaps",
    ann.EXTERNAL: "::1",
    ann.PROXY: "tcp",
    ann.PROXY_PORTS: "80,http",
    ann.TCP_TIMEOUT: "long",
    ann.UDP_TIMEOUT: "-5s",
    ann.PLAN: "p11",
    ann.IP_MODE: "VIP",
    ann.PERSISTENCE: "2",
    ann.LISTENER_NETWORK: "net",
    ann.OLD_EXTERNAL: "here",
    ann.OLD_RANGES: "everybody",
    ann.OLD_PROXY_PORTS: "70000",
    ann.FLAVOR: "s1a.1d",
}
"""Annotations with a form -> a text that does not have it."""

ASKED = [
    *({one.name: TYPED.get(one, "no such thing")} for one in ann.SCHEMA),
    {ann.PROXY.name: "true", ann.PROXY_PORTS.name: "http"},
    {ann.INTERNAL.name: "true"},
    {ann.INTERNAL.name: "true", ann.OLD_INTERNAL.name: "false"},
    {ann.EXTERNAL.name: "192.0.2.7"},
    {ann.LISTENER_NETWORK.name: OTHER_NETWORK},
]


def members(harness: StackitHarness) -> list[set[str]]:
    """The members of each pool."""
    return [
        {one["displayName"] for one in pool["targets"]} for pool in only(harness)["targetPools"]
    ]


def names(nodes: Sequence[cloud.Node]) -> set[str]:
    return {one.name for one in nodes}


@pytest.mark.row("stackit-balancer-25")
@pytest.mark.parametrize("asked", ASKED, ids=lambda one: ",".join(f"{k}={one[k]}" for k in one))
async def test_members_follow_the_nodes_while_ensure_fails(
    harness: StackitHarness, asked: dict[str, str]
) -> None:
    """A bad annotation fails; where it is accepted, a bad port does."""
    balancer, nodes = harness.balancer, await harness.nodes(3)
    await ensured(balancer, service(), nodes[:2])
    wanted = build_service(uid=UID, annotations=asked)
    try:
        await ensured(balancer, wanted, nodes[:2])
    except cloud.CloudError:
        pass
    else:
        wanted = build_service(uid=UID, annotations=asked, ports=[DEFAULT_PORT, SCTP])
        with pytest.raises(cloud.InvalidArgument):
            await ensured(balancer, wanted, nodes[:2])

    await updated(balancer, wanted, nodes[1:])

    assert members(harness) == [names(nodes[1:])]
    assert await balancer.get_load_balancer(CLUSTER, wanted) is not None


@pytest.mark.row("stackit-balancer-25")
async def test_members_of_ports_being_removed_follow_the_nodes(harness: StackitHarness) -> None:
    """Their listeners have traffic until the change of ports succeeds."""
    balancer, nodes = harness.balancer, await harness.nodes(3)
    both = build_service(uid=UID, ports=[DEFAULT_PORT, HTTPS])
    await ensured(balancer, both, nodes[:2])

    await updated(balancer, build_service(uid=UID, ports=[HTTPS]), nodes[1:])

    assert members(harness) == [names(nodes[1:])] * 2


# --- one target is refused ----------------------------------------------------------------------


def refuse(harness: StackitHarness, *nodes: cloud.Node) -> None:
    """Have the cloud refuse them as targets."""
    for one in nodes:
        harness.service.cloud.unreachable |= {each.address for each in one.addresses}


@pytest.mark.row("stackit-balancer-26")
async def test_refused_targets_are_skipped_after_a_slow_creation(harness: StackitHarness) -> None:
    balancer, nodes = harness.balancer, await harness.nodes(2)
    refuse(harness, nodes[0])
    await harness.slow_load_balancers(slow=True)
    with pytest.raises(cloud.RetryAfter):
        await balancer.ensure_load_balancer(CLUSTER, service(), nodes)
    await harness.slow_load_balancers(slow=False)

    with pytest.raises(cloud.Aborted, match=nodes[0].name):
        await balancer.ensure_load_balancer(CLUSTER, service(), nodes)

    assert members(harness) == [names(nodes[1:])]


@pytest.mark.row("stackit-balancer-26")
@pytest.mark.parametrize("call", ["ensure", "update"])
@pytest.mark.parametrize("bad", [[1], [3], [1, 2, 3], [1, 4], [1, 2, 3, 4]])
async def test_a_refused_target_does_not_block_the_others(
    harness: StackitHarness, call: str, bad: list[int]
) -> None:
    """In the pool of each port, others are added and former members removed."""
    balancer, nodes = harness.balancer, await harness.nodes(6)
    wanted = build_service(uid=UID, ports=[DEFAULT_PORT, HTTPS])
    await ensured(balancer, wanted, [nodes[0], nodes[5]])
    refuse(harness, *(nodes[each] for each in bad))
    act = ensured if call == "ensure" else updated

    with pytest.raises(cloud.Aborted) as caught:
        await act(balancer, wanted, nodes[:5])

    good = [one for at, one in enumerate(nodes[:5]) if at not in bad]
    assert members(harness) == [names(good)] * 2
    assert all((one.name in str(caught.value)) == (one not in good) for one in nodes[:5])


@pytest.mark.row("stackit-balancer-26")
async def test_a_former_member_is_removed_although_a_target_is_refused(
    harness: StackitHarness,
) -> None:
    balancer, nodes = harness.balancer, await harness.nodes(3)
    await ensured(balancer, service(), nodes[:2])
    refuse(harness, nodes[2])

    with pytest.raises(cloud.Aborted):
        await updated(balancer, service(), nodes[1:])

    assert members(harness) == [names(nodes[1:2])]


@pytest.mark.row("stackit-balancer-26")
async def test_a_refused_target_does_not_delay_changes_of_the_service(
    harness: StackitHarness,
) -> None:
    harness.variables = METRICS
    async with harness.open() as metered:
        nodes = await make_nodes(metered, harness, 2)
        await ensured(balancer_of(metered), service(), nodes[:1])
    harness.variables = {}
    refuse(harness, nodes[1])
    async with harness.open() as bare:
        with pytest.raises(cloud.Aborted, match=nodes[1].name):
            await ensured(balancer_of(bare), service(service_plan_id="p50"), nodes)

    assert only(harness)["planId"] == "p50"
    assert harness.service.cloud.credentials == {}
    assert members(harness) == [names(nodes[:1])]


@pytest.mark.row("stackit-balancer-26")
async def test_a_refused_target_costs_one_write_per_update(harness: StackitHarness) -> None:
    balancer, nodes = harness.balancer, await harness.nodes(3)
    await ensured(balancer, service(), nodes[:2])
    refuse(harness, nodes[2])

    for _ in range(2):
        before = harness.service.writes
        with pytest.raises(cloud.Aborted):
            await updated(balancer, service(), nodes)
        assert harness.service.writes == before + 1


@pytest.mark.row("stackit-balancer-26")
async def test_a_refused_pool_does_not_block_the_other_pools(harness: StackitHarness) -> None:
    """No target is to blame, so targets are not tried one by one."""
    balancer, nodes = harness.balancer, await harness.nodes(4)
    wanted = build_service(uid=UID, ports=[DEFAULT_PORT, HTTPS])
    await ensured(balancer, wanted, nodes[:1])
    fault = Fault(operation="PUT *target-pools*", code="bad_request", count=2, message="as it is")
    harness.service.script.add(fault)
    before = harness.service.writes

    with pytest.raises(cloud.Aborted, match=f"pool {DEFAULT_PORT.name}: .*as it is"):
        await updated(balancer, wanted, nodes)

    assert members(harness) == [names(nodes[:1]), names(nodes)]
    assert harness.service.writes == before + 3


def test_the_provider_declares_no_load_balancer_health_checks(harness: StackitHarness) -> None:
    assert not harness.project.load_balancers_check_health
