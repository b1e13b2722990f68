"""Instances, volumes and routes of the simulated cloud, driven by a clock. No I/O.

An instance is a timeline: a list of (time, state from that time on). Stopping an instance writes
two entries at once, `stopping` from now and `stopped` a little later. No background task exists:
a read finds the entry that is valid at its time. An eventually consistent read is a read of the
past. Absence, before creation and after deletion, is an entry too, so that creations and deletions
also become visible late.

Instances are listed in order of creation. A page continues after the sequence number of the last
instance, so that creations and deletions do not shift page boundaries.
"""

from __future__ import annotations

import bisect
import ipaddress
import operator
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from ccm.base import clock

T = TypeVar("T", bound=Any)
S = TypeVar("S", bound=msgspec.Struct)

HISTORY_S = 600.0
"""Seconds for which past states are kept; also the maximum age of the data in eventually consistent
reads.
"""

PRIVATE_NETWORK = ipaddress.ip_network("10.0.0.0/8")
"""Network from which an instance without given addresses gets its address; consecutive addresses
go to consecutive instances.
"""

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Form of instance IDs; generated IDs are `i-` and 12 hex digits."""

State = Literal["starting", "running", "stopping", "stopped", "error", "deleting", "deleted"]
Action = Literal["start", "stop"]
AddressKind = Literal["private", "public", "private_dns", "public_dns", "hostname"]

ACTIONS: dict[tuple[Action, State], tuple[State, State] | None] = {
    ("start", "stopped"): ("starting", "running"),
    ("start", "running"): None,
    ("stop", "running"): ("stopping", "stopped"),
    ("stop", "stopped"): None,
}
"""(action, state) -> transitional and final state; None: no change necessary.

Other pairs are refused as a conflict.
"""

SETTLED_STATES: dict[State, State] = {"starting": "running", "stopping": "stopped"}
"""Transitional state -> final state."""


Code = Literal[
    "not_found", "conflict", "invalid", "quota_exceeded", "no_capacity", "busy", "protected"
]


class WorldError(Exception):
    """Refused operation; `code` is the machine-readable reason."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_text(field: str, parse: Callable[[str], object], text: str) -> None:
    """Check that a text can be parsed.

    Raises:
        WorldError: `invalid`: `parse` rejects the text.
    """
    try:
        parse(text)
    except ValueError as error:
        raise WorldError("invalid", f"{field}: {error}") from error


def apply_change(present: S, change: msgspec.Struct) -> S:
    """Return a copy with the fields of a change; fields that are `UNSET` there stay."""
    fields = msgspec.structs.asdict(change)
    given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    return msgspec.structs.replace(present, **given)


class Address(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address of an instance."""

    kind: AddressKind
    value: str


class NewInstance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request that creates an instance.

    Names need not be unique. Without addresses, an instance gets one private address.
    """

    name: str
    type: str = "small"
    zone: str = "sim-1a"
    region: str = "sim-1"
    addresses: tuple[Address, ...] = ()
    labels: dict[str, str] = {}


class Instance(NewInstance, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Virtual machine, as the API returns it or as an administrator or a saved state defines it.

    `created` is RFC 3339 text. `allowed_addresses` are further ranges the instance may send from.
    `reason` explains the state `error`. An instance with `joins` false never becomes a node.
    """

    id: str = ""
    state: State = "running"
    created: str = ""
    allowed_addresses: tuple[str, ...] = ()
    reason: str = ""
    joins: bool = True


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change of an instance. Addresses are replaced, labels merged; null removes a label.

    Allowed addresses can only be set once the instance has started.
    """

    type: str | msgspec.UnsetType = msgspec.UNSET
    addresses: tuple[Address, ...] | msgspec.UnsetType = msgspec.UNSET
    allowed_addresses: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET


class AdminChange(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change by the administrator. A state set here lasts until the next action."""

    state: State | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    joins: bool | msgspec.UnsetType = msgspec.UNSET


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Instances in order of creation; `after` is the position of the next page, None at the end."""

    instances: tuple[Instance, ...]
    after: int | None


class _Timeline:
    """Timeline of one instance: times rise, and the last entry has no end."""

    __slots__ = ("id", "name", "sequence", "timeline")

    def __init__(self, sequence: int, born: float, instance: Instance) -> None:
        self.sequence = sequence
        self.id = instance.id
        self.name = instance.name
        self.timeline: list[tuple[float, Instance | None]] = [(born, instance)]

    def at(self, moment: float) -> Instance | None:
        """Return the instance at a time; None before its creation and after its end."""
        for since, instance in reversed(self.timeline):
            if since <= moment:
                return instance
        return None

    def write(self, now: float, entries: Iterable[tuple[float, Instance | None]]) -> None:
        """Replace the future entries; drop entries that ended more than `HISTORY_S` seconds ago."""
        past = [entry for entry in self.timeline if entry[0] <= now]
        horizon = now - HISTORY_S
        while len(past) > 1 and past[1][0] <= horizon:
            past.pop(0)
        self.timeline = [*past, *entries]

    def revise(self, now: float, change: Callable[[Instance], Instance]) -> None:
        """Apply a change to the current and all future entries."""
        present = self.at(now)
        later = [entry for entry in self.timeline if entry[0] > now]
        self.write(
            now,
            [
                (since, instance and change(instance))
                for since, instance in [(now, present), *later]
            ],
        )


_SEQUENCE = operator.attrgetter("sequence")


class InstanceStore:
    """Instances of the simulated cloud.

    Args:
        rng: random source of the instance IDs.
    """

    def __init__(self, rng: random.Random) -> None:
        self.transition_s = 0.5
        """Time in seconds that starting and stopping take."""
        self.linger_s = 0.0
        """Time in seconds that a deleted instance is still listed as `deleted`."""
        self.removal_s = 0.0
        """Time in seconds that a deleted instance is `deleting`, before it is `deleted`."""
        self.revision = 0
        """Number of writes; a change of this number triggers a save."""
        self._rng = rng
        self._sequence = 0
        self._order: list[_Timeline] = []
        self._by_id: dict[str, _Timeline] = {}
        self._by_name: dict[str, list[_Timeline]] = {}
        self._deleted: deque[tuple[float, _Timeline]] = deque()

    def create(self, wanted: NewInstance) -> Instance:
        """Create an instance: `starting` at first, `running` after `transition_s`."""
        fields = {name: getattr(wanted, name) for name in NewInstance.__struct_fields__}
        return self.put(Instance(**fields, state="starting"))

    def put_all(self, given: Sequence[Instance]) -> tuple[Instance, ...]:
        """Add many instances: all of them or none.

        Raises:
            WorldError: see `put`; also `conflict` if an ID occurs twice.
        """
        self._purge_deleted()
        seen: set[str] = set()
        for instance in given:
            self._check(instance)
            if instance.id and instance.id in seen:
                raise WorldError("conflict", f"ID {instance.id} is duplicated")
            seen.add(instance.id)
        return tuple(self.put(instance) for instance in given)

    def put(self, given: Instance) -> Instance:
        """Add an instance in a given state; a transitional state ends after `transition_s`.

        Raises:
            WorldError: `invalid` if name or ID is malformed, `conflict` if the ID exists.
        """
        self._purge_deleted()
        self._check(given)
        self._sequence += 1
        now = clock.monotonic()
        instance = msgspec.structs.replace(
            given,
            id=given.id or self._new_id(),
            addresses=given.addresses or (self._new_address(),),
            created=given.created or clock.now().isoformat(timespec="milliseconds"),
        )
        record = _Timeline(self._sequence, now, instance)
        if given.state in SETTLED_STATES:
            settled = msgspec.structs.replace(instance, state=SETTLED_STATES[given.state])
            record.timeline.append((now + self.transition_s, settled))
        self._order.append(record)
        self._by_id[record.id] = record
        self._by_name.setdefault(record.name, []).append(record)
        self.revision += 1
        return instance

    def get(self, instance_id: str, *, stale_s: float = 0.0) -> Instance:
        """Return an instance as it was `stale_s` seconds ago.

        Raises:
            WorldError: `not_found`: at that time, the instance did not exist yet, or no longer.
        """
        record = self._by_id.get(instance_id)
        instance = record and record.at(clock.monotonic() - stale_s)
        if not instance:
            raise WorldError("not_found", f"no instance with ID {instance_id}")
        return instance

    def exists(self, instance_id: str) -> bool:
        """Return whether an instance exists and is not `deleted`."""
        try:
            return self.get(instance_id).state != "deleted"
        except WorldError:
            return False

    def page(
        self,
        *,
        limit: int,
        after: int = 0,
        name: str | None = None,
        label: tuple[str, str] | None = None,
        stale_s: float = 0.0,
    ) -> Page:
        """Return the next instances after a sequence number, optionally by name or label."""
        moment = clock.monotonic() - stale_s
        records = self._order if name is None else self._by_name.get(name, [])
        start = bisect.bisect_right(records, after, key=_SEQUENCE)
        instances: list[Instance] = []
        last_sequence = after
        for position in range(start, len(records)):
            instance = records[position].at(moment)
            if instance is None or (label and instance.labels.get(label[0]) != label[1]):
                continue
            if len(instances) == limit:
                return Page(instances=tuple(instances), after=last_sequence)
            instances.append(instance)
            last_sequence = records[position].sequence
        return Page(instances=tuple(instances), after=None)

    def act(self, instance_id: str, action: Action) -> Instance:
        """Start or stop an instance; idempotent.

        Raises:
            WorldError: `not_found`, or `conflict` if the instance is in a transition, in state
                `error` or deleted.
        """
        instance = self.get(instance_id)
        if (action, instance.state) not in ACTIONS:
            raise WorldError("conflict", f"cannot {action} an instance in state {instance.state}")
        states = ACTIONS[action, instance.state]
        if states is None:
            return instance
        now = clock.monotonic()
        passing, reached = (msgspec.structs.replace(instance, state=state) for state in states)
        entries: list[tuple[float, Instance | None]] = [(now, passing)]
        entries.append((now + self.transition_s, reached))
        self._by_id[instance_id].write(now, entries)
        self.revision += 1
        return self.get(instance_id)

    def update(self, instance_id: str, change: Change) -> Instance:
        """Change type, addresses or labels of an instance.

        Raises:
            WorldError: `not_found`, `conflict` if the instance is deleted, or `busy` if allowed
                addresses are set while it starts.
        """
        state = self.get(instance_id).state
        if state in ("deleting", "deleted"):
            raise WorldError("conflict", "cannot change a deleted instance")
        if change.allowed_addresses is not msgspec.UNSET and state == "starting":
            raise WorldError("busy", "the instance has not started yet")
        record = self._by_id[instance_id]
        record.revise(clock.monotonic(), lambda present: _merge_change(present, change))
        self.revision += 1
        return self.get(instance_id)

    def delete(self, instance_id: str, *, at_once: bool = False) -> None:
        """Delete an instance in any state; idempotent while it is still listed.

        `at_once` skips the state `deleting`, or ends it.

        Raises:
            WorldError: `not_found`.
        """
        instance = self.get(instance_id)
        if instance.state == "deleted" or (instance.state == "deleting" and not at_once):
            return
        self._purge_deleted()
        now = clock.monotonic()
        removed = now if at_once else now + self.removal_s
        end = removed + self.linger_s
        entries: list[tuple[float, Instance | None]] = []
        if removed > now:
            entries.append((now, msgspec.structs.replace(instance, state="deleting")))
        if self.linger_s > 0:
            entries.append((removed, msgspec.structs.replace(instance, state="deleted")))
        entries.append((end, None))
        record = self._by_id[instance_id]
        record.write(now, entries)
        if instance.state == "deleting":
            self._deleted = deque(grave for grave in self._deleted if grave[1] is not record)
        self._deleted.append((end, record))
        self.revision += 1

    def snapshot(self) -> tuple[Instance, ...]:
        """Return all instances that are not deleted."""
        now = clock.monotonic()
        living = (record.at(now) for record in self._order)
        return tuple(
            instance for instance in living if instance is not None and instance.state != "deleted"
        )

    def _check(self, given: Instance) -> None:
        if not given.name:
            raise WorldError("invalid", "name: must not be empty")
        if given.id and not ID.fullmatch(given.id):
            raise WorldError("invalid", f"id: {given.id!r} must match {ID.pattern}")
        if given.id in self._by_id:
            raise WorldError("conflict", f"an instance with ID {given.id} exists or existed")

    def _purge_deleted(self) -> None:
        horizon = clock.monotonic() - HISTORY_S
        while self._deleted and self._deleted[0][0] < horizon:
            _, record = self._deleted.popleft()
            del self._by_id[record.id]
            namesakes = self._by_name[record.name]
            namesakes.remove(record)
            if not namesakes:
                del self._by_name[record.name]
            del self._order[bisect.bisect_left(self._order, record.sequence, key=_SEQUENCE)]

    def _new_id(self) -> str:
        while (name := f"i-{self._rng.getrandbits(48):012x}") in self._by_id:
            pass
        return name

    def _new_address(self) -> Address:
        room = PRIVATE_NETWORK.num_addresses - 2
        return Address(kind="private", value=str(PRIVATE_NETWORK[1 + (self._sequence - 1) % room]))


def _merge_change(instance: Instance, change: Change) -> Instance:
    changed = apply_change(instance, change)
    if change.labels is msgspec.UNSET:
        return changed
    merged = {**instance.labels, **change.labels}
    labels = {key: value for key, value in merged.items() if value is not None}
    return msgspec.structs.replace(changed, labels=labels)


# --- objects without a timeline: volumes, routes, load balancers --------------------------------


class ObjectStore(Generic[T]):
    """Objects of one kind by ID, in order of creation.

    Args:
        rng: random source of the IDs.
    """

    kind = ""
    prefix = ""

    def __init__(self, rng: random.Random) -> None:
        self.quota = 0
        """Maximum number of objects; 0 = no limit."""
        self.revision = 0
        """Number of writes."""
        self._rng = rng
        self._by_id: dict[str, T] = {}

    def put_all(self, given: Sequence[T]) -> None:
        """Add objects unchecked, from a saved state."""
        self._by_id |= {thing.id: thing for thing in given}
        self.revision += 1

    def get(self, thing_id: str) -> T:
        """Return an object in its current state.

        Raises:
            WorldError: `not_found`.
        """
        if thing_id not in self._by_id:
            raise WorldError("not_found", f"no {self.kind} with ID {thing_id}")
        return self._current(self._by_id[thing_id])

    def list(
        self,
        *,
        name: str | None = None,
        cluster: str | None = None,
        label: tuple[str, str] | None = None,
    ) -> list[T]:
        """Return objects in order of creation: all, or those with a name, cluster or label."""
        return [
            self._current(thing)
            for thing in self._by_id.values()
            if (name is None or thing.name == name)
            and (cluster is None or thing.cluster == cluster)
            and (label is None or thing.labels.get(label[0]) == label[1])
        ]

    def delete(self, thing_id: str) -> None:
        """Delete an object.

        Raises:
            WorldError: `not_found`.
        """
        self.get(thing_id)
        del self._by_id[thing_id]
        self.revision += 1

    def _put(self, thing: T) -> T:
        self._by_id[thing.id] = thing
        self.revision += 1
        return self._current(thing)

    def _current(self, thing: T) -> T:
        return thing

    def _new_id(self) -> str:
        return f"{self.prefix}-{self._rng.getrandbits(48):012x}"

    def _check_quota(self, number: int) -> None:
        if self.quota and number >= self.quota:
            text = f"quota of {self.quota} {self.kind}s is used up"
            raise WorldError("quota_exceeded", text)


class NewVolume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request that creates a volume; names need not be unique."""

    name: str
    size_gib: int
    labels: dict[str, str] = {}


class Volume(NewVolume, frozen=True, kw_only=True):
    """Volume; `instance` is the ID of the instance it is attached to, or empty."""

    id: str
    instance: str = ""


class Volumes(ObjectStore[Volume]):
    """All volumes. The creation of an instance attaches volumes; they outlive the instance.

    Args:
        rng: random source of the IDs.
        is_there: function that returns whether the instance with an ID exists.
    """

    kind, prefix = "volume", "v"

    def __init__(self, rng: random.Random, is_there: Callable[[str], bool]) -> None:
        super().__init__(rng)
        self._instance_exists = is_there

    def create(self, order: NewVolume) -> Volume:
        """Create a volume.

        Raises:
            WorldError: `invalid`: the name or the size is missing.
        """
        if not order.name or order.size_gib < 1:
            raise WorldError("invalid", "name and size_gib: must not be empty")
        return self._put(Volume(id=self._new_id(), **msgspec.structs.asdict(order)))

    def check_unattached(self, volume_ids: Sequence[str]) -> None:
        """Check that volumes can be attached.

        Raises:
            WorldError: `not_found`, or `conflict` if a volume is attached.
        """
        for volume_id in volume_ids:
            if other := self.get(volume_id).instance:
                raise WorldError("conflict", f"volume {volume_id} is attached to {other}")

    def attach(self, volume_ids: Sequence[str], instance_id: str) -> None:
        """Attach free volumes to an instance."""
        for volume_id in volume_ids:
            self._put(msgspec.structs.replace(self.get(volume_id), instance=instance_id))

    def delete(self, thing_id: str) -> None:
        """Delete a volume.

        Raises:
            WorldError: `not_found`, or `busy` while the volume is attached.
        """
        if other := self.get(thing_id).instance:
            raise WorldError("busy", f"volume {thing_id} is attached to {other}")
        super().delete(thing_id)

    def _current(self, thing: Volume) -> Volume:
        gone = thing.instance and not self._instance_exists(thing.instance)
        return msgspec.structs.replace(thing, instance="") if gone else thing


class NewRoute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request that creates a route from a CIDR to the instance with the gateway's address."""

    destination: str
    gateway: str
    cluster: str = ""
    name: str = ""


class Route(NewRoute, frozen=True, kw_only=True):
    """Route; `target` is the ID of the instance with the gateway's address; null = none has it."""

    id: str
    target: str | None = None
    target_name: str | None = None


class RouteTable(ObjectStore[Route]):
    """All routes; a CIDR has at most one route per cluster.

    Args:
        rng: random source of the IDs.
        owners: function that returns address -> instance.
    """

    kind, prefix = "route", "r"

    def __init__(self, rng: random.Random, owners: Callable[[], Mapping[str, Instance]]) -> None:
        super().__init__(rng)
        self._owners = owners

    def create(self, order: NewRoute) -> Route:
        """Create a route.

        Raises:
            WorldError: `invalid`, `conflict` if the destination has a route, or `quota_exceeded`.
        """
        check_text("destination", ipaddress.ip_network, order.destination)
        check_text("gateway", ipaddress.ip_address, order.gateway)
        table = [route for route in self._by_id.values() if route.cluster == order.cluster]
        if any(route.destination == order.destination for route in table):
            raise WorldError("conflict", f"a route to {order.destination} exists already")
        self._check_quota(len(table))
        return self._put(Route(id=self._new_id(), **msgspec.structs.asdict(order)))

    def _current(self, thing: Route) -> Route:
        owner = self._owners().get(thing.gateway)
        return msgspec.structs.replace(
            thing, target=owner and owner.id, target_name=owner and owner.name
        )
