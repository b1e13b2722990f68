"""What is remembered of sets beside their objects, and said of it in their conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ccm.controllers.machineset import plan
from ccm.controllers.machineset.plan import Outcome
from ccm.kube.errors import (
    ApiError,
    Conflict,
    KubeError,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from ccm.machines import setbacks
from ccm.machines.setbacks import Setbacks
from ccm.model.machines import Condition, Machine, MachineSet, Operation, Template
from ccm.model.owners import controller_uid
from ccm.model.times import moment

_PASSING = (ServerError, TooManyRequests, Conflict, Unauthorized)
"""The API server is in trouble, or in a hurry: that says nothing about the machine."""


@dataclass(slots=True, kw_only=True)
class Memory:
    """What is known of a set beside its object.

    Attributes:
        key: of the set.
        template: what its machines were made of last.
        setbacks: machines that failed in a row.
        failure: says that machines could not be made or deleted the last time.
        last: what was done last; None = nothing since this daemon leads.
        said_at: when its status was written.
    """

    key: str
    template: Template
    setbacks: Setbacks = setbacks.NONE
    failure: Condition | None = None
    last: Operation | None = None
    said_at: float = -math.inf

    def conditions(self, now: datetime) -> Sequence[Condition]:
        """Those of the types that this controller writes."""
        found = [self.failure] if self.failure else []
        if (next_at := setbacks.until(self.setbacks)) is not None:
            found.append(plan.slowed(self.setbacks, next_at, now))
        return found

    def refused(self, error: KubeError, now: datetime) -> None:
        """The API server did not make a machine."""
        if isinstance(error, ApiError) and not isinstance(error, _PASSING):
            self.setbacks = setbacks.failed(self.setbacks, made=now, now=now, text=str(error))


class Memories:
    """The memory of each set, by its UID.

    Args:
        now: what time it is by the clock that machines were made by: pauses count by it, so that no
            jump of ours makes one longer.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._of: dict[str, Memory] = {}
        self._by_class: dict[str, set[str]] = {}

    def of(self, obj: MachineSet) -> Memory:
        """That of a set; of one whose template is another now the failures are forgotten."""
        template, found = obj.template, self._of.get(obj.uid)
        if found is None:
            found = self._of[obj.uid] = Memory(key=obj.key, template=template)
            self._index(obj.uid, "", template.class_name)
            if plan.slowed_since(obj) and not obj.wants_unfreeze:
                found.setbacks = setbacks.resumed(self._now())
        elif found.template.source != template.source:
            self._index(obj.uid, found.template.class_name, template.class_name)
            found.template, found.setbacks, found.failure = template, setbacks.NONE, None
        return found

    def learn(self, outcome: Outcome | None, machine: Machine | None) -> None:
        """What became of a machine says how fast others are made."""
        memory = None if machine is None else self._of.get(controller_uid(machine))
        if outcome is None or machine is None or memory is None:
            return
        if outcome is Outcome.JOINED:
            memory.setbacks = setbacks.NONE
            return
        now = self._now()
        memory.setbacks = setbacks.failed(
            memory.setbacks,
            made=moment(machine.metadata.creation_timestamp) or now,
            now=now,
            text=machine.status.description,
            code=machine.status.code,
        )

    def answered(self, class_name: str, code: str, text: str) -> Iterable[str]:
        """End the pauses that another answer of the cloud caused, and return the keys of the sets.

        Args:
            class_name: class of the machine whose creation the cloud answered.
            code: see `setbacks.is_another_answer`.
            text: see `setbacks.is_another_answer`.
        """
        return self.end(
            uid
            for uid in self._by_class.get(class_name, ())
            if setbacks.is_another_answer(self._of[uid].setbacks, code=code, text=text)
        )

    def mended(self, class_name: str) -> Iterable[str]:
        """End the pauses of the sets of a class that changed, and return the keys of the sets."""
        return self.end(self._by_class.get(class_name, ()))

    def end(self, uids: Iterable[str]) -> Iterable[str]:
        """Forget the failures of sets, and return the keys of the sets that had slowed down."""
        ended, now = list[str](), self._now()
        for uid in uids:
            memory = self._of.get(uid)
            if memory is None or not memory.setbacks.row:
                continue
            if memory.setbacks.level:
                ended.append(memory.key)
            memory.setbacks = setbacks.ended(now)
        return ended

    def forget(self, uid: str) -> None:
        """A set is gone."""
        if (memory := self._of.pop(uid, None)) is not None:
            self._index(uid, memory.template.class_name, "")

    def _index(self, uid: str, before: str, after: str) -> None:
        if before == after:
            return
        if after:
            self._by_class.setdefault(after, set()).add(uid)
        if before in self._by_class:
            self._by_class[before].discard(uid)
            if not self._by_class[before]:
                del self._by_class[before]
