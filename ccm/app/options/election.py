"""The flags of leader election."""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from ccm.base import flag_checks as checks
from ccm.base.flags import Fault
from ccm.runtime.manifest import GENERIC

LEASE = "cloud-controller-manager"
"""Name of the lease, unless a flag says otherwise."""

GUARDED = 0.95
"""Part of a lease that a leader counts on. The rest is for clocks that do not run alike, and for
what is on its way."""

_RENEW_FACTOR = 1.2
"""The renew deadline must leave room for a jittered retry; from client-go's leader election."""


@dataclass(frozen=True, kw_only=True)
class ElectionFlags:
    """How one of several replicas comes to lead."""

    leader_elect: bool = GENERIC.flag(
        True,
        "Work only while holding the lease, so that one of several replicas is active.",
        path="Generic.LeaderElection.leaderElect",
    )
    leader_elect_lease_duration: timedelta = GENERIC.flag(
        timedelta(seconds=15),
        "How long the others wait after the leader's last sign of life. Whole seconds count.",
        path="Generic.LeaderElection.leaseDuration",
    )
    leader_elect_renew_deadline: timedelta = GENERIC.flag(
        timedelta(seconds=10),
        "How long a leader tries to renew before it gives up and exits. Must be shorter than 95 % "
        "of the lease duration, at which it is ended by force.",
        path="Generic.LeaderElection.renewDeadline",
    )
    leader_elect_retry_period: timedelta = GENERIC.flag(
        timedelta(seconds=2),
        "Pause between two tries. The renew deadline must be longer than 1.2 times this.",
        path="Generic.LeaderElection.retryPeriod",
    )
    leader_elect_resource_lock: str = GENERIC.flag(
        "leases",
        "Kind of object to lock; only leases will do.",
        path="Generic.LeaderElection.resourceLock",
    )
    leader_elect_resource_name: str = GENERIC.flag(
        LEASE, "Name of the lease.", path="Generic.LeaderElection.resourceName"
    )
    leader_elect_resource_namespace: str = GENERIC.flag(
        "kube-system", "Namespace of the lease.", path="Generic.LeaderElection.resourceNamespace"
    )


def faults(flags: ElectionFlags) -> Iterator[Fault]:
    """Settings that make no sense together; without election none of them counts."""
    if not flags.leader_elect:
        return
    if flags.leader_elect_resource_lock != "leases":
        yield "leader-elect-resource-lock", 'must be "leases"'
    for part, example in (("name", LEASE), ("namespace", "kube-system")):
        given = getattr(flags, f"leader_elect_resource_{part}")
        if not given:
            yield f"leader-elect-resource-{part}", "cannot be empty while --leader-elect is true"
        elif not checks.is_object_name(given):
            yield f"leader-elect-resource-{part}", f"must be a name such as {example}"
    yield from _times(flags)


def _times(flags: ElectionFlags) -> Iterator[Fault]:
    times = {
        "lease-duration": flags.leader_elect_lease_duration.total_seconds(),
        "renew-deadline": flags.leader_elect_renew_deadline.total_seconds(),
        "retry-period": flags.leader_elect_retry_period.total_seconds(),
    }
    short = [name for name, seconds in times.items() if seconds <= 0]
    yield from ((f"leader-elect-{name}", "must be longer than 0s") for name in short)
    if short:
        return
    lease, renew, retry = times.values()
    if lease < 1:
        why = "because a lease counts whole seconds"
        yield "leader-elect-lease-duration", f"must be 1s or longer, {why}"
    if GUARDED * lease <= renew:
        # Before it gave up it would be ended by force.
        right = f"must be longer than --leader-elect-renew-deadline={renew:g}s / {GUARDED}"
        yield "leader-elect-lease-duration", f"{right}, that is {renew / GUARDED:g}s"
    if renew <= _RENEW_FACTOR * retry:
        least = _RENEW_FACTOR * retry
        right = f"must be longer than {_RENEW_FACTOR} times --leader-elect-retry-period={retry:g}s"
        yield "leader-elect-renew-deadline", f"{right}, that is {least:g}s"
