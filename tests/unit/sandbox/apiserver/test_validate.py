from __future__ import annotations

from typing import Any

import pytest

from ccm.sandbox.apiserver import decode, kinds, validate

TAINT = {"key": "a", "effect": "NoSchedule"}
PLAIN = {"spec": {"type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None"}}


def body(kind: kinds.Kind, **content: Any) -> dict[str, Any]:
    metadata = {"name": "x", **content.pop("metadata", {})}
    return decode.clean(kind, {"metadata": metadata, **content}, [])


def node(**content: Any) -> dict[str, Any]:
    return body(kinds.NODES, **content)


@pytest.mark.parametrize(
    ("kind", "content", "field", "text"),
    [
        (kinds.NODES, {"metadata": {"name": "N_1"}}, "metadata.name", "RFC 1123 subdomain"),
        (kinds.NODES, {"metadata": {"name": "a" * 254}}, "metadata.name", "no more than 253"),
        (kinds.NODES, {"metadata": {"name": ""}}, "metadata.name", "name or generateName"),
        (kinds.NAMESPACES, {"metadata": {"name": "a.b"}}, "metadata.name", "RFC 1123 label"),
        (kinds.SERVICES, {"metadata": {"name": "A"}, **PLAIN}, "metadata.name", "RFC 1123 label"),
        (
            kinds.SERVICES,
            {"metadata": {"name": "a.b"}, **PLAIN},
            "metadata.name",
            "not contain dots",
        ),
        (
            kinds.SERVICES,
            {"metadata": {"name": "a" * 64}, **PLAIN},
            "metadata.name",
            "no more than 63 characters",
        ),
        (kinds.NODES, {"metadata": {"labels": {"a b": ""}}}, "metadata.labels", "name part"),
        (kinds.NODES, {"metadata": {"labels": {"A_/b": ""}}}, "metadata.labels", "prefix part"),
        (kinds.NODES, {"metadata": {"labels": {"/b": ""}}}, "metadata.labels", "non-empty"),
        (kinds.NODES, {"metadata": {"labels": {"a/b/c": ""}}}, "metadata.labels", "optional DNS"),
        (kinds.NODES, {"metadata": {"labels": {"a": "b c"}}}, "metadata.labels", "valid label"),
        (kinds.NODES, {"metadata": {"labels": {"a": "b" * 64}}}, "metadata.labels", "63 bytes"),
        (kinds.NODES, {"metadata": {"annotations": {"a b": ""}}}, "metadata.annotations", "name"),
        (
            kinds.NODES,
            {"metadata": {"annotations": {"a": "b" * 262144}}},
            "metadata.annotations",
            "Too long",
        ),
        (kinds.NODES, {"metadata": {"finalizers": ["a b"]}}, "metadata.finalizers", "name part"),
        (
            kinds.NODES,
            {"metadata": {"ownerReferences": [{"kind": "K", "name": "n", "apiVersion": "v1"}]}},
            "metadata.ownerReferences[0].uid",
            "must not be empty",
        ),
        (
            kinds.NODES,
            {"spec": {"taints": [{"key": "a"}]}},
            "metadata.taints[0].effect",
            "Required",
        ),
        (
            kinds.NODES,
            {"spec": {"taints": [{"key": "a", "effect": "No"}]}},
            "metadata.taints[0].effect",
            'supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"',
        ),
        (
            kinds.NODES,
            {"spec": {"taints": [{"key": "-", "effect": "NoExecute"}]}},
            "metadata.taints[0].key",
            "name part",
        ),
        (
            kinds.NODES,
            {"spec": {"taints": [{**TAINT, "value": "a b"}]}},
            "metadata.taints[0].value",
            "valid label",
        ),
        (
            kinds.NODES,
            {"spec": {"taints": [TAINT, {**TAINT, "value": "b"}]}},
            "metadata.taints[1]",
            "taints must be unique by key and effect pair",
        ),
        (kinds.NODES, {"spec": {"podCIDRs": ["x"]}}, "spec.podCIDRs[0]", "valid CIDR"),
        (
            kinds.NODES,
            {"spec": {"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}},
            "spec.podCIDRs",
            "no more than one CIDR for each IP family",
        ),
        (
            kinds.LEASES,
            {"spec": {"leaseDurationSeconds": 0}},
            "spec.leaseDurationSeconds",
            "greater than 0",
        ),
        (kinds.LEASES, {"spec": {"leaseTransitions": -1}}, "spec.leaseTransitions", "or equal"),
        (kinds.LEASES, {"spec": {"preferredHolder": "a"}}, "spec.preferredHolder", "strategy"),
        (
            kinds.EVENTS,
            {"metadata": {"namespace": "kube-system"}},
            "involvedObject.namespace",
            "does not match event.namespace",
        ),
        (
            kinds.EVENTS,
            {
                "metadata": {"namespace": "default"},
                "eventTime": "2026-01-01T00:00:00Z",
                "reason": "x",
                "action": "y",
                "reportingComponent": "me",
            },
            "reportingInstance",
            "Required value",
        ),
    ],
)
def test_a_fault_is_told_with_its_field(
    kind: kinds.Kind, content: dict[str, Any], field: str, text: str
) -> None:
    (cause,) = validate.created(kind, body(kind, **content))

    assert cause.field == field
    assert text in cause.message


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (
            kinds.NODES,
            {
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
            },
        ),
        (kinds.EVENTS, {"metadata": {"namespace": "default"}}),
        (
            kinds.EVENTS,
            {"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}},
        ),
        (kinds.LEASES, {"spec": {"leaseDurationSeconds": 1}}),
    ],
)
def test_a_sound_object_has_no_faults(kind: kinds.Kind, content: dict[str, Any]) -> None:
    assert validate.created(kind, body(kind, **content)) == []


def test_every_fault_is_told_at_once() -> None:
    broken = node(metadata={"name": "N"}, spec={"taints": [{"key": "a"}]})

    assert [cause.field for cause in validate.created(kinds.NODES, broken)] == [
        "metadata.name",
        "metadata.taints[0].effect",
    ]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ({"providerID": "a"}, {"providerID": "b"}, "spec.providerID"),
        ({"podCIDRs": ["10.0.0.0/24"]}, {"podCIDRs": ["10.0.1.0/24"]}, "spec.podCIDRs"),
        ({"podCIDRs": ["10.0.0.0/24"]}, {}, "spec.podCIDRs"),
        ({}, {"externalID": "a"}, "spec.externalID"),
    ],
)
def test_parts_of_a_nodes_spec_never_change(
    old: dict[str, Any], new: dict[str, Any], field: str
) -> None:
    (cause,) = validate.updated(kinds.NODES, node(spec=new), node(spec=old))

    assert (cause.field, cause.reason) == (field, "FieldValueForbidden")


def test_an_address_cannot_be_listed_twice() -> None:
    address = {"type": "InternalIP", "address": "10.0.0.1"}
    other = {"type": "InternalIP", "address": "10.0.0.2"}
    changed = node(status={"addresses": [address, other, address]})

    (cause,) = validate.updated(kinds.NODES, changed, node())

    assert cause.field == "status.addresses[2]"
    assert cause.reason == "FieldValueDuplicate"
