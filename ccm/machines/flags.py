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
"""Roles of a cluster: the control cluster stores the machine objects, and machines join the target
cluster."""

NO_TARGET = "none"
IN_CLUSTER = "inClusterConfig"
"""Special values of the kubeconfig flags (Gardener's MCM)."""

ACCOUNT = "machine-controller"
"""Service account and user-agent suffix of all machine controllers."""


def check_control_kubeconfig(kubeconfig: str) -> str:
    """Return the fault of --control-kubeconfig; empty = valid."""
    return "must name the cluster that stores the Machines" if kubeconfig == NO_TARGET else ""


_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def _marker(value: str) -> str:
    if _LABEL_VALUE.fullmatch(value):
        return ""
    return "must be a valid label value: up to 63 letters and digits, with -, _ and . between them"


@dataclass(frozen=True, kw_only=True)
class CommonFlags:
    """Flags that the machine controllers of all API groups read."""

    machine_pv_detach_timeout: timedelta = SECTION.flag(
        timedelta(minutes=2),
        "How long a drain waits for a Pod's volumes to be detached, in addition to the Pod's "
        "grace period. A deletion waits equally long for volumes that a forced drain left "
        "attached.",
        check=not_negative,
    )
    cluster_id: str = OURS.flag(
        "",
        "Marker of this cluster's VMs in the cloud. VMs with another marker, or none, are never "
        "touched. Must never change while there are machines. Empty means the UID of the "
        "namespace kube-system of the cluster that machines join; without such a cluster, the "
        "UID of --namespace. Namespaces whose Machines join one cluster may share a marker, "
        "because VMs carry the namespace too. If two clusters store Machines that join the same "
        "cluster, each of the two needs its own marker.",
        check=_marker,
    )


@dataclass(frozen=True, kw_only=True)
class SharedFlags(CommonFlags):
    """Flags that all controllers of Gardener's objects read."""

    namespace: str = SECTION.flag(
        "default",
        "Namespace of Machines, MachineClasses and their Secrets. Other namespaces are ignored.",
        check=lambda value: "" if value else "must not be empty",
        short="n",
    )
    control_kubeconfig: str = SECTION.flag(
        "",
        "kubeconfig of the cluster that stores Machines, MachineClasses and their Secrets; "
        f"{IN_CLUSTER} means the cluster in which this Pod runs. Empty means the cluster of "
        "--target-kubeconfig.",
        check=check_control_kubeconfig,
    )
    target_kubeconfig: str = SECTION.flag(
        "",
        "kubeconfig of the cluster that machines join; it stores their Nodes and bootstrap "
        f"tokens. {NO_TARGET} means no such cluster: VMs are created without Nodes. Empty means "
        "the cluster of --kubeconfig.",
    )
    machine_creation_timeout: timedelta = SECTION.flag(
        timedelta(minutes=20),
        "How long a Machine may take to join before it is marked Failed. Overridden by "
        "spec.creationTimeout of a Machine.",
        check=positive,
    )
    machine_health_timeout: timedelta = SECTION.flag(
        timedelta(minutes=10),
        "How long the node of a Machine may be unhealthy or missing before the Machine is marked "
        "Failed. Overridden by spec.healthTimeout of a Machine.",
        check=positive,
    )
    machine_inplace_update_timeout: timedelta = SECTION.flag(
        timedelta(minutes=20),
        "How long an in-place update may take once the node is drained, before it counts as "
        "failed. Overridden by spec.inPlaceUpdateTimeout of a Machine.",
        check=positive,
    )
    machine_preserve_timeout: timedelta = SECTION.flag(
        timedelta(hours=96),
        "How long a Machine is preserved. Overridden by spec.machinePreserveTimeout of a Machine.",
        check=positive,
    )
    resource_exhausted_retry: timedelta = SECTION.flag(
        timedelta(minutes=10),
        "Delay before a VM creation that exceeded a quota or the capacity is retried. 0 means 10m.",
        check=not_negative,
    )
    machine_drain_timeout: timedelta = SECTION.flag(
        timedelta(hours=2),
        "Time from the deletion of a Machine until its node is drained by force, ignoring "
        "disruption budgets, grace and volumes. Overridden by spec.drainTimeout of a Machine.",
        check=not_negative,
    )
    node_conditions: tuple[str, ...] = SECTION.flag(
        UNHEALTHY_CONDITIONS,
        "Types of node conditions that make a node unhealthy unless they are False or missing. "
        "Overridden by spec.nodeConditions of a Machine.",
    )
    bootstrap_token_auth_extra_groups: str = SECTION.flag(
        "", "Groups of bootstrap tokens in addition to system:bootstrappers, separated by commas."
    )
    adopt_unmarked_machines: bool = OURS.flag(
        False,
        "Adopt a VM that has the name and class of a Machine but no marker, like a VM of "
        "Gardener's machine-controller-manager. If false, the VM is used only if other labels of "
        "the VM prove to the provider that it is the Machine's. Otherwise the VM is reported, no "
        "other VM is created for the Machine, and neither the VM nor its node is changed, even if "
        "the Machine has the VM's provider ID.",
    )


@dataclass(frozen=True, kw_only=True)
class MachineClassFlags(SharedFlags):
    """Flags of the machine class controller: only the shared ones."""


@dataclass(frozen=True, kw_only=True)
class CommonMachineFlags(CommonFlags):
    """Flags that the controllers of Machines of all API groups read."""

    machine_concurrent_syncs: int = SECTION.flag(
        50,
        "Number of Machines reconciled concurrently, not counting those that wait for the cloud. "
        "Gardener's machine-controller-manager calls it --concurrent-syncs.",
        unit="machines",
        check=at_least_one,
    )
    machine_max_evict_retries: int = SECTION.flag(
        360,
        "Number of retries, every 20s, of an eviction that a disruption budget refuses; then the "
        "Pod is deleted. Overridden by spec.maxEvictRetries of a Machine.",
        unit="retries",
        check=lambda value: "" if value >= 0 else "must not be negative",
    )
    machine_pv_reattach_timeout: timedelta = SECTION.flag(
        timedelta(seconds=90),
        "How long a drain waits for the volumes of a Pod to be attached to another node, before "
        "it evicts the next Pod with volumes.",
        check=not_negative,
    )
    machine_safety_apiserver_statuscheck_timeout: timedelta = SECTION.flag(
        timedelta(seconds=30),
        "How long an API server may be unreachable before machines are frozen: no VM is created "
        "and no Machine is marked Failed until all API servers answer again.",
        check=positive,
    )
    machine_safety_apiserver_statuscheck_period: timedelta = SECTION.flag(
        timedelta(minutes=1),
        "Interval of reachability checks of the API servers; not less than "
        "--machine-safety-apiserver-statuscheck-timeout.",
        check=positive,
    )


@dataclass(frozen=True, kw_only=True)
class MachineFlags(SharedFlags, CommonMachineFlags):
    """Flags of the machine controller."""


@dataclass(frozen=True, kw_only=True)
class MachineSafetyFlags(SharedFlags):
    """Flags of the machine safety controller."""

    machine_safety_orphan_vms_period: timedelta = SECTION.flag(
        timedelta(minutes=15),
        "Interval of checks for VMs and nodes without a Machine.",
        check=positive,
    )


@dataclass(frozen=True, kw_only=True)
class CommonSetFlags(CommonFlags):
    """Flags that the controllers of MachineSets of all API groups read."""

    machine_set_concurrent_syncs: int = SECTION.flag(
        10,
        "Number of MachineSets reconciled concurrently. Gardener's machine-controller-manager "
        "calls it --concurrent-syncs.",
        unit="machine sets",
        check=at_least_one,
    )


@dataclass(frozen=True, kw_only=True)
class MachineSetFlags(SharedFlags, CommonSetFlags):
    """Flags of the machine set controller."""


@dataclass(frozen=True, kw_only=True)
class CommonDeploymentFlags(CommonFlags):
    """Flags that the controllers of MachineDeployments of all API groups read."""

    machine_deployment_concurrent_syncs: int = SECTION.flag(
        10,
        "Number of MachineDeployments reconciled concurrently. Gardener's "
        "machine-controller-manager calls it --concurrent-syncs.",
        unit="machine deployments",
        check=at_least_one,
    )
    autoscaler_scaledown_annotation_during_rollout: bool = SECTION.flag(
        True,
        "During a rolling or in-place update, annotate nodes so that the cluster autoscaler does "
        "not scale them down.",
    )


@dataclass(frozen=True, kw_only=True)
class MachineDeploymentFlags(SharedFlags, CommonDeploymentFlags):
    """Flags of the machine deployment controller."""


@dataclass(frozen=True, kw_only=True)
class MachineOvershootFlags(SharedFlags):
    """Flags of the machine overshoot controller."""

    safety_up: int = SECTION.flag(
        2,
        "A MachineSet with this many machines above the maximum of its MachineDeployment "
        "(without one: above twice its replicas) is frozen and creates no more machines.",
        unit="machines",
        check=zero_or_more(),
    )
    safety_down: int = SECTION.flag(
        1,
        "A frozen MachineSet is unfrozen once it has this many machines fewer than the number "
        "that freezes it.",
        unit="machines",
        check=zero_or_more(),
    )
    machine_safety_overshooting_period: timedelta = SECTION.flag(
        timedelta(minutes=1),
        "Interval of checks for MachineSets with too many machines.",
        check=positive,
    )


def machine_faults(flags: MachineFlags) -> Iterator[FlagViolation]:
    """Yield flags that contradict each other."""
    period = flags.machine_safety_apiserver_statuscheck_period
    timeout = flags.machine_safety_apiserver_statuscheck_timeout
    if timedelta(0) < period < timeout:
        yield (
            "machine-safety-apiserver-statuscheck-period",
            "cannot be shorter than --machine-safety-apiserver-statuscheck-timeout",
        )
