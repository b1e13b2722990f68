from __future__ import annotations

import ipaddress
import random

import pytest

from ccm.sandbox.apiserver import allocate

SMALL: tuple[allocate.Network, ...] = (ipaddress.ip_network("10.0.0.0/29"),)
TWO: tuple[allocate.Network, ...] = (
    ipaddress.ip_network("fd00::/112"),
    ipaddress.ip_network("10.0.0.0/16"),
)


def made(ranges: tuple[allocate.Network, ...] = allocate.CLUSTER_IPS) -> allocate.Allocator:
    return allocate.Allocator(ranges, chance=random.Random(1))


def test_what_a_service_holds_is_refused_to_others_until_it_gives_it_up() -> None:
    numbers = made()
    numbers.hold("a/b", ["10.96.0.9", 30001])
    with pytest.raises(allocate.RefusedError, match="already allocated"):
        allocate.Draft(numbers).address("IPv4", "10.96.0.9")
    with pytest.raises(allocate.RefusedError, match="already allocated"):
        allocate.Draft(numbers).port(30001)

    numbers.hold("a/b", [30002])

    assert allocate.Draft(numbers).address("IPv4", "10.96.0.9") == "10.96.0.9"
    assert allocate.Draft(numbers).port(30001) == 30001


def test_a_draft_takes_nothing_twice_and_leaves_nothing_behind() -> None:
    numbers = made()
    draft = allocate.Draft(numbers)
    draft.port(30001)
    with pytest.raises(allocate.RefusedError):
        draft.port(30001)

    assert allocate.Draft(numbers).port(30001) == 30001


def test_what_is_outside_of_the_range_is_refused() -> None:
    for address in ("10.0.0.0", "10.0.0.7", "10.0.1.1"):
        with pytest.raises(allocate.RefusedError, match="not in the range"):
            allocate.Draft(made(SMALL)).address("IPv4", address)
    for port in (29999, 32768):
        with pytest.raises(allocate.RefusedError, match="30000-32767"):
            allocate.Draft(made()).port(port)


def test_every_number_is_given_once_and_then_the_range_is_full() -> None:
    draft = allocate.Draft(made(SMALL))

    assert {draft.address("IPv4") for _ in range(6)} == {f"10.0.0.{last}" for last in range(1, 7)}
    with pytest.raises(allocate.RefusedError, match="full"):
        draft.address("IPv4")


def test_the_lower_part_of_a_range_is_taken_last() -> None:
    draft = allocate.Draft(made())
    upper = len(allocate.NODE_PORTS) - 86

    assert min(draft.port() for _ in range(upper)) == 30086
    assert draft.port() < 30086


def test_two_families_have_a_range_each() -> None:
    numbers = made(TWO)
    draft = allocate.Draft(numbers)

    assert draft.families == ["IPv6", "IPv4"]
    assert numbers.first_address == "fd00::1"
    assert ipaddress.ip_address(draft.address("IPv4")) in TWO[1]
    assert ipaddress.ip_address(draft.address("IPv6")) in TWO[0]
