"""Preservation of machines per row of the conformance table, and its convergence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import msgspec
import pytest

from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from ccm.machines import preservation
from ccm.machines.preservation import PreservationAction
from ccm.machines.settings import MachineSettings
from ccm.model import Node, NodeCondition, ObjectMeta, Taint
from ccm.model.machines import Machine, MachineStatus, Phase
from ccm.model.meta import KubeObject
from ccm.model.names import ANNOTATION_SCALE_DOWN_DISABLED, ANNOTATION_SCALE_DOWN_DISABLED_BY_US
from ccm.model.node import NodeSpec, NodeStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULES = MachineSettings(names=NAMES, cluster="ours")
TAINT = Taint(key=names.TAINT_PRESERVED, effect="NoSchedule")
WISH, LAST = names.ANNOTATION_PRESERVE, names.ANNOTATION_PRESERVED


def notes(**wanted: str | None) -> dict[str, str]:
    keys = {"wish": WISH, "last": LAST}
    return {keys[key]: text for key, text in wanted.items() if text is not None}


class Thing(KubeObject, frozen=True, kw_only=True):
    """An object with annotations."""

    metadata: ObjectMeta


@dataclass
class Case:
    """Machine with its node; `pass_` applies the decisions to both."""

    node: Node | None
    annotations: dict[str, str]
    status: MachineStatus

    def machine(self) -> Machine:
        metadata = ObjectMeta(name="m", annotations=dict(self.annotations))
        notes = metadata.annotations or {}
        return Machine(
            metadata=metadata,
            created=NOW,
            class_name="s",
            status=self.status,
            preserve=notes.get(names.ANNOTATION_PRESERVE, ""),
            preserve_of_node=notes.get(names.ANNOTATION_PRESERVED, ""),
        )

    def pass_(self, *, now: datetime = NOW, drained: bool | None = None) -> int:
        """Apply the decisions once; return the number of writes."""
        machine, writes = self.machine(), 0
        found = preservation.decide(machine, self.node, now, RULES)
        if found.action is PreservationAction.PRESERVE and self.status.preserve_until is None:
            self.status = replace(self.status, preserve_until=found.until)
            writes += 1
        if self.node is not None:
            patch = preservation.node_patch(machine, self.node, found, RULES)
            writes += self._on_node(patch)
            patch = preservation.condition_patch(
                machine, self.node, found, now, RULES, drained=drained
            )
            writes += self._on_node(patch)
        patch = preservation.machine_patch(Thing(metadata=machine.metadata), found, RULES)
        if patch is not None:
            self.annotations = merged(self.annotations, patch["metadata"]["annotations"])
            writes += 1
        if found.action is PreservationAction.STOP and self.status.preserve_until is not None:
            self.status = replace(self.status, preserve_until=None)
            writes += 1
        return writes

    def _on_node(self, patch: Any) -> int:
        if patch is None:
            return 0
        assert self.node is not None
        changes = patch["metadata"].get("annotations", {})
        metadata = ObjectMeta(name="n", annotations=merged(dict(self.node.annotations), changes))
        spec, status = self.node.spec, self.node.status
        if "spec" in patch:
            taints = msgspec.convert(patch["spec"]["taints"] or [], list[Taint])
            spec = NodeSpec(taints=taints, unschedulable=spec.unschedulable)
        if "status" in patch:
            status = NodeStatus(
                conditions=msgspec.convert(patch["status"]["conditions"], list[NodeCondition])
            )
        self.node = Node(metadata=metadata, spec=spec, status=status)
        return 1

    def condition(self) -> NodeCondition | None:
        conditions = self.node.status.conditions if self.node is not None else None
        return conditions[0] if conditions else None

    def is_tainted(self) -> bool | None:
        return (
            None
            if self.node is None
            else names.TAINT_PRESERVED in {t.key for t in self.node.taints}
        )


def merged(before: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    both = before | changes
    return {key: text for key, text in both.items() if text is not None}


def case(
    theirs: str | None = None,
    own: str | None = None,
    last: str | None = None,
    *,
    phase: str = "Running",
    minutes: float | None = None,
    tainted: bool = False,
    node: bool = True,
) -> Case:
    until = None if minutes is None else NOW + timedelta(minutes=minutes)
    found = Node(
        metadata=ObjectMeta(name="n", annotations=notes(wish=theirs)),
        spec=NodeSpec(taints=[TAINT] if tainted else [], unschedulable=True),
    )
    return Case(
        node=found if node else None,
        annotations=notes(wish=own, last=last),
        status=MachineStatus(phase=Phase(phase), preserve_until=until),
    )


def row(number: int, given: Case, *expected: object) -> Any:
    return pytest.param(given, *expected, marks=pytest.mark.row(f"machine-preserve-{number:02}"))


@pytest.mark.row("machine-preserve-19")
@pytest.mark.parametrize(
    ("given", "is_kept", "condition", "own", "last", "tainted"),
    [
        row(1, case(), False, None, None, None, False),
        row(2, case("now"), True, "True", None, "now", False),
        row(3, case("when-failed"), False, None, None, "when-failed", False),
        row(4, case("when-failed", phase="Failed"), True, "True", None, "when-failed", True),
        row(5, case("false", minutes=60), False, "False", None, "false", False),
        row(
            6,
            case(None, "auto-preserved", phase="Failed"),
            True,
            "True",
            "auto-preserved",
            None,
            True,
        ),
        row(7, case(None, "now", minutes=-1), False, "False", None, None, False),
        row(
            8,
            case(None, "when-failed", phase="Failed", minutes=-1, tainted=True),
            *(False, "False", None, None, False),
        ),
        row(9, case(None, "invalid"), False, None, "invalid", None, False),
        row(10, case("invalid"), False, None, None, None, False),
        row(11, case(None, "now", phase="Unknown", node=False), True, None, "now", None, None),
        row(
            12,
            case(None, "now", phase="Unknown", minutes=-1, node=False),
            *(False, None, None, None, None),
        ),
        row(
            14,
            case(None, "auto-preserved", minutes=60, tainted=True),
            *(False, "False", None, None, False),
        ),
        row(15, case("now", "when-failed"), True, "True", None, "now", False),
        row(16, case(None, "now", "now", minutes=60), False, "False", None, None, False),
        row(
            17,
            case(None, "when-failed", minutes=60, tainted=True),
            *(False, "False", "when-failed", None, False),
        ),
        row(18, case(None, "now", phase="Failed", tainted=True), True, "True", "now", None, True),
        row(23, case(None, None, "now", minutes=60, node=False), True, None, None, "now", None),
    ],
)
def test_preservation_follows_annotations_of_node_and_machine(
    given: Case,
    is_kept: bool,
    condition: str | None,
    own: str | None,
    last: str | None,
    tainted: bool | None,
) -> None:
    given.pass_()

    assert (given.status.preserve_until is not None) is is_kept
    found = given.condition()
    assert (found.status if found else None) == condition
    assert (given.annotations.get(WISH), given.annotations.get(LAST)) == (own, last)
    assert given.is_tainted() is tainted
    assert given.node is None or given.node.spec.unschedulable


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FAILED], ids=str)
@pytest.mark.parametrize("wish", ["now", "when-failed", "auto-preserved"])
def test_expired_preservation_is_not_granted_again(phase: Phase, wish: str) -> None:
    """An annotation that was honoured once is not honoured again after the expiry."""
    for theirs, own in ((wish, None), (None, wish)):
        one = case(theirs, own, phase="Failed")
        one.pass_()
        assert one.status.preserve_until == NOW + timedelta(hours=96)
        one.status = replace(one.status, phase=phase)
        later = NOW + timedelta(hours=97)
        for _ in range(3):
            one.pass_(now=later)
        assert one.status.preserve_until is None
        assert (one.annotations.get(WISH), one.is_tainted()) == (None, False)


@pytest.mark.row("machine-preserve-20")
def test_preserved_condition_reports_expiry_and_drain_result() -> None:
    one = case("when-failed", phase="Failed")
    one.pass_()
    until = "Machine preserved until 2026-01-05T00:00:00Z."

    def said() -> tuple[str, str, str]:
        found = one.condition()
        assert found is not None
        return found.status, found.reason, found.message

    assert said() == ("True", "Preserved by user.", until)
    one.pass_(drained=False)
    assert said() == (
        "False",
        "Preserved by user.",
        f"Preserved node could not be drained. {until}",
    )
    assert one.pass_(drained=False) == one.pass_() == 0
    one.pass_(drained=True)
    assert said() == ("True", "Preserved by user.", f"Preserved node drained successfully. {until}")
    assert one.pass_() == 0
    decided = preservation.decide(one.machine(), one.node, NOW, RULES)
    assert one.node is not None
    assert not preservation.wants_drain(one.machine(), one.node, decided, RULES)
    one.status = replace(one.status, phase=Phase.RUNNING)
    one.pass_()
    assert said() == ("False", "Preservation stopped.", "")


@pytest.mark.row("machine-preserve-22")
@pytest.mark.parametrize(
    ("before", "during", "after"),
    [
        ({}, {"": "true", "by": "true"}, {}),
        ({"": "true"}, {"": "true"}, {"": "true"}),
        ({"": "true", "by": "true"}, {"": "true", "by": "true"}, {}),
    ],
    ids=["none", "by-hand", "by-us"],
)
def test_preservation_disables_scale_down_and_restores_annotations(
    before: dict[str, str], during: dict[str, str], after: dict[str, str]
) -> None:
    keys = {"": ANNOTATION_SCALE_DOWN_DISABLED, "by": ANNOTATION_SCALE_DOWN_DISABLED_BY_US}

    def told(one: Case) -> dict[str, str]:
        assert one.node is not None
        return {
            short: one.node.annotations[key]
            for short, key in keys.items()
            if key in one.node.annotations
        }

    one = case(None, "now")
    assert one.node is not None
    one.node = Node(
        metadata=ObjectMeta(name="n", annotations={keys[key]: text for key, text in before.items()})
    )
    one.pass_()
    assert told(one) == during
    assert one.node.condition_status("Preserved") == "True"
    one.annotations = {}
    one.pass_()
    assert told(one) == after
    assert one.node.condition_status("Preserved") == "False"


ANY = (None, "", "now", "when-failed", "auto-preserved", "false", "invalid")


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.UNKNOWN, Phase.FAILED], ids=str)
@pytest.mark.parametrize("minutes", [None, 60.0, -1.0])
def test_preservation_settles_after_two_passes_for_any_annotations(
    phase: Phase, minutes: float | None
) -> None:
    """The second pass may find that the annotation of the node was removed."""
    for theirs, own, last, tainted, node in product(ANY, ANY, ANY, (False, True), (True, False)):
        one = case(
            theirs, own, last, phase=phase.value, minutes=minutes, tainted=tainted, node=node
        )
        one.pass_()
        one.pass_()
        assert one.pass_() == 0, (theirs, own, last, tainted, node)


@pytest.mark.parametrize("wish", ANY)
def test_failed_status_carries_the_preservation_expiry(wish: str | None) -> None:
    one, failed = case(wish), MachineStatus(phase=Phase.FAILED)
    found = preservation.with_preservation(one.machine(), failed, one.node, NOW, RULES)
    is_kept = wish in ("now", "when-failed", "auto-preserved")
    assert found == replace(failed, preserve_until=NOW + timedelta(hours=96) if is_kept else None)
    one = case("when-failed", minutes=60)
    again = replace(failed, preserve_until=one.status.preserve_until)
    assert preservation.with_preservation(one.machine(), again, one.node, NOW, RULES) == again


def test_group_without_preserve_annotation_preserves_nothing() -> None:
    rules = replace(RULES, names=replace(RULES.names, preserve=""))
    one = case("now", minutes=60)
    assert (
        preservation.decide(one.machine(), one.node, NOW, rules).action
        is PreservationAction.NOTHING
    )
