"""Decisions of the node lifecycle controller, and the evidence for them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ccm.cloud.lookup import RUNNING, SHUTDOWN, NodeOwnership
from ccm.cloud.types import InstanceState
from ccm.controllers.nodelifecycle.plan import (
    MASS_DENIAL_TRUST_S,
    MAX_ANSWER_GAP_S,
    MAX_WITNESSES,
    MIN_AGE_INITIALISING_S,
    NEW_DENIED_S,
    AnswerSeries,
    DeletionRules,
    NodeAction,
    NodeCounts,
    NodeFacts,
    NodeObservations,
    Reason,
    decide,
    is_suspect,
    taint_patch,
)
from ccm.model import Node, Taint, names
from ccm.testing.builders import node, shutdown_taint, uninitialized_taint

OURS = NodeOwnership(schemes=("fake",))
SELECTED = NodeOwnership.from_flag(("fake",), "own")
RULES = DeletionRules(ownership=OURS)
DOWN, A, NEW = shutdown_taint(), Taint(key="a", effect="NoSchedule"), uninitialized_taint()
NOT_OURS = shutdown_taint(effect="NoExecute")

ASKED = node(provider_id="fake://1", ready="False")
GONE = AnswerSeries(
    exists=False, first_answer_at=0.0, last_answer_at=5.0, lasted_s=5.0, is_second=True
)
ONCE = AnswerSeries(exists=False, first_answer_at=0.0, last_answer_at=0.0)
EXISTS = AnswerSeries(exists=True, first_answer_at=0.0, last_answer_at=0.0)


def facts(
    evidence: AnswerSeries = GONE, *, age_s: float = 1e9, is_claimed: bool = False, **tally: Any
) -> NodeFacts:
    counted: dict[str, Any] = {"ours": 1, "settled": 1, "denied": 1, **tally}
    return NodeFacts(
        evidence=evidence, age_s=age_s, is_claimed=is_claimed, tally=NodeCounts(**counted)
    )


def patient(seconds: float) -> AnswerSeries:
    return replace(GONE, lasted_s=seconds)


def reason(of: Node, given: NodeFacts, rules: DeletionRules = RULES) -> Reason:
    """Return why the deletion is blocked, or `GONE`; the policy of Go never blocks it."""
    verdict = decide(of, of, given, rules)
    assert verdict.action is (
        NodeAction.DELETE if verdict.reason is Reason.GONE else NodeAction.HOLD
    )
    assert decide(of, of, given, replace(rules, reference=True)).action is NodeAction.DELETE
    return verdict.reason


def deleting(of: Node) -> Node:
    metadata = msgspec.structs.replace(of.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(of, metadata=metadata)


def test_node_is_deleted_only_if_unready_unchanged_and_surely_gone() -> None:
    others = [
        ASKED,
        None,
        deleting(ASKED),
        *(
            node(provider_id=provider_id, ready=ready, uid=uid)
            for provider_id in ("fake://1", "fake://2", "other://1", "")
            for ready in ("True", "False", "Unknown", None)
            for uid in ("uid-node0", "another")
        ),
    ]
    deleted = [
        (current, evidence)
        for current, evidence in itertools.product(others, (GONE, ONCE, EXISTS))
        if decide(ASKED, current, facts(evidence), RULES).action is NodeAction.DELETE
    ]

    assert deleted
    for current, evidence in deleted:
        assert current is not None
        assert (current.uid, current.provider_id) == (ASKED.uid, ASKED.provider_id)
        assert current.ready != names.STATUS_TRUE
        assert not current.metadata.deletion_timestamp
        assert evidence is GONE


@pytest.mark.parametrize("rules", [RULES, replace(RULES, reference=True)])
@pytest.mark.parametrize(
    ("foreign", "ownership"),
    [
        (node(provider_id="other://1", ready="False"), OURS),
        (node(provider_id="other://1", ready="False", labels={"own": ""}), SELECTED),
        (ASKED, SELECTED),
    ],
    ids=["scheme", "scheme of a selected one", "not selected"],
)
def test_a_foreign_node_is_never_deleted(
    foreign: Node, ownership: NodeOwnership, rules: DeletionRules
) -> None:
    verdict = decide(foreign, foreign, facts(), replace(rules, ownership=ownership))

    assert (verdict.action, verdict.reason) == (NodeAction.KEEP, Reason.FOREIGN)


TAINTED = node(provider_id="fake://1", ready="False", taints=[NEW])
NAMELESS = node(ready="False", taints=[NEW])
BARE = node(ready="False")


@pytest.mark.parametrize(
    ("held", "given", "rules", "why"),
    [
        (ASKED, facts(ONCE), RULES, Reason.UNCONFIRMED),
        (ASKED, facts(age_s=59), replace(RULES, min_age_s=60), Reason.YOUNG),
        (ASKED, facts(age_s=60), replace(RULES, min_age_s=60), Reason.GONE),
        (TAINTED, facts(age_s=MIN_AGE_INITIALISING_S - 1), RULES, Reason.YOUNG),
        (TAINTED, facts(age_s=MIN_AGE_INITIALISING_S), RULES, Reason.GONE),
        (NAMELESS, facts(patient(NEW_DENIED_S - 1), age_s=0), RULES, Reason.NEW),
        (NAMELESS, facts(patient(NEW_DENIED_S), age_s=0), RULES, Reason.GONE),
        (NAMELESS, facts(patient(NEW_DENIED_S), foreign_ids=1), RULES, Reason.MIXED),
        (BARE, facts(foreign_ids=1), RULES, Reason.UNCLAIMED),
        (BARE, facts(patient(1e9)), RULES, Reason.UNCLAIMED),
        (BARE, facts(is_claimed=True), RULES, Reason.GONE),
    ],
)
def test_reasons_that_block_the_deletion_of_one_node(
    held: Node, given: NodeFacts, rules: DeletionRules, why: Reason
) -> None:
    assert reason(held, given, rules) is why


@pytest.mark.parametrize(
    ("counted", "denied_s", "why"),
    [
        ({"settled": 4, "denied": 3}, 5, Reason.GONE),
        ({"settled": 4, "denied": 4}, 1e9, Reason.ALL_DENIED),
        ({"settled": 12, "denied": 4, "confirmed": 8}, 5, Reason.GONE),
        ({"settled": 11, "denied": 4, "confirmed": 7}, MASS_DENIAL_TRUST_S - 1, Reason.MASS_DENIAL),
        ({"settled": 11, "denied": 4, "confirmed": 7}, MASS_DENIAL_TRUST_S, Reason.GONE),
        ({"settled": 11, "denied": 4, "unasked": 7}, MASS_DENIAL_TRUST_S, Reason.ALL_DENIED),
        ({"settled": 9, "denied": 1, "unasked": 8}, MASS_DENIAL_TRUST_S - 1, Reason.UNWITNESSED),
        ({"settled": 9, "denied": 1, "unasked": 8}, MASS_DENIAL_TRUST_S, Reason.GONE),
        ({"settled": 9, "denied": 1, "unasked": 7, "confirmed": 1}, 5, Reason.GONE),
        ({"settled": 2, "denied": 2, "ready_denied": 1}, 1e9, Reason.ALL_DENIED),
        ({"settled": 0, "denied": 0, "new_denied": 4}, 1e9, Reason.ALL_DENIED),
        ({"settled": 0, "denied": 0, "new_denied": 3}, 5, Reason.GONE),
        ({"settled": 1, "denied": 0, "confirmed": 1, "new_denied": 9}, 5, Reason.GONE),
    ],
)
def test_mass_denial_blocks_deletion_unless_explicitly_allowed(
    counted: dict[str, Any], denied_s: float, why: Reason
) -> None:
    given = facts(patient(denied_s), **counted)
    allowed = {names.ANNOTATION_ALLOW_DELETION: "true"}

    assert reason(ASKED, given) is why
    assert reason(ASKED, given, replace(RULES, allow_mass=True)) is Reason.GONE
    assert reason(annotated(allowed), given) is Reason.GONE
    assert reason(annotated({names.ANNOTATION_ALLOW_DELETION: "no"}), given) is why


def annotated(annotations: dict[str, str]) -> Node:
    return node(provider_id="fake://1", ready="False", annotations=annotations)


READY, SICK = node(), node(ready="False")
READY_DOWN, SICK_DOWN = node(taints=[DOWN]), node(ready="False", taints=[DOWN])


GOING = Taint(key=names.TAINT_AUTOSCALER_DELETION, effect="NoSchedule")
FRESH = uninitialized_taint()
SILENT = node("a", provider_id="fake://a", ready="False")


def census(
    *nodes: Node, node_selector: str = "", claimed: tuple[str, ...] = ()
) -> NodeObservations:
    made = NodeObservations(
        NodeOwnership.from_flag(("fake",), node_selector),
        is_claimed=lambda node: node.name in claimed,
        period_s=5.0,
    )
    made.use_session(0)
    for each in nodes:
        made.node_seen(each, 0.0)
    return made


def denied(made: NodeObservations, *moments: float, of: Node = SILENT) -> AnswerSeries:
    for now in moments:
        made.record_answer(of, now, exists=False)
    found = made.answers(of)
    assert found is not None
    return found


def test_answer_about_a_replaced_node_is_discarded() -> None:
    made = census(node("a", provider_id="fake://a", ready="False", uid="x"))

    made.record_answer(SILENT, 1.0, exists=False)
    made.record_error(SILENT)

    assert made.answers(SILENT) is None


def test_incremental_node_counts_equal_a_full_recount() -> None:
    """Holds for 3000 random events in random order."""
    rng = random.Random(7)
    made, present = census(), dict[str, Node]()
    for step in range(3000):
        name = f"n{rng.randrange(12)}"
        if rng.random() < 0.1:
            made.node_deleted(name)
            present.pop(name, None)
        elif rng.random() < 0.5 or name not in present:
            present[name] = node(
                name,
                uid=f"{name}-{rng.randrange(2)}",
                provider_id=rng.choice(["fake://1", "fake://2", "other://1", ""]),
                ready=rng.choice(["True", "False"]),
                taints=rng.choice([[], [FRESH], [GOING]]),
            )
            made.node_seen(present[name], float(step))
        else:
            made.record_answer(present[name], float(step), exists=rng.random() < 0.5)
        made.use_session(step // 500)

        assert made.counts() == recounted(made, present.values())


def recounted(made: NodeObservations, nodes: Iterable[Node]) -> NodeCounts:
    again = census()
    again.use_session(made._provider_session or 0)
    for each in nodes:
        again.node_seen(each, 0.0)
        found = made.answers(each)
        if found is not None:
            again.record_answer(each, 1.0, exists=found.exists)
    return again.counts()


READY_B, SILENT_C = node("b", provider_id="fake://b"), node("c", provider_id="c", ready="False")


@pytest.mark.parametrize(
    ("initial", "wall_s", "age_s"),
    [
        *[(False, 1e9, 10.0), (False, -5.0, 10.0), (True, 50.0, 50.0), (True, -5.0, 10.0)],
        (True, None, math.inf),
    ],
)
def test_wall_clock_age_counts_only_for_initially_listed_nodes(
    initial: bool, wall_s: float | None, age_s: float
) -> None:
    made = census()
    made.node_seen(SILENT, 100.0, initial=initial)

    assert made.age_s(SILENT, 110.0, wall_s) == age_s
    assert made.age_s(READY_B, 110.0, 5) == 0


@pytest.mark.parametrize(
    ("rules", "ours", "limit"),
    [
        (RULES, 5, 10),
        (RULES, 109, 10),
        (RULES, 110, 11),
        (replace(RULES, limit=0), 5000, 0),
        (replace(RULES, limit=3), 5000, 3),
        (replace(RULES, limit=3, reference=True), 5000, 0),
    ],
)
def test_deletion_limit_grows_with_node_count_unless_configured(
    rules: DeletionRules, ours: int, limit: int
) -> None:
    assert rules.limit_for(ours) == limit


BROKEN: list[tuple[str, Callable[[NodeObservations], object]]] = [
    ("contradicted", lambda made: made.record_answer(SILENT, 6.0, exists=True)),
    ("provider exchanged", lambda made: made.use_session(1)),
    ("made anew", lambda made: made.node_seen(node("a", provider_id="fake://a", uid="x"), 6.0)),
    (
        "another ID",
        lambda made: made.node_seen(node("a", provider_id="fake://b", ready="False"), 6.0),
    ),
    ("became ready", lambda made: made.node_seen(node("a", provider_id="fake://a"), 6.0)),
    ("gone", lambda made: made.node_deleted("a")),
]


@pytest.mark.parametrize(
    ("before", "change", "after", "expected"),
    [
        pytest.param([10], None, [15, 20], (10, 20, 10), id="as long as it was said"),
        pytest.param(
            [10, 15], lambda made: made.record_error(SILENT), [45, 50], (10, 50, 10), id="error"
        ),
        pytest.param([0], None, [3600], (0, 3600, MAX_ANSWER_GAP_S), id="a long silence"),
        pytest.param([0, 5], lambda made: made.use_session(0), [6], (0, 6, 6), id="unchanged"),
        *[pytest.param([0, 5], change, [8], (8, 8, 0), id=name) for name, change in BROKEN],
    ],
)
def test_denial_duration_restarts_after_a_contradicting_change(
    before: list[float],
    change: Callable[[NodeObservations], object] | None,
    after: list[float],
    expected: tuple[float, float, float],
) -> None:
    made = census(SILENT)
    denied(made, *before)
    if change is not None:
        change(made)
    made.node_seen(SILENT, 7.0)
    found = denied(made, *after)

    assert (found.first_answer_at, found.last_answer_at, found.lasted_s) == expected


READY_B, SILENT_C = node("b", provider_id="fake://b"), node("c", provider_id="c", ready="False")


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([], []),
        ([(SILENT, True)], []),
        ([(SILENT, False)], ["b"]),
        ([(SILENT, False), (SILENT_C, True)], []),
        ([(SILENT, False), (READY_B, True)], ["b"]),
        ([(SILENT, False), (READY_B, True), (SILENT, True)], []),
    ],
    ids=["not asked", "exists", "denied", "a sick one confirmed", "known", "doubt is over"],
)
def test_ready_witnesses_are_chosen_only_while_a_denial_needs_one(
    answers: list[tuple[Node, bool]], asked: list[str]
) -> None:
    made = census(SILENT, READY_B, SILENT_C)
    for of, exists in answers:
        made.record_answer(of, 1.0, exists=exists)

    assert list(made.witnesses(2.0)) == asked
    # Without an open denial, answers about ready nodes are discarded.
    kept = made.answers(READY_B) is not None
    assert kept is (bool(asked) and (READY_B, True) in answers)


def test_witness_count_doubles_until_one_is_confirmed() -> None:
    ready = {name: node(name, provider_id=f"fake://{name}") for name in map(str, range(1000))}
    made = census(SILENT, *ready.values())
    denied(made, 0.0)
    asked, counts = list[str](), list[int]()
    for now in range(12):
        chosen = made.witnesses(float(now))
        counts.append(len(chosen))
        asked += chosen
        for name in chosen:
            made.record_answer(ready[name], float(now), exists=False)

    assert counts[:8] == [1, 2, 4, 8, 16, 32, 64, MAX_WITNESSES]
    assert len(set(asked)) == len(asked)

    made.record_answer(ready["500"], 12.0, exists=True)
    assert made.witnesses(13.0) == ("500",)


def test_unanswered_witness_is_replaced_by_the_next() -> None:
    made = census(SILENT, node("b", provider_id="fake://b"), node("c", provider_id="fake://c"))
    denied(made, 0.0)

    assert [list(made.witnesses(now)) for now in (0.0, 1.0, 2.0)] == [["b"], ["c"], ["b"]]


@pytest.mark.parametrize("taints", [(A, DOWN), (DOWN, NOT_OURS), (A,), (DOWN,), ()])
@pytest.mark.parametrize("ready", ["True", "False", "Unknown", None])
@pytest.mark.parametrize("state", [None, RUNNING, SHUTDOWN])
def test_shutdown_taint_is_patched_only_when_wrong(
    taints: tuple[Taint, ...], ready: str | None, state: InstanceState | None
) -> None:
    before = node(taints=taints, ready=ready, resource_version="41")

    patch = taint_patch(before, state)

    tainted = DOWN in taints
    wrong = tainted if ready == "True" else state is SHUTDOWN and not tainted
    assert (patch is not None) is wrong
    if patch is not None:
        after = [Taint(**entry) for entry in patch["spec"]["taints"] or []]
        assert patch["metadata"] == {"resourceVersion": "41"}
        assert [taint for taint in after if taint != DOWN] == [t for t in taints if t != DOWN]
        assert (DOWN in after) is not tainted
        again = node(taints=after, ready=ready)
        assert taint_patch(again, state) is None


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (node(provider_id="fake://1"), NodeCounts(ours=1, settled=1, unasked=1)),
        (
            node(provider_id="fake://1", ready="False"),
            NodeCounts(ours=1, settled=1, denied=1, unasked=1),
        ),
        (node(provider_id="other://1"), NodeCounts(foreign=1, foreign_ids=1)),
        (node(provider_id="fake://1", labels={"not": "ours"}), NodeCounts(foreign=1)),
        (node(provider_id="fake://1", taints=[GOING]), NodeCounts(ours=1)),
        (node(taints=[FRESH]), NodeCounts(ours=1)),
        (node(), NodeCounts(ours=1, settled=1, unasked=1)),
    ],
)
def test_node_counts_depend_on_ownership_taints_and_readiness(
    one: Node, expected: NodeCounts
) -> None:
    assert census(one, node_selector="!not").counts() == expected


@pytest.mark.parametrize(
    ("suspect", "expected"),
    [
        (node(ready="True"), False),
        (node(ready="False"), True),
        (node(ready="Unknown"), True),
        (node(ready=None), True),
        (node(ready="True", taints=[DOWN]), True),
        (node(ready="True", taints=[NOT_OURS]), False),
        (node(ready="False", provider_id="other://1"), False),
        (node(ready="True", taints=[DOWN], provider_id="other://1"), False),
        (node(ready="False", provider_id="no-scheme"), True),
    ],
)
def test_unready_or_shutdown_tainted_managed_nodes_are_suspect(
    suspect: Node, expected: bool
) -> None:
    assert is_suspect(suspect, OURS) is expected
