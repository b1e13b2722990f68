"""What counts as one row of answers, and the sums over all nodes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import msgspec
import pytest

from ccm.cloud.ownership import Ownership
from ccm.controllers.nodelifecycle.evidence import (
    LONGEST_SILENCE_S,
    MOST_WITNESSES,
    Census,
    Evidence,
    Tally,
)
from ccm.model import Node, Taint, names
from ccm.testing.builders import node, uninitialized_taint

GOING = Taint(key=names.TAINT_AUTOSCALER_DELETION, effect="NoSchedule")
NEW = uninitialized_taint()
SICK = node("a", provider_id="fake://a", ready="False")


def census(*nodes: Node, own_nodes: str = "", claimed: tuple[str, ...] = ()) -> Census:
    made = Census(
        Ownership.of(("fake",), own_nodes),
        is_claimed=lambda node: node.name in claimed,
        period_s=5.0,
    )
    made.use(0)
    for each in nodes:
        made.saw(each, 0.0)
    return made


def denied(made: Census, *moments: float, of: Node = SICK) -> Evidence:
    for now in moments:
        made.heard(of, now, exists=False)
    found = made.evidence(of)
    assert found is not None
    return found


def test_a_row_lasts_as_long_as_it_was_said() -> None:
    found = denied(census(SICK), 10.0, 15.0, 20.0)

    assert (found.since, found.heard, found.lasted_s) == (10.0, 20.0, 10.0)


def test_an_error_neither_breaks_nor_prolongs_a_row() -> None:
    made = census(SICK)
    denied(made, 10.0, 15.0)

    made.failed(SICK)
    found = denied(made, 45.0, 50.0)

    assert (found.since, found.lasted_s) == (10.0, 10.0)


def test_a_long_silence_proves_little() -> None:
    assert denied(census(SICK), 0.0, 3600.0).lasted_s == LONGEST_SILENCE_S


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.heard(SICK, 6.0, exists=True),
        lambda made: made.use(1),
        lambda made: made.saw(node("a", provider_id="fake://a", ready="False", uid="x"), 6.0),
        lambda made: made.saw(node("a", provider_id="fake://b", ready="False"), 6.0),
        lambda made: made.saw(node("a", provider_id="fake://a"), 6.0),
        lambda made: made.lost("a"),
    ],
    ids=["contradicted", "provider exchanged", "made anew", "another ID", "became ready", "gone"],
)
def test_what_ends_a_row(change: object) -> None:
    made = census(SICK)
    denied(made, 0.0, 5.0)

    change(made)  # type: ignore[operator]
    made.saw(SICK, 7.0)
    assert denied(made, 8.0).lasted_s == 0.0


def test_an_answer_about_a_node_that_is_another_by_now_is_no_evidence() -> None:
    made = census(node("a", provider_id="fake://a", ready="False", uid="x"))

    made.heard(SICK, 1.0, exists=False)
    made.failed(SICK)

    assert made.evidence(SICK) is None


def test_an_unchanged_node_keeps_its_evidence() -> None:
    made = census(SICK)
    before = denied(made, 0.0, 5.0)

    made.saw(SICK, 6.0)
    made.use(0)

    assert made.evidence(SICK) == before


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (node(provider_id="fake://1"), Tally(ours=1, settled=1, unasked=1)),
        (
            node(provider_id="fake://1", ready="False"),
            Tally(ours=1, settled=1, denied=1, unasked=1),
        ),
        (node(provider_id="other://1"), Tally(foreign=1, foreign_ids=1)),
        (node(provider_id="fake://1", labels={"not": "ours"}), Tally(foreign=1)),
        (node(provider_id="fake://1", taints=[GOING]), Tally(ours=1)),
        (node(taints=[NEW]), Tally(ours=1)),
        (node(), Tally(ours=1, settled=1, unasked=1)),
    ],
)
def test_who_counts(one: Node, expected: Tally) -> None:
    assert census(one, own_nodes="!not").tally() == expected


def test_a_node_without_id_counts_once_it_is_confirmed() -> None:
    sick = node("a", ready="False")
    for claimed, settled in (((), 0), (("a",), 1)):
        made = census(sick, claimed=claimed)
        assert made.tally().settled == settled
    made.heard(sick, 1.0, exists=True)
    assert made.tally().confirmed == 1


def test_the_sums_are_those_of_a_recount() -> None:
    """Whatever happens in whatever order."""
    rng = random.Random(7)
    made, present = census(), dict[str, Node]()
    for step in range(3000):
        name = f"n{rng.randrange(12)}"
        if rng.random() < 0.1:
            made.lost(name)
            present.pop(name, None)
        elif rng.random() < 0.5 or name not in present:
            present[name] = node(
                name,
                uid=f"{name}-{rng.randrange(2)}",
                provider_id=rng.choice(["fake://1", "fake://2", "other://1", ""]),
                ready=rng.choice(["True", "False"]),
                taints=rng.choice([[], [NEW], [GOING]]),
            )
            made.saw(present[name], float(step))
        else:
            made.heard(present[name], float(step), exists=rng.random() < 0.5)
        made.use(step // 500)

        assert made.tally() == recounted(made, present.values())


def recounted(made: Census, nodes: Iterable[Node]) -> Tally:
    again = census()
    again.use(made._opening or 0)
    for each in nodes:
        again.saw(each, 0.0)
        found = made.evidence(each)
        if found is not None:
            again.heard(each, 1.0, exists=found.exists)
    return again.tally()


def test_without_doubt_no_ready_node_is_asked_about() -> None:
    made = census(SICK, node("b", provider_id="fake://b"))
    assert made.witnesses(0.0) == ()

    made.heard(SICK, 1.0, exists=True)
    assert made.witnesses(1.0) == ()


def test_a_sick_node_that_is_confirmed_is_witness_enough() -> None:
    other = node("b", provider_id="fake://b", ready="False")
    made = census(SICK, other, node("c", provider_id="fake://c"))
    denied(made, 0.0)

    made.heard(other, 0.0, exists=True)

    assert made.witnesses(1.0) == ()


def test_more_and_more_are_asked_about_until_one_is_confirmed() -> None:
    ready = {name: node(name, provider_id=f"fake://{name}") for name in map(str, range(1000))}
    made = census(SICK, *ready.values())
    denied(made, 0.0)
    asked, counts = list[str](), list[int]()
    for now in range(12):
        chosen = made.witnesses(float(now))
        counts.append(len(chosen))
        asked += chosen
        for name in chosen:
            made.heard(ready[name], float(now), exists=False)

    assert counts[:8] == [1, 2, 4, 8, 16, 32, 64, MOST_WITNESSES]
    assert len(set(asked)) == len(asked)

    made.heard(ready["500"], 12.0, exists=True)
    assert made.witnesses(13.0) == ("500",)


def test_a_witness_that_does_not_answer_makes_room_for_the_next() -> None:
    made = census(SICK, node("b", provider_id="fake://b"), node("c", provider_id="fake://c"))
    denied(made, 0.0)

    assert [list(made.witnesses(now)) for now in (0.0, 1.0, 2.0)] == [["b"], ["c"], ["b"]]


def test_when_the_doubt_is_over_the_witnesses_are_forgotten() -> None:
    ready = node("b", provider_id="fake://b")
    made = census(SICK, ready)
    denied(made, 0.0)
    made.heard(ready, 0.0, exists=True)

    made.lost("a")

    assert made.witnesses(1.0) == ()
    assert made.evidence(ready) is None


@pytest.mark.parametrize(
    ("initial", "wall_s", "age_s"),
    [(False, 1e9, 10.0), (False, -5.0, 10.0), (True, 50.0, 50.0), (True, -5.0, 10.0)],
)
def test_a_clock_on_the_wall_is_believed_about_the_past_only(
    initial: bool, wall_s: float, age_s: float
) -> None:
    made = census()
    made.saw(SICK, 100.0, initial=initial)

    assert made.age_s(SICK, 110.0, wall_s) == age_s


def test_a_node_that_nobody_dated_is_old_and_one_that_is_gone_is_new() -> None:
    made = census()
    made.saw(SICK, 100.0, initial=True)

    assert made.age_s(SICK, 110.0, None) == math.inf
    assert made.age_s(msgspec.structs.replace(SICK, metadata=node("x").metadata), 110.0, 5) == 0
