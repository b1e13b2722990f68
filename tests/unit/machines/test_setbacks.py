"""Setbacks: how fast a set makes machines that fail."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ccm.machines import setbacks
from ccm.machines.setbacks import NONE, Setbacks
from ccm.model.machines import Phase
from tests.unit.machines.members import NOW, at, member


def failed(found: Setbacks, seconds: float, made: float | None = None) -> Setbacks:
    """One more failed at that time; made at the same, if nothing else is said."""
    made = seconds if made is None else made
    return setbacks.failed(found, made=at(made), now=at(seconds), text=f"at {seconds}")


def after(*times: float) -> Setbacks:
    """Machines failed at these times."""
    found = NONE
    for seconds in times:
        found = failed(found, seconds)
    return found


def test_a_few_cost_nothing() -> None:
    found = after(0, 1)

    assert (found.row, found.level, found.since) == (2, 0, None)
    assert setbacks.until(found) is None
    assert setbacks.wait_s(found, at(1)) == 0
    assert setbacks.allowed(found, 7, [], at(1)) == 7


def test_pauses_double_up_to_half_an_hour() -> None:
    found, now, pauses = after(0, 0), 0.0, list[float]()
    for _ in range(8):
        found = failed(found, now)
        pauses.append(setbacks.wait_s(found, at(now)) / 60)
        now += pauses[-1] * 60

    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert found.text == "at 5460.0"


def test_machines_of_one_burst_are_one_setback() -> None:
    """A hundred that were made together fail together: that is no reason to wait for ever."""
    found = after(0, 0, 0)
    for seconds in range(1, 50):
        found = failed(found, seconds, made=-60)

    assert (found.row, found.level) == (52, 1)
    assert setbacks.wait_s(found, at(50)) == 10


def test_after_a_pause_one_machine_is_tried() -> None:
    found = after(0, 0, 0)

    assert setbacks.allowed(found, 5, [], at(59)) == 0
    assert setbacks.allowed(found, 5, [], at(60)) == 1
    assert setbacks.allowed(found, 0, [], at(60)) == 0


@pytest.mark.parametrize(
    ("facts", "allowed"),
    [
        pytest.param({"phase": Phase.NEW}, 0, id="just made"),
        pytest.param({"phase": Phase.PENDING}, 0, id="not joined yet"),
        pytest.param({"phase": Phase.CRASH_LOOP}, 0, id="tried again"),
        pytest.param({"phase": Phase.FAILED}, 1, id="failed"),
        pytest.param({"phase": Phase.PENDING, "is_deleting": True}, 1, id="on its way out"),
        pytest.param({"phase": Phase.PENDING, "created": at(-1)}, 1, id="from before"),
        pytest.param({"phase": Phase.UNKNOWN}, 1, id="joined once"),
    ],
)
def test_while_one_is_tried_no_other_is_made(facts: dict[str, object], allowed: int) -> None:
    tried = member("a", **{"created": at(60), **facts})

    assert setbacks.allowed(after(0, 0, 0), 5, [tried], at(90)) == allowed


def test_another_daemon_waits_a_minute() -> None:
    found = setbacks.resumed(NOW)

    assert setbacks.until(found) == NOW + timedelta(minutes=1)
    assert setbacks.wait_s(failed(found, 60), at(60)) == 120


def test_machines_from_before_the_end_of_a_pause_count_for_nothing() -> None:
    found = setbacks.ended(at(100.9))
    assert setbacks.allowed(found, 7, [], at(101)) == 7

    for _ in range(5):
        found = failed(found, 200, made=99)
    assert (found.row, found.level) == (0, 0)
    # The API server counts in whole seconds.
    for _ in range(3):
        found = failed(found, 200, made=100)
    assert (found.row, found.level) == (3, 1)


NO_CORES = "Cloud provider message - code = [ResourceExhausted] message = [no cores, request 4711]"


@pytest.mark.parametrize(
    ("failure", "code", "text", "wanted"),
    [
        pytest.param("ResourceExhausted", "", "", True, id="created"),
        pytest.param("ResourceExhausted", "Internal", NO_CORES, True, id="another code"),
        pytest.param("ResourceExhausted", "ResourceExhausted", "no RAM", True, id="another text"),
        pytest.param(
            "ResourceExhausted",
            "ResourceExhausted",
            NO_CORES.replace("4711", "4712"),
            False,
            id="another request",
        ),
        # It never joined; that a VM was created says nothing new.
        pytest.param("", "", "", False, id="did not join"),
        pytest.param("", "ResourceExhausted", NO_CORES, False, id="did not join, refused"),
    ],
)
def test_another_answer_of_the_cloud(failure: str, code: str, text: str, wanted: bool) -> None:
    found = setbacks.failed(NONE, made=NOW, now=NOW, text=NO_CORES, code=failure)

    assert setbacks.is_another_answer(found, code=code, text=text) is wanted
