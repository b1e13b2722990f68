"""Small kinds: ConfigMap, CustomResourceDefinition, Event, Lease, Namespace and Secret."""

from __future__ import annotations

from ccm.model.meta import KubeObject, ObjectMeta, ObjectReference, Wire


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    """Small texts by key. Not modelled completely, so it is patched."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None


class CustomResourceDefinition(KubeObject, frozen=True, kw_only=True):
    """Only its metadata."""

    metadata: ObjectMeta


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


class LeaseSpec(Wire, frozen=True, kw_only=True):
    """Who holds a lease and since when; times are RFC 3339 with six fraction digits."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(KubeObject, frozen=True, kw_only=True):
    """A lease: the lock that leader election stands on. Modelled completely, because it is PUT."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class Namespace(KubeObject, frozen=True, kw_only=True):
    """Only that it is there, and its UID."""

    metadata: ObjectMeta


class Secret(KubeObject, frozen=True, kw_only=True):
    """Small data by key, decoded from the base64 of the API. It is never printed."""

    metadata: ObjectMeta
    type: str = ""
    data: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        return f"Secret({self.key}: {', '.join(sorted(self.data or ()))})"
