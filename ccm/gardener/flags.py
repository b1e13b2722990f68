"""Flags that the machine controllers of this front share, and the world they make of them."""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ccm.base.flags import (
    Section,
    not_negative,
    positive,
)
from ccm.gardener.names import GROUP, SICK_CONDITIONS
from ccm.runtime.manifest import ControllerContext

if TYPE_CHECKING:
    from ccm.cloud.interface import Cloud
    from ccm.gardener.world import World

SECTION = Section("machine-controller")
OURS = Section("machines", ours=True)

_OBJECTS = ("machines", "machinesets", "machinedeployments", "machineclasses")
_CRDS = "customresourcedefinitions"
GROUPS = {**dict.fromkeys(_OBJECTS, GROUP), _CRDS: "apiextensions.k8s.io"}
"""`Manifest.groups` of controllers of these objects."""

_FOLLOWS = ("machines", "machineclasses", "secrets")
_TOKENS = "kube-system"

BOOTSTRAP_TOKENS = tuple((verb, "secrets", _TOKENS) for verb in ("create", "patch", "delete"))
"""`Manifest.optional` of a controller that makes bootstrap tokens, which some classes want."""

CONTROL, TARGET = "control", "target"
"""What a cluster is to these controllers: it has their objects, or it is what machines join."""

NO_TARGET = "none"
IN_CLUSTER = "inClusterConfig"
"""Values of the flags that name kubeconfigs (reference)."""

ACCOUNT = "machine-controller"
"""Service account and user-agent suffix of all of them."""


def somewhere(kubeconfig: str) -> str:
    """A check of the control cluster's flag."""
    return "must name a cluster: Machines have to be somewhere" if kubeconfig == NO_TARGET else ""


_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def _marker(value: str) -> str:
    if _LABEL_VALUE.fullmatch(value):
        return ""
    return "must be fit for a label: up to 63 letters and digits, with -, _ and . between them"


@dataclass(frozen=True, kw_only=True)
class GardenerFlags:
    """The flags that all machine controllers read."""

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
        check=somewhere,
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
        SICK_CONDITIONS,
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


def reads_crd(plural: str) -> tuple[tuple[str, str, str], ...]:
    """`Manifest.named` of a controller that deletes objects of this kind."""
    return (("get", _CRDS, f"{plural}.{GROUP}"),)


def local(
    *acts: tuple[str, str], follows: Iterable[str] = _FOLLOWS
) -> Callable[[GardenerFlags], Iterator[tuple[str, str, str]]]:
    """`Manifest.local` of a machine controller.

    Args:
        acts: (verb, resource) beyond the watches.
        follows: resources that are listed and watched.
    """

    def found(flags: GardenerFlags) -> Iterator[tuple[str, str, str]]:
        for verb in ("list", "watch"):
            yield from ((verb, resource, flags.namespace) for resource in follows)
        yield from ((verb, resource, flags.namespace) for verb, resource in acts)
        if flags.target_kubeconfig == NO_TARGET:
            # Its UID is the marker then.
            yield "get", "namespaces", flags.namespace

    return found


def roles(flags: GardenerFlags, resource: str, namespace: str) -> Collection[str]:
    """`Manifest.roles` of a machine controller."""
    found = []
    if namespace == flags.namespace or resource == _CRDS:
        found.append(CONTROL)
    is_theirs = resource.partition("/")[0] not in GROUPS and namespace in ("", _TOKENS)
    if is_theirs and flags.target_kubeconfig != NO_TARGET:
        found.append(TARGET)
    return found


def lacks_machines(cloud: Cloud) -> str:
    """`Manifest.lacks` of a machine controller."""
    return "" if cloud.machines is not None else "the provider offers no machines"


def world(context: ControllerContext, flags: GardenerFlags) -> World:
    """What the machine controllers share, made by the first that asks."""
    from ccm.gardener.codec import NAMES
    from ccm.gardener.world import Target, World
    from ccm.machines.settings import Settings

    control, target = context.at(CONTROL), context.at(TARGET)
    settings = Settings(
        names=NAMES,
        cluster=flags.cluster_id,
        has_target=flags.target_kubeconfig != NO_TARGET,
        creation_timeout_s=flags.machine_creation_timeout.total_seconds(),
        health_timeout_s=flags.machine_health_timeout.total_seconds(),
        update_timeout_s=flags.machine_inplace_update_timeout.total_seconds(),
        preserve_timeout_s=flags.machine_preserve_timeout.total_seconds(),
        exhausted_retry_s=flags.resource_exhausted_retry.total_seconds() or 600.0,
        drain_timeout_s=flags.machine_drain_timeout.total_seconds(),
        detach_timeout_s=flags.machine_pv_detach_timeout.total_seconds(),
        unhealthy_conditions=flags.node_conditions,
        adopt_unmarked=flags.adopt_unmarked_machines,
        token_groups=flags.bootstrap_token_auth_extra_groups,
    )
    return context.once(
        World,
        lambda: World(
            informers=control.informers,
            client=control.client(ACCOUNT),
            caller=context.handle,
            namespace=flags.namespace,
            settings=settings,
            target=Target(informers=target.informers, client=target.client(ACCOUNT)),
        ),
    )
