"""Deletions that are held back, told where people look: an event, a metric, `doctor`."""

from __future__ import annotations

from collections.abc import Collection

from ccm.base import clock, metrics
from ccm.model import names
from ccm.model.meta import ObjectReference
from ccm.model.times import format_time
from ccm.runtime.deletions import NAME, DeletionRecord, Held
from ccm.runtime.massguard import MassGuard
from ccm.runtime.recorder import Recorder

_held = metrics.gauge(
    "ccm_deletions_held",
    "Deletions that are held back now, by kind of object and reason.",
    ("kind", "reason"),
)

ALLOW = f"annotate ConfigMap {NAME} beside the Lease with {names.ANNOTATION_ALLOW_DELETION}=true"
"""How a person allows what a `mass_guard` holds, for messages about it."""


def mass_guard(record: DeletionRecord | None, *, allow: bool) -> MassGuard:
    """A guard that a flag opens, or a person by annotating the record."""
    return MassGuard(lambda: allow or (record is not None and record.is_allowed))


class Holds:
    """Deletions of one kind of object that are held back.

    An event tells when one begins and when its reason changes; the metric and the record
    hold what lasts.

    Args:
        kind: of the objects, such as `Node`.
        events: where the events go.
        record: where `doctor` finds them; None = nowhere.
    """

    def __init__(self, kind: str, events: Recorder, record: DeletionRecord | None = None) -> None:
        self._kind = kind
        self._events = events
        self._record = record
        self._held: dict[str, Held] = {}
        if record is not None:
            record.show(kind, lambda: tuple(self._held.values()))

    def __len__(self) -> int:
        """How many are held back."""
        return len(self._held)

    def hold(self, about: ObjectReference, reason: str, message: str) -> None:
        """The object is not deleted now.

        Args:
            about: the object.
            reason: one word in snake_case, for the metric.
            message: a sentence for people that says what they can do; empty = no event, because one
                about another object says it.
        """
        found = Held(
            name=about.name,
            namespace=about.namespace,
            uid=about.uid,
            reason=reason,
            since=format_time(clock.now()),
        )
        before = self._held.get(found.key)
        if before is not None and (before.uid, before.reason) == (found.uid, reason):
            return
        self._forget(found.key)
        self._held[found.key] = found
        _held.labels(self._kind, reason).inc()
        if message:
            self._events.event(about, names.WARNING, names.REASON_DELETION_HELD, message)
        self._tell()

    def release(self, about: ObjectReference) -> None:
        """The object was deleted, is kept for good, or is gone."""
        if self._forget(Held(name=about.name, namespace=about.namespace).key):
            self._tell()

    def only(self, kept: Collection[str]) -> None:
        """Nothing is held back but the objects of these names, which have no namespace."""
        for name in self._held.keys() - set(kept):
            self.release(ObjectReference(name=name))

    def clear(self) -> None:
        """Nothing is held back any more."""
        for key in list(self._held):
            self._forget(key)
        self._tell()

    def _forget(self, key: str) -> bool:
        held = self._held.pop(key, None)
        if held is not None:
            _held.labels(self._kind, held.reason).dec()
        return held is not None

    def _tell(self) -> None:
        if self._record is not None:
            self._record.changed()
