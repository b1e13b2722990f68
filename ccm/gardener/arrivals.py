"""What the machine controllers of one daemon tell each other of what is about to come, so that one
write does for two.

Nothing rests on it: a controller that is alone in its daemon, or comes after one that ended in
between, finds what is missing and writes it then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ccm.model.machines import Machine


class Arrivals:
    """What machines and nodes are given when they come.

    Attributes:
        claim: metadata that a machine about to be made has from the beginning; the machine
            controller says so, and nothing where there is none in this daemon.
    """

    def __init__(self) -> None:
        self.claim: Callable[[Machine], Mapping[str, Any]] = lambda _: {}
        self._notes: dict[str, Mapping[str, str]] = {}
        self._sets: dict[str, Collection[str]] = {}

    def rolls(self, owner: str, sets: Collection[str], notes: Mapping[str, str]) -> None:
        """The machines of a deployment are exchanged, or, without sets, are not any more.

        Args:
            owner: UID of the deployment.
            sets: UIDs of its sets.
            notes: annotations of each of their nodes meanwhile.
        """
        for one in self._sets.pop(owner, ()):
            self._notes.pop(one, None)
        if sets and notes:
            self._sets[owner] = tuple(sets)
            self._notes |= dict.fromkeys(sets, notes)

    def notes(self, owner: str) -> Mapping[str, str]:
        """Annotations of a node that joins now; `owner` is the UID of its machine's set."""
        return self._notes.get(owner, {})
