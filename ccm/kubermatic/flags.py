"""Flags of the controllers of Kubermatic's machine objects."""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ccm.base.flags import FlagSection, is_object_name, not_negative, zero_or_more
from ccm.kubermatic import versions
from ccm.machines.flags import (
    CommonDeploymentFlags,
    CommonFlags,
    CommonMachineFlags,
    CommonSetFlags,
)

SECTION = FlagSection("kubermatic machines", ours=True)


def _namespace(value: str) -> str:
    return "" if is_object_name(value) else "must be a name such as kube-system"


@dataclass(frozen=True, kw_only=True)
class KubermaticFlags(CommonFlags):
    """Flags that all controllers of Kubermatic's objects read."""

    kubermatic_namespace: str = SECTION.flag(
        "kube-system",
        "Namespace of Kubermatic's Machines, MachineSets and MachineDeployments, and of the "
        "Secrets and ConfigMaps that they refer to. Other namespaces are ignored.",
        check=_namespace,
    )
    kubermatic_leader_election_namespace: str = SECTION.flag(
        "kube-system",
        "Namespace of the Lease machine-controller, which keeps Kubermatic's machine-controller "
        "from managing the same Machines. The controllers of Kubermatic's API run only while the "
        "daemon holds both that Lease and its own. Kubermatic's machine-controller calls this "
        "flag -leader-election-namespace.",
        check=_namespace,
    )
    kubermatic_name: str = SECTION.flag(
        "",
        "Value of the label machine.k8s.io/controller of the Machines to manage; other Machines "
        "are ignored. Empty means Machines without the label. Kubermatic's machine-controller "
        "calls it -name.",
    )
    kubernetes_version_constraints: str = SECTION.flag(
        ">=0.0.0",
        "Versions of the kubelet that the webhook kubermatic-machines admits: comparisons with =, "
        "!=, <, <=, > or >=, separated by commas if all of them must hold and by || if one is "
        "enough, such as >=1.33.0,<1.37.0.",
        check=versions.constraints_fault,
    )


@dataclass(frozen=True, kw_only=True)
class KubermaticMachineFlags(KubermaticFlags, CommonMachineFlags):
    """Flags of the controller of Machines."""

    worker_count: int = SECTION.flag(
        0,
        "Number of Machines of Kubermatic's API reconciled concurrently, not counting those that "
        "wait for the cloud. 0 means the value of --machine-concurrent-syncs.",
        unit="machines",
        check=zero_or_more("the value of --machine-concurrent-syncs"),
    )
    join_cluster_timeout: timedelta = SECTION.flag(
        timedelta(0),
        "How long a Machine of Kubermatic's API may take to join before its MachineSet replaces "
        "it. 0 means for ever.",
        check=not_negative,
    )
    skip_eviction_after: timedelta = SECTION.flag(
        timedelta(hours=2),
        "Time from the deletion of a Machine of Kubermatic's API until its node is drained by "
        "force, ignoring disruption budgets, grace and volumes.",
        check=not_negative,
    )


@dataclass(frozen=True, kw_only=True)
class KubermaticSetFlags(KubermaticFlags, CommonSetFlags):
    """Flags of the controller of MachineSets: only the shared ones."""


@dataclass(frozen=True, kw_only=True)
class KubermaticDeploymentFlags(KubermaticFlags, CommonDeploymentFlags):
    """Flags of the controller of MachineDeployments: only the shared ones."""


@dataclass(frozen=True, kw_only=True)
class NodeCSRApproverFlags(KubermaticFlags):
    """Flags of the approver of serving certificates."""

    node_csr_approver: bool = SECTION.flag(
        True,
        "Approve the serving certificates of kubelets whose nodes are Machines of Kubermatic's "
        "API. Needs nodecsrapprover in --controllers, too.",
    )
