"""Settings of the machine controllers, and their values for a single machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ccm.cloud.machines import Identity
from ccm.model.machines import Machine

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
    """Names of an API group of machines on its objects and on nodes.

    A feature whose names are empty does not exist in the API group.

    Attributes:
        finalizer: finalizer of machines, sets, deployments and classes.
        secret_finalizer: finalizer of Secrets that classes refer to.
        priority: annotation of a machine: machines with a lower value are deleted first.
        default_priority: its value on a new machine.
        marked: annotation of a machine: time at which the autoscaler chose it for deletion.
        token_id: annotation of a machine: ID of its bootstrap token.
        origin: annotation of a machine: marks of the credentials that have shown its VM.
        creation: annotation of a machine: records that its creation started.
        deletion: annotation of a machine: progress of its deletion.
        node_finalizer: finalizer of a node that has a machine.
        machine_label: label of a node: name of its machine.
        applied: annotation of a node: labels, annotations and taints that its machine put on it.
        applied_capacity: annotation of a node: resources that were added to its capacity.
        unmanaged: annotation of a node that has no machine.
        critical_taint: taint of a node whose machine does not run yet.
        old_taint: taint of a node of an old set, and annotation of a set whose nodes have it.
        preserve: annotation of machine and node: whether the machine is preserved when it fails.
        preserve_of_node: annotation of a machine: the value of its node that was applied last.
        preserved_taint: taint of the node of a failed machine that is preserved.
        preserved_condition: condition type of a node whose machine is preserved.
        preserved_by_us: reason of that condition where a set preserves the machine.
        preserved_by_user: its reason where a user does.
        preservation_stopped: its reason after the preservation.
        candidate: label of a node whose machine is to be updated in place.
        selected: label of a node whose machine is updated now.
        update_result: label of a node: result of the update; and of a machine that was moved to its
            new set.
        update_successful: value of that label after an update that succeeded.
        update_unsuccessful: its value after one that failed.
        update_failed_reason: annotation of a node: why the update failed.
        update_condition: condition type of a node: step of the update, by its reason.
        update_waiting: reason of that condition for a candidate.
        update_selected: its reason while the node is drained.
        update_drained: its reason after the drain.
        update_ready: its reason when the update may begin.
        update_succeeded: its reason after an update that succeeded.
        update_failed: its reason after one that failed.
        freeze: label of a set or deployment that creates no machines.
        frozen: its value.
        unfreeze: annotation of a set or deployment: a user wants machines created all the same.
        scale_up_disabled: label of a set that creates no machines.
        trigger: annotation of a deployment: machines that the autoscaler wants deleted.
        scaler_time: annotation of deployment and set: time at which the autoscaler scaled it.
        revision: annotation of deployment and set: number of the template.
        revision_history: annotation of a set: former numbers.
        desired: annotation of a set: replicas of its deployment when it was scaled.
        most: annotation of a set: those replicas and the surge.
        not_copied: annotations of a deployment that its sets do not get.
        hold: annotation of a node that the autoscaler does not scale down.
        hold_is_ours: annotation of a node on which a machine controller set that one.
    """

    finalizer: str
    secret_finalizer: str = ""
    priority: str
    default_priority: str
    marked: str
    token_id: str
    origin: str
    creation: str
    deletion: str
    node_finalizer: str
    machine_label: str
    applied: str
    applied_capacity: str
    unmanaged: str
    critical_taint: str
    old_taint: str
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
    freeze: str
    frozen: str
    unfreeze: str
    scale_up_disabled: str = ""
    trigger: str
    scaler_time: str
    revision: str
    revision_history: str
    desired: str
    most: str
    not_copied: frozenset[str]
    hold: str
    hold_is_ours: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """Settings of the machine controllers, and the names of their API group.

    Attributes:
        names: names of the API group.
        cluster: marker on every VM of this cluster.
        has_target: whether there is a cluster to join.
        unhealthy_conditions: condition types that make a node unhealthy unless they are False.
        creation_timeout_s: time to join, after which a machine fails.
        health_timeout_s: time with an unhealthy node, after which a machine fails; None =
            never.
        update_timeout_s: time for an update in place.
        preserve_timeout_s: time for which a failed machine is preserved.
        exhausted_retry_s: delay of a creation that exceeded a quota or the capacity.
        drain_timeout_s: time after which a drain uses force.
        detach_timeout_s: time for volumes to be detached that a drain by force left.
        adopt_unmarked: whether a VM without marks that has the name of a machine is adopted.
        token_groups: groups of a bootstrap token beside the standard one.
        disables_scale_down: whether the autoscaler is kept from scaling down nodes of a rollout.
    """

    names: Names
    cluster: str = ""
    has_target: bool = True
    unhealthy_conditions: Sequence[str] = ()
    creation_timeout_s: float = 1200.0
    health_timeout_s: float | None = 600.0
    update_timeout_s: float = 1200.0
    preserve_timeout_s: float = 345_600.0
    exhausted_retry_s: float = 600.0
    drain_timeout_s: float = 7200.0
    detach_timeout_s: float = 120.0
    adopt_unmarked: bool = False
    token_groups: str = ""
    disables_scale_down: bool = True

    def identity(self, machine: Machine) -> Identity:
        """Return the identity that a machine's VM carries."""
        return Identity(
            cluster=self.cluster,
            namespace=machine.namespace,
            pool=machine.class_name,
            name=machine.name,
            uid=machine.uid,
        )

    def of(self, machine: Machine) -> MachineSettings:
        """Return the settings of a machine: its own values, else these."""
        own = {name: value for name in _OWN if (value := getattr(machine, name)) is not None}
        return replace(self, **own | ({"health_timeout_s": None} if machine.never_fails else {}))
