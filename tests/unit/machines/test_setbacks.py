"""Setbacks: how fast a set makes machines that fail."""

from __future__ import annotations

from ccm.machines import setbacks
from ccm.machines.setbacks import NONE, Setbacks
from tests.unit.machines.members import at


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
