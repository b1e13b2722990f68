"""The types of machines that controllers use, whatever API group the objects have.

Kubernetes converts the versions of an API group to one internal type, the hub. These are the hub
types of machines: a codec for each API group converts its documents to them, once for each version
of an object, and makes the patches for what controllers want to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import msgspec

from ccm.model.meta import KubeObject
from ccm.model.node import NodeAddress, NodeCondition, Taint


class Phase(Enum):
    """Phase of a machine."""

    NEW = ""
    PENDING = "Pending"
    """The VM exists; its node has not joined, or is not ready."""
    AVAILABLE = "Available"
    """The VM exists, and there is no cluster to join."""
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    """The machine ran, and its node is unhealthy or missing."""
    FAILED = "Failed"
    """The machine is to be replaced."""
    CRASH_LOOP = "CrashLoopBackOff"
    """The VM could not be created; the creation is tried again."""
    TERMINATING = "Terminating"
    UPDATING = "InPlaceUpdating"
    UPDATED = "InPlaceUpdateSuccessful"
    UPDATE_FAILED = "InPlaceUpdateFailed"
    FOREIGN = "?"
    """A phase that this release does not know; it is left as it is."""


CREATING = frozenset({Phase.NEW, Phase.CRASH_LOOP})
"""Phases before the VM was created and that was written."""

WORKING = frozenset({Phase.RUNNING, Phase.AVAILABLE})
"""Phases of a machine that counts as ready."""


class State(Enum):
    """Result of an operation."""

    PROCESSING = "Processing"
    FAILED = "Failed"
    SUCCESSFUL = "Successful"


class Kind(Enum):
    """Type of an operation."""

    CREATE = "Create"
    HEALTH_CHECK = "HealthCheck"
    DELETE = "Delete"
    DRAIN = "DrainNode"
    IN_PLACE = "InPlaceUpdate"


class Preserve(Enum):
    """Whether a machine is preserved when it fails, as its annotation or that of its node says."""

    UNSAID = ""
    NO = "false"
    NOW = "now"
    WHEN_FAILED = "when-failed"
    AUTO = "auto-preserved"
    """Set by the machine set, within its limit of preserved machines."""

    @classmethod
    def of(cls, text: str) -> Preserve:
        """Return the value of an annotation; an unknown text counts as none."""
        try:
            return cls(text)
        except ValueError:
            return cls.UNSAID


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatus:
    """Observed state of a machine.

    Attributes:
        phase: phase of the machine.
        description: result of the last operation in words.
        code: name of the code of the cloud's error; empty = no error.
        state: result of the last operation, a value of `State`; empty = none.
        kind: type of the last operation, a value of `Kind`; empty = none.
        timeout_active: whether a timeout runs after which the machine fails.
        since: time at which the machine entered the phase.
        preserve_until: time until which a failed machine is kept; None = it is not preserved.
        updated: time at which the last operation was recorded.
        known_state: state that the driver stores between calls; opaque.
        addresses: addresses of the VM; only without a cluster to join.
        conditions: conditions of the node.
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


class Machine(KubeObject, frozen=True, kw_only=True):
    """A VM that becomes a node of the cluster.

    Attributes:
        created: creation time of the object.
        class_name: name of the class; empty = the machine refers to none.
        class_reference: API group, kind and name of the class as the object has them.
        provider_id: cloud ID of the VM; empty until the VM is created.
        node_name: name of the node; empty until it is known.
        status: observed state.
        group: machines of one group fail one at a time; empty = in no group.
        deployment: name of the machine deployment, for metrics.
        creation_timeout_s: time to join, after which the machine fails; None = the daemon's.
        health_timeout_s: time with an unhealthy node, after which the machine fails; None = the
            daemon's.
        update_timeout_s: time for an update in place; None = the daemon's.
        never_fails: whether the machine stays however long its node is unhealthy.
        preserve_timeout_s: time for which the failed machine is preserved; None = the daemon's.
        unhealthy_conditions: condition types that make the node unhealthy; None = the daemon's.
        creation_started: whether the object records that the cloud was, or may have been, asked for
            a VM whose provider ID is not stored. Every error since then means "unknown".
        origins: marks of the credentials and regions with which the VM was created, and seen since;
            the newest last. Empty = not recorded.
        node_labels: labels that are kept on the node.
        node_annotations: annotations that are kept on the node.
        taints: taints that are kept on the node.
        force_deletion: whether a user wants the machine deleted without regard for its drain.
        force_drain: whether drains that do not end in a deletion use force, too.
        drain_timeout_s: time after which the drain uses force; None = the daemon's.
        max_evict_retries: number of evictions of a Pod before it is deleted; None = the daemon's.
        priority: machines with a lower priority are deleted first.
        marked: time at which the autoscaler chose the machine for deletion; None = it did not.
        preserve: the annotation of the object.
        preserve_of_node: the annotation of the node that was applied last.
        was_moved: whether the machine came from another set by an update in place.
        source: document of the API group; for the codec only.
    """

    created: datetime
    class_name: str = ""
    class_reference: tuple[str, str, str] = ("", "", "")
    provider_id: str = ""
    node_name: str = ""
    status: MachineStatus = MachineStatus()
    group: str = ""
    deployment: str = ""
    creation_timeout_s: float | None = None
    health_timeout_s: float | None = None
    update_timeout_s: float | None = None
    never_fails: bool = False
    preserve_timeout_s: float | None = None
    unhealthy_conditions: Sequence[str] | None = None
    creation_started: bool = False
    origins: tuple[str, ...] = ()
    node_labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    node_annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    taints: Sequence[Taint] = ()
    force_deletion: bool = False
    force_drain: bool = False
    drain_timeout_s: float | None = None
    max_evict_retries: int | None = None
    priority: int = 0
    marked: datetime | None = None
    preserve: str = ""
    preserve_of_node: str = ""
    was_moved: bool = False
    source: Any = None

    def annotation(self, name: str) -> str:
        """Return an annotation of the object; empty = not set."""
        return self.annotations.get(name, "")

    @property
    def phase(self) -> Phase:
        """Phase of the machine."""
        return self.status.phase

    @property
    def spec(self) -> object:
        """Spec of the document; only to be compared with another."""
        return self.source.spec

    @property
    def in_creation(self) -> bool:
        """Whether the VM has to be found, created or initialised."""
        return not self.provider_id or self.phase in CREATING

    @property
    def is_ending(self) -> bool:
        """Whether the machine is being deleted, and its set counts it no more."""
        return self.is_deleting or self.phase is Phase.TERMINATING

    @property
    def works(self) -> bool:
        """Whether the machine counts as ready."""
        return self.phase in WORKING and not self.is_deleting


def document_of(obj: KubeObject) -> Any:
    """Return the document that an object was converted from, or the object itself."""
    return obj.source if isinstance(obj, Machine) else obj
