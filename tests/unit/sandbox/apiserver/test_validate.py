from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.sandbox.apiserver import admit, decode, kinds, limits

FAULTS = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text())
TAINT = {"key": "a", "effect": "NoSchedule"}
RULES: dict[limits.Rule, tuple[tuple[str, ...], tuple[str, ...]]] = {
    limits.subdomain: (("a", "a-b.c", "1"), ("", "A", "a_b", "a..b", "-a", "a" * 254)),
    limits.label: (("a", "a-b"), ("a.b", "A", "-a", "a" * 64)),
    limits.key: (("a", "A.b_c", "a.b/C"), ("", "a b", "/b", "A_/b", "a/b/c", "a/")),
    limits.label_value: (("", "a", "A.b_c"), ("a b", "-", "a" * 64)),
    limits.port_name: (("http", "a-1"), ("", "1", "a--b", "-a", "A", "a" * 16)),
    limits.path_segment: (("system:a", "A b"), (".", "..", "a/b", "a%b")),
    limits.address: (("10.0.0.1", "fd00::1"), ("x", "10.0.0.01", "::ffff:1.2.3.4", "")),
    limits.cidr: (("10.0.0.0/8", "fd00::/64"), ("10.0.0.1/8", "10.0.0.1", "x", "10.0.0.0/33")),
}


@pytest.mark.parametrize("rule", RULES)
def test_what_texts_must_look_like(rule: limits.Rule) -> None:
    sound, broken = RULES[rule]

    assert [text for text in sound if rule(text)] == []
    assert [text for text in broken if not rule(text)] == []


def body(kind: kinds.Kind, **content: Any) -> dict[str, Any]:
    metadata = {"name": "x", **content.pop("metadata", {})}
    return decode.clean(kind, {"metadata": metadata, **content}, [])


def node(**content: Any) -> dict[str, Any]:
    return body(kinds.NODES, **content)


@pytest.mark.parametrize("case", FAULTS, ids=str)
def test_a_fault_is_told_with_its_field(case: dict[str, Any]) -> None:
    (name, content), (field, text) = case.items()
    (kind,) = [one for one in kinds.BUILTIN.values() if one.kind == name]

    (cause,) = admit.faults(kind, body(kind, **content))

    assert cause.field == field
    assert text in cause.message


def test_annotations_have_a_limit_together() -> None:
    large = node(metadata={"annotations": {"a": "b" * 262144}})

    assert [one.field for one in admit.faults(kinds.NODES, large)] == ["metadata.annotations"]


SOUND: dict[str, Any] = {
    "metadata": {
        "name": "ip-10-0-0-1.example.com",
        "labels": {"node-role.kubernetes.io/worker": "", "A.b_c": "1"},
        "annotations": {"Example.com/X": "{}"},
        "finalizers": ["example.com/x"],
    },
    "spec": {
        "taints": [TAINT, {"key": "a", "effect": "NoExecute"}],
        "podCIDRs": ["10.0.0.0/24", "fd00::/64"],
    },
}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (kinds.NODES, SOUND),
        (kinds.EVENTS, {"metadata": {"namespace": "default"}}),
        (kinds.EVENTS, {"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}}),
        (kinds.LEASES, {"spec": {"leaseDurationSeconds": 1}}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_sound_object_has_no_faults(kind: kinds.Kind, content: dict[str, Any]) -> None:
    assert admit.faults(kind, body(kind, **content)) == []


def test_every_fault_is_told_at_once() -> None:
    broken = node(metadata={"name": "N"}, spec={"taints": [{"key": "a"}]})

    assert [cause.field for cause in admit.faults(kinds.NODES, broken)] == [
        "metadata.name",
        "spec.taints[0].effect",
    ]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ({"providerID": "a"}, {"providerID": "b"}, "spec.providerID"),
        ({"podCIDRs": ["10.0.0.0/24"]}, {"podCIDRs": ["10.0.1.0/24"]}, "spec.podCIDRs"),
        ({"podCIDRs": ["10.0.0.0/24"]}, {}, "spec.podCIDRs"),
        ({"externalID": "a"}, {}, "spec.externalID"),
    ],
)
def test_parts_of_a_nodes_spec_never_change(
    old: dict[str, Any], new: dict[str, Any], field: str
) -> None:
    (cause,) = admit.faults(kinds.NODES, node(spec=new), node(spec=old))

    assert (cause.field, cause.reason) == (field, "FieldValueForbidden")


def test_an_address_cannot_be_listed_twice() -> None:
    one, other = ({"type": "InternalIP", "address": f"10.0.0.{last}"} for last in (1, 2))

    (cause,) = admit.faults(kinds.NODES, node(status={"addresses": [one, other, one]}), node())

    assert (cause.field, cause.reason) == ("status.addresses[2]", "FieldValueDuplicate")
