from __future__ import annotations

import ipaddress

import pytest

from ccm.sandbox import podranges, settings


def test_each_node_has_one_range_of_its_own_maybe_one_that_it_brought_along() -> None:
    ranges = podranges.PodRanges()
    for _ in range(2):
        ranges.hold("a", ["100.64.0.0/24"])

    for _ in range(2):
        assert ranges.take("b") == "100.64.1.0/24"
        assert ranges.take("a") == "100.64.0.0/24"


def test_the_range_of_a_node_that_has_gone_is_used_again() -> None:
    ranges = podranges.PodRanges()
    ranges.take("a")
    ranges.take("b")

    ranges.release("a")
    ranges.release("never seen")

    assert ranges.take("c") == "100.64.0.0/24"
    assert ranges.take("d") == "100.64.2.0/24"


def test_when_all_are_gone_it_says_so() -> None:
    ranges = podranges.PodRanges("10.0.0.0/23")
    ranges.take("a")
    ranges.take("b")

    with pytest.raises(ValueError, match="no range"):
        ranges.take("c")


def test_there_is_room_for_the_biggest_sandbox() -> None:
    whole = ipaddress.ip_network(podranges.WHOLE)

    assert 2 ** (podranges.LENGTH - whole.prefixlen) >= settings.MAX_NODES
