from __future__ import annotations

import msgspec

from ccm.model import Service
from ccm.sandbox import webservices


def test_each_has_a_key() -> None:
    assert webservices.keys(2) == ["default/web-1", "default/web-2"]
    assert webservices.keys(0) == []


def test_they_want_load_balancers_on_one_port_or_two() -> None:
    first, second = (msgspec.convert(webservices.new_service(one), Service) for one in range(2))

    assert (first.name, first.type) == ("web-1", "LoadBalancer")
    assert [port.port for port in first.ports] == [80]
    assert [port.port for port in second.ports] == [80, 443]
