"""Service helpers for providers; results match those of the Go library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from ccm.cloud import (
    Ingress,
    InvalidArgument,
    Node,
    PortStatus,
    Service,
    Status,
    cached_for_nodes,
    has_load_balancer_finalizer,
    health_check_path_port,
    is_allow_all,
    load_balancer_source_ranges,
    load_balancer_status,
    load_balancer_status_equal,
    needs_health_check,
    requests_only_local_traffic,
)
from ccm.model import names
from ccm.model.service import ServiceStatus
from ccm.testing.builders import node, service

F = names.FINALIZER_LOAD_BALANCER


def annotated(text: str) -> Service:
    return service(annotations={names.ANNOTATION_SOURCE_RANGES: text})


def ranges(*entries: str) -> Service:
    return service(load_balancer_source_ranges=list(entries))


REFUSED = [
    "10.0.0.1/33", "foo.bar", "10.0.0.1/32,*", "10.0.0.1/32,", "10.0.0.1/32, ", "10.0.0.1",
]  # fmt: skip


@pytest.mark.row("service-helpers-01")
@pytest.mark.parametrize("text", REFUSED)
def test_invalid_source_ranges_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"annotation .*load-balancer-source-ranges.*10\.0"):
        load_balancer_source_ranges(annotated(text))
    with pytest.raises(InvalidArgument, match=r"spec\.loadBalancerSourceRanges.*10\.0"):
        load_balancer_source_ranges(ranges(*text.split(",")))


@pytest.mark.row("service-helpers-02")
@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (["192.168.0.1/32"], {"192.168.0.1/32"}),
        (["192.168.0.1/32", "192.168.0.1/32"], {"192.168.0.1/32"}),
        (["192.168.0.1/32", "192.168.0.2/32"], {"192.168.0.1/32", "192.168.0.2/32"}),
        (["  192.168.0.1/32 ", " 192.168.0.2/32  "], {"192.168.0.1/32", "192.168.0.2/32"}),
        (["010.1.2.3/8"], {"10.0.0.0/8"}),
        (["2001:db8::1/64"], {"2001:db8::/64"}),
    ],
)
def test_source_ranges_are_normalized_and_deduplicated(
    entries: Sequence[str], found: set[str]
) -> None:
    for given in (annotated(",".join(entries)), ranges(*entries)):
        assert {str(each) for each in load_balancer_source_ranges(given)} == found


@pytest.mark.row("service-helpers-02")
@pytest.mark.parametrize("given", [service(), annotated(""), annotated("  "), ranges()])
def test_missing_source_ranges_allow_every_ipv4_client(given: Service) -> None:
    found = load_balancer_source_ranges(given)

    assert {str(each) for each in found} == {"0.0.0.0/0"}
    assert is_allow_all(found)


@pytest.mark.row("service-helpers-02")
def test_source_ranges_field_overrides_the_annotation() -> None:
    given = service(
        annotations={names.ANNOTATION_SOURCE_RANGES: "nonsense"},
        load_balancer_source_ranges=["10.0.0.0/8"],
    )

    assert {str(each) for each in load_balancer_source_ranges(given)} == {"10.0.0.0/8"}


@pytest.mark.row("service-helpers-03")
@pytest.mark.parametrize(
    ("entries", "all_"),
    [
        (["10.0.0.1/32"], False),
        (["10.0.0.1/32", "10.0.0.1/32"], False),
        (["10.0.0.1/32", "10.0.0.2/32"], False),
        (["::/0"], False),
        (["0.0.0.0/0"], True),
        (["192.168.0.0/0"], True),
        (["192.168.0.1/32", "0.0.0.0/0"], True),
    ],
)
def test_allow_all_needs_a_range_of_all_ipv4_addresses(entries: Sequence[str], all_: bool) -> None:
    assert is_allow_all(load_balancer_source_ranges(ranges(*entries))) is all_


@pytest.mark.row("service-helpers-04")
@pytest.mark.parametrize(
    ("type_", "policy", "local", "check"),
    [
        ("", "", False, False),
        ("ClusterIP", "Local", False, False),
        ("NodePort", "", False, False),
        ("NodePort", "Cluster", False, False),
        ("LoadBalancer", "Cluster", False, False),
        ("NodePort", "Local", True, False),
        ("LoadBalancer", "Local", True, True),
    ],
)
def test_external_traffic_policy_decides_local_traffic_and_health_checks(
    type_: str, policy: str, local: bool, check: bool
) -> None:
    given = service(type=type_, external_traffic_policy=policy, health_check_node_port=30000)

    assert requests_only_local_traffic(given) is local
    assert needs_health_check(given) is check
    assert health_check_path_port(given) == (("/healthz", 30000) if check else ("", 0))


@pytest.mark.row("service-helpers-04")
def test_health_check_without_a_node_port_has_no_path() -> None:
    given = service(type="LoadBalancer", external_traffic_policy="Local")

    assert needs_health_check(given)
    assert health_check_path_port(given) == ("", 0)


@pytest.mark.row("service-helpers-05")
@pytest.mark.parametrize(
    ("finalizers", "found"),
    [(None, False), ([], False), (["foo"], False), ([F], True), (["foo", F, "bar"], True)],
)
def test_load_balancer_finalizer_is_detected(finalizers: list[str] | None, found: bool) -> None:
    assert has_load_balancer_finalizer(service(finalizers=finalizers or ())) is found


def of(**fields: Any) -> Status:
    return Status(ingress=[Ingress(**fields)])


TCP = PortStatus(port=80, protocol="TCP")
UDP = PortStatus(port=80, protocol="UDP")


@pytest.mark.row("service-helpers-06")
@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (Status(), Status(), True),
        (Status(), Status(ingress=[]), True),
        (of(ip="1.2.3.4"), of(ip="1.2.3.4"), True),
        (of(ip="1.2.3.4"), Status(ingress=(Ingress(ip="1.2.3.4"),)), True),
        (of(ip="1.2.3.4"), of(ip="1.2.3.5"), False),
        (of(ip="1.2.3.4", ip_mode="VIP"), of(ip="1.2.3.4", ip_mode="VIP"), True),
        (of(ip="1.2.3.4", ip_mode="VIP"), of(ip="1.2.3.4"), False),
        (of(ip="1.2.3.4", ip_mode="VIP"), of(ip="1.2.3.4", ip_mode="Proxy"), False),
        (of(hostname="a"), of(hostname="b"), False),
        (of(ip="1.2.3.4", ports=[TCP]), of(ip="1.2.3.4", ports=(TCP,)), True),
        (of(ip="1.2.3.4", ports=[TCP]), of(ip="1.2.3.4", ports=[UDP]), False),
        (of(ip="1.2.3.4", ports=[TCP]), of(ip="1.2.3.4"), False),
    ],
)
def test_load_balancer_statuses_are_compared_by_value(
    one: Status, other: Status, equal: bool
) -> None:
    assert load_balancer_status_equal(one, other) is equal
    assert load_balancer_status_equal(other, one) is equal


def test_service_status_converts_to_the_sdk_type() -> None:
    port = {"port": 80, "protocol": "TCP", "error": "Busy"}
    given = [
        {"ip": "1.2.3.4", "ipMode": "Proxy"},
        {"ip": "1.2.3.5", "ipMode": "VIP"},
        {"hostname": "lb.example", "ports": [port]},
    ]
    status = msgspec.convert({"loadBalancer": {"ingress": given}}, ServiceStatus)

    assert load_balancer_status(msgspec.structs.replace(service(), status=status)) == Status(
        ingress=(
            Ingress(ip="1.2.3.4", ip_mode="Proxy"),
            Ingress(ip="1.2.3.5", ip_mode="VIP"),
            Ingress(hostname="lb.example", ports=(PortStatus(port=80, error="Busy"),)),
        )
    )


def test_status_is_built_from_addresses_and_hostnames() -> None:
    proxied = Ingress(ip="192.0.2.2", ip_mode="Proxy")

    assert Status.from_ingress(["192.0.2.1", "2001:db8::1", "lb.example", proxied]) == Status(
        ingress=(
            Ingress(ip="192.0.2.1"),
            Ingress(ip="2001:db8::1"),
            Ingress(hostname="lb.example"),
            proxied,
        )
    )
    assert Status.from_ingress([]) == Status()


def test_result_for_nodes_is_shared_until_the_nodes_change() -> None:
    computed = []

    @cached_for_nodes
    def select(nodes: Iterable[Node], prefix: str) -> list[str]:
        computed.append(prefix)
        return [node.name for node in nodes if node.name.startswith(prefix)]

    nodes = (node("a1"), node("a2"), node("b1"))
    first = select(nodes, "a")

    assert first == ["a1", "a2"]
    assert select(nodes, "a") is first
    assert select(nodes, "b") == ["b1"]
    assert select(nodes, "a") is first, "another argument does not replace the result"
    assert computed == ["a", "b"]
    assert select((node("a3"),), "a") == ["a3"]
    assert select(nodes, "a") is first, "a call that began before the change continues"
    assert computed == ["a", "b", "a"]


def test_results_for_former_nodes_are_dropped() -> None:
    computed = []

    @cached_for_nodes
    def count(nodes: Iterable[Node]) -> int:
        computed.append(nodes)
        return len(list(nodes))

    former = (node("a"),)
    for nodes in (former, *((node("b"), node(str(number))) for number in range(4)), former):
        assert count(nodes) == len(nodes)

    assert len(computed) == 6


def test_result_for_a_list_of_nodes_is_computed_again() -> None:
    """A list may change between two calls."""

    @cached_for_nodes
    def count(nodes: Iterable[Node]) -> int:
        return len(list(nodes))

    nodes = [node("a")]
    assert count(nodes) == 1
    nodes.append(node("b"))
    assert count(nodes) == 2
