"""Which Pods leave a node and in which order, how long they are given, and what is said. Pure.

Pods without claims leave at once, all of them. Those with claims leave one after the other, the
most important first, each once the volumes of the one before are where they are wanted next: so
no two wait for the same slot of another node. When a time is up force is used for what is left.
Numbers and settings are the reference's unless it is said why not.
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
from ccm.model.patches import Patch, same_object
from ccm.model.times import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTask:
    """What is to be drained.

    Attributes:
        machine: whose node it is; its UID names the drain.
        node_name: of the node; never empty.
        force: no regard for budgets, grace or volumes, from the beginning.
        deadline: from when on what is left is drained by force; None = never.
        max_evict_retries: how often a refused eviction is repeated before its Pod goes by force;
            None = as the settings say.
        terminating: whether the node ends with it, which is said on the node.
        cordon: whether the node is cordoned; False: somebody else keeps Pods from it.
        left_s: how long it was to the deadline when the task was made, whatever clocks say later;
            None = as they say now.
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
    settings: machines.Settings,
    force: bool,
    terminating: bool = False,
    cordon: bool = True,
) -> DrainTask:
    """Return the task to drain a node: by force once its time is up, or if a user wants.

    Args:
        machine: the machine.
        node: its node.
        since: time from which the drain timeout counts.
        now: the time, by the clock of `since`.
        settings: names and settings.
        force: whether a user wants force.
        terminating: see `DrainTask`.
        cordon: see `DrainTask`.
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
    """How far a drain is."""

    RUNNING = "running"
    DONE = "done"
    """Nothing is left on the node that a drain removes."""
    FAILED = "failed"
    """It gave up; to `start` it again begins anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """How far a drain is.

    Attributes:
        state: whether it goes on.
        said: one line for people; of a drain that failed, what follows the words `Drain failed
            due to ` (`- <error>`, or `failure in update of node conditions - <error>`).
        forced: whether it used force, be it that its deadline had passed. Volumes may still be
            attached to the node then.
    """

    state: DrainState
    said: str
    forced: bool = False


EVICT_RETRY_S = 20.0
"""Time between two evictions of a Pod that was refused, unless its budget frees it before."""

TRIES = 3
"""Evictions that fit into the shortest drain timeout. The reference has none below 20 s."""

END_BUFFER_S = 30.0
"""What a Pod is given beyond its grace."""

SICK_S = 300.0
"""A node that has been sick for so long ends nothing any more: force is used."""

SICK = {CONDITION_READY: STATUS_TRUE, "ReadonlyFilesystem": STATUS_FALSE}
"""Conditions by which that is told, and what a healthy node says."""

_DAEMON = "DaemonSet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What flags say of every drain.

    Attributes:
        max_evict_retries: how often a refused eviction is repeated.
        detach_timeout_s: how long is waited for volumes to leave, beyond the Pod's grace.
        reattach_timeout_s: how long is waited for them to be attached elsewhere.
    """

    max_evict_retries: int = 360
    detach_timeout_s: float = 120.0
    reattach_timeout_s: float = 90.0

    def patience_s(self, own_retries: int | None) -> float:
        """How long a Pod's refusals are accepted, before it goes by force."""
        retries = self.max_evict_retries if own_retries is None else own_retries
        return retries * EVICT_RETRY_S


def removable(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """The Pods of a node that a drain removes; the others stay until the node goes."""
    return tuple(one for one in pods if not one.is_mirror and one.controller != _DAEMON)


def order(pods: Iterable[Pod]) -> tuple[Sequence[Pod], Sequence[Pod]]:
    """Return the Pods that leave at once, and those that leave one after the other beside them."""
    leaving = removable(pods)
    serial = (one for one in leaving if one.claims)
    parallel = [one for one in leaving if not one.claims]
    return parallel, sorted(serial, key=lambda one: (-one.priority, one.key))


def exclusive_claims(pods: Iterable[Pod]) -> Mapping[str, tuple[str, ...]]:
    """Pod -> its claims that no other of these Pods uses: only those are waited for."""
    leaving = removable(pods)
    users = Counter((one.namespace, claim) for one in leaving for claim in set(one.claims))
    return {
        one.uid: tuple(claim for claim in one.claims if users[one.namespace, claim] == 1)
        for one in leaving
    }


def retry_s(left_s: float | None) -> float:
    """Time between two evictions of a refused Pod in a drain that has so much time, None = any."""
    return EVICT_RETRY_S if left_s is None else min(EVICT_RETRY_S, max(1.0, left_s / TRIES))


def end_limit_s(pod: Pod, left_s: float | None) -> float:
    """How long a Pod may take to end after its eviction."""
    grace_s = float(pod.grace_s)
    return (grace_s if left_s is None else min(grace_s, max(0.0, left_s))) + END_BUFFER_S


def sick_since(node: Node | None) -> datetime | None:
    """Since when a node is sick; None: it is not."""
    conditions = (node.status.conditions or ()) if node is not None else ()
    sick = (
        moment(one.last_transition_time)
        for one in conditions
        if SICK.get(one.type, one.status) != one.status
    )
    return min((since for since in sick if since is not None), default=None)


def over(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> tuple[PodDisruptionBudget, ...]:
    """The budgets that count for a Pod."""
    return tuple(one for one in budgets if one.is_over(pod))


def fault(pod: Pod, budgets: Collection[PodDisruptionBudget]) -> str:
    """Why a Pod that was refused will be refused for ever; empty: it may be evicted some time."""
    who = f"Pod {pod.key} cannot be evicted"
    if len(budgets) > 1:
        listed = ", ".join(sorted(one.key for one in budgets))
        return (
            f"{who}: it has {len(budgets)} PodDisruptionBudgets ({listed}), and evictions support "
            "one; remove the others, or change their selectors"
        )
    for one in budgets:
        if one.is_misconfigured:
            return (
                f"{who}: its PodDisruptionBudget {one.key} is misconfigured: it allows no "
                f"disruption though all {one.status.expected_pods} Pods are healthy; change its "
                "minAvailable or maxUnavailable, or add Pods"
            )
    return ""


# --- volumes ------------------------------------------------------------------------------


def still_attached(ids: Iterable[str], attached: Collection[str]) -> list[str]:
    """Those volumes that a node still reports, by names that hold their IDs."""
    return [each for each in ids if any(each in name for name in attached)]


def not_elsewhere(
    volumes: Iterable[str], attachments: Iterable[VolumeAttachment], node_name: str
) -> list[str]:
    """Those PersistentVolumes that are attached to no other node."""
    elsewhere = {
        one.spec.source.persistent_volume_name
        for one in attachments
        if one.status.attached and one.spec.node_name != node_name
    }
    return [each for each in volumes if each not in elsewhere]


# --- the node -----------------------------------------------------------------------------


def cordon_patch(node: Node) -> Patch | None:
    """Nothing new is scheduled onto it; None where that is so."""
    if node.spec.unschedulable:
        return None
    return {"metadata": same_object(node), "spec": {"unschedulable": True}}


def condition_patch(node: Node, now: datetime) -> Patch | None:
    """Return the condition that says that a node goes; None where it stands."""
    if node.condition_status(CONDITION_TERMINATING) == STATUS_TRUE:
        return None
    reason = "ScaleDown" if node.ready == STATUS_TRUE else "Unhealthy"
    message = "the node is drained, because its machine is being deleted"
    return node_condition_patch(node, CONDITION_TERMINATING, (STATUS_TRUE, reason, message), now)


# --- what is said ---------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Tally:
    """How far a drain is.

    Attributes:
        total: Pods that it removes.
        evicted: those whose eviction was accepted, or that were deleted.
        ended: those that are gone.
        blocked: Pod -> why it may not be evicted yet.
        volumes: Pod -> what is waited for about its volumes.
        overdue: Pods that should have ended.
        forced: whether force is used.
    """

    total: int = 0
    evicted: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    blocked: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)
    overdue: set[str] = field(default_factory=set)
    forced: bool = False

    def said(self) -> str:
        """One line about all of it; of many Pods in one state the first is named."""
        if not self.total:
            return "no Pods to evict"
        verb = "deleted by force" if self.forced else "evicted"
        parts = [f"{verb} {len(self.evicted)} of {_pods(self.total)}"]
        if left := len(self.evicted - self.ended):
            parts.append(f"{left} not ended yet")
        for found in (self.blocked, self.volumes):
            if found:
                pod, why = min(found.items())
                others = f" and {_pods(len(found) - 1)} more" if len(found) > 1 else ""
                parts.append(f"Pod {pod}{others} {why}")
        return ", ".join(parts)


def _pods(count: int) -> str:
    return f"{count} Pod" if count == 1 else f"{count} Pods"
