"""Small values of the SDK: addresses, power, provider IDs, annotations, owners."""

from __future__ import annotations

import math

import pytest

from ccm.cloud import Cloud, Limits
from ccm.cloud.lookup import Ownership
from ccm.runtime import account
from ccm.testing.builders import node


def test_a_deadline_of_no_operation_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"names ensure, list; operations are: .*list_routes"):
        Limits(deadlines_s={"list": 5, "ensure": 1, "list_routes": 3})


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_a_deadline_is_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Limits(deadlines_s={"list_routes": seconds})


@pytest.mark.parametrize(
    ("provider_id", "said"),
    [
        ("fake://1", ""),
        ("", ""),
        ("fake://bm-1", "is another manager's (this provider leaves IDs alone that begin with "),
        ("other://bm-1", "is of another cloud (this daemon's: fake://)"),
    ],
)
def test_another_manager_of_our_scheme_is_foreign(provider_id: str, said: str) -> None:
    ownership = Ownership.at(Cloud(name="fake", foreign_ids=("fake://bm-",)), "")
    found = node(provider_id=provider_id)

    assert ownership.is_foreign(found) is bool(said)
    assert said in account.foreign(found, ownership)
    assert bool(account.foreign(found, ownership)) is bool(said)
