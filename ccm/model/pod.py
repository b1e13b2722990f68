"""Pods, with the fields for evictions and volumes, and their disruption budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccm.model import names
from ccm.model.meta import KubeObject, ObjectMeta, Wire
from ccm.model.selectors import BadSelectorError, LabelSelector, matches

DEFAULT_GRACE_S = 30
"""Grace period in seconds of a Pod whose spec sets no grace period (Kubernetes API)."""


class ClaimSource(Wire, frozen=True, kw_only=True):
    """Reference to a PersistentVolumeClaim in the Pod's namespace."""

    claim_name: str = ""


class PodVolume(Wire, frozen=True, kw_only=True):
    """Volume of a Pod; only PersistentVolumeClaims are decoded."""

    persistent_volume_claim: ClaimSource | None = None


class PodSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a Pod."""

    node_name: str = ""
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    volumes: list[PodVolume] | None = None


class Pod(KubeObject, frozen=True, kw_only=True):
    """Pod, with the fields for evictions and volumes."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()

    @property
    def is_mirror(self) -> bool:
        """Whether this mirrors a static Pod; deleting a mirror Pod does not stop the static Pod."""
        return names.ANNOTATION_MIRROR in self.annotations

    @property
    def controller(self) -> str:
        """Kind of the Pod's controller, such as `ReplicaSet`; empty = no controller."""
        owners = self.metadata.owner_references or ()
        return next((owner.kind for owner in owners if owner.controller), "")

    @property
    def grace_s(self) -> int:
        """Termination grace period in seconds."""
        stated = self.spec.termination_grace_period_seconds
        return DEFAULT_GRACE_S if stated is None else max(0, stated)

    @property
    def priority(self) -> int:
        """Priority, higher = more important; 0 if none is set."""
        return self.spec.priority or 0

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of the PersistentVolumeClaims of the Pod, in its namespace."""
        claims = (source.persistent_volume_claim for source in self.spec.volumes or ())
        return tuple(
            source.claim_name for source in claims if source is not None and source.claim_name
        )


class BudgetSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a PodDisruptionBudget; a budget without a selector covers no Pod."""

    selector: LabelSelector | None = None


class BudgetStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a PodDisruptionBudget."""

    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, Any] | None = None


class GenerationMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata with the generation of the spec."""

    generation: int = 0


class PodDisruptionBudget(KubeObject, frozen=True, kw_only=True):
    """Limit of simultaneous disruptions of Pods."""

    metadata: GenerationMeta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()

    def covers(self, pod: Pod) -> bool:
        """Return whether a Pod is in the budget's namespace and matches the budget's selector."""
        return pod.namespace == self.namespace and budget_selects(self.spec.selector, pod.labels)

    is_over = covers  # alias for one release

    @property
    def is_misconfigured(self) -> bool:
        """Whether the budget allows no disruption although all its Pods are healthy.

        Waiting for such a budget is pointless. False if the status is outdated or a Pod is being
        disrupted.
        """
        status = self.status
        return (
            status.observed_generation == self.metadata.generation
            and status.expected_pods > 0
            and status.current_healthy >= status.expected_pods
            and not status.disrupted_pods
            and status.disruptions_allowed == 0
        )


def budget_selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Return whether a selector matches labels; a missing or invalid selector matches none."""
    try:
        return selector is not None and matches(selector.requirements(), labels)
    except BadSelectorError:
        return False
