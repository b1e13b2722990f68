from __future__ import annotations

from typing import Any

import pytest

from ccm.sandbox.apiserver import schema

TYPES = schema.kubernetes()


def clean(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    return schema.clean(TYPES[kind], value, [])


def test_field_numbers_are_unique_within_a_type() -> None:
    for shape in TYPES.values():
        numbers = [field.number for field in shape.fields.values()]
        assert len(set(numbers)) == len(numbers), shape.name


def test_a_table_entry_says_everything_about_a_field() -> None:
    found = schema.parse(
        "Thing = a#1! b#2*:i~3 c#3=:[Other]@name\n    d#4:s(X|Y)~X\nOther = name#1 ...\n", "p", {}
    )

    thing, other = found["Thing"], found["Other"]
    fields = thing.fields
    assert fields["a"].required
    assert fields["b"].keeps_zero
    assert fields["c"].always
    assert not fields["c"].required
    assert (fields["c"].merge, fields["c"].merge_key) == (True, "name")
    assert fields["c"].shape.item == schema.Shape(kind="object", type=other)
    assert (fields["d"].number, fields["d"].shape.enum) == (4, ("X", "Y"))
    assert (fields["b"].default, fields["d"].default) == (3, "X")
    assert (thing.is_open, other.is_open) == (False, True)
    assert thing.name == "p.Thing"


def test_a_malformed_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="not a field"):
        schema.parse("Thing = a!", "p", {})


def test_defaults_are_filled_in_where_a_field_is_left_out() -> None:
    spec: dict[str, Any] = {"ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]}

    schema.fill(TYPES["ServiceSpec"], spec)

    assert spec == {
        "ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }


def test_unknown_fields_are_dropped_and_told_with_their_paths() -> None:
    unknown: list[str] = []
    body = {
        "spec": {"foo": 1, "taints": [{"key": "a", "effect": "NoSchedule", "bar": 2}]},
    }

    cleaned = schema.clean(TYPES["Node"], body, unknown)

    assert unknown == ["spec.foo", "spec.taints[0].bar"]
    assert cleaned["spec"] == {"taints": [{"key": "a", "effect": "NoSchedule"}]}


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("NodeSpec", {"unschedulable": False}, {}),
        ("NodeSpec", {"unschedulable": True}, {"unschedulable": True}),
        ("NodeSpec", {"unschedulable": None}, {}),
        ("NodeSpec", {"providerID": ""}, {}),
        ("NodeSpec", {"taints": []}, {}),
        ("NodeSpec", {"taints": [{}]}, {"taints": [{"key": "", "effect": ""}]}),
        ("LeaseSpec", {"leaseTransitions": 0}, {"leaseTransitions": 0}),
        ("LeaseSpec", {"holderIdentity": ""}, {"holderIdentity": ""}),
    ],
)
def test_zero_values_go_where_the_encoding_leaves_them_out(
    kind: str, value: dict[str, Any], stored: dict[str, Any]
) -> None:
    assert clean(kind, value) == stored
    assert clean(kind, stored) == stored


def test_fields_that_are_always_written_appear() -> None:
    event = clean("Event", {})

    assert event["firstTimestamp"] is None
    assert event["source"] == {}
    assert event["reportingComponent"] == ""


def test_what_is_known_in_stored_form_is_taken_as_it_is() -> None:
    known = clean("Node", {"status": {"images": [{"names": ["a"], "sizeBytes": 1}]}})
    patched = {**known, "spec": {"unschedulable": False}}

    cleaned = schema.clean(TYPES["Node"], patched, [], known=known)

    assert cleaned["status"] is known["status"]
    assert cleaned["spec"] == {}
