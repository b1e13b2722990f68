from __future__ import annotations

from typing import Any

import pytest

from ccm.sandbox.apiserver import scalars, schema


def clean(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    return schema.clean(schema.kubernetes()[kind], value, [])


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("NodeSpec", {"unschedulable": "x"}, "unschedulable: must be boolean, not string"),
        ("Node", {"spec": []}, "spec: must be object, not array"),
        ("LeaseSpec", {"leaseTransitions": 1.5}, "must be int32"),
        ("LeaseSpec", {"leaseTransitions": 2**31}, "must be int32"),
        ("LeaseSpec", {"renewTime": "yesterday"}, "RFC 3339"),
        ("LeaseSpec", {"renewTime": "2026-01-01T00:00:00"}, "no time zone"),
        ("NodeStatus", {"capacity": {"cpu": "lots"}}, "quantities must be"),
        ("Secret", {"data": {"a": "%"}}, "illegal base64 data"),
    ],
)
def test_a_wrong_type_is_told_with_its_field(kind: str, value: dict[str, Any], text: str) -> None:
    with pytest.raises(scalars.WrongTypeError, match=text):
        clean(kind, value)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("2026-01-01T01:02:03.9+01:00", "2026-01-01T00:02:03.900000Z"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000Z"),
    ],
)
def test_times_are_stored_in_utc(given: str, stored: str) -> None:
    assert clean("LeaseSpec", {"renewTime": given}) == {"renewTime": stored}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("2000m", "2"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("7910Mi", "7910Mi"),
        ("100k", "100k"),
        ("1000k", "1M"),
        ("1e3", "1k"),
        ("0", "0"),
        ("12E", "12E"),
        (4, "4"),
    ],
)
def test_quantities_have_one_form(given: object, stored: str) -> None:
    assert clean("NodeStatus", {"capacity": {"x": given}})["capacity"] == {"x": stored}
