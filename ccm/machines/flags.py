"""Flags of the machine controllers."""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from ccm.base.flags import (
    FlagSection,
    FlagViolation,
    at_least_one,
    not_negative,
    positive,
    zero_or_more,
)
from ccm.machines.reasons import UNHEALTHY_CONDITIONS

SECTION = FlagSection("machine-controller")
OURS = FlagSection("machines", ours=True)

CONTROL, TARGET = "control", "target"
"""Roles of a cluster: it has the machine objects, or machines join it."""

NO_TARGET = "none"
IN_CLUSTER = "inClusterConfig"
"""Special values of the kubeconfig flags (reference)."""

ACCOUNT = "machine-controller"
"""Service account and user-agent suffix of all machine controllers."""


def check_control_kubeconfig(kubeconfig: str) -> str:
    """Check the kubeconfig flag of the control cluster."""
    return "must name a cluster: Machines have to be somewhere" if kubeconfig == NO_TARGET else ""


_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def _marker(value: str) -> str:
    if _LABEL_VALUE.fullmatch(value):
        return ""
    return "must be fit for a label: up to 63 letters and digits, with -, _ and . between them"


@dataclass(frozen=True, kw_only=True)
class SharedFlags:
    """Flags that all machine controllers read."""

    namespace: str = SECTION.flag(
        "default",
        "Namespace of Machines, MachineClasses and the Secrets they refer to. Others are not "
        "looked at.",
        check=lambda value: "" if value else "needs a namespace",
    )
    control_kubeconfig: str = SECTION.flag(
        "",
        "kubeconfig of the cluster that has Machines, MachineClasses and their Secrets; "
        f"{IN_CLUSTER} means the one whose Pod this is. Empty means that of --target-kubeconfig.",
        check=check_control_kubeconfig,
    )
    target_kubeconfig: str = SECTION.flag(
        "",
        "kubeconfig of the cluster that machines join, with their Nodes and bootstrap tokens; "
        f"{NO_TARGET} means that there is none: VMs are made, and nothing is asked of any Node. "
        "Empty means that of --kubeconfig.",
    )
    machine_creation_timeout: timedelta = SECTION.flag(
        timedelta(minutes=20),
        "Time from the creation of a Machine to its node being in use, after which it has failed. "
        "A Machine may have its own.",
        check=positive,
    )
    machine_health_timeout: timedelta = SECTION.flag(
        timedelta(minutes=10),
        "Time that the node of a Machine may be sick or gone, after which the Machine has failed. "
        "A Machine may have its own.",
        check=positive,
    )
    machine_inplace_update_timeout: timedelta = SECTION.flag(
        timedelta(minutes=20),
        "Time that the update in place of a Machine may take once its node is empty, after which "
        "it has failed. A Machine may have its own.",
        check=positive,
    )
    machine_preserve_timeout: timedelta = SECTION.flag(
        timedelta(hours=96),
        "Time that a Machine is kept which somebody wants to be preserved. A Machine may have its "
        "own.",
        check=positive,
    )
    resource_exhausted_retry: timedelta = SECTION.flag(
        timedelta(minutes=10),
        "When the creation of a VM is tried again that was out of quota or capacity. 0 means 10m.",
        check=not_negative,
    )
    machine_drain_timeout: timedelta = SECTION.flag(
        timedelta(hours=2),
        "Time from the deletion of a Machine, after which its node is drained by force: without "
        "regard for disruption budgets, grace and volumes. A Machine may have its own.",
        check=not_negative,
    )
    machine_pv_detach_timeout: timedelta = SECTION.flag(
        timedelta(minutes=2),
        "Time for which a drain waits for the volumes of a Pod to leave the node, beyond the "
        "Pod's grace, and a deletion for those that a drain by force left.",
        check=not_negative,
    )
    node_conditions: tuple[str, ...] = SECTION.flag(
        UNHEALTHY_CONDITIONS,
        "Conditions that make a node sick while they are not False. A Machine may have its own.",
    )
    bootstrap_token_auth_extra_groups: str = SECTION.flag(
        "",
        "Groups, with commas, that a bootstrap token makes its bearer a member of, beside the "
        "standard one.",
    )
    cluster_id: str = OURS.flag(
        "",
        "Marker that every VM of this cluster bears in the cloud. VMs that bear another one, or "
        "none, are never touched. Must never change while there are machines. Empty means the "
        "UID of the namespace kube-system of the cluster that machines join, and without such a "
        "cluster that of --namespace. Namespaces whose Machines join one cluster may share a "
        "marker: VMs carry the namespace too. Where those Machines are in two clusters, each of "
        "the two needs a marker of its own.",
        check=_marker,
    )
    adopt_unmarked_machines: bool = OURS.flag(
        False,
        "Take over a VM without any marker that has the name of a Machine and is of its class, as "
        "the reference made it. Without it such a VM is reported, none is made beside it, and a "
        "Machine that names it by provider ID touches neither the VM nor its node.",
    )


@dataclass(frozen=True, kw_only=True)
class MachineClassFlags(SharedFlags):
    """Flags of the machine class controller: only the shared ones."""


@dataclass(frozen=True, kw_only=True)
class MachineFlags(SharedFlags):
    """Flags of the machine controller."""

    machine_concurrent_syncs: int = SECTION.flag(
        50,
        "Machines that are worked on at the same time, without those that wait for the cloud. The "
        "reference calls it --concurrent-syncs.",
        unit="machines",
        check=at_least_one,
    )
    machine_max_evict_retries: int = SECTION.flag(
        360,
        "How often the eviction of a Pod is repeated, every 20s, that its disruption budget "
        "refuses; then the Pod is deleted. A Machine may have its own.",
        unit="retries",
        check=lambda value: "" if value >= 0 else "must not be negative",
    )
    machine_pv_reattach_timeout: timedelta = SECTION.flag(
        timedelta(seconds=90),
        "Time for which a drain waits for the volumes of a Pod to be attached to another node, "
        "before the next Pod with volumes leaves.",
        check=not_negative,
    )
    machine_safety_apiserver_statuscheck_timeout: timedelta = SECTION.flag(
        timedelta(seconds=30),
        "Time for which an API server may not answer before machines are frozen: none is made "
        "and none fails until it answers again.",
        check=positive,
    )
    machine_safety_apiserver_statuscheck_period: timedelta = SECTION.flag(
        timedelta(minutes=1),
        "Time between two looks whether the API servers answer; not less than the timeout.",
        check=positive,
    )


@dataclass(frozen=True, kw_only=True)
class MachineSafetyFlags(SharedFlags):
    """Flags of the machine safety controller."""

    machine_safety_orphan_vms_period: timedelta = SECTION.flag(
        timedelta(minutes=15),
        "Time between two looks for VMs that belong to no Machine, and for nodes that none stands "
        "behind.",
        check=positive,
    )


@dataclass(frozen=True, kw_only=True)
class MachineSetFlags(SharedFlags):
    """Flags of the machine set controller."""

    machine_set_concurrent_syncs: int = SECTION.flag(
        10,
        "MachineSets that are worked on at the same time. The reference calls it "
        "--concurrent-syncs.",
        unit="machine sets",
        check=at_least_one,
    )


@dataclass(frozen=True, kw_only=True)
class MachineDeploymentFlags(SharedFlags):
    """Flags of the machine deployment controller."""

    machine_deployment_concurrent_syncs: int = SECTION.flag(
        10,
        "MachineDeployments that are worked on at the same time. The reference calls it "
        "--concurrent-syncs.",
        unit="machine deployments",
        check=at_least_one,
    )
    autoscaler_scaledown_annotation_during_rollout: bool = SECTION.flag(
        True,
        "While machines are exchanged one by one, or updated in place, annotate their nodes so "
        "that the cluster autoscaler does not remove them.",
    )


@dataclass(frozen=True, kw_only=True)
class MachineOvershootFlags(SharedFlags):
    """Flags of the machine overshoot controller."""

    safety_up: int = SECTION.flag(
        2,
        "A MachineSet with so many machines more than its MachineDeployment may have, or than "
        "twice its replicas if it has none, is frozen: it makes no more.",
        unit="machines",
        check=zero_or_more(),
    )
    safety_down: int = SECTION.flag(
        1,
        "A frozen MachineSet thaws when it has so many machines less than would freeze it.",
        unit="machines",
        check=zero_or_more(),
    )
    machine_safety_overshooting_period: timedelta = SECTION.flag(
        timedelta(minutes=1),
        "Time between two looks for MachineSets with too many machines.",
        check=positive,
    )


def machine_faults(flags: MachineFlags) -> Iterator[FlagViolation]:
    """Yield inconsistent settings."""
    period = flags.machine_safety_apiserver_statuscheck_period
    timeout = flags.machine_safety_apiserver_statuscheck_timeout
    if timedelta(0) < period < timeout:
        yield (
            "machine-safety-apiserver-statuscheck-period",
            "cannot be shorter than --machine-safety-apiserver-statuscheck-timeout",
        )
