"""Machines and their classes in neutral terms, and the rules of the front they come from. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from ccm.cloud.machines import SPEC_USER_DATA, Credentials, Identity
from ccm.model import NodeAddress, NodeCondition, ObjectMeta, Taint


class Phase(Enum):
    """How far a machine is."""

    NEW = ""
    PENDING = "Pending"
    """Its VM is there; its node is not, or not fit for work."""
    AVAILABLE = "Available"
    """Its VM is there, and no cluster for it to join."""
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    """It ran, and its node is sick or gone."""
    FAILED = "Failed"
    """Given up, to be replaced."""
    CRASH_LOOP = "CrashLoopBackOff"
    """Its VM could not be made; tried again."""
    TERMINATING = "Terminating"
    UPDATING = "InPlaceUpdating"
    UPDATED = "InPlaceUpdateSuccessful"
    UPDATE_FAILED = "InPlaceUpdateFailed"
    FOREIGN = "?"
    """One that we do not know: it is kept as it stands, and is not ours to end."""


CREATING = frozenset({Phase.NEW, Phase.CRASH_LOOP})
"""Phases in which the VM is yet to be made, or its making to be said."""


class State(Enum):
    """How an operation went."""

    PROCESSING = "Processing"
    FAILED = "Failed"
    SUCCESSFUL = "Successful"


class Kind(Enum):
    """What an operation was for."""

    CREATE = "Create"
    HEALTH_CHECK = "HealthCheck"
    DELETE = "Delete"
    DRAIN = "DrainNode"
    IN_PLACE = "InPlaceUpdate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is known of a machine.

    Attributes:
        phase: how far it is.
        description: of the last operation, for people.
        code: name of the code that the cloud refused it with; else empty.
        state: how the last operation went, in the front's word; empty for none.
        kind: what it was for, in the front's word.
        timeout_active: whether a timeout runs.
        since: when the phase was written.
        preserve_until: until when the machine is kept though it has failed; None = it is not.
        updated: when the last operation was written.
        known_state: the driver's own.
        addresses: of the VM; only where there is no cluster to join.
        conditions: of its node.
    """

    phase: Phase = Phase.NEW
    description: str = ""
    code: str = ""
    state: str = ""
    kind: str = ""
    timeout_active: bool = False
    since: datetime | None = None
    preserve_until: datetime | None = None
    updated: datetime | None = None
    known_state: str = ""
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """A machine.

    Attributes:
        metadata: of the object.
        created: when the object was made.
        class_name: of its class; empty where it names none that counts.
        provider_id: of its VM; empty until it was made.
        node_name: of its node; empty until it is known.
        status: what is known of it.
        group: machines of one group are given up one at a time; empty = it is in none.
        creation_timeout_s: after how long it has failed to join; None = as the rules say.
        health_timeout_s: after how long with a sick node it has failed; None = as the rules say.
        update_timeout_s: how long an update in place may take; None = as the rules say.
        never_fails: a sick node does not make it fail, however long.
        preserve_timeout_s: for how long it is preserved; None = as the rules say.
        sick_conditions: what makes its node sick; None = as the rules say.
        creation_started: whether the object records that the cloud was, or may have been, asked
            for a VM whose provider ID is not stored. Every error since then means "unknown".
        origins: values of `ClassView.origin` with which its VM was created and seen since, the
            newest last; empty where that was not recorded.
        labels: that are kept on its node.
        annotations: that are kept on its node.
        taints: that are kept on its node.
        force_deletion: a person wants it gone, whatever stands against it.
        force_drain: a person wants drains that end in no deletion by force too.
        drain_timeout_s: after how long its drain turns to force; None = as the rules say.
        max_evict_retries: how often a refused eviction is repeated; None = as settings say.
    """

    metadata: ObjectMeta
    created: datetime
    class_name: str
    provider_id: str = ""
    node_name: str = ""
    status: Status = Status()
    group: str = ""
    creation_timeout_s: float | None = None
    health_timeout_s: float | None = None
    update_timeout_s: float | None = None
    never_fails: bool = False
    preserve_timeout_s: float | None = None
    sick_conditions: Sequence[str] | None = None
    creation_started: bool = False
    origins: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    force_deletion: bool = False
    force_drain: bool = False
    drain_timeout_s: float | None = None
    max_evict_retries: int | None = None

    @property
    def name(self) -> str:
        """Of the object, of the VM, and mostly of the node."""
        return self.metadata.name

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def uid(self) -> str:
        """Of the object; unique for ever."""
        return self.metadata.uid

    @property
    def phase(self) -> Phase:
        """How far it is."""
        return self.status.phase

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion was asked for."""
        return self.metadata.deletion_timestamp is not None

    @property
    def in_creation(self) -> bool:
        """Whether its VM is to be looked for, made, or initialised."""
        return not self.provider_id or self.phase in CREATING

    def annotation(self, name: str) -> str:
        """The value of an annotation of the object; empty where it has none."""
        return (self.metadata.annotations or {}).get(name, "")


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
        sick_conditions: a node is healthy while each of them that it has is False.
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
    sick_conditions: Sequence[str] = ()
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

    def identity(self, machine: MachineView) -> Identity:
        """What the machine's VM is marked with."""
        return Identity(
            cluster=self.cluster,
            namespace=machine.metadata.namespace,
            pool=machine.class_name,
            name=machine.name,
            uid=machine.uid,
        )

    def timeout_s(self, machine: MachineView) -> float:
        """After how long a machine has failed to join."""
        own = machine.creation_timeout_s
        return self.creation_timeout_s if own is None else own
