"""Whose turn it is to be given up for its node: one machine of a group at a time. Pure.

A machine that is given up is replaced, and its Pods move. Were all machines given up at once whose
nodes are sick, an outage of a network would become one of the cluster. So a machine waits while
another of its group is on its way, from being given up to its replacement running. Where most
nodes are sick at once it is probably not the nodes: then one machine at a time is given up of all.

A turn is taken before anything is awaited, and stands until the machine is seen as it was written:
two machines never pass by each other, whatever is slow. After a restart the phases say the same.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from ccm.machines.views import MachineView, Phase

MELTDOWN_SHARE = 0.55
"""Where more than this share of all nodes is sick it is not the nodes (kube-controller-manager, the
default of --unhealthy-zone-threshold)."""

MELTDOWN_LEAST = 3
"""With fewer sick nodes nobody can tell (kube-controller-manager: more than two)."""


class Standing(Enum):
    """What a machine means for the others of its group."""

    WELL = "well"
    SICK = "sick"
    """It waits for its turn, or will."""
    UNDER_WAY = "under way"
    """It is being made, given up, replaced or deleted: others wait."""
    ASIDE = "aside"
    """It failed and is preserved: nobody waits for it."""


def standing(machine: MachineView) -> Standing:
    """What a machine means for the others."""
    if machine.is_deleting or machine.phase is Phase.TERMINATING:
        return Standing.UNDER_WAY
    if machine.phase is Phase.RUNNING:
        return Standing.WELL
    if machine.phase in (Phase.UNKNOWN, Phase.UPDATE_FAILED):
        # Were the latter on its way, two whose update failed would wait for each other for ever.
        return Standing.SICK
    return Standing.UNDER_WAY if machine.status.preserve_until is None else Standing.ASIDE


class Replacements:
    """Who is on its way, and who waits.

    `note` is told of every change of a machine, and a machine that is to be given up needs a turn
    (`claim`). A turn that is not used is given back (`release`); one that is used stays until
    `note` is told of the machine as it was written.
    """

    def __init__(self) -> None:
        self._groups: dict[str, str] = {}
        self._standing: dict[str, Standing] = {}
        self._under_way: dict[str, set[str]] = {}
        self._count = dict.fromkeys(Standing, 0)
        self._turns: dict[str, str] = {}
        self.waiting: set[str] = set()
        """Keys of machines whose turn it was not."""

    @property
    def is_meltdown(self) -> bool:
        """Whether so many nodes are sick that it is probably not the nodes."""
        sick, well = self._count[Standing.SICK], self._count[Standing.WELL]
        return sick >= MELTDOWN_LEAST and sick > MELTDOWN_SHARE * (sick + well)

    def note(self, key: str, machine: MachineView | None) -> Collection[str]:
        """A machine is another now; None: it is gone. Who may have its turn because of that."""
        was_meltdown = self.is_meltdown
        held = self._drop(key) or key in self._turns
        found = None if machine is None else self._add(key, machine)
        if found is not Standing.SICK:
            # It is seen as it was written, or nobody needs to give it up any more.
            self._turns.pop(key, None)
            self.waiting.discard(key)
        holds = found is Standing.UNDER_WAY or key in self._turns
        freed = (held and not holds) or (was_meltdown and not self.is_meltdown)
        return self._woken() if freed else ()

    def claim(self, machine: MachineView) -> str:
        """Take a turn; why it has to wait, else empty."""
        key = machine.key
        others = self._others(key, machine.group)
        if others:
            self.waiting.add(key)
            why = "most nodes are sick, and one machine at a time is given up then: "
            return f"{why if self.is_meltdown else ''}{min(others)} is on its way"
        self.waiting.discard(key)
        self._turns[key] = machine.group
        return ""

    def release(self, machine: MachineView) -> Collection[str]:
        """It needs no turn, or no more; who may have one now."""
        self.waiting.discard(machine.key)
        return self._woken() if self._turns.pop(machine.key, None) is not None else ()

    def _others(self, key: str, group: str) -> set[str]:
        turns = {one for one, of in self._turns.items() if self.is_meltdown or (of and of == group)}
        groups = self._under_way if self.is_meltdown else ([group] if group else [])
        every = (self._under_way.get(one, set()) for one in groups)
        return turns.union(*every) - {key}

    def _woken(self) -> Collection[str]:
        woken, self.waiting = self.waiting, set()
        return woken

    def _add(self, key: str, machine: MachineView) -> Standing:
        found = standing(machine)
        self._groups[key], self._standing[key] = machine.group, found
        self._count[found] += 1
        if found is Standing.UNDER_WAY:
            self._under_way.setdefault(machine.group, set()).add(key)
        return found

    def _drop(self, key: str) -> bool:
        """Forget what a machine was; whether it was on its way."""
        before = self._standing.pop(key, None)
        if before is None:
            return False
        self._count[before] -= 1
        group = self._groups.pop(key)
        if before is not Standing.UNDER_WAY:
            return False
        self._under_way[group].discard(key)
        if not self._under_way[group]:
            del self._under_way[group]
        return True
