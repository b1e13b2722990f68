"""Pod: what decides whether and how it is evicted, and what it uses; its disruption budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccm.model import names
from ccm.model.meta import KubeObject, ObjectMeta, Wire
from ccm.model.selectors import BadSelectorError, LabelSelector, matches

GRACE_S = 30
"""Grace of a Pod that states none (Kubernetes API)."""


class ClaimSource(Wire, frozen=True, kw_only=True):
    """A volume that is a PersistentVolumeClaim of the Pod's namespace."""

    claim_name: str = ""


class PodVolume(Wire, frozen=True, kw_only=True):
    """One volume; of kinds other than a claim nothing is read."""

    persistent_volume_claim: ClaimSource | None = None


class PodSpec(Wire, frozen=True, kw_only=True):
    """What is wanted of a Pod."""

    node_name: str = ""
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    volumes: list[PodVolume] | None = None


class Pod(KubeObject, frozen=True, kw_only=True):
    """What runs on a node."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()

    @property
    def is_mirror(self) -> bool:
        """Whether it only shows what a kubelet runs by itself; deleting it ends nothing."""
        return names.ANNOTATION_MIRROR in self.annotations

    @property
    def controller(self) -> str:
        """The kind of what makes it anew when it goes; empty when nothing does."""
        owners = self.metadata.owner_references or ()
        return next((one.kind for one in owners if one.controller), "")

    @property
    def grace_s(self) -> int:
        """Seconds that it may take to end."""
        stated = self.spec.termination_grace_period_seconds
        return GRACE_S if stated is None else max(0, stated)

    @property
    def priority(self) -> int:
        """The higher, the more it matters; 0 where none is stated."""
        return self.spec.priority or 0

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of the PersistentVolumeClaims that it uses, in its namespace."""
        found = (one.persistent_volume_claim for one in self.spec.volumes or ())
        return tuple(one.claim_name for one in found if one is not None and one.claim_name)


class BudgetSpec(Wire, frozen=True, kw_only=True):
    """What the budget is over; a missing selector selects nothing."""

    selector: LabelSelector | None = None


class BudgetStatus(Wire, frozen=True, kw_only=True):
    """What it allows."""

    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, Any] | None = None


class GenerationMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata with the number of the object's spec."""

    generation: int = 0


class PodDisruptionBudget(KubeObject, frozen=True, kw_only=True):
    """How many Pods may be away at once."""

    metadata: GenerationMeta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()

    def is_over(self, pod: Pod) -> bool:
        """Whether the Pod is one of those that it is about."""
        return pod.namespace == self.namespace and selects(self.spec.selector, pod.labels)

    @property
    def is_misconfigured(self) -> bool:
        """Whether it allows nothing though all its Pods are well, so that waiting is in vain.

        Only what its controller has seen counts, and no Pod may be on its way out.
        """
        said = self.status
        return (
            said.observed_generation == self.metadata.generation
            and said.expected_pods > 0
            and said.current_healthy >= said.expected_pods
            and not said.disrupted_pods
            and said.disruptions_allowed == 0
        )


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a budget is over such Pods; one whose selector cannot be read is over none."""
    try:
        return selector is not None and matches(selector.requirements(), labels)
    except BadSelectorError:
        return False
