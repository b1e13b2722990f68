"""VMs without a machine: which may be deleted. Pure.

A VM is deleted only if it carries our marker, was ownerless in an earlier pass too, has been
there for an hour, and is ownerless by a live read as well; and never many in one pass, for then
it is rather the machines that are missing. Any other VM is reported at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ccm.cloud.machines import MachineRecord
from ccm.machines.views import MachineView

LEAST_AGE_S = 3600.0
"""A VM younger than this is left alone: its machine may not be known everywhere yet."""

FEWEST, PART = 5, 0.1
"""Most deletions of a pass: so many, or that part of our VMs where it is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """When an ownerless VM was first seen, and in which pass."""

    since: datetime
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a pass found.

    Attributes:
        ours: how many VMs carry our marker.
        due: what may be deleted, if a live read agrees.
        held: what would be due if it were not that many.
        waiting: ownerless VMs that are too young, or new to us.
        strangers: VMs without a marker, or with that of another cluster, that no machine names.
        sightings: for the next pass.
    """

    ours: int = 0
    due: Sequence[MachineRecord] = ()
    held: Sequence[MachineRecord] = ()
    waiting: Sequence[MachineRecord] = ()
    strangers: Sequence[MachineRecord] = ()
    sightings: Mapping[str, Sighting]


def judge(
    records: Iterable[MachineRecord],
    machines: Sequence[MachineView],
    sightings: Mapping[str, Sighting],
    now: datetime,
    *,
    cluster: str,
) -> Judgement:
    """Judge the VMs of a listing.

    Args:
        records: the listing.
        machines: all there are.
        sightings: of the pass before.
        now: the time.
        cluster: our marker.
    """
    every = list({_key(record): record for record in records}.values())
    owned = Owners(machines)
    ours = [record for record in every if cluster and record.identity.cluster == cluster]
    ownerless = [record for record in ours if not owned.has(record)]
    seen = {_key(record): _sighting(record, sightings, now) for record in ownerless}
    due, waiting = list[MachineRecord](), list[MachineRecord]()
    for record in ownerless:
        ripe = _is_ripe(record, seen[_key(record)], now)
        (due if ripe else waiting).append(record)
    most = max(FEWEST, math.floor(PART * len(ours)))
    due.sort(key=_key)
    foreign = [record for record in every if record.identity.cluster != cluster or not cluster]
    return Judgement(
        ours=len(ours),
        due=due[:most],
        held=due[most:],
        waiting=waiting,
        strangers=[record for record in foreign if not owned.has(record)],
        sightings=seen,
    )


class Owners:
    """Whose VMs are.

    Args:
        machines: all there are.
    """

    def __init__(self, machines: Iterable[MachineView]) -> None:
        known = list(machines)
        self._by_id = {one.provider_id for one in known if one.provider_id}
        self._making = {one.uid for one in known if one.in_creation}

    def has(self, record: MachineRecord) -> bool:
        """Whether a machine names the VM, or is being made and will find it by its UID."""
        return record.info.provider_id in self._by_id or record.identity.uid in self._making


def _key(record: MachineRecord) -> str:
    return record.info.provider_id or f"{record.identity.name}/{record.identity.uid}"


def _sighting(record: MachineRecord, sightings: Mapping[str, Sighting], now: datetime) -> Sighting:
    before = sightings.get(_key(record))
    if before is None:
        return Sighting(since=now, number=1)
    return Sighting(since=before.since, number=before.number + 1)


def _is_ripe(record: MachineRecord, sighting: Sighting, now: datetime) -> bool:
    # Where the cloud does not say when it was made, it is as old as we know it to be.
    since = record.created or sighting.since
    return sighting.number > 1 and (now - since).total_seconds() > LEAST_AGE_S
