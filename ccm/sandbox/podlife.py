"""What becomes of Pods in a sandbox: with a node they run at once, and they end with their grace.

Nothing runs in them. That is the part of a kubelet, and of those parts of kube-controller-manager
that remove the Pods of nodes that are gone and count what disruption budgets allow. The
kubelet of a node that is not ready does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ccm.base import clock
from ccm.kube.client import Client
from ccm.kube.errors import NotFound
from ccm.kube.informer import Informer, Informers
from ccm.kube.resources import NODES, Kind
from ccm.model import Node, Pod, names
from ccm.model.meta import ObjectMeta, Wire
from ccm.model.pod import BudgetSpec, PodDisruptionBudget
from ccm.model.times import format_time, parse_time
from ccm.runtime.controller import DONE, IDLE, Controller, Result, Watch

SILENT_S = 1.0
"""How often it is looked whether a silent kubelet speaks again."""

CONFIRM_S = 120.0
"""How long an evicted Pod is counted as going although it does not (disruption controller)."""


class PodCondition(Wire, frozen=True, kw_only=True):
    """A condition of a Pod."""

    type: str = ""
    status: str = ""


class PodStatus(Wire, frozen=True, kw_only=True):
    """How far a Pod is."""

    phase: str = ""
    conditions: list[PodCondition] | None = None


class LiveMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata with the grace that a Pod was given."""

    deletion_grace_period_seconds: int = 0


class LivePod(Pod, frozen=True, kw_only=True):
    """A Pod with its status."""

    metadata: LiveMeta
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        """Whether it counts as healthy."""
        found = self.status.conditions or ()
        return any((one.type, one.status) == ("Ready", names.STATUS_TRUE) for one in found)


class CountedSpec(BudgetSpec, frozen=True, kw_only=True):
    """With what has to be there, or may be away: a number, or a percentage."""

    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class Budget(PodDisruptionBudget, frozen=True, kw_only=True):
    """A budget with its numbers."""

    spec: CountedSpec = CountedSpec()


PODS = Kind(plural="pods", kind="Pod", namespaced=True, type=LivePod)
BUDGETS = Kind(
    group="policy",
    plural="poddisruptionbudgets",
    kind="PodDisruptionBudget",
    namespaced=True,
    type=Budget,
)


class PodLife:
    """Lets Pods begin and end.

    Args:
        informers: caches; they must run.
        client: not rate-limited.
    """

    def __init__(self, informers: Informers, client: Client) -> None:
        self._nodes: Informer[Node] = informers.of(NODES)
        self._pods = informers.of(PODS)
        self._api = client.resource(PODS)
        self._ending: dict[str, float] = {}
        self._controller = Controller(
            "pods",
            queue="sandbox-pods",
            reconcile=self.sync,
            workers=16,
            watches=[
                Watch(informer=self._nodes, changed=lambda *_: False),
                Watch(informer=self._pods, changed=self._changed),
            ],
        )
        self.run = self._controller.run

    def _changed(self, old: LivePod | None, new: LivePod | None, _: bool) -> bool:
        if new is None and old is not None:
            self._ending.pop(old.uid, None)
        if new is not None and new.is_deleting:
            # From when it is seen, as kubelets do: the moment on the object has no fractions.
            self._ending.setdefault(new.uid, clock.monotonic())
        return new is not None

    async def sync(self, key: str) -> Result:
        """Bring one Pod on.

        Raises:
            KubeError: a request failed.
        """
        pod = self._pods.store.get(key)
        if pod is None or not pod.spec.node_name:
            return IDLE
        node = self._nodes.store.get(pod.spec.node_name)
        if node is not None and node.ready != names.STATUS_TRUE:
            return Result(after_s=SILENT_S, idle=True)
        if pod.metadata.deletion_timestamp is None:
            if node is not None and pod.status.phase == "Pending":
                await self._start(pod)
            return DONE
        left_s = (
            self._ending[pod.uid] + pod.metadata.deletion_grace_period_seconds - clock.monotonic()
        )
        if node is not None and left_s > 0:
            # Not as a result, which may come back later: the grace is told from outside.
            self._controller.queue.add_after(key, left_s)
            return DONE
        try:
            await self._api.delete(pod.name, namespace=pod.namespace, uid=pod.uid, grace_period_s=0)
        except NotFound:
            return DONE
        return DONE

    async def _start(self, pod: LivePod) -> None:
        ready = {
            "type": "Ready",
            "status": names.STATUS_TRUE,
            "lastTransitionTime": format_time(clock.now()),
        }
        await self._api.patch_strategic(
            pod.name,
            {"status": {"phase": "Running", "conditions": [ready]}},
            namespace=pod.namespace,
            subresource="status",
        )


class Disruption:
    """Counts what disruption budgets allow.

    Args:
        informers: caches; they must run.
        client: not rate-limited.
    """

    def __init__(self, informers: Informers, client: Client) -> None:
        self._pods = informers.of(PODS)
        self._budgets = informers.of(BUDGETS)
        self._api = client.resource(BUDGETS)
        self._controller = Controller(
            "disruption",
            queue="sandbox-disruption",
            reconcile=self.sync,
            watches=[
                Watch(informer=self._pods, changed=self._pod_changed),
                Watch(informer=self._budgets, changed=lambda _old, new, _initial: new is not None),
            ],
        )
        self.run = self._controller.run

    async def sync(self, key: str) -> Result:
        """Count one budget.

        Raises:
            KubeError: a request failed.
        """
        budget = self._budgets.store.get(key)
        if budget is None:
            return IDLE
        pods = [one for one in self._pods.store.list() if budget.is_over(one)]
        status = counted(budget, pods, clock.now().timestamp())
        patch = {"metadata": {"resourceVersion": budget.resource_version}, "status": status}
        # An API server takes a patch that changes nothing for no change.
        await self._api.patch_merge(
            budget.name, patch, namespace=budget.namespace, subresource="status"
        )
        return DONE

    def _pod_changed(self, old: LivePod | None, new: LivePod | None, _: bool) -> bool:
        for budget in self._budgets.store.list():
            if any(one is not None and budget.is_over(one) for one in (old, new)):
                self._controller.queue.add(budget.key)
        return False


def counted(budget: Budget, pods: Sequence[LivePod], now_s: float) -> dict[str, Any]:
    """The status of a budget over those Pods, as many as there are being expected."""
    expected, spec = len(pods), budget.spec
    desired = _number(spec.min_available, expected)
    if spec.max_unavailable is not None:
        desired = max(0, expected - _number(spec.max_unavailable, expected))
    there = {one.name: one for one in pods if not one.is_deleting}
    going = {
        name: moment
        for name, moment in (budget.status.disrupted_pods or {}).items()
        if name in there and now_s - parse_time(moment).timestamp() < CONFIRM_S
    }
    healthy = sum(one.is_ready and name not in going for name, one in there.items())
    gone: Mapping[str, None] = dict.fromkeys(
        name for name in budget.status.disrupted_pods or {} if name not in going
    )
    return {
        "observedGeneration": budget.metadata.generation,
        "expectedPods": expected,
        "desiredHealthy": desired,
        "currentHealthy": healthy,
        "disruptionsAllowed": max(0, healthy - desired) if expected else 0,
        "disruptedPods": {**going, **gone},
    }


def _number(stated: int | str | None, of: int) -> int:
    if isinstance(stated, str):
        return math.ceil(int(stated.rstrip("%")) * of / 100)
    return stated or 0
