"""Classes of machines with their credentials, and the rules of a front. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccm.cloud.machines import SPEC_USER_DATA, Credentials, Identity
from ccm.model.machines import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassView:
    """What VMs alike are to be like.

    Attributes:
        name: of the class; the pool of its VMs.
        provider_spec: for the driver.
        credentials: for the driver.
        user_data: what VMs are booted with, with its placeholders.
        faults: why no VM can be made of it now; said in the status of its machines.
        lacking: those of them for which the cloud cannot be asked about a VM either.
        origin: differs when its VMs may be in another place: other credentials, other region.
        is_held: whether our finalizer keeps it.
        imports: provider IDs of VMs that may be its machines' whatever marks they have.
        extra_capacity: resources that are added to the capacity of its nodes.
        place: type and zone of its VMs, as far as the class says; for metrics.
        version: differs when anything of this does.
    """

    name: str
    provider_spec: Mapping[str, Any]
    credentials: Credentials
    user_data: bytes = field(default=b"", repr=False)
    faults: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    origin: str = ""
    is_held: bool = True
    imports: frozenset[str] = frozenset()
    extra_capacity: Mapping[str, str] = field(default_factory=dict)
    place: tuple[str, str] = ("", "")
    version: tuple[str, ...] = ()

    @property
    def spec_user_data(self) -> bytes:
        """User data that stand in the provider spec, where some drivers look for them first."""
        found = self.provider_spec.get(SPEC_USER_DATA)
        return found.encode() if isinstance(found, str) else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreserveNames:
    """How a front calls what preserves a machine.

    Attributes:
        wish: annotation of machine and node: whether it is to be preserved.
        last: annotation of the machine: the node's wish that was acted upon last.
        taint: on the node of a failed machine that is preserved.
        condition: type of the node's condition.
        by_us: reason of that condition where nobody asked for it.
        by_user: its reason where somebody did.
        stopped: its reason once that is over.
    """

    wish: str
    last: str
    taint: str
    condition: str
    by_us: str
    by_user: str
    stopped: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateNames:
    """How a front calls the steps of an update in place.

    Attributes:
        candidate: label of a node: its machine is to be updated.
        selected: label of a node: its machine is updated now.
        result: label of a node: how that went; and of a machine that came over to its new set.
        successful: its value where all went well.
        unsuccessful: its value where it did not.
        reason: annotation of a node: why it did not.
        condition: type of the condition of a node that tells how far it is, by its reason.
        waits: that reason of a candidate.
        chosen: of a node that is emptied for its update.
        drained: of one that is empty.
        ready: of one that is empty, and whose update may begin.
        updated: where all went well.
        failed: where it did not.
    """

    candidate: str
    selected: str
    result: str
    successful: str
    unsuccessful: str
    reason: str
    condition: str
    waits: str
    chosen: str
    drained: str
    ready: str
    updated: str
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a front calls things, and the settings of the daemon.

    Attributes:
        cluster: the marker on every VM of this cluster.
        finalizer: on the object of a machine.
        node_finalizer: on its node.
        machine_label: on the node: the name of its machine.
        priority: annotation of the object, and its first value.
        token_id: annotation of the object: the ID of its bootstrap token.
        creation: annotation of the object: records that a VM was ordered, before the order.
        deletion: annotation of the object: how far its deletion is.
        applied: annotation of the node: what was put on it for its machine.
        applied_capacity: annotation of the node: which resources were.
        unmanaged: annotation of the node: it has no machine.
        critical_taint: while a node has it, its machine does not run yet.
        unhealthy_conditions: a node is healthy while each of them that it has is False.
        has_target: whether there is a cluster to join.
        creation_timeout_s: after how long a machine has failed to join.
        health_timeout_s: after how long with a sick node it has failed.
        update_timeout_s: how long an update in place may take.
        in_place: what such an update is told by; None: this front knows none.
        preserve_timeout_s: for how long it is preserved.
        preserve: what preserves it; None: this front preserves none.
        exhausted_retry_s: when a creation is tried again that was out of quota or capacity.
        drain_timeout_s: after how long a drain turns to force.
        detach_timeout_s: for how long volumes are waited for that a drain by force left.
        adopt_unmarked: whether a VM without any marker is ours if it has the name of a machine.
        token_groups: what a bootstrap token gives membership of, beside the standard group.
    """

    cluster: str
    finalizer: str
    node_finalizer: str
    machine_label: str
    priority: tuple[str, str]
    token_id: str
    creation: str
    deletion: str
    applied: str
    applied_capacity: str
    unmanaged: str
    critical_taint: str
    unhealthy_conditions: Sequence[str] = ()
    has_target: bool = True
    creation_timeout_s: float = 1200.0
    health_timeout_s: float = 600.0
    update_timeout_s: float = 1200.0
    in_place: UpdateNames | None = None
    preserve_timeout_s: float = 345_600.0
    preserve: PreserveNames | None = None
    exhausted_retry_s: float = 600.0
    drain_timeout_s: float = 7200.0
    detach_timeout_s: float = 120.0
    adopt_unmarked: bool = False
    token_groups: str = ""

    def identity(self, machine: Machine) -> Identity:
        """What the machine's VM is marked with."""
        return Identity(
            cluster=self.cluster,
            namespace=machine.metadata.namespace,
            pool=machine.class_name,
            name=machine.name,
            uid=machine.uid,
        )

    def timeout_s(self, machine: Machine) -> float:
        """After how long a machine has failed to join."""
        own = machine.creation_timeout_s
        return self.creation_timeout_s if own is None else own
