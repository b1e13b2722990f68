"""What stands on sets and deployments that are frozen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from ccm.gardener import names
from ccm.gardener.sets import DeploymentCondition, MachineDeployment, MachineSet, wants_unfreeze
from ccm.gardener.types import ObjectCondition
from ccm.machines import bounds
from ccm.model.machines import Machine
from ccm.model.meta import KubeObject
from ccm.model.names import STATUS_TRUE
from ccm.model.owners import controller_of
from ccm.model.patches import Patch, same_object, same_version
from ccm.model.times import format_time

Freezable = MachineSet | MachineDeployment

_KEYS = {MachineSet: "machineSetCondition", MachineDeployment: "conditions"}
"""Where the conditions of each stand."""


def is_frozen(obj: KubeObject) -> bool:
    """Whether no machines are made; the label says that to who makes them."""
    return obj.labels.get(names.LABEL_FREEZE) == names.FROZEN


def frozen_condition(obj: Freezable) -> ObjectCondition | None:
    """What says so to people."""
    known: Sequence[ObjectCondition] = obj.status.conditions or ()
    return next((one for one in known if one.type == names.CONDITION_FROZEN), None)


def says_so(obj: Freezable) -> bool:
    """Whether a condition says that it is frozen."""
    found = frozen_condition(obj)
    return found is not None and found.status == STATUS_TRUE


def is_told_right(obj: Freezable) -> bool:
    """Whether the condition and the label agree."""
    return says_so(obj) if is_frozen(obj) else frozen_condition(obj) is None


def needs_a_look(obj: Freezable) -> bool:
    """Whether there is something to do about it, however many machines there are."""
    return wants_unfreeze(obj) or not is_told_right(obj)


def most(deployment: MachineDeployment) -> int:
    """Machines that a deployment may have: those it wants, and its surge."""
    spec = deployment.spec
    strategy = spec.strategy.effective()
    found = {
        "RollingUpdate": strategy.rolling_update,
        "InPlaceUpdate": strategy.in_place_update,
    }.get(strategy.type)
    surge = None if found is None else found.max_surge
    if surge is None or not bounds.is_amount(surge):
        return spec.replicas
    return spec.replicas + bounds.amount(surge, spec.replicas, up=True)


def deployment_key(obj: MachineSet) -> str:
    """Key of the deployment that controls a set; empty: none does."""
    found = controller_of(obj)
    if found is None or found.kind != "MachineDeployment":
        return ""
    return f"{obj.namespace}/{found.name}"


def set_key(machine: Machine) -> str:
    """Key of the set that controls a machine; empty: none does."""
    found = controller_of(machine)
    if found is None or found.kind != "MachineSet":
        return ""
    return f"{machine.namespace}/{found.name}"


def label_patch(obj: Freezable, *, frozen: bool) -> Patch | None:
    """The patch that freezes or thaws; None where it stands. What asked for a thaw goes with it."""
    changes: dict[str, Any] = {}
    if is_frozen(obj) is not frozen:
        changes["labels"] = {names.LABEL_FREEZE: names.FROZEN if frozen else None}
    if not frozen and wants_unfreeze(obj):
        changes["annotations"] = {names.ANNOTATION_UNFREEZE: None}
    return {"metadata": same_object(obj) | same_version(obj) | changes} if changes else None


def condition_patch(
    obj: Freezable, *, frozen: bool, reason: str, message: str, now: datetime
) -> Patch | None:
    """The patch by which people are told, or told no more; None where it stands.

    One that stands stays as it is, whatever its reason was.
    """
    if says_so(obj) if frozen else frozen_condition(obj) is None:
        return None
    known: Sequence[ObjectCondition] = obj.status.conditions or ()
    others = [one for one in known if one.type != names.CONDITION_FROZEN]
    said = [_condition(obj, reason, message, now)] if frozen else []
    plain = [msgspec.to_builtins(one) for one in (*others, *said)]
    return {"metadata": same_version(obj), "status": {_KEYS[type(obj)]: plain or None}}


def _condition(obj: Freezable, reason: str, message: str, now: datetime) -> ObjectCondition:
    at = format_time(now)
    if isinstance(obj, MachineSet):
        return ObjectCondition(
            type=names.CONDITION_FROZEN,
            status=STATUS_TRUE,
            last_transition_time=at,
            reason=reason,
            message=message,
        )
    return DeploymentCondition(
        type=names.CONDITION_FROZEN,
        status=STATUS_TRUE,
        last_transition_time=at,
        last_update_time=at,
        reason=reason,
        message=message,
    )
