"""PodDisruptionBudget: which Pods it is over, and what it allows now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccm.model.meta import KubeObject, ObjectMeta, Wire
from ccm.model.pod import Pod
from ccm.model.selectors import BadSelectorError, LabelSelector, matches


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
