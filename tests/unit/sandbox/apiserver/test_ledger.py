from __future__ import annotations

import ipaddress
import random
from typing import Any

import pytest

from ccm.sandbox.apiserver import ledger

SMALL: tuple[ledger.Network, ...] = (ipaddress.ip_network("10.0.0.0/29"),)
TWO: tuple[ledger.Network, ...] = (
    ipaddress.ip_network("fd00::/112"),
    ipaddress.ip_network("10.0.0.0/16"),
)


def made(ranges: tuple[ledger.Network, ...] = ledger.CLUSTER_IPS) -> ledger.Ledger:
    return ledger.Ledger(ranges, chance=random.Random(1))


def service(kind: str = "NodePort", **spec: Any) -> dict[str, Any]:
    return {"spec": {"type": kind, **spec}}


def test_what_a_service_holds_is_refused_to_others() -> None:
    numbers = made()
    numbers.hold("a/b", service(clusterIPs=["10.96.0.9"], ports=[{"nodePort": 30001}]))

    with pytest.raises(ledger.RefusedError, match="already allocated"):
        numbers.draft().take_address("10.96.0.9")
    with pytest.raises(ledger.RefusedError, match="already allocated"):
        numbers.draft().take_port(30001)


@pytest.mark.parametrize("after", [None, service("ExternalName"), service(clusterIPs=["None"])])
def test_what_it_gave_up_is_free(after: dict[str, Any] | None) -> None:
    numbers = made()
    numbers.hold("a/b", service(clusterIPs=["10.96.0.9"], ports=[{"nodePort": 30001}]))

    numbers.hold("a/b", after)

    assert numbers.draft().take_address("10.96.0.9") == "10.96.0.9"
    assert numbers.draft().take_port(30001) == 30001


def test_the_port_for_health_checks_is_held_while_it_is_needed() -> None:
    numbers = made()
    spec: dict[str, Any] = {"healthCheckNodePort": 30002, "externalTrafficPolicy": "Local"}
    numbers.hold("a/b", service("LoadBalancer", **spec))
    with pytest.raises(ledger.RefusedError, match="already allocated"):
        numbers.draft().take_port(30002)

    numbers.hold("a/b", service("LoadBalancer", **spec | {"externalTrafficPolicy": "Cluster"}))

    assert numbers.draft().take_port(30002) == 30002


def test_a_draft_takes_nothing_twice_and_leaves_nothing_behind() -> None:
    numbers = made()
    draft = numbers.draft()
    draft.take_port(30003)
    draft.take_address("10.96.0.3")

    with pytest.raises(ledger.RefusedError, match="already allocated"):
        draft.take_port(30003)
    with pytest.raises(ledger.RefusedError, match="already allocated"):
        draft.take_address("10.96.0.3")

    assert numbers.draft().take_port(30003) == 30003
    assert numbers.draft().take_address("10.96.0.3") == "10.96.0.3"


@pytest.mark.parametrize("port", [-1, 80, 29999, 32768])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(ledger.RefusedError, match="range of valid ports is 30000-32767"):
        made().draft().take_port(port)


@pytest.mark.parametrize("address", ["10.0.0.0", "10.0.0.7", "10.0.1.1", "fd00::1"])
def test_an_address_out_of_range_is_refused(address: str) -> None:
    with pytest.raises(ledger.RefusedError, match="does not match the current range"):
        made(SMALL).draft().take_address(address)


def test_random_numbers_leave_the_lower_part_to_those_who_choose() -> None:
    numbers = made()

    ports = [numbers.draft().any_port() for _ in range(500)]
    addresses = [numbers.draft().any_address("IPv4") for _ in range(500)]

    assert min(ports) >= 30086
    assert min(map(ipaddress.IPv4Address, addresses)) > ipaddress.IPv4Address("10.96.1.0")
    assert len(set(ports)) > 100
    assert len(set(addresses)) > 400


def test_the_whole_range_can_be_given_away_but_nothing_twice() -> None:
    numbers = made(SMALL)
    draft = numbers.draft()

    addresses = [draft.any_address("IPv4") for _ in range(6)]
    ports = [draft.any_port() for _ in ledger.NODE_PORTS]

    assert sorted(addresses) == [f"10.0.0.{last}" for last in range(1, 7)]
    assert sorted(ports) == list(ledger.NODE_PORTS)
    with pytest.raises(ledger.RefusedError, match="full"):
        draft.any_address("IPv4")
    with pytest.raises(ledger.RefusedError, match="full"):
        draft.any_port()


def test_two_ranges_are_two_families_the_first_of_them_the_default() -> None:
    numbers = made(TWO)
    draft = numbers.draft()

    assert draft.families == ["IPv6", "IPv4"]
    assert numbers.first_address == "fd00::1"
    assert draft.any_address("IPv6").startswith("fd00::")
    assert draft.any_address("IPv4").startswith("10.0.")
    assert draft.take_address("FD00::A") == "FD00::A"
    with pytest.raises(ledger.RefusedError, match="already allocated"):
        draft.take_address("fd00::a")
