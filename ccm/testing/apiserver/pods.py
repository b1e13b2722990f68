"""Deletions of Pods: grace periods, and evictions within the limits of disruption budgets."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from ccm.base import clock
from ccm.model import names
from ccm.model.pod import budget_selects
from ccm.model.selectors import LabelSelector
from ccm.model.times import format_time
from ccm.testing.apiserver import errors, kinds, schema
from ccm.testing.apiserver import store as stores

BUDGET_CAUSE = "DisruptionBudget"
NOT_SEEN_YET_S = 10
"""Retry-After, in seconds, of an eviction while the controller has not processed the budget yet."""

_TOO_MANY_BUDGETS = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
    "support."
)


def begin_grace(pod: dict[str, Any], stated: int | None) -> bool:
    """Start or shorten the grace period of a Pod; return whether anything changed.

    A Pod without a node and a finished Pod get no grace period: the caller removes them at once.

    Args:
        stated: requested grace period in seconds; None = that of the Pod's spec.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if not spec.get("nodeName") or pod["status"].get("phase") in ("Failed", "Succeeded"):
        return False
    grace = spec.get("terminationGracePeriodSeconds", 30) if stated is None else stated
    grace = max(1, grace) if grace < 0 else int(grace)
    before = metadata.get("deletionGracePeriodSeconds")
    if not grace or (before is not None and grace >= before):
        return False
    ends = clock.now() + datetime.timedelta(seconds=grace)
    metadata["deletionTimestamp"] = format_time(ends)
    metadata["deletionGracePeriodSeconds"] = grace
    metadata["generation"] = metadata.get("generation", 0) + (before is None)
    return True


def has_grace(pod: Mapping[str, Any], grace_s: int | None) -> bool:
    """Return whether a grace period runs, and a deletion with `grace_s` does not end it at once."""
    return bool(pod["metadata"].get("deletionGracePeriodSeconds")) and grace_s != 0


def count_eviction(store: stores.ObjectStore, pod: dict[str, Any]) -> None:
    """Count the eviction of a Pod against its disruption budget.

    The budget's controller sets the number of allowed disruptions. An eviction decrements this
    number, and records the Pod, so that the controller no longer counts the Pod as healthy.

    Raises:
        StatusError: the budget does not allow the eviction now, or the Pod has several budgets.
    """
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata or pod["status"]["phase"] not in ("Running", "Unknown"):
        return
    entries = [
        candidate for candidate in store.collection(kinds.BUDGETS) if _covers(candidate.body(), pod)
    ]
    if len(entries) > 1:
        raise errors.StatusError(500, "", _TOO_MANY_BUDGETS)
    for entry in entries:
        budget = entry.body()
        ready = [
            candidate for candidate in pod["status"].get("conditions") or () if _is_ready(candidate)
        ]
        if ready or not _may_go_unready(budget):
            _decrement(budget, metadata["name"])
            store.put(kinds.BUDGETS, entry.key, budget)


def _covers(budget: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    selector, metadata = budget["spec"].get("selector"), pod["metadata"]
    return (
        budget["metadata"]["namespace"] == metadata["namespace"]
        and selector is not None
        and budget_selects(msgspec.convert(selector, LabelSelector), metadata.get("labels") or {})
    )


def _is_ready(condition: Mapping[str, Any]) -> bool:
    return (condition["type"], condition["status"]) == (names.CONDITION_READY, names.STATUS_TRUE)


def _may_go_unready(budget: Mapping[str, Any]) -> bool:
    """Return whether a Pod that is not ready can be evicted without counting against the budget."""
    status = budget["status"]
    is_healthy = 0 < status.get("desiredHealthy", 0) <= status.get("currentHealthy", 0)
    return bool(is_healthy or budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow")


def _decrement(budget: dict[str, Any], pod: str) -> None:
    name, status = budget["metadata"]["name"], budget["status"]
    if status.get("observedGeneration", 0) < budget["metadata"]["generation"]:
        why = f"The disruption budget {name} is still being processed by the server."
        raise _budget_refuses(why, retryAfterSeconds=NOT_SEEN_YET_S)
    if not status.get("disruptionsAllowed", 0):
        needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        why = f"The disruption budget {name} does not allow evicting pods currently"
        if has <= needs:
            why = f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
        raise _budget_refuses(why)
    status["disruptionsAllowed"] -= 1
    status.setdefault("disruptedPods", {})[pod] = schema.now()


def _budget_refuses(why: str, **more: Any) -> errors.StatusError:
    text = "Cannot evict pod as it would violate the pod's disruption budget."
    causes = [{"reason": BUDGET_CAUSE, "message": why}]
    return errors.StatusError(429, "TooManyRequests", text, {"causes": causes, **more})
