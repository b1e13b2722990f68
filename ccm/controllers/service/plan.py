"""What a Service needs, decided from the Service and what was done for it. Pure.

A Service is ours when it is of type LoadBalancer and its class is unset or claimed by
`--load-balancer-classes`. All writes go to the status sub-resource as strategic merge
patches bound to the resourceVersion they were planned for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from ccm.cloud.helpers import (
    has_load_balancer_finalizer,
    load_balancer_status,
    load_balancer_status_equal,
)
from ccm.cloud.types import Ingress, Status
from ccm.model import Node, Service, names
from ccm.model.patches import Patch, StaleObject, add_finalizer, remove_finalizer, same_version
from ccm.model.service import TYPE_LOAD_BALANCER


class Given(NamedTuple):
    """The members of load balancers at one moment.

    Attributes:
        nodes: by name; the same object until a node changes.
        fingerprint: equal for equal sets: the same names with the same provider IDs.
        burst: how many bursts of changes were over.
    """

    nodes: Sequence[Node]
    fingerprint: str
    burst: int


class State(Enum):
    """What is known about a Service's load balancer.

    ```text
    UNVERIFIED ──listing: as it should be──▶ APPLIED ◀──ensured── PENDING
        └───────────otherwise───────────────▶ PENDING ◀──drift, failures, a call begun──┘
    any ──removed──▶ REMOVED ──wanted again──▶ a new record
    ```
    """

    UNVERIFIED = "unverified"
    """It was there at the start, and the cloud was not looked at yet."""
    PENDING = "pending"
    """It has to be ensured; there may be something in the cloud."""
    APPLIED = "applied"
    """The provider confirmed it; nothing but members can be due."""
    REMOVED = "removed"
    """Nothing is left in the cloud."""


@dataclass(slots=True, kw_only=True)
class Record:
    """What was done and is known about one Service and its load balancer.

    Attributes:
        applied: the Service as it was last given to the provider, or is about to be; what its
            load balancer is removed by when the Service is gone.
        state: what is known about the load balancer.
        members: fingerprint of the members the provider knows; empty = they have to be given.
        burst: how many bursts of nodes were over when those members were looked at.
        status: the status the Service shall show; None = not ours to write.
        waiting: the operation about which the provider said "come back later"; empty = none.
        silent: ensure it without telling people: nobody knows of a change.
        update_failures: failed changes of the members in a row.
        failing: the last ensure failed, so that only updates change the members until the next.
        absent: there is no load balancer in the cloud, so that there is nothing to update.
        not_before: monotonic time before which a change of nodes is no reason to call.
        touched_at: monotonic time of the last call to the provider.
        repaired_at: monotonic time of the last repair.
        opening: the opening of the provider that confirmed it last.
        owner_deleted: the Service was seen to be deleted; else it may just not be there.
    """

    applied: Service
    state: State = State.PENDING
    members: str = ""
    burst: int = 0
    status: Status | None = None
    waiting: str = ""
    silent: bool = False
    update_failures: int = 0
    failing: bool = False
    absent: bool = False
    not_before: float = -math.inf
    touched_at: float = -math.inf
    repaired_at: float = -math.inf
    opening: int = -1
    owner_deleted: bool = False

    @property
    def may_exist(self) -> bool:
        """Whether there may be something in the cloud."""
        return self.state is not State.REMOVED

    def wants_members(self, fingerprint: str, now: float) -> bool:
        """Whether it has to be given other members by an update, and may be now."""
        follows = self.state is State.APPLIED or (self.failing and not self.absent)
        return follows and self.members != fingerprint and self.not_before <= now

    def confirm(
        self, service: Service, given: Given, status: Status | None, *, opening: int
    ) -> None:
        """The load balancer is known to be as this Service and these members want it."""
        self.applied = service
        self.opening = opening
        self.state = State.APPLIED
        self.took(given)
        self.status = status
        self.failing = self.absent = self.silent = False
        self.waiting = ""

    def took(self, given: Given) -> None:
        """The load balancer has these members."""
        self.members, self.burst = given.fingerprint, given.burst
        self.update_failures = 0

    def resumes(self, operation: str) -> bool:
        """Whether an operation only goes on, which is no news; asked once per attempt."""
        resumed = self.waiting == operation
        self.waiting = ""
        return resumed


class Action(Enum):
    """The one thing to do about a Service now."""

    NOTHING = "nothing"
    """All is as it should be, or it is not ours."""
    VERIFY = "verify"
    """Hold it against the listing of the start."""
    ENSURE = "ensure"
    """Have the provider create or change its load balancer."""
    UPDATE = "update"
    """Give its load balancer other members."""
    REPAIR = "repair"
    """Put back the finalizer or the status, which somebody took away."""
    REMOVE = "remove"
    """Remove its load balancer, then our finalizer and the status."""
    REMOVE_VANISHED = "remove vanished"
    """Remove the load balancer of a Service that is gone, or another by now."""
    WAIT = "wait"
    """Nobody asked for anything, and who may be a member is not known: look again later."""
    FORGET = "forget"
    """The Service is gone or another, and nothing is left of the one we knew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What makes a Service ours, and a change of it matter.

    Attributes:
        classes: load balancer classes that are ours, beside Services without one.
        prefixes: annotations that count; None = all.
    """

    classes: Collection[str] = ()
    prefixes: Sequence[str] | None = None


def decide(
    service: Service | None,
    record: Record | None,
    rules: Rules,
    *,
    members_due: bool,
    members_known: bool = True,
    ensure_waits: bool = False,
    was_foreign: bool = False,
) -> Action:
    """The one thing to do about a Service now.

    A Service being deleted is never given a finalizer; what it has in the cloud is removed
    even where somebody took our finalizer away. `Deviation:` the Go reference tries in vain
    to add the finalizer.

    Args:
        service: as it is now; None = it is gone.
        record: what was done for it; None = nothing by this process.
        rules: what makes it ours.
        members_due: whether its load balancer has to be given other members.
        members_known: False while so many nodes cannot be decoded that giving members would
            take traffic from nodes that are well.
        ensure_waits: whether its last ensure failed and is not to be repeated yet.
        was_foreign: whether its class was another controller's when last seen with one, whose
            finalizer it then is that it carries.
    """
    if record is not None and (service is None or service.uid != record.applied.uid):
        return Action.REMOVE_VANISHED if record.may_exist else Action.FORGET
    if service is None:
        return Action.NOTHING
    served = record is not None and record.may_exist
    if needs_cleanup(service, rules.classes):
        return Action.NOTHING if was_foreign and not served else Action.REMOVE
    if service.is_deleting or not wants_balancer(service, rules.classes):
        return Action.REMOVE if served else Action.NOTHING
    given = Action.UPDATE if members_known else Action.WAIT
    update = given if members_due else Action.NOTHING
    if record is None or record.state in (State.PENDING, State.REMOVED):
        if not ensure_waits:
            return Action.ENSURE
        # An annotation that is refused is no reason to keep nodes that are gone.
        return update
    if record.state is State.UNVERIFIED:
        return Action.VERIFY if members_known else Action.WAIT
    if needs_ensure(record.applied, service, rules.prefixes):
        return Action.ENSURE
    if update is Action.NOTHING and is_damaged(service, record.status):
        return Action.REPAIR
    return update


def is_relevant(
    old: Service, new: Service, record: Record | None, rules: Rules, *, lags: bool
) -> bool:
    """Whether a change of a Service is worth a look at it.

    Args:
        old: as it was; `new` itself when the cache delivers everything again.
        new: as it is cached now.
        record: what was done for it.
        rules: what makes it ours.
        lags: whether `new` is older than our own last write.
    """
    wanted, wants = wants_balancer(old, rules.classes), wants_balancer(new, rules.classes)
    if old.uid != new.uid or wanted != wants:
        return True
    if needs_cleanup(new, rules.classes):
        # After our own removal the cache may lag; later than it, somebody put it there.
        return record is None or record.may_exist or not lags
    if not wants:
        return False
    if record is None or record.state is not State.APPLIED:
        return new.is_deleting != old.is_deleting or needs_ensure(old, new, rules.prefixes)
    return (
        new.is_deleting
        or needs_ensure(record.applied, new, rules.prefixes)
        or is_damaged(new, record.status)
    )


def wants_balancer(service: Service, classes: Collection[str]) -> bool:
    """Whether the Service is ours: it asks for a load balancer of no class or a claimed one."""
    if service.type != TYPE_LOAD_BALANCER:
        return False
    given = service.spec.load_balancer_class
    return given is None or given in classes


def is_foreign(service: Service, classes: Collection[str]) -> bool:
    """Whether the Service asks for a load balancer of a class that is not ours."""
    return service.type == TYPE_LOAD_BALANCER and not wants_balancer(service, classes)


def needs_cleanup(service: Service, classes: Collection[str]) -> bool:
    """Whether a load balancer has to be removed before the finalizer may go.

    `Deviation:` the Go reference forgets the class here, and takes away the finalizer of a
    Service that another controller serves.
    """
    if not has_load_balancer_finalizer(service) or is_foreign(service, classes):
        return False
    return service.is_deleting or service.type != TYPE_LOAD_BALANCER


def looks_served(service: Service) -> bool:
    """Whether somebody served it: there is the finalizer, or an address, which may be older."""
    return has_load_balancer_finalizer(service) or bool(service.ingress)


def is_unexplained(service: Service, record: Record, classes: Collection[str]) -> bool:
    """Whether a Service is gone, with something left in the cloud, and nobody deleted it.

    Args:
        service: as it was last seen.
        record: what was done for it.
        classes: load balancer classes that are ours.
    """
    explained = record.owner_deleted or service.is_deleting or not wants_balancer(service, classes)
    return record.may_exist and record.applied.uid == service.uid and not explained


def needs_ensure(old: Service, new: Service, prefixes: Sequence[str] | None) -> bool:
    """Whether what the load balancer is made of changed.

    Args:
        old: the Service that the provider knows.
        new: the Service as it is now.
        prefixes: annotations that count; None = all.
    """
    if old is new:
        return False
    was, now = old.spec, new.spec
    return (
        old.uid != new.uid
        or was.type != now.type
        or was.load_balancer_class != now.load_balancer_class
        or (was.load_balancer_source_ranges or []) != (now.load_balancer_source_ranges or [])
        or (was.ports or []) != (now.ports or [])
        or was.session_affinity != now.session_affinity
        or was.session_affinity_config != now.session_affinity_config
        or was.load_balancer_ip != now.load_balancer_ip
        or (was.external_ips or []) != (now.external_ips or [])
        or relevant_annotations(old, prefixes) != relevant_annotations(new, prefixes)
        or was.external_traffic_policy != now.external_traffic_policy
        or was.health_check_node_port != now.health_check_node_port
        or len(was.ip_families or []) != len(now.ip_families or [])
    )


def relevant_annotations(service: Service, prefixes: Sequence[str] | None) -> Mapping[str, str]:
    """The annotations whose change matters; the one with source ranges always does."""
    if prefixes is None:
        return service.annotations
    wanted = (*prefixes, names.ANNOTATION_SOURCE_RANGES)
    return {key: value for key, value in service.annotations.items() if key.startswith(wanted)}


def is_damaged(service: Service, written: Status | None) -> bool:
    """Whether somebody took away the finalizer or changed the status of a served Service.

    Args:
        service: as it is now.
        written: the status it had from us; None = none was written.
    """
    return not has_load_balancer_finalizer(service) or (
        written is not None and not status_settled(service, written)
    )


def finalizer_patch(service: Service) -> Patch | None:
    """The patch that adds our finalizer; None when it is there.

    Raises:
        StaleObject: the Service is being deleted, when the API server would refuse, or wants no
            load balancer any more.
    """
    if service.type != TYPE_LOAD_BALANCER:
        raise StaleObject
    if has_load_balancer_finalizer(service):
        return None
    if service.is_deleting:
        raise StaleObject
    return add_finalizer(service, names.FINALIZER_LOAD_BALANCER)


def removal_patch(service: Service) -> Patch | None:
    """The patch that takes away our finalizer and the status; None when both are gone.

    Nobody else's finalizer is named in it. `Deviation:` the Go reference writes
    `finalizers: null`, which removes those that others added meanwhile, and clears the
    status in a second write.
    """
    lifted = remove_finalizer(service, names.FINALIZER_LOAD_BALANCER)
    if not service.ingress:
        return lifted
    cleared = {"status": {"loadBalancer": {"ingress": None}}}
    return {"metadata": same_version(service), **(lifted or {}), **cleared}


def status_patch(service: Service, wanted: Status) -> Patch | None:
    """The patch that writes the status; None when the Service has it.

    Raises:
        StaleObject: the Service wants no load balancer any more.
    """
    if service.type != TYPE_LOAD_BALANCER:
        raise StaleObject
    if status_settled(service, wanted):
        return None
    ingress = [_wire(entry) for entry in wanted.ingress] or None
    return {
        "metadata": same_version(service),
        "status": {"loadBalancer": {"ingress": ingress}},
    }


def status_settled(service: Service, wanted: Status) -> bool:
    """Whether the Service has the status.

    The API server turns an unset IP mode of an address into `VIP`, so the two are equal
    here. `Deviation:` the Go reference sees a change each time and writes it again.
    """
    return same_status(load_balancer_status(service), wanted)


def same_status(one: Status, other: Status) -> bool:
    """Whether two statuses mean the same, the default of the IP mode included."""

    def defaulted(status: Status) -> Status:
        return Status(
            ingress=[
                replace(entry, ip_mode="VIP") if entry.ip and entry.ip_mode is None else entry
                for entry in status.ingress
            ]
        )

    return load_balancer_status_equal(defaulted(one), defaulted(other))


def _wire(entry: Ingress) -> Mapping[str, Any]:
    ports = [
        {"port": port.port, "protocol": port.protocol}
        | ({"error": port.error} if port.error else {})
        for port in entry.ports or ()
    ]
    fields = {"ip": entry.ip, "hostname": entry.hostname, "ipMode": entry.ip_mode, "ports": ports}
    return {key: value for key, value in fields.items() if value}
