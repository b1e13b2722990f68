"""What a provider says about its own calls is checked where it is said."""

from __future__ import annotations

import math

import pytest

from ccm.cloud import Limits


def test_a_deadline_of_no_operation_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"names ensure, list; operations are: .*list_routes"):
        Limits(deadlines_s={"list": 5, "ensure": 1, "list_routes": 3})


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_a_deadline_is_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Limits(deadlines_s={"list_routes": seconds})
