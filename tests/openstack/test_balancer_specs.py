"""What a Service asks for: names, request bodies, annotations, members and subnets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.testing.builders import DEFAULT_PORT
from ccm.testing.builders import node as build_node
from ccm.testing.contract_balancers import UDP
from ccm.testing.probes import CLUSTER
from providers.openstack import balancer_specs, config, octavia
from providers.openstack import service_annotations as ann
from providers.openstack.balancer_specs import Request
from tests.openstack.balancing import NAME, OTHER, service

SUBNET = "5f3c1c44-6f0c-4c8e-9a41-0d5b52b4d6f1"
SETTINGS = config.LoadBalancer(subnet_id=SUBNET)
NEW = octavia.Features((2, 27), "amphora")
LOCAL = {"external_traffic_policy": "Local", "health_check_node_port": 31000}
NODES = [
    build_node("node-2", addresses=[cloud.address("InternalIP", "10.0.0.2")]),
    build_node(
        "node-1",
        labels={"role": "worker"},
        addresses=[
            cloud.address("ExternalIP", "192.0.2.1"),
            cloud.address("InternalIP", "2001:db8::1"),
            cloud.address("InternalIP", "10.0.0.1"),
        ],
    ),
    build_node("node-3", addresses=[cloud.address("ExternalIP", "192.0.2.3")]),
    build_node("node-4"),
]


def wanted(
    asked: cloud.Service,
    *,
    features: octavia.Features = NEW,
    classes: dict[str, config.BalancerClass] | None = None,
    **settings: Any,
) -> Request:
    given = config.Config(
        global_=config.Global(auth_url="https://keystone.example/v3"),
        load_balancer=msgspec.structs.replace(SETTINGS, lb_provider=features.provider, **settings),
        load_balancer_class=classes or {},
    )
    return Request(CLUSTER, asked, given, features)


def part(
    asked: cloud.Service, nodes: Sequence[cloud.Node] = (), **more: Any
) -> balancer_specs.Part:
    return wanted(asked, **more).parts(nodes)[0]


def order(request: Request) -> dict[str, Any]:
    return request.order(request.parts(NODES), SUBNET)


@pytest.mark.row("openstack-balancer-01")
def test_a_request_has_the_shape_of_the_other_manager() -> None:
    assert msgspec.json.decode(msgspec.json.encode(order(wanted(service())))) == {
        "name": NAME,
        "description": f"Kubernetes external service default/web from cluster {CLUSTER}",
        "provider": "amphora",
        "tags": [NAME],
        "vip_subnet_id": SUBNET,
        "listeners": [
            {
                "name": f"listener_0_{NAME}",
                "protocol": "TCP",
                "protocol_port": 80,
                "connection_limit": -1,
                "tags": [NAME],
                "timeout_client_data": 50000,
                "timeout_member_connect": 5000,
                "timeout_member_data": 50000,
                "timeout_tcp_inspect": 0,
                "allowed_cidrs": ["0.0.0.0/0"],
                "default_pool": {
                    "name": f"pool_0_{NAME}",
                    "protocol": "TCP",
                    "lb_algorithm": "ROUND_ROBIN",
                    "members": [
                        {
                            "name": name,
                            "address": address,
                            "protocol_port": 30080,
                            "subnet_id": SUBNET,
                        }
                        for name, address in (
                            ("node-1", "10.0.0.1"),
                            ("node-2", "10.0.0.2"),
                            ("node-3", "192.0.2.3"),
                        )
                    ],
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("cluster", "name", "parsed"),
    [
        ("k8s", "kube_service_k8s_default_web", ("k8s", "default", "web")),
        ("a_b", "kube_service_a_b_default_web", ("a_b", "default", "web")),
        ("c" * 240, f"kube_service_{'c' * 240}_default_web"[:255], None),
    ],
)
@pytest.mark.row("openstack-balancer-01")
def test_names_are_cut_and_parsed(
    cluster: str, name: str, parsed: tuple[str, str, str] | None
) -> None:
    assert balancer_specs.balancer_name(cluster, service()) == name
    assert len(name) <= 255
    assert balancer_specs.parse_name(name) == parsed
    assert balancer_specs.parse_name("listener_0_web") is None


def test_parts_are_recognised_by_tag_or_name() -> None:
    long = f"kube_service_{'c' * 225}_default_web"
    assert len(f"listener_0_{long}") > 255
    names = {
        f"listener_0_{NAME}": True,
        f"listener_12_{NAME}": True,
        f"listener_0_{NAME}2": False,
        "mine": False,
        "": False,
        f"listener_0_{long}"[:255]: True,
    }
    for name, is_own in names.items():
        listener = octavia.Listener(id="1", name=name, protocol="TCP", protocol_port=80)
        held = octavia.HeldPart(listener)
        assert bool(balancer_specs.own_parts([held], NAME, long)) is is_own, name
    tagged = octavia.Listener(id="1", name="x", protocol="TCP", protocol_port=80, tags=(NAME,))
    other = msgspec.structs.replace(
        tagged, name=f"listener_0_{NAME}", tags=("kube_service_k8s_default_other",)
    )
    assert balancer_specs.own_parts([octavia.HeldPart(tagged)], NAME)
    assert not balancer_specs.own_parts([octavia.HeldPart(other)], NAME)


EFFECTS: list[tuple[dict[str, Any], str, str, Any]] = [
    ({"connection_limit": "10"}, "listener", "connection_limit", 10),
    ({"connection_limit": "-1"}, "listener", "connection_limit", -1),
    ({"proxy_protocol": "true"}, "pool", "protocol", "PROXY"),
    ({"proxy_protocol": "v1"}, "pool", "protocol", "PROXY"),
    ({"proxy_protocol": "v2"}, "pool", "protocol", "PROXYV2"),
    ({"proxy_protocol": "false"}, "pool", "protocol", "TCP"),
    ({"x_forwarded_for": "true"}, "listener", "protocol", "HTTP"),
    ({"x_forwarded_for": "true"}, "listener", "insert_headers", {"X-Forwarded-For": "true"}),
    ({"x_forwarded_for": "true"}, "pool", "protocol", "HTTP"),
    ({"default_tls_container_ref": "ref"}, "listener", "protocol", "TERMINATED_HTTPS"),
    ({"default_tls_container_ref": "ref"}, "listener", "default_tls_container_ref", "ref"),
    ({"default_tls_container_ref": "ref"}, "pool", "protocol", "HTTP"),
    ({"lb_method": "SOURCE_IP"}, "pool", "lb_algorithm", "SOURCE_IP"),
    ({"lb_method": "least_connections"}, "pool", "lb_algorithm", "LEAST_CONNECTIONS"),
    ({"timeout_client_data": "1"}, "listener", "timeout_client_data", 1),
    ({"timeout_member_connect": "2"}, "listener", "timeout_member_connect", 2),
    ({"timeout_member_data": "3"}, "listener", "timeout_member_data", 3),
    ({"timeout_tcp_inspect": "4"}, "listener", "timeout_tcp_inspect", 4),
    ({"enable_health_monitor": "true"}, "monitor", "type", "TCP"),
    ({"enable_health_monitor": "true"}, "monitor", "name", f"monitor_0_{NAME}"),
    ({"enable_health_monitor": "true"}, "monitor", "delay", 5),
    ({"enable_health_monitor": "true", "health_monitor_delay": "60"}, "monitor", "delay", 60),
    ({"enable_health_monitor": "true", "health_monitor_timeout": "4"}, "monitor", "timeout", 4),
    (
        {"enable_health_monitor": "true", "health_monitor_max_retries": "7"},
        "monitor",
        "max_retries",
        7,
    ),
    (
        {"enable_health_monitor": "true", "health_monitor_max_retries_down": "8"},
        "monitor",
        "max_retries_down",
        8,
    ),
    (
        {"spec": {"session_affinity": "ClientIP"}},
        "pool",
        "session_persistence",
        {"type": "SOURCE_IP"},
    ),
    (
        {"spec": {"load_balancer_source_ranges": ["192.0.2.9/24", "10.0.0.0/8"]}},
        "listener",
        "allowed_cidrs",
        ["10.0.0.0/8", "192.0.2.0/24"],
    ),
    ({"spec": {"ip_families": ["IPv6", "IPv4"]}}, "listener", "allowed_cidrs", ["::/0"]),
    ({"spec": {"ports": [UDP]}}, "pool", "protocol", "UDP"),
    ({"spec": {"ports": [UDP]}, "proxy_protocol": "true"}, "pool", "protocol", "UDP"),
    ({"spec": {"ports": [UDP]}, "x_forwarded_for": "true"}, "listener", "protocol", "UDP"),
    ({"spec": {"ports": [UDP]}, "enable_health_monitor": "1"}, "monitor", "type", "UDP-CONNECT"),
]


@pytest.mark.parametrize(("given", "place", "field", "value"), EFFECTS)
@pytest.mark.row("openstack-balancer-02")
def test_an_annotation_has_its_effect(
    given: dict[str, Any], place: str, field: str, value: Any
) -> None:
    body = getattr(part(service(**given)), place)

    assert body[field] == value
    if place == "monitor":
        assert part(service()).monitor is None
    elif value not in (-1, "TCP", "UDP"):
        assert getattr(part(service()), place)[field] != value


WRONG: list[tuple[str, str, str]] = [
    ("connection_limit", "0", "-1"),
    ("connection_limit", "many", "-1"),
    ("proxy_protocol", "v3", "v1 or v2"),
    ("x_forwarded_for", "perhaps", "true or false"),
    ("lb_method", "RANDOM", "ROUND_ROBIN"),
    ("timeout_client_data", "-1", "milliseconds"),
    ("timeout_member_connect", "5s", "milliseconds"),
    ("timeout_member_data", "31536000001", "milliseconds"),
    ("timeout_tcp_inspect", "1.5", "milliseconds"),
    ("enable_health_monitor", "ja", "true or false"),
    ("health_monitor_delay", "0", "seconds"),
    ("health_monitor_timeout", "3s", "seconds"),
    ("health_monitor_max_retries", "11", "1 to 10"),
    ("health_monitor_max_retries_down", "0", "1 to 10"),
    ("floating_network_id", "public", "UUID"),
    ("floating_subnet_id", "x", "UUID"),
    ("subnet_id", "x", "UUID"),
    ("member_subnet_id", "x", "UUID"),
    ("network_id", "x", "UUID"),
    ("port_id", "x", "UUID"),
    ("flavor_id", "small", "UUID"),
    ("keep_floatingip", "nein", "true or false"),
    ("node_selector", "a in (b", "label selector"),
    ("load_balancer_id", "x", "UUID"),
]


@pytest.mark.parametrize(("name", "text", "expects"), WRONG)
@pytest.mark.row("openstack-balancer-03")
def test_a_wrong_value_has_one_clear_error(name: str, text: str, expects: str) -> None:
    (declared,) = [a for a in ann.SCHEMA if a.name == f"{ann.PREFIX}{name.replace('_', '-')}"]

    message = declared.fault(text)

    assert declared.name in message
    assert repr(text) in message
    assert expects in message
    if name not in ("keep_floatingip", "load_balancer_id", "health_monitor_delay") and (
        "health_monitor" not in name
    ):
        with pytest.raises(cloud.InvalidArgument) as caught:
            order(wanted(service(**{name: text})))
        assert str(caught.value) == message


@pytest.mark.row("openstack-balancer-02")
def test_the_schema_has_all_annotations_of_the_other_manager() -> None:
    assert len(ann.SCHEMA) == 31
    assert all(f"| `{annotation.name}` |" in ann.table() for annotation in ann.SCHEMA)
    relevant = {annotation.name for annotation in ann.SCHEMA} - set(ann.RELEVANT)
    assert relevant == {f"{ann.PREFIX}load-balancer-id", f"{ann.PREFIX}load-balancer-address"}


@pytest.mark.row("openstack-balancer-03")
def test_contradictions_are_refused() -> None:
    with pytest.raises(cloud.InvalidArgument, match=r"proxy-protocol.*x-forwarded-for"):
        part(service(proxy_protocol="v2", x_forwarded_for="true"))
    with pytest.raises(cloud.InvalidArgument, match=r"class.*'x'.*known classes: dmz"):
        part(service(**{"class": "x"}), classes={"dmz": config.BalancerClass()})


def test_a_class_wins_over_annotations_and_these_over_the_file() -> None:
    classes = {
        "dmz": config.BalancerClass(subnet_id=OTHER, floating_subnet_tags="dmz"),
        "plain": config.BalancerClass(),
    }
    by_class = wanted(
        service(**{"class": "dmz"}, subnet_id=SUBNET, floating_subnet="x"), classes=classes
    ).networks
    by_annotation = wanted(
        service(**{"class": "plain"}, floating_subnet="~^a", network_id=OTHER),
        classes=classes,
        floating_subnet_id=OTHER,
        network_id=SUBNET,
    ).networks
    emptied = wanted(service(subnet_id="", flavor_id=""), flavor_id=OTHER)

    assert (by_class.subnet_id, by_class.floating_subnet, by_class.floating_subnet_tags) == (
        OTHER,
        "",
        "dmz",
    )
    assert (by_annotation.floating_subnet_id, by_annotation.floating_subnet) == ("", "~^a")
    assert by_annotation.network_id == OTHER
    assert (emptied.networks.subnet_id, "flavor_id" in order(emptied)) == ("", False)


@pytest.mark.parametrize(
    ("features", "missing"),
    [
        (octavia.Features((2, 0), "amphora"), {"tags", "timeout_client_data", "allowed_cidrs"}),
        (octavia.Features((2, 4), "amphora"), {"tags", "allowed_cidrs"}),
        (octavia.Features((2, 11), "amphora"), {"allowed_cidrs"}),
        (octavia.Features((2, 12), "amphora"), set()),
        (octavia.Features((2, 27), "ovn"), {"timeout_client_data", "allowed_cidrs"}),
    ],
)
@pytest.mark.row("openstack-balancer-12")
def test_old_versions_and_ovn_get_only_fields_that_they_know(
    features: octavia.Features, missing: set[str]
) -> None:
    body = order(wanted(service(availability_zone="az1", flavor_id=OTHER), features=features))

    checked = {"tags", "timeout_client_data", "allowed_cidrs"}
    assert checked - body["listeners"][0].keys() == missing
    assert ("tags" in body) is (features.version >= (2, 5))
    assert ("availability_zone" in body) is (features.version >= (2, 14) and not missing)
    assert ("flavor_id" in body) is (features.version >= (2, 6) and features.provider != "ovn")


def test_ovn_has_one_algorithm() -> None:
    ovn = octavia.Features((2, 27), "ovn")

    assert part(service(), features=ovn).pool["lb_algorithm"] == "SOURCE_IP_PORT"
    asked = service(lb_method="ROUND_ROBIN")
    assert part(asked, features=ovn).pool["lb_algorithm"] == "ROUND_ROBIN"


@pytest.mark.parametrize(
    ("port", "features", "kind"),
    [
        (DEFAULT_PORT, NEW, "HTTP"),
        (UDP, NEW, "HTTP"),
        (UDP, octavia.Features((2, 15), "amphora"), "UDP-CONNECT"),
        (DEFAULT_PORT, octavia.Features((2, 27), "ovn"), "TCP"),
    ],
)
def test_local_traffic_is_checked_by_http(
    port: cloud.ServicePort, features: octavia.Features, kind: str
) -> None:
    asked = service(enable_health_monitor="true", spec={"ports": [port], **LOCAL})
    new = part(asked, nodes=NODES[:1], features=features)

    assert new.monitor is not None
    assert new.monitor["type"] == kind
    assert new.members[0].get("monitor_port") == (31000 if kind == "HTTP" else None)
    assert new.monitor.get("url_path") == ("/healthz" if kind == "HTTP" else None)
    without = part(service(spec={"ports": [port], **LOCAL}), nodes=NODES[:1])
    assert without.monitor is None
    assert "monitor_port" not in without.members[0]


def test_monitors_can_be_configured_for_all_services() -> None:
    new = part(
        service(), create_monitor=True, monitor_delay=timedelta(seconds=9), monitor_max_retries=2
    )

    assert new.monitor is not None
    assert (new.monitor["delay"], new.monitor["max_retries"]) == (9, 2)
    off = service(enable_health_monitor="false")
    assert part(off, create_monitor=True).monitor is None


def names(asked: cloud.Service, **settings: Any) -> list[tuple[str, str]]:
    members = part(asked, nodes=NODES, **settings).members
    return [(member["name"], member["address"]) for member in members]


def test_members_are_addresses_of_the_first_ip_family() -> None:
    assert names(service(spec={"ip_families": ["IPv6", "IPv4"]})) == [("node-1", "2001:db8::1")]
    bare = msgspec.structs.replace(DEFAULT_PORT, node_port=0)
    assert names(service(spec={"ports": [bare]})) == []


def test_an_address_of_two_nodes_is_one_member() -> None:
    """Octavia refuses a request with an address twice."""
    replaced = msgspec.structs.replace(NODES[0].metadata, name="node-0")
    nodes = [msgspec.structs.replace(NODES[0], metadata=replaced), *NODES]

    found = [member["address"] for member in part(service(), nodes=nodes).members]

    assert len(found) == len({*found}) == len(names(service()))


def test_a_selector_limits_the_members() -> None:
    assert names(service(node_selector="role=worker")) == [("node-1", "10.0.0.1")]
    assert names(service(), node_selector="role") == [("node-1", "10.0.0.1")]
    assert len(names(service(node_selector=""), node_selector="role")) == 3


@pytest.mark.parametrize(
    ("name", "tags", "pattern", "wanted_tags", "matches"),
    [
        ("public-a", [], "", "", True),
        ("public-a", [], "public-a", "", True),
        ("public-a", [], "public", "", False),
        ("public-a", [], "public-*", "", True),
        ("public-a", [], "!public-*", "", False),
        ("public-a", [], "~^pub", "", True),
        ("public-a", [], "!~^pub", "", False),
        ("a", ["x", "y"], "", "x,z", True),
        ("a", ["x", "y"], "", "&x,z", False),
        ("a", ["x", "y"], "", "&x, y", True),
        ("a", ["x", "y"], "", "!x", False),
        ("a", ["x", "y"], "", "!&x,z", True),
        ("a", ["x"], "b", "x", False),
    ],
)
def test_floating_subnets_are_matched_by_name_and_tags(
    name: str, tags: list[str], pattern: str, wanted_tags: str, matches: bool
) -> None:
    asked = service(floating_subnet=pattern, floating_subnet_tags=wanted_tags)

    assert balancer_specs.subnet_matches(name, tags, wanted(asked).networks) is matches


def test_a_wrong_name_pattern_is_refused() -> None:
    networks = wanted(service(floating_subnet="~(")).networks
    with pytest.raises(cloud.InvalidArgument, match="floating-subnet"):
        balancer_specs.subnet_matches("a", [], networks)


def test_the_status_shows_hostname_or_mode() -> None:
    def shown(asked: cloud.Service, **settings: Any) -> list[tuple[str, str, str | None]]:
        status = wanted(asked, **settings).status("192.0.2.9")
        return [(entry.ip, entry.hostname, entry.ip_mode) for entry in status.ingress]

    assert shown(service()) == [("192.0.2.9", "", "VIP")]
    assert shown(service(proxy_protocol="true")) == [("192.0.2.9", "", "Proxy")]
    assert shown(service(proxy_protocol="true"), enable_ingress_hostname=True) == [
        ("", "192.0.2.9.nip.io", None)
    ]
    assert shown(service(), enable_ingress_hostname=True) == [("192.0.2.9", "", "VIP")]
    assert shown(service(hostname="a.example")) == [("", "a.example", None)]
