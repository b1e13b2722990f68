"""Machines and sets of this front in the terms in which sets are decided."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ccm.gardener import codec, members, names
from ccm.gardener import types as documents
from ccm.gardener.sets import MachineSet
from ccm.gardener.types import MachineTemplateSpec
from ccm.machines import replicas
from ccm.machines.replicas import DEFAULT_PRIORITY
from ccm.model.machines import Machine, Phase


def machine(**found: Any) -> Machine:
    metadata = {"name": "m0", "namespace": "default", "uid": "u", "resourceVersion": "7"}
    metadata |= found.pop("metadata", {})
    return codec.machine(msgspec.convert({"metadata": metadata, **found}, documents.Machine))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("1", 1), ("-5", -5), ("+5", 5)],
        *[(text, DEFAULT_PRIORITY) for text in ("", "x", "-", "--1", " 1", "1_0", "²", "٣")],
        ("-" + "9" * 5000, DEFAULT_PRIORITY),
    ],
)
def test_a_priority_that_makes_no_sense_is_the_default(text: str, expected: int) -> None:
    found = machine(metadata={"annotations": {names.ANNOTATION_PRIORITY: text}})

    assert found.priority == expected


@pytest.mark.parametrize("seconds", [2**31, 2**63, 10**400, -(10**400)])
def test_no_number_of_seconds_is_out_of_range(seconds: int) -> None:
    """No moment is so far away; `timedelta` and `float` would raise."""
    found = codec.limited_s(seconds)

    assert abs(found) == 2**31 - 1
    assert (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=found)).year in (1957, 2094)


def test_what_is_odd_is_read_all_the_same() -> None:
    found = machine(
        metadata={"annotations": {names.ANNOTATION_MARKED: "yesterday"}},
        status={"currentStatus": {"phase": "Dancing", "lastUpdateTime": "never"}},
    )
    assert (found.phase, found.status.since, found.marked) == (Phase.FOREIGN, None, None)
    assert not replicas.member(found, None, {"name": "web"}, annotation="").is_labeled


def test_a_set_that_the_autoscaler_scaled() -> None:
    metadata = {"name": "web", "annotations": {names.ANNOTATION_SCALER_TIME: "x"}}
    found = msgspec.convert({"metadata": metadata, "spec": {"replicas": 2}}, MachineSet)

    assert members.wanted(found).scaled is None


@pytest.mark.parametrize(
    ("has", "template", "expected"),
    [
        ({}, {}, None),
        ({"drainTimeout": "1m"}, {"drainTimeout": "1m"}, None),
        ({"drainTimeout": "1m"}, {}, {"drainTimeout": None}),
        (
            {"disableHealthTimeout": True},
            {"disableHealthTimeout": False},
            {"disableHealthTimeout": False},
        ),
        ({"nodeConditions": "A"}, {"nodeConditions": "A,B"}, {"nodeConditions": "A,B"}),
        ({"providerID": "x"}, {}, None),
        ({"class": {"kind": "K", "name": "old"}}, {"class": {"kind": "K", "name": "new"}}, None),
        ({}, {"class": {"kind": "K", "name": "new"}}, {"class": {"kind": "K"}}),
        (
            {"nodeTemplate": {"metadata": {"labels": {"a": "1", "b": "2"}}}},
            {"nodeTemplate": {"metadata": {"labels": {"a": "3"}, "annotations": {"c": "4"}}}},
            {
                "nodeTemplate": {
                    "metadata": {"labels": {"a": "3", "b": None}, "annotations": {"c": "4"}}
                }
            },
        ),
        (
            {"nodeTemplate": {"metadata": {"labels": {"a": "1"}}}},
            {"nodeTemplate": {"metadata": {"labels": {"a": "1"}, "creationTimestamp": None}}},
            None,
        ),
        (
            {"nodeTemplate": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}},
            {},
            {"nodeTemplate": None},
        ),
    ],
)
def test_what_is_pushed(has: Any, template: Any, expected: Any) -> None:
    found = members.push_patch(
        machine(spec=has), msgspec.convert({"spec": template}, MachineTemplateSpec)
    )

    assert (found or {}).get("spec") == expected
    if found is not None:
        assert found["metadata"] == {"uid": "u", "resourceVersion": "7"}
