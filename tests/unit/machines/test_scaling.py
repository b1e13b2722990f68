"""Sizes of sets where the caches, the autoscaler or others get in between."""

from __future__ import annotations

import pytest

from ccm.machines import bounds
from ccm.machines.scaling import Fleet, Sized, Victim
from ccm.model.machines import MachineDeployment
from tests.unit.machines.rolling import deployment

WORKS = Victim(available=True)
CHOSEN = Victim(available=True, chosen=True)
MISSING = Victim(available=False)


def fleet(*olds: Sized, new: Sized | None, replicas: int, surge: int = 1, least: int = 0) -> Fleet:
    return Fleet(replicas=replicas, surge=surge, floor=least, new=new, olds=olds)


def wanted(replicas: int, surge: int = 1) -> MachineDeployment:
    return deployment(replicas=replicas, max_surge=surge)


def test_amounts() -> None:
    assert [bounds.is_amount(value) for value in (0, 3, "25%", -1, "x", "5", None, "٣%")] == [
        True, True, True, False, False, False, False, False,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'5' is neither a number nor a percentage"):
        bounds.amount("5", 10, up=True)
