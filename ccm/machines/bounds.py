"""How many machines a deployment may have too many, and how many may be missing. Pure."""

from __future__ import annotations

import re

from ccm.model.machines import MachineDeployment, Strategy

_PERCENT = re.compile(r"([0-9]{1,9})%")


def is_amount(value: object) -> bool:
    """Whether this is a number, or a percentage."""
    if isinstance(value, str):
        return _PERCENT.fullmatch(value) is not None
    return isinstance(value, int) and value >= 0


def amount(value: int | str, of: int, *, up: bool) -> int:
    """A number, or so many percent `of` something, rounded up or down.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, int):
        return value
    found = _PERCENT.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is neither a number nor a percentage such as 25%")
    hundredths = int(found[1]) * of
    return -(-hundredths // 100) if up else hundredths // 100


def surge(deployment: MachineDeployment) -> int:
    """Most machines above the replicas; none where they are not rolled."""
    if deployment.strategy is not Strategy.ROLLING:
        return 0
    return amount(deployment.max_surge, deployment.replicas, up=True)


def unavailable(deployment: MachineDeployment) -> int:
    """Most machines that may be missing, never more than there are to be."""
    if deployment.strategy not in (Strategy.ROLLING, Strategy.IN_PLACE) or not deployment.replicas:
        return 0
    most = amount(deployment.max_unavailable, deployment.replicas, up=False)
    extra = amount(deployment.max_surge, deployment.replicas, up=True)
    # With neither of them nothing could ever be exchanged.
    if most == 0 and (extra == 0 or deployment.is_manual):
        most = 1
    return min(most, deployment.replicas)


def new_size(deployment: MachineDeployment, *, present: int, new: int) -> int:
    """How large the new set may be now.

    Args:
        deployment: the deployment.
        present: machines that there are, or may be any moment, in all sets.
        new: replicas of the new set.

    Raises:
        ValueError: nobody knows how its machines are exchanged.
    """
    if deployment.strategy is None:
        raise ValueError("there is no such strategy")
    if deployment.strategy is Strategy.RECREATE:
        return deployment.replicas
    if deployment.is_manual:
        return new
    most = deployment.replicas + amount(deployment.max_surge, deployment.replicas, up=True)
    return new + max(0, min(most - present, deployment.replicas - new))
