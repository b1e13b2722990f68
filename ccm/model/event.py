"""Event (core v1): what happened to an object, for people to read."""

from __future__ import annotations

from ccm.model.meta import KubeObject, ObjectMeta, ObjectReference, Wire


class EventSource(Wire, frozen=True, kw_only=True):
    """Which component reports."""

    component: str = ""
    host: str = ""


class Event(KubeObject, frozen=True, kw_only=True):
    """One event; repeated ones are counted instead of created anew."""

    metadata: ObjectMeta
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    type: str = ""
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    reporting_component: str = ""
