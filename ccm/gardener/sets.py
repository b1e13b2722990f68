"""MachineSet and MachineDeployment on the wire, complete, as `types` has Machine and its class."""

from __future__ import annotations

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
from ccm.model.meta import KubeObject, Wire
from ccm.model.selectors import LabelSelector

ROLLING = fleet.Strategy.ROLLING.value
DEFAULT_BOUND = 1
"""Type of a strategy that names none, and its bounds (reference)."""


def wants_unfreeze(obj: KubeObject) -> bool:
    """Return whether a user asks for machines of a set, or of the sets of a deployment."""
    return names.ANNOTATION_UNFREEZE in obj.annotations


class MachineSummary(Wire, frozen=True, kw_only=True):
    """A machine that failed.

    Attributes:
        name: of the machine.
        provider_id: of its VM.
        last_operation: what was done last about it.
        owner_ref: what it belongs to.
    """

    name: str = ""
    provider_id: str = field(default="", name="providerID")
    last_operation: LastOperation = LastOperation()
    owner_ref: str = ""


class MachineSetSpec(Wire, frozen=True, kw_only=True):
    """What is wanted of a set.

    Attributes:
        replicas: how many machines.
        selector: which are its own.
        machine_class: of old; not used.
        template: what its machines are made of.
        min_ready_seconds: how long a machine has to run before it counts as available.
        auto_preserve_failed_machine_max: most failed machines that are preserved by themselves.
    """

    replicas: Int32 = 0
    selector: LabelSelector | None = None
    machine_class: ClassSpec = ClassSpec()
    template: MachineTemplateSpec = MachineTemplateSpec()
    min_ready_seconds: Int32 = 0
    auto_preserve_failed_machine_max: Int32 = 0


class MachineSetStatus(Wire, frozen=True, kw_only=True):
    """What is known of a set.

    Attributes:
        replicas: machines that are there.
        fully_labeled_replicas: those with all labels of the template.
        ready_replicas: those that run.
        available_replicas: those that run for long enough.
        preserved_failed_replicas: those that failed and are preserved.
        observed_generation: of the set, when this was written.
        conditions: of the set.
        last_operation: what was done last.
        failed_machines: those that failed.
        auto_preserve_failed_machine_count: those that are preserved by themselves.
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
    """So many machines alike.

    Attributes:
        spec: what is wanted.
        status: what is known.
    """

    metadata: ObjectMeta
    spec: MachineSetSpec = MachineSetSpec()
    status: MachineSetStatus = MachineSetStatus()


class RollingUpdate(Wire, frozen=True, kw_only=True):
    """Bounds of a rolling update; each a number, or a percentage of the replicas.

    Attributes:
        max_unavailable: most machines that may be missing; 1 where it is not set.
        max_surge: most machines above the replicas; 1 where it is not set.
    """

    max_unavailable: int | str | None = None
    max_surge: int | str | None = None


class InPlaceUpdate(Wire, frozen=True, kw_only=True):
    """Bounds of an update in place; each a number, or a percentage of the replicas.

    Attributes:
        max_unavailable: most machines that may be missing.
        max_surge: most machines above the replicas.
        orchestration_type: Auto, or Manual where somebody else selects the nodes.
    """

    max_unavailable: int | str | None = None
    max_surge: int | str | None = None
    orchestration_type: str = ""


class Strategy(Wire, frozen=True, kw_only=True):
    """How machines are exchanged.

    Attributes:
        type: RollingUpdate, Recreate or InPlaceUpdate; RollingUpdate where it is not set.
        rolling_update: bounds of a rolling update.
        in_place_update: bounds of an update in place.
    """

    type: str = ""
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
    """Where to go back to.

    Attributes:
        revision: of the template; 0 is the one before.
    """

    revision: Int64 = 0


class MachineDeploymentSpec(Wire, frozen=True, kw_only=True):
    """What is wanted of a deployment.

    Attributes:
        replicas: how many machines.
        selector: which are its own.
        template: what its machines are made of.
        strategy: how machines are exchanged.
        min_ready_seconds: how long a machine has to run before it counts as available.
        revision_history_limit: old sets that are kept; all where it is not set.
        paused: nothing is exchanged meanwhile.
        rollback_to: go back to an older template, once.
        progress_deadline_seconds: after how long without progress that is said; never where it
            is not set.
        auto_preserve_failed_machine_max: most failed machines that are preserved by themselves.
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
        last_update_time: when this was written.
    """

    last_update_time: Time = None


class MachineDeploymentStatus(Wire, frozen=True, kw_only=True):
    """What is known of a deployment.

    Attributes:
        observed_generation: of the deployment, when this was written.
        replicas: machines that are there.
        updated_replicas: those made of the newest template.
        ready_replicas: those that run.
        available_replicas: those that run for long enough.
        preserved_failed_replicas: those that failed and are preserved.
        unavailable_replicas: those that are missing.
        conditions: of the deployment.
        collision_count: how often the name of a set was taken.
        failed_machines: those that failed.
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
    """Machines alike, and how they are exchanged for others.

    Attributes:
        spec: what is wanted.
        status: what is known.
    """

    metadata: ObjectMeta
    spec: MachineDeploymentSpec
    status: MachineDeploymentStatus = MachineDeploymentStatus()
