"""MachineSet and MachineDeployment on the wire, complete, as `types` has Machine and its class."""

from __future__ import annotations

from typing import Annotated

from msgspec import field
from msgspec.structs import replace

from ccm.gardener import names
from ccm.gardener.types import (
    ClassSpec,
    Int32,
    Int64,
    LastOperation,
    MachineTemplateSpec,
    ObjectCondition,
    Time,
)
from ccm.machines import fleet
from ccm.model import ObjectMeta
from ccm.model.meta import KubeObject, Wire, enum
from ccm.model.selectors import LabelSelector

ROLLING = fleet.Strategy.ROLLING.value
DEFAULT_BOUND = 1
"""Type of a strategy that names none, and its bounds (reference)."""


def wants_unfreeze(obj: KubeObject) -> bool:
    """Return whether a user asks for machines of a set, or of the sets of a deployment."""
    return names.ANNOTATION_UNFREEZE in obj.annotations


class MachineSummary(Wire, frozen=True, kw_only=True):
    """A Machine that failed.

    Attributes:
        name: name of the Machine.
        provider_id: cloud ID of its VM.
        last_operation: last operation on the Machine, and its result.
        owner_ref: name of its MachineSet.
    """

    name: str = ""
    provider_id: str = field(default="", name="providerID")
    last_operation: LastOperation = LastOperation()
    owner_ref: str = ""


class MachineSetSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a MachineSet.

    Attributes:
        replicas: desired number of Machines.
        selector: selects the Machines of the set by their labels; the labels of the template have
            to match it.
        machine_class: has no effect; spec.template.spec.class counts.
        template: template that the Machines are created from.
        min_ready_seconds: seconds for which a Machine has to run to count as available.
        auto_preserve_failed_machine_max: maximum number of failed Machines that are preserved
            automatically.
    """

    replicas: Int32 = 0
    selector: LabelSelector | None = None
    machine_class: ClassSpec = ClassSpec()
    template: MachineTemplateSpec = MachineTemplateSpec()
    min_ready_seconds: Int32 = 0
    auto_preserve_failed_machine_max: Int32 = 0


class MachineSetStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a MachineSet.

    Attributes:
        replicas: number of Machines.
        fully_labeled_replicas: number of Machines with all labels of the template.
        ready_replicas: number of Machines that run.
        available_replicas: number of Machines that have run for minReadySeconds.
        preserved_failed_replicas: number of failed Machines that are preserved.
        observed_generation: generation of the spec that this status is about.
        conditions: conditions of the set: ReplicaFailure, CreationSlowed and Frozen.
        last_operation: last creation or deletion of Machines, and its result.
        failed_machines: Machines that failed.
        auto_preserve_failed_machine_count: number of failed Machines that are preserved
            automatically.
    """

    replicas: Int32 = 0
    fully_labeled_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    preserved_failed_replicas: Int32 = 0
    observed_generation: Int64 = 0
    conditions: list[ObjectCondition] | None = field(default=None, name="machineSetCondition")
    last_operation: LastOperation = LastOperation()
    failed_machines: list[MachineSummary] | None = None
    auto_preserve_failed_machine_count: Int32 = 0


class MachineSet(KubeObject, frozen=True, kw_only=True):
    """A number of Machines of one template.

    Attributes:
        spec: desired state.
        status: observed state; written by the controllers.
    """

    metadata: ObjectMeta
    spec: MachineSetSpec = MachineSetSpec()
    status: MachineSetStatus = MachineSetStatus()


class RollingUpdate(Wire, frozen=True, kw_only=True):
    """Bounds of a rolling update; each is a number, or a percentage of the replicas.

    Attributes:
        max_unavailable: maximum number of replicas that may be unavailable; 1 if not set.
        max_surge: maximum number of Machines beyond the replicas; 1 if not set.
    """

    max_unavailable: int | str | None = None
    max_surge: int | str | None = None


class InPlaceUpdate(Wire, frozen=True, kw_only=True):
    """Bounds of an update in place; each is a number, or a percentage of the replicas.

    Attributes:
        max_unavailable: maximum number of replicas that may be unavailable; required.
        max_surge: maximum number of Machines beyond the replicas; required.
        orchestration_type: with Auto the controller selects the Nodes to update; with Manual a
            user labels them.
    """

    max_unavailable: int | str | None = None
    max_surge: int | str | None = None
    orchestration_type: Annotated[str, enum("", "Auto", "Manual")] = ""


class Strategy(Wire, frozen=True, kw_only=True):
    """How Machines are moved to a new template.

    Attributes:
        type: RollingUpdate replaces Machines step by step, Recreate deletes all first,
            InPlaceUpdate keeps the VMs. RollingUpdate if not set.
        rolling_update: bounds of a rolling update.
        in_place_update: bounds of an update in place.
    """

    type: Annotated[str, enum("", *(one.value for one in fleet.Strategy))] = ""
    rolling_update: RollingUpdate | None = None
    in_place_update: InPlaceUpdate | None = None

    def effective(self) -> Strategy:
        """Return the strategy with the defaults of the reference, which are not written back."""
        # Bounds of an update in place, without a type: a user does not expect new machines.
        rolls = not self.type and self.in_place_update is None
        if self.type != ROLLING and not rolls:
            return self
        given = self.rolling_update or RollingUpdate()
        missing, surge = given.max_unavailable, given.max_surge
        bounds = RollingUpdate(
            max_unavailable=DEFAULT_BOUND if missing is None else missing,
            max_surge=DEFAULT_BOUND if surge is None else surge,
        )
        return replace(self, type=ROLLING, rolling_update=bounds)


class RollbackConfig(Wire, frozen=True, kw_only=True):
    """Revision of the template to return to.

    Attributes:
        revision: revision to return to; 0 is the one before.
    """

    revision: Int64 = 0


class MachineDeploymentSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a MachineDeployment.

    Attributes:
        replicas: desired number of Machines.
        selector: selects the MachineSets of the deployment by their labels; the labels of the
            template have to match it.
        template: template that the Machines are created from; a change rolls them out anew.
        strategy: how Machines are moved to a new template.
        min_ready_seconds: seconds for which a Machine has to run to count as available.
        revision_history_limit: number of old MachineSets to keep for a rollback; all if not set.
        paused: if true, nothing is rolled out; scaling goes on.
        rollback_to: set it to return to an older template; the controller removes it.
        progress_deadline_seconds: seconds without progress after which the condition Progressing is
            False; no deadline if not set.
        auto_preserve_failed_machine_max: maximum number of failed Machines that are preserved
            automatically.
    """

    template: MachineTemplateSpec
    replicas: Int32 = 0
    selector: LabelSelector | None = None
    strategy: Strategy = Strategy()
    min_ready_seconds: Int32 = 0
    revision_history_limit: Int32 | None = None
    paused: bool = False
    rollback_to: RollbackConfig | None = None
    progress_deadline_seconds: Int32 | None = None
    auto_preserve_failed_machine_max: Int32 = 0


class DeploymentCondition(ObjectCondition, frozen=True, kw_only=True):
    """A condition of a MachineDeployment: Available, Progressing, ReplicaFailure or Frozen.

    Attributes:
        last_update_time: time at which the condition was written last.
    """

    last_update_time: Time = None


class MachineDeploymentStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a MachineDeployment.

    Attributes:
        observed_generation: generation of the spec that this status is about.
        replicas: number of Machines.
        updated_replicas: number of Machines of the newest template.
        ready_replicas: number of Machines that run.
        available_replicas: number of Machines that have run for minReadySeconds.
        preserved_failed_replicas: number of failed Machines that are preserved.
        unavailable_replicas: number of Machines that are missing or unavailable.
        conditions: conditions of the deployment: Available, Progressing, ReplicaFailure and Frozen.
        collision_count: number of names of MachineSets that were taken; part of the next name.
        failed_machines: Machines that failed.
    """

    observed_generation: Int64 = 0
    replicas: Int32 = 0
    updated_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    preserved_failed_replicas: Int32 = 0
    unavailable_replicas: Int32 = 0
    conditions: list[DeploymentCondition] | None = None
    collision_count: Int32 | None = None
    failed_machines: list[MachineSummary] | None = None


class MachineDeployment(KubeObject, frozen=True, kw_only=True):
    """Machines of one template, and how they are moved to a new one.

    Attributes:
        spec: desired state.
        status: observed state; written by the controllers.
    """

    metadata: ObjectMeta
    spec: MachineDeploymentSpec
    status: MachineDeploymentStatus = MachineDeploymentStatus()
