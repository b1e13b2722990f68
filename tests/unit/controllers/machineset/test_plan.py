"""What of a set's status somebody waits for."""

from __future__ import annotations

import pytest

from ccm.controllers.machineset import plan
from ccm.model.machines import SetStatus


@pytest.mark.parametrize(
    ("replicas", "observed", "awaited"),
    [(2, 7, False), (2, 8, True), (0, 7, True)],
    ids=["fewer", "another-generation", "none-left"],
)
def test_a_deployment_waits_for_what_was_seen_and_for_the_last_to_go(
    replicas: int, observed: int, awaited: bool
) -> None:
    before = SetStatus(replicas=3, observed=7)

    assert plan.is_awaited(before, SetStatus(replicas=replicas, observed=observed)) is awaited


def test_an_empty_set_that_stays_empty_is_no_news() -> None:
    assert not plan.is_awaited(SetStatus(observed=7), SetStatus(observed=7))
