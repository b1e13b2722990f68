"""Which set has the newest template, how sets are named and counted, and the way back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ccm.base.parsing import parse_digits
from ccm.machines.replicas import PopulatedSet
from ccm.machines.settings import Names
from ccm.model.machines import MachineDeployment
from ccm.model.names import SAFE_LETTERS

_SUFFIX = 5
"""Length of what is appended to the name of a deployment."""

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193
"""FNV-1a, 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """How a set is to be called.

    Attributes:
        name: of the object.
        hash: of the template, as text; stands in a label.
        collisions: how often a name was taken before this one was not.
    """

    name: str
    hash: str
    collisions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """The answer to the wish for an older template.

    Attributes:
        to: the set whose template it is; None: nothing is changed.
        revision: its number.
        why_not: why nothing is changed.
        is_same: whether that is because it is the present one.
    """

    to: PopulatedSet | None = None
    revision: int = 0
    why_not: str = ""
    is_same: bool = False


def new_and_old(
    deployment: MachineDeployment, sets: Sequence[PopulatedSet]
) -> tuple[PopulatedSet | None, Sequence[PopulatedSet]]:
    """The set of the newest template, and the others; the oldest first."""
    ordered = sorted(sets, key=lambda one: one.age)
    essence = deployment.template.essence
    alike = (one for one in ordered if one.template.essence == essence and not one.is_deleting)
    new = next(alike, None)
    return new, [one for one in ordered if one is not new]


def name_for(deployment: MachineDeployment, taken: Collection[str]) -> Name:
    """How the set of the newest template is to be called; none of the names taken."""
    collisions = deployment.status.collisions or 0
    while True:
        digest = str(_fnv(f"{deployment.template.essence}{collisions or ''}"))
        suffix = "".join(SAFE_LETTERS[ord(one) % len(SAFE_LETTERS)] for one in digest[:_SUFFIX])
        name = f"{deployment.name}-{suffix}"
        if name not in taken:
            return Name(name=name, hash=digest, collisions=collisions)
        collisions += 1


def number(of: Mapping[str, str], names: Names) -> int:
    """The revision that annotations tell; 0 where they tell none."""
    return parse_digits(of.get(names.revision, "")) or 0


def next_number(new: PopulatedSet | None, olds: Sequence[PopulatedSet], names: Names) -> int:
    """The revision of the newest template."""
    highest = max((number(one.annotations, names) for one in olds), default=0)
    found = number(new.annotations, names) if new is not None else 0
    return max(found, highest + 1)


def numbered(new: PopulatedSet, revision: int, names: Names) -> Mapping[str, str]:
    """The annotations that give a set its revision; none where it has it."""
    before = number(new.annotations, names)
    if before >= revision:
        return {}
    found = {names.revision: str(revision)}
    if before:
        former = new.annotations.get(names.revision_history, "")
        found[names.revision_history] = ",".join(filter(None, (former, str(before))))
    return found


def superfluous(
    deployment: MachineDeployment, olds: Sequence[PopulatedSet]
) -> Sequence[PopulatedSet]:
    """Old sets beyond those that are kept; none that has machines."""
    if deployment.history_limit is None:
        return ()
    kept = [one for one in olds if one.has_seen and not one.is_deleting]
    empty = [one for one in kept if not (one.replicas or one.members)]
    return empty[: max(0, len(empty) - deployment.history_limit)]


def revert(deployment: MachineDeployment, sets: Sequence[PopulatedSet], names: Names) -> Revert:
    """What follows from the wish for an older template."""
    wish = deployment.rollback_to or 0
    known = {number(one.annotations, names): one for one in sorted(sets, key=lambda one: one.age)}
    known.pop(0, None)
    if not wish:
        # The one before is the second highest.
        wish = sorted(known)[-2] if len(known) > 1 else 0
    found = known.get(wish)
    if found is None:
        text = f"There is no revision {wish}." if wish else "There is no revision before this one."
        return Revert(revision=wish, why_not=text)
    if found.template.essence == deployment.template.essence:
        text = f"Revision {wish} has the same template as the deployment {deployment.name}."
        return Revert(revision=wish, why_not=text, is_same=True)
    return Revert(to=found, revision=wish)


def _fnv(text: str) -> int:
    found = _FNV_OFFSET
    for byte in text.encode():
        found = (found ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return found
