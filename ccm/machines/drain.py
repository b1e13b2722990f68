"""Drain of a node: Pods to evict, their order and time limits, and the status texts. No I/O.

All Pods without PersistentVolumeClaims are evicted at once. Meanwhile, Pods with claims are evicted
one by one, the highest priority first. Each eviction waits until the volumes of the previous Pod
are attached to another node, so that no two Pods compete for the same attachment slot. After the
deadline the remaining Pods are deleted by force. Unless stated otherwise, numbers and settings are
those of Gardener's machine-controller-manager (MCM).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from ccm.machines import settings as machines
from ccm.model import Node, Pod, PodDisruptionBudget, VolumeAttachment
from ccm.model.machines import Machine
from ccm.model.names import CONDITION_READY, CONDITION_TERMINATING, STATUS_FALSE, STATUS_TRUE
from ccm.model.node import node_condition_patch
from ccm.model.patches import Patch, uid_precondition
from ccm.model.times import parse_optional_time


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTask:
    """Task to drain a node.

    Attributes:
        machine: machine of the node; its UID identifies the drain.
        node_name: name of the node; never empty.
        force: whether disruption budgets, grace periods and volumes are ignored from the beginning.
        deadline: time after which the remaining Pods are deleted by force; None = never.
        max_evict_retries: number of retries of a refused eviction before its Pod is deleted by
            force; None = `DrainSettings.max_evict_retries`.
        terminating: whether the node is deleted afterwards; then the drain sets the condition
            `Terminating` on it.
        cordon: whether to cordon the node; False = a taint keeps new Pods off already.
        left_s: seconds from the creation of the task to the deadline, so that jumps of clocks do
            not move the deadline; None = computed from `deadline` at the start of the drain.
    """

    machine: Machine
    node_name: str
    force: bool
    deadline: datetime | None
    max_evict_retries: int | None = None
    terminating: bool = True
    cordon: bool = True
    left_s: float | None = None


def drain_task(
    machine: Machine,
    node: Node,
    *,
    since: datetime,
    now: datetime,
    settings: machines.MachineSettings,
    force: bool,
    terminating: bool = False,
    cordon: bool = True,
) -> DrainTask:
    """Return the task to drain a node; it uses force if requested, or if the deadline has passed.

    Args:
        machine: the machine.
        node: its node.
        since: time from which the drain timeout counts.
        now: the time, by the clock of `since`.
        settings: names and settings.
        force: whether a user requests force.
        terminating: as in `DrainTask`.
        cordon: as in `DrainTask`.
    """
    deadline = since + timedelta(seconds=settings.of(machine).drain_timeout_s)
    return DrainTask(
        machine=machine,
        node_name=node.name,
        force=force or now > deadline,
        deadline=deadline,
        max_evict_retries=machine.max_evict_retries,
        terminating=terminating,
        cordon=cordon,
        left_s=(deadline - now).total_seconds(),
    )


class DrainState(Enum):
    """State of a drain."""

    RUNNING = "running"
    DONE = "done"
    """No Pod that the drain has to remove is left on the node."""
    FAILED = "failed"
    """The drain was aborted; the next request starts a new drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """Progress of a drain.

    Attributes:
        state: state of the drain.
        message: one line for users; after a failure the text that follows `Drain failed due to `
            (`- <error>`, or `failure in update of node conditions - <error>`).
        forced: whether force was used, by request or after the deadline; then volumes may still be
            attached to the node.
    """

    state: DrainState
    message: str
    forced: bool = False


EVICT_RETRY_S = 20.0
"""Seconds between two attempts to evict a Pod, unless its budget allows the eviction earlier
(Gardener's MCM)."""

MIN_EVICTIONS = 3
"""Minimum number of eviction attempts for a Pod before a short drain timeout ends. With a timeout
below 20 s, Gardener's MCM makes no attempt."""

END_BUFFER_S = 30.0
"""Seconds that a Pod may take to terminate beyond its grace period (Gardener's MCM)."""

UNHEALTHY_FORCE_S = 300.0
"""Seconds after which Pods on an unhealthy node are deleted by force, because its kubelet no longer
terminates them (Gardener's MCM)."""

UNHEALTHY_CONDITIONS = {CONDITION_READY: STATUS_TRUE, "ReadonlyFilesystem": STATUS_FALSE}
"""Condition types that show whether a node is unhealthy -> status of a healthy node."""

_DAEMON = "DaemonSet"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSettings:
    """Settings of all drains, from flags.

    Attributes:
        max_evict_retries: number of retries of a refused eviction.
        detach_timeout_s: maximum wait for the detachment of volumes, beyond the Pod's grace period.
        reattach_timeout_s: maximum wait for the attachment of volumes to another node.
    """

    max_evict_retries: int = 360
    detach_timeout_s: float = 120.0
    reattach_timeout_s: float = 90.0

    def max_refusal_s(self, own_retries: int | None) -> float:
        """Return the seconds for which evictions of a Pod may be refused before force is used.

        `own_retries` is the number of retries that the machine sets; None = use the settings.
        """
        retries = self.max_evict_retries if own_retries is None else own_retries
        return retries * EVICT_RETRY_S


def removable(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the Pods that a drain removes: all except mirror Pods and Pods of DaemonSets."""
    return tuple(pod for pod in pods if not pod.is_mirror and pod.controller != _DAEMON)


def split_pods(pods: Iterable[Pod]) -> tuple[Sequence[Pod], Sequence[Pod]]:
    """Return the Pods to evict at once, and, in their order, the Pods to evict one by one."""
    leaving = removable(pods)
    serial = (pod for pod in leaving if pod.claims)
    parallel = [pod for pod in leaving if not pod.claims]
    return parallel, sorted(serial, key=lambda pod: (-pod.priority, pod.key))


def exclusive_claims(pods: Iterable[Pod]) -> Mapping[str, tuple[str, ...]]:
    """Map the UID of each Pod to its claims that none of the other Pods uses.

    A drain waits only for the volumes of these claims. The volume of a shared claim stays attached
    while another Pod on the node uses it.
    """
    leaving = removable(pods)
    users = Counter((pod.namespace, claim) for pod in leaving for claim in set(pod.claims))
    return {
        pod.uid: tuple(claim for claim in pod.claims if users[pod.namespace, claim] == 1)
        for pod in leaving
    }


def retry_s(left_s: float | None) -> float:
    """Return the seconds between two attempts to evict a Pod whose eviction is refused.

    Args:
        left_s: seconds until the deadline; None = no deadline.
    """
    return EVICT_RETRY_S if left_s is None else min(EVICT_RETRY_S, max(1.0, left_s / MIN_EVICTIONS))


def end_limit_s(pod: Pod, left_s: float | None) -> float:
    """Return the seconds that a Pod may take to terminate after its eviction.

    Args:
        pod: the Pod.
        left_s: seconds until the deadline of the drain; None = no deadline.
    """
    grace_s = float(pod.grace_s)
    return (grace_s if left_s is None else min(grace_s, max(0.0, left_s))) + END_BUFFER_S


def unhealthy_since(node: Node | None) -> datetime | None:
    """Return the time since which a node has been unhealthy; None = it is healthy."""
    conditions = (node.status.conditions or ()) if node is not None else ()
    transitions = (
        parse_optional_time(condition.last_transition_time)
        for condition in conditions
        if UNHEALTHY_CONDITIONS.get(condition.type, condition.status) != condition.status
    )
    return min((since for since in transitions if since is not None), default=None)


def budgets_of(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> tuple[PodDisruptionBudget, ...]:
    """Return the PodDisruptionBudgets that select a Pod."""
    return tuple(budget for budget in budgets if budget.covers(pod))


def eviction_fault(pod: Pod, budgets: Collection[PodDisruptionBudget]) -> str:
    """Return why a refused eviction of a Pod can never succeed; empty = a retry may succeed."""
    text = f"Pod {pod.key} cannot be evicted"
    if len(budgets) > 1:
        listed = ", ".join(sorted(budget.key for budget in budgets))
        return (
            f"{text}: it has {len(budgets)} PodDisruptionBudgets ({listed}), and evictions support "
            "one; remove the others, or change their selectors"
        )
    for budget in budgets:
        if budget.is_misconfigured:
            return (
                f"{text}: its PodDisruptionBudget {budget.key} is misconfigured: it allows no "
                f"disruption though all {budget.status.expected_pods} Pods are healthy; change its "
                "minAvailable or maxUnavailable, or add Pods"
            )
    return ""


# --- volumes ------------------------------------------------------------------------------


def still_attached(ids: Iterable[str], attached: Collection[str]) -> list[str]:
    """Return the volume IDs that a node still reports as attached.

    Args:
        ids: IDs of volumes.
        attached: names of attached volumes in the node's status, which contain the IDs.
    """
    return [volume_id for volume_id in ids if any(volume_id in name for name in attached)]


def not_reattached(
    volumes: Iterable[str], attachments: Iterable[VolumeAttachment], node_name: str
) -> list[str]:
    """Return the PersistentVolumes that are attached to no node other than `node_name`."""
    elsewhere = {
        attachment.spec.source.persistent_volume_name
        for attachment in attachments
        if attachment.status.attached and attachment.spec.node_name != node_name
    }
    return [volume for volume in volumes if volume not in elsewhere]


# --- the node -----------------------------------------------------------------------------


def cordon_patch(node: Node) -> Patch | None:
    """Return the patch that cordons a node; None = it is cordoned."""
    if node.spec.unschedulable:
        return None
    return {"metadata": uid_precondition(node), "spec": {"unschedulable": True}}


def condition_patch(node: Node, now: datetime) -> Patch | None:
    """Return the patch that sets the condition `Terminating` of a node; None = it is set."""
    if node.condition_status(CONDITION_TERMINATING) == STATUS_TRUE:
        return None
    reason = "ScaleDown" if node.ready == STATUS_TRUE else "Unhealthy"
    message = "the node is drained, because its machine is being deleted"
    return node_condition_patch(node, CONDITION_TERMINATING, (STATUS_TRUE, reason, message), now)


# --- progress -------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class DrainCounters:
    """Counters of a drain.

    Attributes:
        total: number of Pods to remove.
        evicted: keys of Pods that were evicted or deleted.
        ended: keys of Pods that no longer exist.
        blocked: key of a Pod -> why its last eviction failed.
        volumes: key of a Pod -> what the drain waits for, such as the detachment of its volumes.
        overdue: keys of Pods that did not terminate within their time limit.
        forced: whether force is used.
        listed: whether the Pods of the node are known.
    """

    total: int = 0
    evicted: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    blocked: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)
    overdue: set[str] = field(default_factory=set)
    forced: bool = False
    listed: bool = False

    def summary(self) -> str:
        """Return one line about the drain; of several waiting Pods, it contains only the first."""
        if not self.total:
            return "no Pods to evict" if self.listed else "the Pods of the node are not listed yet"
        verb = "deleted by force" if self.forced else "evicted"
        parts = [f"{verb} {len(self.evicted)} of {_pods(self.total)}"]
        if left := len(self.evicted - self.ended):
            parts.append(f"{left} not ended yet")
        for reasons in (self.blocked, self.volumes):
            if reasons:
                pod, why = min(reasons.items())
                others = f" and {_pods(len(reasons) - 1)} more" if len(reasons) > 1 else ""
                parts.append(f"Pod {pod}{others} {why}")
        return ", ".join(parts)


def _pods(count: int) -> str:
    return f"{count} Pod" if count == 1 else f"{count} Pods"
