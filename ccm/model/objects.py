"""Small kinds: ConfigMap, CustomResourceDefinition, Event, Lease, Namespace and Secret."""

from __future__ import annotations

from ccm.model.meta import KubeObject, ObjectMeta, ObjectReference, Wire


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    """ConfigMap, without some fields of the API, so change it with patches only."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None


class CustomResourceDefinition(KubeObject, frozen=True, kw_only=True):
    """Custom resource definition; metadata only."""

    metadata: ObjectMeta


class EventSource(Wire, frozen=True, kw_only=True):
    """Component that reports an event."""

    component: str = ""
    host: str = ""


class Event(KubeObject, frozen=True, kw_only=True):
    """Event of `v1`; a repeated event has a `count` above 1."""

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
    """Holder of a Lease, and times in RFC 3339 with six fraction digits."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(KubeObject, frozen=True, kw_only=True):
    """Lock of leader election; has all fields of the API, because it is written with PUT."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class Namespace(KubeObject, frozen=True, kw_only=True):
    """Namespace; metadata only."""

    metadata: ObjectMeta


class Secret(KubeObject, frozen=True, kw_only=True):
    """Secret; `data` is decoded from the API's base64, and `repr` does not show its values."""

    metadata: ObjectMeta
    type: str = ""
    data: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        return f"Secret({self.key}: {', '.join(sorted(self.data or ()))})"
