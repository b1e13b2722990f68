"""Next operation for a Service, decided from the Service and its `ServiceRecord`. No I/O.

The controller serves a Service of type LoadBalancer whose class is unset or listed in
`--load-balancer-classes`. All writes go to the status sub-resource as strategic merge patches.
Their precondition is the resourceVersion of the Service from which they were planned.
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
from ccm.model.patches import (
    Patch,
    StaleObject,
    add_finalizer_patch,
    remove_finalizer_patch,
    version_precondition,
)
from ccm.model.service import TYPE_LOAD_BALANCER


class MemberSnapshot(NamedTuple):
    """Members of load balancers at one moment.

    Attributes:
        nodes: member nodes, sorted by name.
        fingerprint: hash of the names and provider IDs of the members.
        burst: number of bursts of node changes that ended before these members were determined.
    """

    nodes: Sequence[Node]
    fingerprint: str
    burst: int


class BalancerState(Enum):
    """State of a Service's load balancer, as far as the controller knows it.

    ```text
    UNVERIFIED ──listing: equal──▶ APPLIED ◀──ensured── PENDING
        └───────otherwise──────────▶ PENDING ◀──drift, failures, a started call──┘
    any ──removed──▶ REMOVED ──wanted again──▶ a new ServiceRecord
    ```
    """

    UNVERIFIED = "unverified"
    """The Service existed at the start; it has not been compared with the startup listing yet."""
    PENDING = "pending"
    """The load balancer has to be ensured; the cloud may have parts of it."""
    APPLIED = "applied"
    """The provider confirmed the load balancer; only its members may be outdated."""
    REMOVED = "removed"
    """The cloud has no resources of the Service."""


@dataclass(slots=True, kw_only=True)
class ServiceRecord:
    """Controller state of one Service and its load balancer.

    Attributes:
        applied: the Service as last passed to the provider, or about to be passed. When the
            Service is gone, the deletion of its load balancer gets this object.
        state: state of the load balancer.
        members: fingerprint of the load balancer's members; empty = unknown, so an update is due.
        burst: number of ended bursts of node changes when `members` was read.
        status: wanted status of the Service; None = the controller does not write the status.
        waiting: operation that the provider asked to retry later; empty = none.
        silent: record no events about the next ensure, because no change caused it.
        update_failures: consecutive failed updates of members.
        failing: the last ensure failed, so member updates run separately until the next ensure.
        absent: the cloud has no load balancer, so there is nothing to update.
        not_before: monotonic time before which a change of nodes causes no call.
        touched_at: monotonic time of the last call to the provider.
        repaired_at: monotonic time of the last repair of the finalizer or the status.
        provider_session: number of the provider session that last confirmed the load balancer.
        owner_deleted: the watch reported the deletion of the Service. A Service that left the cache
            without this event may still exist: the API server may have returned a wrong list.
    """

    applied: Service
    state: BalancerState = BalancerState.PENDING
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
    provider_session: int = -1
    owner_deleted: bool = False

    @property
    def may_exist(self) -> bool:
        """Whether the cloud may have resources of the Service."""
        return self.state is not BalancerState.REMOVED

    def needs_member_update(self, fingerprint: str, now: float) -> bool:
        """Return whether the members differ from `fingerprint` and may be updated now."""
        follows = self.state is BalancerState.APPLIED or (self.failing and not self.absent)
        return follows and self.members != fingerprint and self.not_before <= now

    def confirm(
        self,
        service: Service,
        given: MemberSnapshot,
        status: Status | None,
        *,
        provider_session: int,
    ) -> None:
        """Record that the load balancer matches this Service and these members."""
        self.applied = service
        self.provider_session = provider_session
        self.state = BalancerState.APPLIED
        self.set_members(given)
        self.status = status
        self.failing = self.absent = self.silent = False
        self.waiting = ""

    def set_members(self, given: MemberSnapshot) -> None:
        """Record that the load balancer has these members."""
        self.members, self.burst = given.fingerprint, given.burst
        self.update_failures = 0
        self.not_before = -math.inf

    def take_resumed(self, operation: str) -> bool:
        """Reset `waiting`; return whether it was `operation`, so that this attempt is a retry.

        Call this method once per attempt.
        """
        resumed = self.waiting == operation
        self.waiting = ""
        return resumed


class ServiceAction(Enum):
    """Next operation for a Service."""

    NOTHING = "nothing"
    """The load balancer needs no change, or the controller does not serve the Service."""
    VERIFY = "verify"
    """Compare the load balancer with the startup listing."""
    ENSURE = "ensure"
    """Create or change the load balancer."""
    UPDATE = "update"
    """Change the members of the load balancer."""
    REPAIR = "repair"
    """Restore a finalizer or a status that another client removed or changed."""
    REMOVE = "remove"
    """Delete the load balancer, then remove the finalizer and the status."""
    REMOVE_VANISHED = "remove vanished"
    """Delete the load balancer of a Service that is gone or was replaced."""
    WAIT = "wait"
    """Requeue: too many nodes cannot be decoded, so the members are unknown."""
    FORGET = "forget"
    """Drop the record of a Service that is gone or was replaced and has no cloud resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRules:
    """Which Services the controller serves, and which annotations affect load balancers.

    Attributes:
        classes: served load balancer classes, besides Services without a class.
        prefixes: prefixes of relevant annotations; None = all annotations are relevant.
    """

    classes: Collection[str] = ()
    prefixes: Sequence[str] | None = None


def decide(
    service: Service | None,
    record: ServiceRecord | None,
    rules: ServiceRules,
    *,
    members_due: bool,
    members_known: bool = True,
    ensure_waits: bool = False,
    was_foreign: bool = False,
) -> ServiceAction:
    """Return the next operation for a Service.

    A Service that is being deleted never gets a finalizer. Its cloud resources are removed even if
    another client removed the finalizer. `Deviation:` the Go controller tries to add the finalizer,
    which the API server refuses.

    Args:
        service: current Service; None = it is gone.
        record: controller state of the Service; None = this process has not handled it.
        rules: which Services are served.
        members_due: whether the members of the load balancer have to be updated.
        members_known: False while too many nodes cannot be decoded: an update would remove healthy
            members.
        ensure_waits: whether the last ensure failed and its back-off has not ended.
        was_foreign: whether the Service last asked for another controller's class; its finalizer
            then belongs to that controller.
    """
    if record is not None and (service is None or service.uid != record.applied.uid):
        return ServiceAction.REMOVE_VANISHED if record.may_exist else ServiceAction.FORGET
    if service is None:
        return ServiceAction.NOTHING
    served = record is not None and record.may_exist
    if needs_cleanup(service, rules.classes):
        return ServiceAction.NOTHING if was_foreign and not served else ServiceAction.REMOVE
    if service.is_deleting or not wants_balancer(service, rules.classes):
        return ServiceAction.REMOVE if served else ServiceAction.NOTHING
    member_action = ServiceAction.UPDATE if members_known else ServiceAction.WAIT
    update = member_action if members_due else ServiceAction.NOTHING
    if record is None or record.state in (BalancerState.PENDING, BalancerState.REMOVED):
        if not ensure_waits:
            return ServiceAction.ENSURE
        # While the ensure fails, for example because of a wrong annotation, members are updated.
        return update
    if record.state is BalancerState.UNVERIFIED:
        return ServiceAction.VERIFY if members_known else ServiceAction.WAIT
    if needs_ensure(record.applied, service, rules.prefixes):
        return ServiceAction.ENSURE
    if update is ServiceAction.NOTHING and needs_repair(service, record.status):
        return ServiceAction.REPAIR
    return update


def is_relevant(
    old: Service, new: Service, record: ServiceRecord | None, rules: ServiceRules, *, lags: bool
) -> bool:
    """Return whether a change of a Service needs a reconcile.

    Args:
        old: the Service before the change; `new` itself during a resync.
        new: the cached Service.
        record: controller state of the Service; None = this process has not handled it.
        rules: which Services are served.
        lags: whether `new` is older than the controller's last write.
    """
    wanted, wants = wants_balancer(old, rules.classes), wants_balancer(new, rules.classes)
    if old.uid != new.uid or wanted != wants:
        return True
    if needs_cleanup(new, rules.classes):
        # A cache that lags still shows the removed finalizer. If the cache does not lag, another
        # client added the finalizer again.
        return record is None or record.may_exist or not lags
    if not wants:
        return False
    if record is None or record.state is not BalancerState.APPLIED:
        return new.is_deleting != old.is_deleting or needs_ensure(old, new, rules.prefixes)
    return (
        new.is_deleting
        or needs_ensure(record.applied, new, rules.prefixes)
        or needs_repair(new, record.status)
    )


def wants_balancer(service: Service, classes: Collection[str]) -> bool:
    """Return whether the Service asks for a load balancer with no class or with a served class."""
    if service.type != TYPE_LOAD_BALANCER:
        return False
    balancer_class = service.spec.load_balancer_class
    return balancer_class is None or balancer_class in classes


def is_foreign(service: Service, classes: Collection[str]) -> bool:
    """Return whether the Service asks for a load balancer of another controller's class."""
    return service.type == TYPE_LOAD_BALANCER and not wants_balancer(service, classes)


def needs_cleanup(service: Service, classes: Collection[str]) -> bool:
    """Return whether the Service has the finalizer but needs no load balancer any more.

    The load balancer has to be deleted before the finalizer is removed.
    `Deviation:` the Go controller ignores the class here, and removes the finalizer of a Service
    that another controller serves.
    """
    if not has_load_balancer_finalizer(service) or is_foreign(service, classes):
        return False
    return service.is_deleting or service.type != TYPE_LOAD_BALANCER


def was_served(service: Service) -> bool:
    """Return whether a controller served the Service: it has the finalizer or a status address."""
    return has_load_balancer_finalizer(service) or bool(service.ingress)


def vanished_unexplained(service: Service, record: ServiceRecord, classes: Collection[str]) -> bool:
    """Return whether a Service vanished without a deletion event and left cloud resources.

    A Service that was being deleted, or wanted no load balancer any more, does not count.

    Args:
        service: the last cached object.
        record: controller state of the Service.
        classes: served load balancer classes.
    """
    explained = record.owner_deleted or service.is_deleting or not wants_balancer(service, classes)
    return record.may_exist and record.applied.uid == service.uid and not explained


def needs_ensure(old: Service, new: Service, prefixes: Sequence[str] | None) -> bool:
    """Return whether a change affects the load balancer.

    Args:
        old: the Service as last passed to the provider.
        new: the current Service.
        prefixes: prefixes of relevant annotations; None = all annotations are relevant.
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
    """Return the annotations with these prefixes (None = all), and always the source ranges."""
    if prefixes is None:
        return service.annotations
    wanted = (*prefixes, names.ANNOTATION_SOURCE_RANGES)
    return {key: value for key, value in service.annotations.items() if key.startswith(wanted)}


def needs_repair(service: Service, written: Status | None) -> bool:
    """Return whether another client removed the finalizer or changed the status.

    Args:
        service: current Service.
        written: wanted status; None = the controller does not write the status.
    """
    return not has_load_balancer_finalizer(service) or (
        written is not None and not has_status(service, written)
    )


def finalizer_patch(service: Service) -> Patch | None:
    """Return the patch that adds the finalizer; None if the Service has it.

    Raises:
        StaleObject: the Service is of another type by now; or it is being deleted and lacks the
            finalizer, which the API server would refuse to add.
    """
    if service.type != TYPE_LOAD_BALANCER:
        raise StaleObject
    if has_load_balancer_finalizer(service):
        return None
    if service.is_deleting:
        raise StaleObject
    return add_finalizer_patch(service, names.FINALIZER_LOAD_BALANCER)


def removal_patch(service: Service) -> Patch | None:
    """Return the patch that removes the finalizer and the status; None if the Service has neither.

    The patch affects no finalizer of another controller. `Deviation:` the Go controller writes
    `finalizers: null`, which removes finalizers that other clients added meanwhile, and clears the
    status in a second write.
    """
    lifted = remove_finalizer_patch(service, names.FINALIZER_LOAD_BALANCER)
    if not service.ingress:
        return lifted
    cleared = {"status": {"loadBalancer": {"ingress": None}}}
    return {"metadata": version_precondition(service), **(lifted or {}), **cleared}


def status_patch(service: Service, wanted: Status) -> Patch | None:
    """Return the patch that writes the status; None if the Service has it.

    Raises:
        StaleObject: the Service is of another type than LoadBalancer by now.
    """
    if service.type != TYPE_LOAD_BALANCER:
        raise StaleObject
    if has_status(service, wanted):
        return None
    ingress = [_wire(entry) for entry in wanted.ingress] or None
    return {
        "metadata": version_precondition(service),
        "status": {"loadBalancer": {"ingress": ingress}},
    }


def has_status(service: Service, wanted: Status) -> bool:
    """Return whether the Service has the status.

    The API server defaults the IP mode of an address to `VIP`, so unset and `VIP` count as equal.
    `Deviation:` the Go controller sees a difference each time and writes the status again.
    """
    return same_status(load_balancer_status(service), wanted)


def same_status(left: Status, right: Status) -> bool:
    """Return whether two statuses are equal, where an unset IP mode equals `VIP`."""

    def defaulted(status: Status) -> Status:
        return Status(
            ingress=[
                replace(entry, ip_mode="VIP") if entry.ip and entry.ip_mode is None else entry
                for entry in status.ingress
            ]
        )

    return load_balancer_status_equal(defaulted(left), defaulted(right))


def _wire(entry: Ingress) -> Mapping[str, Any]:
    ports = [
        {"port": port.port, "protocol": port.protocol}
        | ({"error": port.error} if port.error else {})
        for port in entry.ports or ()
    ]
    fields = {"ip": entry.ip, "hostname": entry.hostname, "ipMode": entry.ip_mode, "ports": ports}
    return {key: value for key, value in fields.items() if value}
