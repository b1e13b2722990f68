"""Settings of the machine controllers, and their values for a single machine. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ccm.cloud.machines import Identity
from ccm.model import Node
from ccm.model.machines import Machine

DEFAULT_CREATION_S = 1200.0
"""Default creation timeout in seconds (Gardener's MCM). Other time limits use this value if
the creation has no timeout."""

_OWN = (
    "creation_timeout_s",
    "health_timeout_s",
    "update_timeout_s",
    "preserve_timeout_s",
    "drain_timeout_s",
    "unhealthy_conditions",
)
"""Settings that a machine may override."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names that an API group of machines uses on its objects and on nodes.

    A feature whose names are empty does not exist in the API group.

    Attributes:
        finalizer: finalizer of machines and classes.
        second_finalizer: another finalizer of machines: `finalizer` may be removed once the VM is
            gone, `second_finalizer` only once the node is gone, too.
        owner_finalizer: finalizer of sets and deployments.
        secret_finalizer: finalizer of Secrets that classes refer to.
        priority: annotation of a machine: machines with a lower value are deleted first.
        default_priority: value of `priority` on a new machine.
        marked: annotation of a machine: time at which the autoscaler chose it for deletion.
        token_id: annotation of a machine: ID of its bootstrap token.
        origin: annotation of a machine: hashes of the credentials that have shown its VM.
        creation: annotation of a machine: records that the creation of its VM started.
        deletion: annotation of a machine: progress of its deletion.
        former_uid: annotation of a machine: former UID, which still marks its VM.
        node_finalizer: finalizer of a node that has a machine.
        machine_label: label of a node: name of its machine.
        uid_label: label of a node: UID of its machine; used instead of `machine_label`.
        key_annotation: annotation of a node: namespace and name of its machine.
        applied: annotation of a node: labels, annotations and taints that its machine put on it.
            Without `applied`, metadata is only added, and existing metadata of the node stays.
        applied_capacity: annotation of a node: resources that were added to its capacity.
        unmanaged: annotation of a node that has no machine.
        skip_eviction: annotation of a node that is not drained before its machine is deleted.
        critical_taint: taint of a node whose critical components are not ready; while it is set,
            the machine does not become Running.
        old_taint: taint of each node of an old set, and annotation of a set whose nodes have this
            taint.
        preserve: annotation of machine and node: whether the machine is preserved: now, once it has
            failed, or never.
        preserve_of_node: annotation of a machine: value of its node's `preserve` annotation that
            was applied last.
        preserved_taint: taint of the node of a failed machine that is preserved.
        preserved_condition: condition type of a node whose machine is preserved.
        preserved_by_us: reason of `preserved_condition` if a set preserves the machine.
        preserved_by_user: reason of `preserved_condition` if a user preserves the machine.
        preservation_stopped: reason of `preserved_condition` after the preservation.
        candidate: label of a node whose machine is to be updated in place.
        selected: label of a candidate that is to be drained and updated now.
        update_result: label of a node: result of its in-place update; label of a machine that was
            moved to its new set.
        update_successful: value of `update_result` after a successful update.
        update_unsuccessful: value of `update_result` after a failed update.
        update_failed_reason: annotation of a node: why the update failed.
        update_condition: condition type of a node; its reason is the step of the update.
        update_waiting: reason of `update_condition` for a candidate.
        update_selected: reason of `update_condition` while the node is drained.
        update_drained: reason of `update_condition` after the drain.
        update_ready: reason of `update_condition` when the update may begin.
        update_succeeded: reason of `update_condition` after a successful update.
        update_failed: reason of `update_condition` after a failed update.
        freeze: label of a set or deployment that creates no machines.
        frozen: value of `freeze`.
        unfreeze: annotation with which a user unfreezes a set or deployment.
        scale_up_disabled: label of an old set during an in-place update: the set creates no
            machines.
        trigger: annotation of a deployment: machines that the autoscaler wants deleted.
        scaler_time: annotation of deployment and set: time of the last scaling by the autoscaler.
        revision: annotation of deployment and set: revision of the template.
        revision_history: annotation of a set: former revisions.
        desired: annotation of a set: replicas of its deployment when the set was last scaled.
        most: annotation of a set: sum of replicas and surge of its deployment when the set was last
            scaled.
        not_copied: annotations of a deployment that are not copied to its sets.
        hold: annotation that keeps the autoscaler from scaling down a node.
        hold_is_ours: annotation of a node on which a machine controller has set `hold`.
    """

    finalizer: str
    second_finalizer: str = ""
    owner_finalizer: str
    secret_finalizer: str = ""
    priority: str = ""
    default_priority: str = ""
    marked: str = ""
    token_id: str = ""
    origin: str
    creation: str
    deletion: str
    former_uid: str = ""
    node_finalizer: str = ""
    machine_label: str = ""
    uid_label: str = ""
    key_annotation: str = ""
    applied: str = ""
    applied_capacity: str = ""
    unmanaged: str = ""
    skip_eviction: str = ""
    critical_taint: str = ""
    old_taint: str = ""
    preserve: str = ""
    preserve_of_node: str = ""
    preserved_taint: str = ""
    preserved_condition: str = ""
    preserved_by_us: str = ""
    preserved_by_user: str = ""
    preservation_stopped: str = ""
    candidate: str = ""
    selected: str = ""
    update_result: str = ""
    update_successful: str = ""
    update_unsuccessful: str = ""
    update_failed_reason: str = ""
    update_condition: str = ""
    update_waiting: str = ""
    update_selected: str = ""
    update_drained: str = ""
    update_ready: str = ""
    update_succeeded: str = ""
    update_failed: str = ""
    freeze: str = ""
    frozen: str = ""
    unfreeze: str = ""
    scale_up_disabled: str = ""
    trigger: str = ""
    scaler_time: str = ""
    revision: str
    revision_history: str
    desired: str
    most: str
    not_copied: frozenset[str]
    hold: str = ""
    hold_is_ours: str = ""

    @property
    def machine_finalizers(self) -> tuple[str, ...]:
        """Finalizers of a machine, which are added before its VM is created."""
        return (
            (self.finalizer, self.second_finalizer) if self.second_finalizer else (self.finalizer,)
        )

    def node_labels(self, machine: Machine) -> dict[str, str]:
        """Return the label that a machine's node gets, and by which the node is recognised."""
        if self.uid_label:
            return {self.uid_label: machine.uid}
        return {self.machine_label: machine.name}

    def is_labeled(self, node: Node, machine: Machine) -> bool:
        """Return whether a node has the label of a machine."""
        return self.node_labels(machine).items() <= node.labels.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """Settings of the machine controllers, and the names of their API group.

    Attributes:
        names: names of the API group.
        cluster: marker of this cluster in the labels or tags of its VMs.
        has_target: whether there is a target cluster, which machines join.
        unhealthy_conditions: condition types that make a node unhealthy unless they are False.
        creation_timeout_s: seconds in which a machine must join, or it is marked Failed; None = no
            limit.
        health_timeout_s: seconds for which a node may be unhealthy before its machine is marked
            Failed; None = no limit.
        update_timeout_s: maximum duration of an in-place update.
        preserve_timeout_s: seconds for which a machine is preserved.
        exhausted_retry_s: retry delay of a creation that exceeded a quota or the capacity.
        drain_timeout_s: seconds after which a drain uses force.
        detach_timeout_s: maximum wait for the detachment of volumes that a forced drain left
            attached.
        asks_for_vms: whether a machine fails as soon as the cloud confirms that its VM is gone.
            Else, it fails by timeout only.
        joins_unready: whether a machine with a node has joined in time, ready or not. Else it is
            marked Failed unless its node becomes ready within `creation_timeout_s`.
        stores_addresses: whether the status of a machine has the addresses of its VM even with a
            target cluster.
        adopt_unmarked: whether to adopt a VM that has a machine's name, but no labels or tags of a
            machine.
        token_groups: groups of a bootstrap token in addition to system:bootstrappers,
            comma-separated.
        disables_scale_down: whether the autoscaler is kept from scaling down nodes during a
            rollout.
    """

    names: Names
    cluster: str = ""
    has_target: bool = True
    unhealthy_conditions: Sequence[str] = ()
    creation_timeout_s: float | None = DEFAULT_CREATION_S
    health_timeout_s: float | None = 600.0
    update_timeout_s: float = 1200.0
    preserve_timeout_s: float = 345_600.0
    exhausted_retry_s: float = 600.0
    drain_timeout_s: float = 7200.0
    detach_timeout_s: float = 120.0
    asks_for_vms: bool = False
    joins_unready: bool = False
    stores_addresses: bool = False
    adopt_unmarked: bool = False
    token_groups: str = ""
    disables_scale_down: bool = True

    @property
    def holds_nodes(self) -> bool:
        """Whether annotations keep the autoscaler from scaling down nodes during a rollout."""
        return self.disables_scale_down and bool(self.names.hold)

    def identity(self, machine: Machine) -> Identity:
        """Return the identity that the labels or tags of a machine's VM contain."""
        return Identity(
            cluster=self.cluster,
            namespace=machine.namespace,
            pool=machine.class_name,
            name=machine.vm_name or machine.name,
            uid=machine.uid,
        )

    def of(self, machine: Machine) -> MachineSettings:
        """Return the settings of a machine: its own values override these settings."""
        own = {name: value for name in _OWN if (value := getattr(machine, name)) is not None}
        return replace(self, **own | ({"health_timeout_s": None} if machine.never_fails else {}))
