"""How Pods end: with their grace, and by eviction as far as their disruption budget allows."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from ccm.base import clock
from ccm.model import names
from ccm.model.pod import selects
from ccm.model.selectors import LabelSelector
from ccm.model.times import format_time
from ccm.testing.apiserver import errors, kinds, schema
from ccm.testing.apiserver import store as stores

BUDGET_CAUSE = "DisruptionBudget"
NOT_SEEN_YET_S = 10
"""Delay after which a client repeats an eviction whose budget was not counted yet."""

_TOO_MANY_BUDGETS = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
    "support."
)


def begin_grace(pod: dict[str, Any], stated: int | None) -> bool:
    """Give a Pod its grace, or less than it was given before; False where nothing changes.

    A Pod without node, or that is over, gets none and goes at once.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if not spec.get("nodeName") or pod["status"].get("phase") in ("Failed", "Succeeded"):
        return False
    given = spec.get("terminationGracePeriodSeconds", 30) if stated is None else stated
    given = max(1, given) if given < 0 else int(given)
    before = metadata.get("deletionGracePeriodSeconds")
    if not given or (before is not None and given >= before):
        return False
    ends = clock.now() + datetime.timedelta(seconds=given)
    metadata["deletionTimestamp"] = format_time(ends)
    metadata["deletionGracePeriodSeconds"] = given
    metadata["generation"] = metadata.get("generation", 0) + (before is None)
    return True


def has_grace(pod: Mapping[str, Any], grace_s: int | None) -> bool:
    """Return whether a Pod has its grace, and a deletion with this one ends it no sooner."""
    return bool(pod["metadata"].get("deletionGracePeriodSeconds")) and grace_s != 0


def take_from_budget(store: stores.Store, pod: dict[str, Any]) -> None:
    """Take the eviction of a Pod from its disruption budget.

    The budget's controller counts what it allows, as in every cluster. An eviction takes one
    from it and notes the Pod, so that the next eviction does not count on that Pod.

    Raises:
        ApiError: the budget does not allow it now, or the Pod has several.
    """
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata or pod["status"]["phase"] not in ("Running", "Unknown"):
        return
    entries = [one for one in store.collection(kinds.BUDGETS) if _covers(one.body(), pod)]
    if len(entries) > 1:
        raise errors.ApiError(500, "", _TOO_MANY_BUDGETS)
    for entry in entries:
        budget = entry.body()
        ready = [one for one in pod["status"].get("conditions") or () if _is_ready(one)]
        if ready or not _may_go_unready(budget):
            _decrement(budget, metadata["name"])
            store.put(kinds.BUDGETS, entry.key, budget)


def _covers(budget: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    selector, metadata = budget["spec"].get("selector"), pod["metadata"]
    return (
        budget["metadata"]["namespace"] == metadata["namespace"]
        and selector is not None
        and selects(msgspec.convert(selector, LabelSelector), metadata.get("labels") or {})
    )


def _is_ready(condition: Mapping[str, Any]) -> bool:
    return (condition["type"], condition["status"]) == (names.CONDITION_READY, names.STATUS_TRUE)


def _may_go_unready(budget: Mapping[str, Any]) -> bool:
    """Return whether a Pod that is not ready may go without being counted."""
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


def _budget_refuses(why: str, **more: Any) -> errors.ApiError:
    text = "Cannot evict pod as it would violate the pod's disruption budget."
    causes = [{"reason": BUDGET_CAUSE, "message": why}]
    return errors.ApiError(429, "TooManyRequests", text, {"causes": causes, **more})
