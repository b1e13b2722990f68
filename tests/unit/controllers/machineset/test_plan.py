"""What of a set's status somebody waits for."""

from __future__ import annotations

import pytest

from ccm.controllers.machineset import plan
from ccm.gardener.sets import MachineSetStatus
from ccm.machines.replicas import Counts


@pytest.mark.parametrize(
    ("replicas", "observed", "awaited"),
    [(2, 7, False), (2, 8, True), (0, 7, True)],
    ids=["fewer", "another-generation", "none-left"],
)
def test_a_deployment_waits_for_what_was_seen_and_for_the_last_to_go(
    replicas: int, observed: int, awaited: bool
) -> None:
    before = MachineSetStatus(replicas=3, observed_generation=7)

    assert plan.is_awaited(before, observed, Counts(replicas=replicas)) is awaited


def test_an_empty_set_that_stays_empty_is_no_news() -> None:
    assert not plan.is_awaited(MachineSetStatus(observed_generation=7), 7, Counts())
