"""What a Service needs, decided from the Service alone. Pure.

A Service is ours when it is of type LoadBalancer and its class is unset or claimed by
`--load-balancer-classes`. All writes go to the status sub-resource as strategic merge
patches bound to the resourceVersion they were planned for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from ccm.cloud.services import (
    has_load_balancer_finalizer,
    load_balancer_status,
    load_balancer_status_equal,
)
from ccm.cloud.types import Ingress, Status
from ccm.model import Service, names
from ccm.model.service import TYPE_LOAD_BALANCER

Patch = Mapping[str, Any]


class Step(Enum):
    """What a Service asks for."""

    NOTHING = "nothing"
    SERVE = "serve"
    REMOVE = "remove"


class Moved(Exception):
    """The Service is no longer what the write was planned for: decide anew."""


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


def step(service: Service, classes: Collection[str], *, served: bool) -> Step:
    """What to do.

    A Service being deleted is never given a finalizer; what it has in the cloud is removed
    even where somebody took our finalizer away. `Deviation:` the Go reference tries in vain
    to add the finalizer.

    Args:
        service: as it is now.
        classes: the claimed classes.
        served: whether this process may have made something in the cloud for it.
    """
    if needs_cleanup(service, classes):
        return Step.REMOVE
    if not wants_balancer(service, classes):
        return Step.REMOVE if served else Step.NOTHING
    if service.is_deleting:
        return Step.REMOVE if served else Step.NOTHING
    return Step.SERVE


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
        Moved: the Service is being deleted, when the API server would refuse, or wants no
            load balancer any more.
    """
    if service.type != TYPE_LOAD_BALANCER:
        raise Moved
    if has_load_balancer_finalizer(service):
        return None
    if service.is_deleting:
        raise Moved
    order = [*service.finalizers, names.FINALIZER_LOAD_BALANCER]
    metadata = _bound(service)
    if service.finalizers:
        metadata["$setElementOrder/finalizers"] = order
    metadata["finalizers"] = [names.FINALIZER_LOAD_BALANCER]
    return {"metadata": metadata}


def removal_patch(service: Service) -> Patch | None:
    """The patch that takes away our finalizer and the status; None when both are gone.

    Nobody else's finalizer is named in it. `Deviation:` the Go reference writes
    `finalizers: null`, which removes those that others added meanwhile, and clears the
    status in a second write.
    """
    has_finalizer = has_load_balancer_finalizer(service)
    if not has_finalizer and not service.ingress:
        return None
    metadata = _bound(service)
    if has_finalizer:
        others = [name for name in service.finalizers if name != names.FINALIZER_LOAD_BALANCER]
        metadata["$deleteFromPrimitiveList/finalizers"] = [names.FINALIZER_LOAD_BALANCER]
        if others:
            metadata["$setElementOrder/finalizers"] = others
    patch: dict[str, Any] = {"metadata": metadata}
    if service.ingress:
        patch["status"] = {"loadBalancer": {"ingress": None}}
    return patch


def status_patch(service: Service, wanted: Status) -> Patch | None:
    """The patch that writes the status; None when the Service has it.

    Raises:
        Moved: the Service wants no load balancer any more.
    """
    if service.type != TYPE_LOAD_BALANCER:
        raise Moved
    if status_settled(service, wanted):
        return None
    ingress = [_wire(entry) for entry in wanted.ingress] or None
    return {
        "metadata": _bound(service),
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
    return load_balancer_status_equal(_defaulted(one), _defaulted(other))


def _bound(service: Service) -> dict[str, Any]:
    """What makes the server refuse a patch that was planned for another state."""
    return {"resourceVersion": service.resource_version}


def _defaulted(status: Status) -> Status:
    return Status(ingress=[_with_mode(entry) for entry in status.ingress])


def _with_mode(entry: Ingress) -> Ingress:
    return replace(entry, ip_mode="VIP") if entry.ip and entry.ip_mode is None else entry


def _wire(entry: Ingress) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    if entry.ip:
        found["ip"] = entry.ip
    if entry.hostname:
        found["hostname"] = entry.hostname
    if entry.ip_mode:
        found["ipMode"] = entry.ip_mode
    if entry.ports:
        found["ports"] = [
            {"port": port.port, "protocol": port.protocol}
            | ({"error": port.error} if port.error else {})
            for port in entry.ports
        ]
    return found
