"""What is shown of one node, Service or Machine, and when each has all it needs.

Filled from objects; no I/O and no clock. Moments are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ccm.cloud import default_load_balancer_name
from ccm.model import Node, Service, names
from ccm.model.machines import Machine, Phase
from ccm.model.node import has_shutdown_taint, is_uninitialized

SIM_LABELS = (
    names.LABEL_INSTANCE_TYPE_BETA,
    names.LABEL_INSTANCE_TYPE,
    names.LABEL_ZONE_BETA,
    names.LABEL_ZONE,
    names.LABEL_REGION_BETA,
    names.LABEL_REGION,
)
"""Labels that every node of the simulated cloud gets."""


@dataclass(slots=True, kw_only=True)
class Shown:
    """What nodes, Services and Machines have in common.

    Attributes:
        name: of a node, or of a Service with its namespace unless that is the default one.
        seen_at: when it registered or was created.
        changed_at: when the daemon last did something to it.
        addresses: those of the cloud, or where a Service can be reached from outside.
        settled_after: seconds until it was initialised or served.
        is_deleted: it is gone.
        last_event: reason and message.
    """

    name: str
    seen_at: float
    changed_at: float
    uid: str = ""
    addresses: Sequence[str] = ()
    settled_after: float | None = None
    is_deleted: bool = False
    last_event: str = ""


@dataclass(slots=True, kw_only=True)
class Row(Shown):
    """One node.

    Attributes:
        ready: status of its Ready condition.
        provider_id: empty until it is initialised.
        type: instance type.
        zone: zone, or region where there is no zone.
        pod_range: the addresses of its pods; empty until it has some.
        has_route: whether the cloud sends that range to it.
        is_shut_down: it carries the shutdown taint.
    """

    ready: str = names.STATUS_UNKNOWN
    provider_id: str = ""
    type: str = ""
    zone: str = ""
    pod_range: str = ""
    has_route: bool = False
    is_shut_down: bool = False


@dataclass(slots=True, kw_only=True)
class ServiceRow(Shown):
    """One Service.

    Attributes:
        key: namespace and name.
        balancer: the name of its load balancer in the cloud.
        type: of the Service.
        ports: each with its protocol.
        members: nodes that the load balancer sends traffic to; None: nobody can tell.
        is_deleting: it waits for its load balancer to go.
    """

    key: str
    balancer: str = ""
    type: str = ""
    ports: Sequence[str] = ()
    members: int | None = None
    is_deleting: bool = False


@dataclass(slots=True, kw_only=True)
class MachineRow(Shown):
    """One Machine; its last event is what was done last about it.

    Attributes:
        key: namespace and name.
        phase: how far it is; empty until its VM is made.
        node: name of its node; empty until that is known.
        provider_id: of its VM; empty until it is made.
        made_of: name of its class.
        is_deleting: it waits for its VM to go.
    """

    key: str
    made_of: str = ""
    phase: str = ""
    node: str = ""
    provider_id: str = ""
    is_deleting: bool = False


def new_machine_row(machine: Machine, now: float) -> MachineRow:
    """The row of a Machine that was not there before."""
    row = MachineRow(
        name=machine.name, key=machine.key, seen_at=now, changed_at=now, uid=machine.uid
    )
    fill_machine(row, machine)
    return row


def fill_machine(row: MachineRow, machine: Machine) -> None:
    """Take over what a Machine says about itself."""
    row.made_of = machine.class_name
    row.phase = machine.phase.value
    row.node = machine.node_name
    row.provider_id = machine.provider_id
    row.last_event = machine.status.description
    row.is_deleting = machine.is_deleting


def runs(row: MachineRow) -> bool:
    """Whether its node is in use."""
    return row.phase == Phase.RUNNING.value and not (row.is_deleting or row.is_deleted)


def new_service_row(service: Service, now: float) -> ServiceRow:
    """The row of a Service that was not there before."""
    row = ServiceRow(
        name=service.name if service.namespace == "default" else service.key,
        key=service.key,
        seen_at=now,
        changed_at=now,
        uid=service.uid,
        balancer=default_load_balancer_name(service),
    )
    fill_service(row, service)
    return row


def fill_node(row: Row, node: Node) -> None:
    """Take over what a node says about itself."""
    row.ready = node.ready
    row.provider_id = node.provider_id
    row.type = node.labels.get(names.LABEL_INSTANCE_TYPE, "")
    row.zone = node.labels.get(names.LABEL_ZONE) or node.labels.get(names.LABEL_REGION, "")
    row.addresses = cloud_addresses(node)
    row.pod_range = ",".join(node.spec.pod_cidrs or ())
    row.has_route = node.condition_status(names.CONDITION_NETWORK_UNAVAILABLE) == names.STATUS_FALSE
    row.is_shut_down = has_shutdown_taint(node)


def fill_service(row: ServiceRow, service: Service) -> None:
    """Take over what a Service says about itself."""
    row.type = service.type
    row.addresses = tuple(point.ip or point.hostname for point in service.ingress)
    row.ports = tuple(f"{port.port}/{port.protocol}" for port in service.ports)
    row.is_deleting = service.is_deleting


def is_settled(node: Node, labels: Sequence[str]) -> bool:
    """Whether the daemon has done all that a new node needs; see `Board`."""
    if is_uninitialized(node) or not node.provider_id:
        return False
    if not labels:
        return True
    return bool(cloud_addresses(node)) and all(node.labels.get(key) for key in labels)


def cloud_addresses(node: Node) -> Sequence[str]:
    """The addresses that only the cloud can know: all but host names."""
    return tuple(one.address for one in node.addresses if one.type != names.ADDRESS_HOSTNAME)
