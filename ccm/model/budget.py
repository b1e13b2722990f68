"""PodDisruptionBudget: which Pods it is over, and what it allows now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccm.model.meta import KubeObject, ObjectMeta, Wire
from ccm.model.pod import Pod
from ccm.model.selectors import Requirement

_SETS = {"In": True, "NotIn": False}
_PRESENCE = {"Exists": True, "DoesNotExist": False}


class SelectorTerm(Wire, frozen=True, kw_only=True):
    """One term: `In`, `NotIn`, `Exists` or `DoesNotExist`."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class PodSelector(Wire, frozen=True, kw_only=True):
    """Selects by labels; an empty one selects all."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorTerm] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        wanted = self.match_labels or {}
        return all(labels.get(key) == value for key, value in wanted.items()) and all(
            _requirement(term).matches(labels) for term in self.match_expressions or ()
        )


class BudgetSpec(Wire, frozen=True, kw_only=True):
    """What the budget is over; a missing selector selects nothing."""

    selector: PodSelector | None = None


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
        return (
            pod.namespace == self.namespace
            and self.spec.selector is not None
            and self.spec.selector.matches(pod.labels)
        )

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


def _requirement(term: SelectorTerm) -> Requirement:
    if term.operator in _PRESENCE:
        return Requirement(key=term.key, values=None, wanted=_PRESENCE[term.operator])
    # An operator that nobody knows selects nothing.
    values = frozenset(term.values or ()) if term.operator in _SETS else frozenset()
    return Requirement(key=term.key, values=values, wanted=_SETS.get(term.operator, True))
