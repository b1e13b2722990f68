"""The bodies are built by a small writer of the wire format, field by field."""

from __future__ import annotations

import pytest

from ccm.sandbox.apiserver import protobuf, schema


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def data(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\0" + data(1, data(1, version) + data(2, kind)) + data(2, raw)


def decode(body: bytes) -> dict[str, object]:
    return protobuf.decode(schema.kubernetes(), body)


def test_a_config_map_with_its_maps() -> None:
    metadata = data(1, "cm") + data(11, data(1, "label") + data(2, "x"))
    raw = data(1, metadata) + data(2, data(1, "key") + data(2, "value"))
    raw += data(3, data(1, "bin") + data(2, b"\x00\xff"))

    assert decode(envelope("v1", "ConfigMap", raw)) == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "cm", "labels": {"label": "x"}},
        "data": {"key": "value"},
        "binaryData": {"bin": "AP8="},
    }


def test_a_lease_with_numbers_and_microseconds() -> None:
    renewed = number(1, 1767225600) + number(2, 123456789)
    raw = data(2, data(1, "me") + number(2, 15) + data(4, renewed) + number(5, -1))

    assert decode(envelope("coordination.k8s.io/v1", "Lease", raw))["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "renewTime": "2026-01-01T00:00:00.123456Z",
        "leaseTransitions": -1,
    }


def test_a_node_with_quantities_booleans_and_repeated_messages() -> None:
    taints = [data(5, data(1, key) + data(3, "NoSchedule")) for key in ("a", "b")]
    capacity = data(1, data(1, "cpu") + data(2, data(1, "4")))
    raw = data(2, b"".join(taints) + number(4, 1)) + data(3, capacity)

    found = decode(envelope("v1", "Node", raw))

    assert found["spec"] == {
        "taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}],
        "unschedulable": True,
    }
    assert found["status"] == {"capacity": {"cpu": "4"}}


def test_unknown_fields_are_skipped() -> None:
    raw = data(1, data(1, "x")) + number(99, 5) + data(98, b"?") + varint(97 << 3 | 5) + b"1234"

    assert decode(envelope("v1", "ConfigMap", raw))["metadata"] == {"name": "x"}


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"k8s\0\x0a",
        b"k8s\0\x0a\xff",
        envelope("v1", "Unheard", b""),
        envelope("v1", "ConfigMap", b"\x0a\x7f"),
        envelope("v1", "ConfigMap", number(1, 5)),
        envelope("v1", "ConfigMap", b"\x0b"),
    ],
)
def test_damaged_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"unknown|cut off|expected|marker"):
        decode(body)
