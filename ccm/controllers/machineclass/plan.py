"""What is written on classes and on the Secrets they refer to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import msgspec

from ccm.base import redact
from ccm.gardener import names
from ccm.gardener.types import MachineClass, ObjectCondition
from ccm.model import Secret
from ccm.model.machines import Machine
from ccm.model.names import STATUS_FALSE, STATUS_TRUE
from ccm.model.patches import Patch, add_finalizer, remove_finalizer, same_version
from ccm.model.times import format_time


def refers_to(machine: Machine, name: str) -> bool:
    """Whether a machine is of that class."""
    return machine.class_name == name


def finalizer_patch(obj: MachineClass, *, is_used: bool) -> Patch | None:
    """Holds a class while machines are of it, and lets it go when none is; None: as it is."""
    if not is_used:
        return remove_finalizer(obj, names.FINALIZER, strategic=False)
    if obj.is_deleting:
        # No finalizer can be added any more.
        return None
    return add_finalizer(obj, names.FINALIZER, strategic=False)


def uses_secret(classes: Iterable[MachineClass], secret: Secret) -> bool:
    """Whether a class refers to the Secret."""
    return any(reference.name == secret.name for one in classes for reference in one.secrets)


def secret_patch(obj: Secret, *, is_used: bool) -> Patch | None:
    """Holds a Secret while a class refers to it; None: as it is."""
    if not is_used:
        return remove_finalizer(obj, names.FINALIZER_SECRET)
    return None if obj.is_deleting else add_finalizer(obj, names.FINALIZER_SECRET)


def condition(faults: Sequence[str] | None, now: datetime) -> ObjectCondition:
    """What is said of a class; None instead of faults: the driver cannot tell."""
    if faults is None:
        status, reason, text = STATUS_TRUE, names.REASON_UNCHECKED, "The driver checks no specs."
    elif faults:
        status, reason, text = STATUS_FALSE, names.REASON_SPEC_INVALID, "; ".join(faults)
    else:
        status, reason, text = STATUS_TRUE, names.REASON_SPEC_VALID, "VMs can be made of it."
    return ObjectCondition(
        type=names.CONDITION_SPEC_VALID,
        status=status,
        reason=reason,
        # As it will be stored, or it would be found to differ each time.
        message=redact.public(text),
        last_transition_time=format_time(now),
    )


def has_condition(obj: MachineClass, kind: str) -> bool:
    """Return whether a class has a condition of that type."""
    return any(one.type == kind for one in obj.status.conditions or ())


def condition_patch(obj: MachineClass, wanted: ObjectCondition) -> Patch | None:
    """The patch that says so on the class; None where it stands."""
    known = {one.type: one for one in obj.status.conditions or ()}
    before = known.get(wanted.type)
    if before is not None and _timeless(before) == _timeless(wanted):
        return None
    if before is not None and before.status == wanted.status:
        wanted = msgspec.structs.replace(wanted, last_transition_time=before.last_transition_time)
    every: Collection[ObjectCondition] = (known | {wanted.type: wanted}).values()
    return {
        "metadata": same_version(obj),
        "status": {"conditions": [msgspec.to_builtins(one) for one in every]},
    }


def _timeless(one: ObjectCondition) -> ObjectCondition:
    return msgspec.structs.replace(one, last_transition_time=None)
