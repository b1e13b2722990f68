"""What a write to a machine's node is bound to."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from ccm.gardener.decoding import NAMES
from ccm.machines import nodesync
from ccm.machines.settings import Settings
from ccm.model import ObjectMeta, Taint
from ccm.model.machines import Machine
from ccm.testing import builders

RULES = Settings(names=NAMES, cluster="ours")
TAINT = Taint(key="pool", effect="NoSchedule")


HOLD, OURS = "example.com/leave-alone", "example.com/by-us"
ARRIVAL = {HOLD: "true", OURS: "true"}


def member(*taints: Taint, **annotations: str) -> Machine:
    return Machine(
        metadata=ObjectMeta(name="m0", namespace="default"),
        created=datetime(2026, 1, 1, tzinfo=UTC),
        class_name="small",
        taints=taints,
        node_annotations=annotations,
    )


def test_what_a_node_gets_when_it_joins_is_in_its_first_write_and_bound_to_a_version() -> None:
    """What a person says at that moment is not overwritten."""
    node = builders.node("m0", resource_version="7")

    patch = nodesync.patch(member(), node, RULES, ARRIVAL)

    assert patch is not None
    assert patch["metadata"]["annotations"] == ARRIVAL
    assert patch["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    ("said", "wanted"),
    [({HOLD: "false"}, {}), ({}, {HOLD: "always"})],
    ids=["a-person", "the-template"],
)
def test_what_others_say_of_a_node_that_joins_stands(
    said: dict[str, str], wanted: dict[str, str]
) -> None:
    node = builders.node("m0", annotations=said)

    patch = nodesync.patch(member(**wanted), node, RULES, ARRIVAL)

    assert patch is not None
    assert OURS not in patch["metadata"].get("annotations", {})
    assert patch["metadata"].get("annotations", {}).get(HOLD) == wanted.get(HOLD)


def test_a_node_that_has_joined_gets_no_more_of_it() -> None:
    labels = {RULES.names.machine_label: "m0"}
    node = builders.node("m0", labels=labels)
    node = replace(node, metadata=replace(node.metadata, finalizers=[RULES.names.node_finalizer]))

    assert nodesync.patch(member(), node, RULES, ARRIVAL) is None


@pytest.mark.parametrize("taints", [(), (TAINT,)], ids=["merged", "replaced"])
def test_only_what_is_replaced_as_a_whole_is_bound_to_a_version(taints: tuple[Taint, ...]) -> None:
    """A kubelet that writes its node at the same moment is no conflict; lost taints would be."""
    patch = nodesync.patch(member(*taints), builders.node("m0", resource_version="7"), RULES)

    assert patch is not None
    assert patch["metadata"]["finalizers"] == [RULES.names.node_finalizer]
    assert patch["metadata"].get("resourceVersion") == ("7" if taints else None)
