from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ccm.sandbox.apiserver import text_rules as rules


@pytest.mark.parametrize(
    ("judge", "sound"),
    [
        (rules.label_faults, "a-1"),
        (rules.service_name_faults, "1a"),
        (rules.port_name_faults, "http-2"),
        (rules.address_faults, "10.0.0.1"),
        (rules.address_faults, "FD00::1"),
        (rules.special_address_faults, "192.0.2.1"),
        (rules.special_address_faults, "239.1.1.1"),
        (rules.cidr_faults, "10.0.0.0/8"),
        (rules.cidr_faults, "0.0.0.0/0"),
        (rules.cidr_faults, "FD00::/16"),
    ],
)
def test_sound_texts_have_no_faults(judge: Callable[[str], Iterator[str]], sound: str) -> None:
    assert list(judge(sound)) == []


@pytest.mark.parametrize(
    ("judge", "text", "fault"),
    [
        (rules.label_faults, "a" * 64, "63 bytes"),
        (rules.label_faults, "a.b", "RFC 1123 label"),
        (rules.service_name_faults, "a.b", "must not contain dots"),
        (rules.service_name_faults, "a" * 64, "63 characters"),
        (rules.service_name_faults, "A", "RFC 1123 label"),
        (rules.port_name_faults, "a" * 16, "no more than 15"),
        (rules.port_name_faults, "a_b", "only alpha-numeric"),
        (rules.port_name_faults, "8080", "at least one letter"),
        (rules.port_name_faults, "a--b", "consecutive hyphens"),
        (rules.port_name_faults, "-a", "begin or end"),
        (rules.address_faults, "x", "valid IP address"),
        (rules.address_faults, "10.0.0.1/8", "valid IP address"),
        (rules.address_faults, "fe80::1%eth0", "valid IP address"),
        (rules.address_faults, "010.0.0.1", "leading 0s"),
        (rules.address_faults, "::ffff:1.2.3.4", "IPv4-mapped"),
        (rules.special_address_faults, "::", "unspecified (::)"),
        (rules.special_address_faults, "127.0.0.9", "loopback range"),
        (rules.special_address_faults, "fe80::9", "link-local range"),
        (rules.special_address_faults, "224.0.0.9", "link-local multicast"),
        (rules.cidr_faults, "10.0.0.0", "valid CIDR"),
        (rules.cidr_faults, "10.0.0.0/33", "valid CIDR"),
        (rules.cidr_faults, "x/8", "valid CIDR"),
        (rules.cidr_faults, "10.0.0.0/08", "leading 0s"),
        (rules.cidr_faults, "010.0.0.0/8", "leading 0s"),
        (rules.cidr_faults, "10.0.0.1/8", "beyond the prefix length"),
        (rules.cidr_faults, "::ffff:1.2.3.4/128", "IPv4-mapped"),
    ],
)
def test_a_fault_is_told(judge: Callable[[str], Iterator[str]], text: str, fault: str) -> None:
    (told,) = judge(text)

    assert fault in told
