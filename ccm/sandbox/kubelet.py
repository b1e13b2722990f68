"""Simulated kubelets that register nodes and report their status, and a simulated life of Pods.

The reconcile of a node is level-triggered. The kubelet of a running machine registers the node once
per boot. The Ready condition follows the state of the machine. The module also does three
tasks of kube-controller-manager. It sets Ready to Unknown for a silent kubelet (at once, not after
40 s), removes the not-ready taint of a ready node, and allocates a Pod range for each node if the
cloud has routes.

A new node looks like that of a kubelet with an external cloud provider: tainted as
uninitialized, with a Hostname address, and not ready. If the provider has no instances, the node
looks like that of a kubelet without cloud provider: with a provider ID, and without the taint.

Pods have no containers: they become Running as soon as they have a node, and are removed after
their grace period. The module also does the parts of kube-controller-manager that delete Pods of
deleted nodes and that compute the status of disruption budgets. Pods of a node that is not ready do
not change.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ccm.base import clock
from ccm.kube import errors
from ccm.kube.client import Client, Resource
from ccm.kube.informer import Informer, SharedInformers
from ccm.kube.resources import NODES, ResourceKind
from ccm.model import Node, Pod, names
from ccm.model.meta import ObjectMeta, Wire
from ccm.model.node import is_uninitialized
from ccm.model.pod import BudgetSpec, PodDisruptionBudget
from ccm.model.times import format_time, parse_time
from ccm.runtime.controller import DONE, IDLE, Controller, ReconcileResult, Watch

HEARTBEAT_S = 300.0
"""Seconds between status reports of an unchanged node (kubelet, nodeStatusReportFrequency)."""

VERSION = "v1.36.3"
"""Kubelet version in the status of nodes."""

WORKERS = 16
"""Number of nodes that are reconciled concurrently."""

_IDLE_S = 1.0

_READY = {
    names.STATUS_TRUE: ("KubeletReady", "the kubelet is ready"),
    names.STATUS_FALSE: ("KubeletNotReady", "the cloud has not initialised the node yet"),
    names.STATUS_UNKNOWN: ("NodeStatusUnknown", "the kubelet stopped posting node status"),
}
"""Status of the Ready condition -> its reason and message."""


POD_RANGE = "100.64.0.0/10"
"""CIDR of all Pods: large enough for every sandbox, and disjoint from the simulated cloud's
addresses.
"""

_PREFIX_BITS = 24
"""Prefix length of a node's Pod CIDR (kube-controller-manager, --node-cidr-mask-size)."""


class Kubelets:
    """The kubelets of all machines.

    Args:
        nodes: informer of nodes; the caller runs it.
        api: client of nodes, without a rate limit.
        ranges: source of Pod ranges; None = nodes get none.
        external: whether nodes wait for initialisation by a cloud; otherwise the ID of a machine
            is the provider ID of its node.
    """

    def __init__(
        self,
        nodes: Informer[Node],
        api: Resource[Node],
        *,
        ranges: PodRanges | None = None,
        external: bool = True,
    ) -> None:
        self._nodes = nodes
        self._api = api
        self._ranges = ranges
        self._external = external
        self._running: dict[str, str] = {}
        self._registered: set[str] = set()
        self._controller = Controller(
            "kubelets",
            queue="sandbox-kubelets",
            reconcile=self.sync,
            workers=WORKERS,
            watches=[Watch(informer=nodes, changed=self._changed)],
            tasks={"heartbeat": self._report},
        )
        self.run = self._controller.run

    def set_running_machines(self, machines: Mapping[str, str]) -> None:
        """Set the running machines: node name -> machine ID; a replaced machine has a new ID.

        The kubelets of new machines boot and register; the kubelets of missing machines go silent.
        """
        booted = {name for name, machine in machines.items() if self._running.get(name) != machine}
        silent = self._running.keys() - machines.keys()
        self._registered -= booted
        self._running = dict(machines)
        for name in sorted(booted | silent):
            self._controller.queue.add(name)

    async def sync(self, name: str) -> ReconcileResult:
        """Reconcile a node with the state of its machine.

        Raises:
            KubeError: a request failed.
        """
        node = self._nodes.store.get(name)
        if node is None:
            await self._register(name)
            return DONE
        if (ranges := self._ranges) is not None and node.spec.pod_cidrs:
            ranges.reserve(node.name, node.spec.pod_cidrs[0])
        elif ranges is not None:
            taken = ranges.allocate(node.name)
            spec = {"podCIDR": taken, "podCIDRs": [taken]}
            node = await self._api.patch_merge(node.name, {"spec": spec})
        wanted = names.STATUS_FALSE if is_uninitialized(node) else names.STATUS_TRUE
        if name not in self._running:
            wanted = names.STATUS_UNKNOWN
        if node.ready != wanted:
            node = await self._post(name, wanted, turned=True)
        kept = [taint for taint in node.taints if taint.key != names.TAINT_NOT_READY]
        if wanted == names.STATUS_TRUE and len(kept) < len(node.taints):
            # The patch replaces the whole list: with the resource version, it fails if another
            # client has changed the node.
            version = {"resourceVersion": node.resource_version}
            patch: Any = {"metadata": version, "spec": {"taints": kept or None}}
            await self._api.patch_merge(name, patch)
        return DONE

    def _changed(self, old: Node | None, new: Node | None, initial: bool) -> bool:  # noqa: ARG002 - shape of a watch
        if new is None and old is not None and self._ranges is not None:
            self._ranges.release(old.name)
        return new is not None

    async def _register(self, name: str) -> None:
        """Register a node once per boot, as kubelets do: a node deleted later stays deleted."""
        if name not in self._running or name in self._registered:
            return
        # A node of an earlier boot may exist; its state arrives through the informer.
        provider_id = "" if self._external else self._running[name]
        with contextlib.suppress(errors.AlreadyExists):
            await self._api.create(
                new_node(name, format_time(clock.now()), provider_id=provider_id)
            )
        self._registered.add(name)

    async def _report(self) -> None:
        """Send the heartbeats of all nodes one by one, spread evenly over `HEARTBEAT_S`."""

        def is_reporting(node: Node | None) -> bool:
            if node is None or node.ready != names.STATUS_TRUE:
                return False
            return node.name in self._running

        while True:
            reporting = [node.name for node in self._nodes.store.list() if is_reporting(node)]
            if not reporting:
                await asyncio.sleep(_IDLE_S)
            for name in reporting:
                await asyncio.sleep(HEARTBEAT_S / len(reporting))
                # The node or its machine may have changed during the sleep.
                if is_reporting(self._nodes.store.get(name)):
                    with contextlib.suppress(errors.KubeError):  # the next heartbeat repeats it
                        await self._post(name, names.STATUS_TRUE, turned=False)

    async def _post(self, name: str, status: str, *, turned: bool) -> Node:
        """Report the status of a node; set the transition time if the status changed (`turned`)."""
        condition = ready_condition(status, format_time(clock.now()))
        if not turned:
            del condition["lastTransitionTime"]
        patch = {"status": {"conditions": [condition]}}
        return await self._api.patch_strategic(name, patch, subresource="status")


def new_node(name: str, moment: str, *, provider_id: str = "") -> dict[str, Any]:
    """Return the node that a kubelet registers.

    Args:
        name: name of the node, also its host name.
        moment: current time, RFC 3339.
        provider_id: provider ID given to the kubelet; empty = the node waits for an external cloud
            provider.
    """
    taint = {"value": "true", "effect": names.EFFECT_NO_SCHEDULE}
    waits = {"key": names.TAINT_UNINITIALIZED, **taint}
    labels = {names.LABEL_HOSTNAME: name, names.LABEL_OS: "linux", names.LABEL_ARCH: "amd64"}
    resources = {"cpu": "2", "memory": "4026008Ki", "ephemeral-storage": "40Gi", "pods": "110"}
    healthy = {
        "MemoryPressure": ("KubeletHasSufficientMemory", "the kubelet has enough memory"),
        "DiskPressure": ("KubeletHasNoDiskPressure", "the kubelet has no disk pressure"),
        "PIDPressure": ("KubeletHasSufficientPID", "the kubelet has enough process IDs"),
    }
    conditions = [
        _condition(kind, names.STATUS_FALSE, *reason_and_message, moment)
        for kind, reason_and_message in healthy.items()
    ]
    conditions.append(ready_condition(names.STATUS_FALSE, moment))
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": provider_id} if provider_id else {"taints": [waits]},
        "status": {
            "addresses": [{"type": names.ADDRESS_HOSTNAME, "address": name}],
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                **dict.fromkeys(("machineID", "systemUUID", "bootID"), name),
                "kernelVersion": "6.12.0-sandbox",
                "osImage": "Sandbox Linux",
                "containerRuntimeVersion": "sandbox://1.0",
                "kubeletVersion": VERSION,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def ready_condition(status: str, moment: str) -> dict[str, str]:
    """Return the Ready condition of a node, as its kubelet reports it."""
    return _condition(names.CONDITION_READY, status, *_READY[status], moment)


def _condition(kind: str, status: str, reason: str, message: str, moment: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
    }


class PodRanges:
    """Allocator of one Pod range per node.

    It prefers the range that was released last, and then the lowest free range.

    Args:
        whole: the range to divide.
    """

    def __init__(self, whole: str = POD_RANGE) -> None:
        subnets = ipaddress.ip_network(whole).subnets(new_prefix=_PREFIX_BITS)
        self._free = [str(network) for network in subnets][::-1]
        self._held: dict[str, str] = {}

    def allocate(self, name: str) -> str:
        """Return the Pod range of a node; allocate one if the node has none.

        Raises:
            ValueError: no range is free.
        """
        if name not in self._held:
            if not self._free:
                raise ValueError("no free Pod CIDR")
            self._held[name] = self._free.pop()
        return self._held[name]

    def reserve(self, name: str, own: str) -> None:
        """Record the Pod range that a node already has."""
        if name not in self._held:
            self._held[name] = own
            with contextlib.suppress(ValueError):
                self._free.remove(own)

    def release(self, name: str) -> None:
        """Free the range of a deleted node."""
        if name in self._held:
            self._free.append(self._held.pop(name))


# --- Pods -----------------------------------------------------------------------------------------

SILENT_S = 1.0
"""Requeue delay of a Pod whose node is not ready, in seconds."""

CONFIRM_S = 120.0
"""Seconds for which an evicted Pod that is not deleted counts as disrupted (disruption controller).
"""


class PodCondition(Wire, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""


class PodStatus(Wire, frozen=True, kw_only=True):
    phase: str = ""
    conditions: list[PodCondition] | None = None


class LiveMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata with the grace period of a deletion."""

    deletion_grace_period_seconds: int = 0


class LivePod(Pod, frozen=True, kw_only=True):
    """A Pod with its status."""

    metadata: LiveMeta
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        """Whether the Pod counts as healthy."""
        conditions = self.status.conditions or ()
        return any(
            (condition.type, condition.status) == ("Ready", names.STATUS_TRUE)
            for condition in conditions
        )


class CountedSpec(BudgetSpec, frozen=True, kw_only=True):
    """Spec of a budget with its limit: a number or a percentage."""

    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class Budget(PodDisruptionBudget, frozen=True, kw_only=True):
    """A disruption budget with its limit."""

    spec: CountedSpec = CountedSpec()


PODS = ResourceKind(plural="pods", kind="Pod", namespaced=True, type=LivePod)
BUDGETS = ResourceKind(
    group="policy",
    plural="poddisruptionbudgets",
    kind="PodDisruptionBudget",
    namespaced=True,
    type=Budget,
)


class PodLifecycle:
    """Starts and ends Pods.

    Args:
        informers: informers; the caller runs them.
        client: client without a rate limit.
    """

    def __init__(self, informers: SharedInformers, client: Client) -> None:
        self._nodes: Informer[Node] = informers.informer_for(NODES)
        self._pods = informers.informer_for(PODS)
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
            # The grace period starts when the deletion is observed, as in kubelets: the
            # timestamp of the object has whole seconds only.
            self._ending.setdefault(new.uid, clock.monotonic())
        return new is not None

    async def sync(self, key: str) -> ReconcileResult:
        """Set a pending Pod with a node to Running, or remove a deleted Pod after its grace period.

        Raises:
            KubeError: a request failed.
        """
        pod = self._pods.store.get(key)
        if pod is None or not pod.spec.node_name:
            return IDLE
        node = self._nodes.store.get(pod.spec.node_name)
        if node is not None and node.ready != names.STATUS_TRUE:
            return ReconcileResult(after_s=SILENT_S, idle=True)
        if pod.metadata.deletion_timestamp is None:
            if node is not None and pod.status.phase == "Pending":
                since = {"lastTransitionTime": format_time(clock.now())}
                ready = {"type": "Ready", "status": names.STATUS_TRUE, **since}
                patch = {"status": {"phase": "Running", "conditions": [ready]}}
                where = {"namespace": pod.namespace, "subresource": "status"}
                await self._api.patch_strategic(pod.name, patch, **where)
            return DONE
        ends = self._ending[pod.uid] + pod.metadata.deletion_grace_period_seconds
        left_s = ends - clock.monotonic()
        if node is not None and left_s > 0:
            # Not as a `ReconcileResult`, which adds jitter: the grace period must be exact.
            self._controller.queue.add_after(key, left_s)
            return DONE
        with contextlib.suppress(errors.NotFound):
            await self._api.delete(pod.name, namespace=pod.namespace, uid=pod.uid, grace_period_s=0)
        return DONE


class DisruptionController:
    """Computes the status of disruption budgets.

    Args:
        informers: informers; the caller runs them.
        client: client without a rate limit.
    """

    def __init__(self, informers: SharedInformers, client: Client) -> None:
        self._pods = informers.informer_for(PODS)
        self._budgets = informers.informer_for(BUDGETS)
        self._api = client.resource(BUDGETS)
        budgets = Watch(informer=self._budgets, changed=lambda _old, new, _initial: new is not None)
        self._controller = Controller(
            "disruption",
            queue="sandbox-disruption",
            reconcile=self.sync,
            watches=[Watch(informer=self._pods, changed=self._pod_changed), budgets],
        )
        self.run = self._controller.run

    async def sync(self, key: str) -> ReconcileResult:
        """Compute the status of a budget.

        Raises:
            KubeError: a request failed.
        """
        budget = self._budgets.store.get(key)
        if budget is None:
            return IDLE
        pods = [pod for pod in self._pods.store.list() if budget.covers(pod)]
        status = budget_status(budget, pods, clock.now().timestamp())
        patch = {"metadata": {"resourceVersion": budget.resource_version}, "status": status}
        # The API server ignores a patch that changes nothing.
        await self._api.patch_merge(
            budget.name, patch, namespace=budget.namespace, subresource="status"
        )
        return DONE

    def _pod_changed(self, old: LivePod | None, new: LivePod | None, _: bool) -> bool:
        for budget in self._budgets.store.list():
            if any(pod is not None and budget.covers(pod) for pod in (old, new)):
                self._controller.queue.add(budget.key)
        return False


def budget_status(budget: Budget, pods: Sequence[LivePod], now_s: float) -> dict[str, Any]:
    """Return the status of a budget that covers these Pods; `now_s` is the Unix time."""
    expected, spec = len(pods), budget.spec
    is_least = spec.max_unavailable is None
    stated = (spec.min_available if is_least else spec.max_unavailable) or 0
    if isinstance(stated, str):
        stated = math.ceil(int(stated.rstrip("%")) * expected / 100)
    desired = stated if is_least else max(0, expected - stated)
    active = {pod.name: pod for pod in pods if not pod.is_deleting}
    disrupted = budget.status.disrupted_pods or {}
    going = {
        name: moment
        for name, moment in disrupted.items()
        if name in active and now_s - parse_time(moment).timestamp() < CONFIRM_S
    }
    healthy = sum(pod.is_ready and name not in going for name, pod in active.items())
    gone: Mapping[str, None] = dict.fromkeys(disrupted.keys() - going)
    return {
        "observedGeneration": budget.metadata.generation,
        "expectedPods": expected,
        "desiredHealthy": desired,
        "currentHealthy": healthy,
        "disruptionsAllowed": max(0, healthy - desired) if expected else 0,
        "disruptedPods": {**going, **gone},
    }
