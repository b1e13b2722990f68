"""IP text as Kubernetes reads it."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.model.ip import parse_ip


@given(st.ip_addresses())
def test_every_address_is_read(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    mapped = getattr(address, "ipv4_mapped", None)

    assert parse_ip(str(address)) == (mapped or address)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01.2.3.004", "1.2.3.4"),
        ("000.0.0.0", "0.0.0.0"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:010.0.0.1", "10.0.0.1"),
        ("FD00::1", "fd00::1"),
    ],
)
def test_forms_that_python_reads_otherwise(text: str, expected: str) -> None:
    assert str(parse_ip(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 10.0.0.1",
        "10.0.0.1 ",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.1/24",
        "fe80::1%eth0",
        "n",
        "١.1.1.1",
    ],
)
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse_ip(text) is None
