"""Which calls a fault script strikes."""

from __future__ import annotations

import typing

import pytest

from providers.sim import faults, world
from tests.handclock import HandClock

GET = faults.Call(operation="get_instance", instances=("i-1", "a"))


@pytest.fixture
def script(hand: HandClock) -> faults.Script:
    return faults.Script()


@pytest.mark.parametrize(
    ("fault", "struck"),
    [
        (faults.Fault(kind="drop"), True),
        (faults.Fault(kind="drop", operation="get_*"), True),
        (faults.Fault(kind="drop", operation="list_instances"), False),
        (faults.Fault(kind="drop", instance="i-1"), True),
        (faults.Fault(kind="drop", instance="a"), True),
        (faults.Fault(kind="drop", instance="b*"), False),
    ],
    ids=["any", "operation pattern", "other operation", "ID", "name", "other name"],
)
def test_a_fault_matches_operation_and_instance(
    script: faults.Script, fault: faults.Fault, struck: bool
) -> None:
    script.add(fault)

    assert (script.judge(GET).fault is not None) is struck
    spared = script.judge(faults.Call(operation="get_instance")).fault is None
    assert spared or fault.instance == "*"


def test_skip_and_count_choose_the_calls_by_number(script: faults.Script) -> None:
    script.add(faults.Fault(kind="drop", skip=1, count=2))

    struck = [script.judge(GET).fault is not None for _ in range(5)]

    assert struck == [False, True, True, False, False]


def test_a_window_chooses_the_calls_by_time(script: faults.Script, hand: HandClock) -> None:
    script.add(faults.Fault(kind="drop", start_s=2.0, for_s=2.0))

    struck = []
    for _ in range(5):
        struck.append(script.judge(GET).fault is not None)
        hand.advance(1.0)

    assert struck == [False, False, True, True, False]


def test_latencies_add_up_and_the_first_other_fault_decides(script: faults.Script) -> None:
    script.add(faults.Fault(kind="latency", delay_s=1.0))
    script.add(faults.Fault(kind="latency", delay_s=0.5))
    script.add(faults.Fault(kind="empty", count=1))
    script.add(faults.Fault(kind="drop"))

    verdicts = [script.judge(GET) for _ in range(2)]

    assert [one.delay_s for one in verdicts] == [1.5, 1.5]
    assert [one.fault and one.fault.kind for one in verdicts] == ["empty", "drop"]


def test_a_cleared_script_strikes_nothing(script: faults.Script) -> None:
    script.add(faults.Fault(kind="drop"))

    script.clear()

    assert len(script) == 0
    assert script.judge(GET) == faults.Verdict()


def test_a_novel_answer_keeps_what_was_known_but_the_state() -> None:
    address = {"kind": "private", "value": "10.0.0.1"}
    answer = {"id": "i-1", "state": "running", "labels": {"a": "b"}, "addresses": [address]}

    found = faults.novel({"instances": [answer]})

    assert isinstance(found, dict)
    (one,) = found["instances"]
    assert one["state"] not in typing.get_args(world.State)
    assert (one["id"], one["labels"]) == ("i-1", {"a": "b"})
    assert one["addresses"][-1].items() >= address.items()
    assert one["addresses"][0]["kind"] not in typing.get_args(world.AddressKind)
    assert set(one) > set(answer)


def test_every_kind_says_what_it_does() -> None:
    assert set(faults.MEANINGS) == set(typing.get_args(faults.Kind))
