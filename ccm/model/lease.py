"""Lease: the lock that leader election stands on. Modelled completely, because it is PUT."""

from __future__ import annotations

from ccm.model.meta import KubeObject, ObjectMeta, Wire


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
    """A lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()
