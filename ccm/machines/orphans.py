"""Orphans: VMs without a machine, and the choice of those to delete. No I/O.

Conditions for the deletion of a VM:
- Its labels contain the marker of our cluster and the namespace of our machines.
- In this pass and in an earlier one, no machine in the cache owns the VM.
- The VM is more than an hour old.
- No machine in a live list owns the VM.

The number of deletions in a pass is limited, because many ownerless VMs mean that machines are
missing.

A VM whose labels lack a namespace was created by an earlier release, and may belong to a machine of
another namespace. Such a VM is deleted only if no machine of any namespace owns it.

With a driver that finds VMs by name only, VMs have no labels. Such a VM counts as ours if it has
the name of a machine whose VM we created and whose deletion was observed (`DeletedMachines`). Any
other VM is at most reported.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ccm.cloud.machines import Identity, MachineRecord
from ccm.model.machines import Machine

MIN_AGE_S = 3600.0
"""Minimum age in seconds of a VM to delete: the caches may lack the machine of a younger VM."""

SIGHTING_INTERVAL_S = 30.0
"""Minimum seconds from the first sighting to the deletion of a VM that counts as ours by its name.
A listing may still show a VM that was deleted with its machine a moment ago."""

SETTLE_S = 60.0
"""A listing that begins this many seconds after the deletion of a machine shows every VM that the
machine left; earlier listings may lag behind creations."""

MAX_NAMES = 10_000
"""Maximum number of deleted machines that are remembered per class, to bound the memory while no
listing succeeds."""

MIN_DELETIONS_PER_PASS, MAX_DELETION_SHARE = 5, 0.1
"""Limit of the deletions in a pass: the larger of this number and this share of our VMs. Many
ownerless VMs mean that machines are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Time of the first sighting of an ownerless VM, and number of passes that saw it."""

    since: datetime
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanCandidates:
    """Result of the comparison of listed VMs with the machines in the cache.

    Attributes:
        owned_count: number of VMs that count as ours.
        candidates: ownerless VMs that may be deleted if `decide_deletions` agrees.
        waiting: ownerless VMs that are too young, or were not seen often enough.
        strangers: VMs that neither count as ours nor have a machine.
        sightings: sightings for the next pass, by provider ID; VMs without provider ID by name and
            UID.
    """

    owned_count: int = 0
    candidates: Sequence[MachineRecord] = ()
    waiting: Sequence[MachineRecord] = ()
    strangers: Sequence[MachineRecord] = ()
    sightings: Mapping[str, Sighting]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanDecision:
    """Result of the comparison of candidates with a live list of the machines.

    Attributes:
        to_delete: VMs to delete.
        over_limit: orphans that are kept, because they exceed the limit of a pass.
        unconfirmed: VMs whose labels lack a namespace, if not all namespaces could be listed.
    """

    to_delete: Sequence[MachineRecord] = ()
    over_limit: Sequence[MachineRecord] = ()
    unconfirmed: Sequence[MachineRecord] = ()


def find_candidates(
    records: Iterable[MachineRecord],
    machines: Sequence[Machine],
    sightings: Mapping[str, Sighting],
    now: datetime,
    *,
    cluster: str,
    namespace: str,
    gone: Collection[str] = (),
) -> OrphanCandidates:
    """Compare the VMs of a listing with the machines of the cache.

    Args:
        records: the listing.
        machines: all machines of our namespace.
        sightings: sightings of the previous pass.
        now: the time.
        cluster: marker of our cluster.
        namespace: namespace of our machines.
        gone: names of deleted machines, for a driver that finds VMs by name only; see
            `DeletedMachines`.
    """
    unique = list({_key(record): record for record in records}.values())
    owned = Owners(machines)
    marked, named, foreign = list[MachineRecord](), list[MachineRecord](), list[MachineRecord]()
    for record in unique:
        if _is_ours(record, cluster, namespace):
            marked.append(record)
        elif _is_unmarked(record) and record.identity.name in gone and not owned.may_own(record):
            named.append(record)
        else:
            foreign.append(record)
    ownerless = [*(record for record in marked if not owned.owns(record)), *named]
    seen = dict[str, Sighting]()
    for key in map(_key, ownerless):
        before = sightings.get(key, Sighting(since=now, number=0))
        seen[key] = Sighting(since=before.since, number=before.number + 1)
    candidates, waiting = list[MachineRecord](), list[MachineRecord]()
    for record in ownerless:
        is_ripe = _is_old_enough(record, seen[_key(record)], now)
        (candidates if is_ripe else waiting).append(record)
    return OrphanCandidates(
        owned_count=len(marked) + len(named),
        candidates=sorted(candidates, key=_key),
        waiting=waiting,
        strangers=[record for record in foreign if not owned.owns(record)],
        sightings=seen,
    )


def decide_deletions(
    candidates: OrphanCandidates, machines: Iterable[Machine], *, all_namespaces: bool
) -> OrphanDecision:
    """Decide which candidates are deleted.

    Args:
        candidates: the candidates.
        machines: list of machines that was read from the API server after the listing of the VMs.
        all_namespaces: whether `machines` contains the machines of all namespaces.
    """
    owners = Owners(machines)
    ownerless = [record for record in candidates.candidates if not owners.may_own(record)]
    confirmed, unconfirmed = list[MachineRecord](), list[MachineRecord]()
    for record in ownerless:
        # A VM without labels is a candidate only if `DeletedMachines` contains its name.
        is_located = _is_unmarked(record) or bool(record.identity.namespace)
        (confirmed if all_namespaces or is_located else unconfirmed).append(record)
    # VMs of another namespace must not raise the limit for ours.
    ours = candidates.owned_count - (len(candidates.candidates) - len(confirmed))
    most = max(MIN_DELETIONS_PER_PASS, math.floor(MAX_DELETION_SHARE * ours))
    return OrphanDecision(
        to_delete=confirmed[:most], over_limit=confirmed[most:], unconfirmed=unconfirmed
    )


class Owners:
    """Owners of VMs: machines by provider ID, UID and name.

    Args:
        machines: all known machines.
    """

    def __init__(self, machines: Iterable[Machine]) -> None:
        known = list(machines)
        self._by_id = {machine.provider_id for machine in known if machine.provider_id}
        self._making = {machine.uid for machine in known if machine.in_creation}
        self._names = {machine.name for machine in known}

    def owns(self, record: MachineRecord) -> bool:
        """Return whether the VM has the provider ID of a machine, or the UID of one in creation."""
        return record.info.provider_id in self._by_id or record.identity.uid in self._making

    def may_own(self, record: MachineRecord) -> bool:
        """Return whether a machine owns the VM, or the VM has a machine's name and no labels."""
        by_name = _is_unmarked(record) and record.identity.name in self._names
        return by_name or self.owns(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedMachine:
    """Deleted machine that may have left a VM.

    Attributes:
        identity: identity of the machine, for the request that deletes its VM.
        origins: see `Machine.origins`.
        at: event loop time at which the deletion was observed.
    """

    identity: Identity
    origins: tuple[str, ...]
    at: float


class DeletedMachines:
    """Deleted machines that may have left a VM, by class and name.

    Add only machines whose object recorded the start of a creation: at that time, no VM had the
    name. A machine is forgotten once a listing shows no VM of its name, because a VM that gets the
    name later has another owner. The machines are kept in memory only: after a restart, VMs of
    machines deleted before are reported instead of deleted.
    """

    def __init__(self) -> None:
        self._classes: dict[str, dict[str, DeletedMachine]] = {}

    def add(self, machine: DeletedMachine) -> None:
        """Remember a machine; beyond `MAX_NAMES`, forget the oldest machine of its class."""
        known = self._classes.setdefault(machine.identity.pool, {})
        known.pop(machine.identity.name, None)
        known[machine.identity.name] = machine
        if len(known) > MAX_NAMES:
            del known[next(iter(known))]

    def remove(self, name: str) -> None:
        """Forget the deleted machines of a name, because a new machine has that name."""
        for known in self._classes.values():
            known.pop(name, None)

    def of(self, pool: str, origin: str) -> Mapping[str, Identity]:
        """Return, by name, the identities of deleted machines whose VMs a listing would show.

        Args:
            pool: class of the listing.
            origin: `ResolvedClass.origin` of the listing's credentials.
        """
        known = self._classes.get(pool, {})
        return {name: gone.identity for name, gone in known.items() if origin in gone.origins}

    def settle(self, pool: str, listed: Collection[str], began: float) -> bool:
        """Forget the machines that left no VM, according to a listing.

        Args:
            pool: class of the listing.
            listed: names of the listed VMs.
            began: event loop time at which the listing began.

        Returns:
            Whether the listing began less than `SETTLE_S` after the deletion of some machine.
        """
        known = self._classes.get(pool, {})
        early = {name for name, gone in known.items() if began <= gone.at + SETTLE_S}
        self._classes[pool] = {
            name: gone for name, gone in known.items() if name in early or name in listed
        }
        return bool(early)

    def keep(self, pools: Collection[str]) -> None:
        """Forget the machines of all other classes."""
        for pool in self._classes.keys() - set(pools):
            del self._classes[pool]


def may_leave_vm(machine: Machine) -> bool:
    """Return whether the object records that we created, or tried to create, the machine's VM.

    The record also proves that no other VM had the machine's name when the creation started. A
    provider ID alone proves nothing: a user may have set it.
    """
    return machine.creation_started or bool(machine.origins)


def _is_ours(record: MachineRecord, cluster: str, namespace: str) -> bool:
    marks = record.identity
    return bool(cluster) and marks.cluster == cluster and marks.namespace in ("", namespace)


def _is_unmarked(record: MachineRecord) -> bool:
    return not (record.identity.cluster or record.identity.uid)


def _key(record: MachineRecord) -> str:
    return record.info.provider_id or f"{record.identity.name}/{record.identity.uid}"


def _is_old_enough(record: MachineRecord, sighting: Sighting, now: datetime) -> bool:
    if _is_unmarked(record):
        # The minimum age protects VMs whose machines are not in the cache yet. That protection is
        # not needed here: this VM's machine was in the cache, and its deletion was observed.
        return (now - sighting.since).total_seconds() >= SIGHTING_INTERVAL_S
    # Without a creation time from the cloud, the age counts from the first sighting.
    since = record.created or sighting.since
    return sighting.number > 1 and (now - since).total_seconds() > MIN_AGE_S
