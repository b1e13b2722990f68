"""How a Pod ends: with its grace, and by eviction as far as its disruption budget allows.

What a budget allows is counted by its controller, as everywhere; an eviction takes one from it,
and notes the Pod, so that the next one does not count on what is going.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ccm.base import clock
from ccm.model import names
from ccm.model.budget import selects
from ccm.model.selectors import LabelSelector
from ccm.model.times import format_time
from ccm.sandbox.apiserver import errors, kinds
from ccm.sandbox.apiserver import store as stores

CAUSE = "DisruptionBudget"
NOT_SEEN_YET_S = 10
"""When an eviction is tried again whose budget nobody has counted yet."""

_REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."
_TOO_MANY = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
    "support."
)
_OVER = ("Failed", "Succeeded")

Body = Mapping[str, Any]


def begin_end(pod: dict[str, Any], grace_s: int | None) -> bool:
    """Give a Pod its grace, or less than it was given before; False where nothing changes.

    One that no kubelet has, or that is over, gets none and goes at once.
    """
    metadata, given = pod["metadata"], _grace_s(pod, grace_s)
    before = metadata.get("deletionGracePeriodSeconds")
    if not given or (before is not None and given >= before):
        return False
    now = clock.now()
    metadata["deletionTimestamp"] = format_time(
        type(now).fromtimestamp(now.timestamp() + given, now.tzinfo)
    )
    metadata["deletionGracePeriodSeconds"] = given
    metadata["generation"] = metadata.get("generation", 0) + (before is None)
    return True


def is_ending(pod: Body, grace_s: int | None) -> bool:
    """Whether a Pod has its grace, and a deletion with this one ends it no sooner."""
    return bool(pod["metadata"].get("deletionGracePeriodSeconds")) and grace_s != 0


def take(store: stores.Store, pod: Body) -> None:
    """Take the eviction of a Pod from its budget.

    Raises:
        ApiError: the budget does not allow it now, or the Pod has several.
    """
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata or pod["status"].get("phase") in (*_OVER, "Pending"):
        return
    budgets = [one for one in store.collection(kinds.BUDGETS) if _is_over(one.body(), metadata)]
    if len(budgets) > 1:
        raise errors.ApiError(500, "", _TOO_MANY)
    for entry in budgets:
        budget = entry.body()
        if _is_ready(pod) or not _may_go_unready(budget):
            _decrement(budget, metadata["name"])
            store.put(kinds.BUDGETS, entry.key, budget)


def _grace_s(pod: Body, stated: int | None) -> int:
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in _OVER:
        return 0
    given = pod["spec"].get("terminationGracePeriodSeconds", 30) if stated is None else stated
    return max(1, given) if given < 0 else int(given)


def _is_over(budget: Body, pod: Body) -> bool:
    selector = budget["spec"].get("selector")
    return (
        budget["metadata"]["namespace"] == pod["namespace"]
        and selector is not None
        and selects(msgspec.convert(selector, LabelSelector), pod.get("labels") or {})
    )


def _is_ready(pod: Body) -> bool:
    return any(
        (one["type"], one["status"]) == (names.CONDITION_READY, names.STATUS_TRUE)
        for one in pod["status"].get("conditions") or ()
    )


def _may_go_unready(budget: Body) -> bool:
    """Whether a Pod that is not ready may go without being counted."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget["status"]
    return bool(0 < status.get("desiredHealthy", 0) <= status.get("currentHealthy", 0))


def _decrement(budget: dict[str, Any], pod: str) -> None:
    name, status = budget["metadata"]["name"], budget["status"]
    if status.get("observedGeneration", 0) < budget["metadata"]["generation"]:
        why = f"The disruption budget {name} is still being processed by the server."
        raise _refused(why, retryAfterSeconds=NOT_SEEN_YET_S)
    if not status.get("disruptionsAllowed", 0):
        needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        why = f"The disruption budget {name} does not allow evicting pods currently"
        if has <= needs:
            why = f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
        raise _refused(why)
    status["disruptionsAllowed"] -= 1
    status.setdefault("disruptedPods", {})[pod] = format_time(clock.now())


def _refused(why: str, **more: Any) -> errors.ApiError:
    causes = [{"reason": CAUSE, "message": why}]
    return errors.ApiError(429, "TooManyRequests", _REFUSED, {"causes": causes, **more})
