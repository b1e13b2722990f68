"""What a Service asks of a load balancer."""

from __future__ import annotations

import msgspec
import pytest

from ccm import cloud
from ccm.model import Service, ServicePort
from ccm.testing import builders
from providers.sim import client, recipes, service_annotations

PREFIX = service_annotations.PREFIX
HTTP = ServicePort(name="http", port=80, node_port=30080)
DNS = ServicePort(name="dns", protocol="UDP", port=53, node_port=30053)


def test_a_plain_service() -> None:
    assert recipes.wanted(builders.service()) == client.Recipe(
        listeners=(client.Listener("TCP", 80, 30080),),
        health_check=client.HealthCheck(30080, "", 10.0),
        families=("IPv4",),
        size="small",
    )


def test_everything_a_service_can_ask_for() -> None:
    service = builders.service(
        ports=[HTTP, DNS],
        annotations={
            PREFIX + "internal": "T",
            PREFIX + "size": "large",
            PREFIX + "health-check-interval": "1m",
        },
        ip_families=["IPv6", "IPv4"],
        session_affinity="ClientIP",
        external_traffic_policy="Local",
        health_check_node_port=31000,
        load_balancer_source_ranges=["010.1.2.3/8", "fd00::/64"],
    )

    assert recipes.wanted(service) == client.Recipe(
        listeners=(client.Listener("TCP", 80, 30080), client.Listener("UDP", 53, 30053)),
        health_check=client.HealthCheck(31000, "/healthz", 60.0),
        source_ranges=("10.0.0.0/8", "fd00::/64"),
        families=("IPv4", "IPv6"),
        internal=True,
        size="large",
        sticky_s=10800,
    )


def test_order_and_names_of_ports_do_not_matter() -> None:
    renamed = msgspec.structs.replace(HTTP, name="web")
    one, other = (builders.service(ports=ports) for ports in ([HTTP, DNS], [DNS, renamed]))

    assert recipes.wanted(one) == recipes.wanted(other)


def test_without_a_node_port_traffic_keeps_its_port_and_udp_alone_has_no_check() -> None:
    found = recipes.wanted(builders.service(ports=[ServicePort(protocol="UDP", port=80)]))

    assert found.listeners == (client.Listener("UDP", 80, 80),)
    assert found.health_check is None


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (builders.service(ports=[ServicePort(protocol="SCTP", port=9)]), "port 9: .*SCTP"),
        (builders.service(annotations={PREFIX + "internal": "yes"}), "internal: 'yes'"),
        (builders.service(annotations={PREFIX + "size": "huge"}), "small or large"),
        (builders.service(annotations={PREFIX + "health-check-interval": "1h"}), "1s to 5m"),
        (builders.service(load_balancer_source_ranges=["all"]), "'all' is no CIDR"),
    ],
)
def test_what_the_cloud_does_not_have_is_refused(service: Service, said: str) -> None:
    with pytest.raises(cloud.InvalidArgument, match=said):
        recipes.wanted(service)


def test_members_are_internal_addresses_of_the_families() -> None:
    nodes = [
        builders.node(
            "a",
            addresses=[
                cloud.address("ExternalIP", "192.0.2.1"),
                cloud.address("InternalIP", "10.0.0.1"),
                cloud.address("InternalIP", "10.0.0.9"),
                cloud.address("InternalIP", "fd00::1"),
            ],
        ),
        builders.node("b", addresses=[cloud.address("ExternalIP", "192.0.2.2")]),
    ]

    assert recipes.members(nodes, ["IPv4"]) == ("10.0.0.1",)
    assert recipes.members(nodes, ["IPv4", "IPv6"]) == ("10.0.0.1", "fd00::1")


def test_the_digest_tells_every_difference() -> None:
    recipe = recipes.wanted(builders.service())
    changes: list[dict[str, object]] = [
        {"listeners": ()},
        {"health_check": None},
        {"source_ranges": ("10.0.0.0/8",)},
        {"families": ("IPv6",)},
        {"internal": True},
        {"size": "large"},
        {"sticky_s": 1},
    ]
    others = [msgspec.structs.replace(recipe, **change) for change in changes]

    digests = {recipes.digest(each, ["10.0.0.1"]) for each in [recipe, *others]}

    assert {key for change in changes for key in change} == set(client.Recipe.__struct_fields__)
    assert len(digests) == len(others) + 1
    assert recipes.digest(recipe, ["a", "b"]) == recipes.digest(recipe, ["b", "a"])
    assert recipes.digest(recipe, []) not in digests


def test_the_table_of_annotations_names_each() -> None:
    table = service_annotations.table()

    assert len(service_annotations.SCHEMA) == 3
    for one in service_annotations.SCHEMA:
        assert f"| `{one.name}` |" in table
        assert one.parse(one.shown) == one.default
