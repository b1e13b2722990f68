"""Manifests of the machine controllers: names, RBAC permissions and constructors.

The controllers work on hub types only. This module passes them the codec that converts between
hub types and the objects of the API group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ccm.gardener.names import GROUP
from ccm.machines import flags, reasons
from ccm.machines.flags import ACCOUNT, CONTROL, NO_TARGET, TARGET, CommonFlags, SharedFlags
from ccm.runtime.manifest import ControllerContext, Manifest

if TYPE_CHECKING:
    from ccm.kube.informer import Informer
    from ccm.kube.resources import ResourceKind
    from ccm.machines.crdguard import CRDGuard
    from ccm.machines.driver import SharedComponents
    from ccm.runtime.controller import Controller, Runnable
    from ccm.runtime.object_status import ControllerFacts

C = TypeVar("C", bound=CommonFlags)
F = TypeVar("F", bound=SharedFlags)

_CRDS = "customresourcedefinitions"
_OBJECTS = ("machines", "machinesets", "machinedeployments", "machineclasses")
_GROUPS = {**dict.fromkeys(_OBJECTS, GROUP), _CRDS: "apiextensions.k8s.io"}
_TOKENS = "kube-system"


# --- rights -------------------------------------------------------------------------------------


def permission_pairs(*rights: str) -> tuple[tuple[str, str], ...]:
    """Return the (verb, resource) pairs of permissions such as `get,patch nodes`."""
    pairs = (right.split() for right in rights)
    return tuple((verb, resource) for verbs, resource in pairs for verb in verbs.split(","))


def _local(
    *rights: str, follows: Iterable[str] = ("machines", "machineclasses", "secrets")
) -> Callable[[SharedFlags], Iterator[tuple[str, str, str]]]:
    def rights_of(given: SharedFlags) -> Iterator[tuple[str, str, str]]:
        for verb in ("list", "watch"):
            yield from ((verb, resource, given.namespace) for resource in follows)
        yield from (
            (verb, resource, given.namespace) for verb, resource in permission_pairs(*rights)
        )
        if given.target_kubeconfig == NO_TARGET:
            # Without a target cluster, VMs are tagged with the UID of the namespace.
            yield "get", "namespaces", given.namespace

    return rights_of


def _roles(given: SharedFlags, resource: str, namespace: str) -> Collection[str]:
    roles = []
    if namespace == given.namespace or resource == _CRDS:
        roles.append(CONTROL)
    is_theirs = resource.partition("/")[0] not in _GROUPS and namespace in ("", _TOKENS)
    if is_theirs and given.target_kubeconfig != NO_TARGET:
        roles.append(TARGET)
    return roles


def _reads_crd(plural: str) -> tuple[tuple[str, str, str], ...]:
    """Return the permission to get the CRD of a kind; `CRDGuard` needs it."""
    return (("get", _CRDS, f"{plural}.{GROUP}"),)


# --- constructors -------------------------------------------------------------------------------


def _shared(context: ControllerContext, given: SharedFlags) -> SharedComponents:
    """Return the components that all machine controllers share; the first call creates them."""
    from ccm.gardener.codec import CODEC
    from ccm.machines.caches import Caches, TargetCluster
    from ccm.machines.driver import SharedComponents
    from ccm.machines.settings import MachineSettings

    control, target = context.cluster(CONTROL), context.cluster(TARGET)
    settings = MachineSettings(
        names=CODEC.names,
        cluster=given.cluster_id,
        has_target=given.target_kubeconfig != NO_TARGET,
        creation_timeout_s=given.machine_creation_timeout.total_seconds(),
        health_timeout_s=given.machine_health_timeout.total_seconds(),
        update_timeout_s=given.machine_inplace_update_timeout.total_seconds(),
        preserve_timeout_s=given.machine_preserve_timeout.total_seconds(),
        exhausted_retry_s=given.resource_exhausted_retry.total_seconds() or 600.0,
        drain_timeout_s=given.machine_drain_timeout.total_seconds(),
        detach_timeout_s=given.machine_pv_detach_timeout.total_seconds(),
        unhealthy_conditions=given.node_conditions,
        adopt_unmarked=given.adopt_unmarked_machines,
        token_groups=given.bootstrap_token_auth_extra_groups,
    )

    def make() -> SharedComponents:
        caches = Caches(
            codec=CODEC,
            informers=control.informers,
            client=control.client(ACCOUNT),
            namespace=given.namespace,
            settings=settings,
            providers=lambda: context.cloud_client.cloud.machine_providers,
            target=TargetCluster(informers=target.informers, client=target.client(ACCOUNT)),
        )
        return SharedComponents.of(caches, context.cloud_client)

    return context.shared_instance(SharedComponents, make)


class Inputs:
    """Inputs of one machine controller.

    Args:
        context: dependencies of controllers.
        shared: components that all controllers of the API group share.
        role: role of the cluster that stores the objects.
    """

    def __init__(
        self, context: ControllerContext, shared: SharedComponents, role: str = CONTROL
    ) -> None:
        self.shared = shared
        self.caches = self.shared.caches
        self.codec = self.caches.codec
        self.recorder = context.cluster(role).recorder
        self._crds = context.cluster(role).client(ACCOUNT).resource
        self._deletions = context.deletions

    def guard(self, kind: ResourceKind[Any], component: str) -> CRDGuard:
        from ccm.kube.resources import CRDS
        from ccm.machines.crdguard import CRDGuard

        return CRDGuard(kind, self._crds(CRDS), self.recorder(component), self._deletions)

    def facts(self, guard: CRDGuard, informer: Informer[Any], key: str) -> ControllerFacts:
        """Return the facts about one object for `/explain`."""
        flag = self.codec.namespace_flag
        return guard.facts(informer.store.get(key), key, namespace=self.caches.namespace, flag=flag)


def lazily(
    parts: Inputs, make: Callable[[Inputs, C], Runnable], given: C, *, fleet: bool
) -> Runnable:
    """Return a controller that calls `make` once the API server serves the needed kinds.

    Args:
        parts: inputs of the controller.
        make: creates the controller.
        given: the flags.
        fleet: whether the controller needs MachineSets and MachineDeployments, besides Machines.
    """
    from ccm.runtime.lazy import LazyController

    codec = parts.codec
    kinds = (codec.machine_sets, codec.machine_deployments) if fleet else ()
    return LazyController(lambda: parts.caches.ready(*kinds), lambda: make(parts, given))


def _lazily(
    make: Callable[[Inputs, F], Runnable], *, fleet: bool
) -> Callable[[ControllerContext, F], Runnable]:
    def build(context: ControllerContext, given: F) -> Runnable:
        return lazily(Inputs(context, _shared(context, given)), make, given, fleet=fleet)

    return build


def make_machine(parts: Inputs, given: flags.CommonMachineFlags) -> Controller:
    """Return the controller of Machines."""
    from ccm.controllers.machine.controller import MachineController
    from ccm.controllers.machine.drain import Drainer
    from ccm.machines.drain import DrainSettings

    kind, events = parts.codec.machines, parts.recorder(reasons.COMPONENT)
    guard = parts.guard(kind, reasons.COMPONENT)
    settings = DrainSettings(
        max_evict_retries=given.machine_max_evict_retries,
        detach_timeout_s=given.machine_pv_detach_timeout.total_seconds(),
        reattach_timeout_s=given.machine_pv_reattach_timeout.total_seconds(),
    )
    controller = MachineController(
        shared=parts.shared,
        guard=guard,
        drains=Drainer(shared=parts.shared, settings=settings, events=events),
        check_period_s=given.machine_safety_apiserver_statuscheck_period.total_seconds(),
        check_timeout_s=given.machine_safety_apiserver_statuscheck_timeout.total_seconds(),
        events=events,
        turns=given.machine_concurrent_syncs,
    )

    def facts(key: str) -> ControllerFacts:
        obj = parts.caches.machines.store.get(key)
        object_facts = parts.facts(guard, parts.caches.machines, key)
        if obj is None:
            return object_facts
        return replace(
            object_facts,
            foreign=object_facts.foreign or parts.codec.foreign_reason(obj),
            awaited_secret=parts.caches.awaited_user_data(obj),
            next_s=controller.remaining_pause_s(obj) or None,
        )

    controller.controller.facts_functions[f"{parts.codec.prefix}machine"] = facts
    return controller.controller


def _machine_class(parts: Inputs, _given: flags.MachineClassFlags) -> Runnable:
    from ccm.controllers.machineclass import MachineClassController

    events = parts.recorder(reasons.COMPONENT)
    return MachineClassController(shared=parts.shared, events=events).controller


def _machine_safety(parts: Inputs, given: flags.MachineSafetyFlags) -> Runnable:
    from ccm.controllers.machinesafety import MachineSafetyController

    return MachineSafetyController(
        shared=parts.shared,
        events=parts.recorder(reasons.COMPONENT),
        period_s=given.machine_safety_orphan_vms_period.total_seconds(),
    ).controller


def make_machine_set(parts: Inputs, given: flags.CommonSetFlags) -> Runnable:
    """Return the controller of MachineSets."""
    from ccm.controllers.machineset.controller import MachineSetController

    caches, kind = parts.caches, parts.codec.machine_sets
    guard = parts.guard(kind, reasons.COMPONENT_SETS)
    controller = MachineSetController(
        caches=caches,
        guard=guard,
        events=parts.recorder(reasons.COMPONENT_SETS),
        workers=given.machine_set_concurrent_syncs,
    ).controller
    controller.facts_functions[f"{parts.codec.prefix}machineset"] = lambda key: parts.facts(
        guard, caches.machine_sets, key
    )
    return controller


def make_machine_deployment(parts: Inputs, given: flags.CommonDeploymentFlags) -> Runnable:
    """Return the controller of MachineDeployments."""
    from ccm.controllers.machinedeployment.controller import MachineDeploymentController

    caches, kind = parts.caches, parts.codec.machine_deployments
    guard = parts.guard(kind, reasons.COMPONENT_MANAGER)
    controller = MachineDeploymentController(
        caches=caches,
        guard=guard,
        events=parts.recorder(reasons.COMPONENT_MANAGER),
        settings=replace(
            caches.settings,
            disables_scale_down=given.autoscaler_scaledown_annotation_during_rollout,
        ),
        workers=given.machine_deployment_concurrent_syncs,
    ).controller
    controller.facts_functions[f"{parts.codec.prefix}machinedeployment"] = lambda key: parts.facts(
        guard, caches.machine_deployments, key
    )
    return controller


def _machine_overshoot(parts: Inputs, given: flags.MachineOvershootFlags) -> Runnable:
    from ccm.controllers.machineovershoot import MachineOvershootController, Margins

    return MachineOvershootController(
        caches=parts.caches,
        events=parts.recorder(reasons.COMPONENT_MANAGER),
        margins=Margins(up=given.safety_up, down=given.safety_down),
        period_s=given.machine_safety_overshooting_period.total_seconds(),
    ).controller


# --- manifests ----------------------------------------------------------------------------------


def _manifest(
    name: str,
    alias: str,
    make: Callable[[Inputs, F], Runnable],
    *,
    fleet: bool = False,
    **more: Any,
) -> Manifest[F]:
    """Return a manifest; `more` adds or replaces fields.

    `fleet`: whether the controller needs MachineSets and MachineDeployments, but no cloud.
    """
    if fleet:
        # These controllers create no VMs, so they need no interface of the provider.
        more["missing_interface"] = lambda _cloud: ""
    common: dict[str, Any] = {
        "client": ACCOUNT,
        "metric": alias,
        "groups": _GROUPS,
        "roles": _roles,
        "permissions": permission_pairs("get namespaces"),
        # Another program may already manage the objects, and would conflict with this one.
        "off_by_default": True,
        "missing_interface": lambda cloud: (
            "" if cloud.machines is not None else "the provider does not implement machines"
        ),
        "metrics_module": "ccm.machines.metrics",
        "controller_module": f"ccm.controllers.{alias}",
    }
    build = _lazily(make, fleet=fleet)
    return Manifest(name=name, alias=alias, build=build, **(common | more))


MACHINE: Manifest[flags.MachineFlags] = _manifest(
    "machine-controller",
    "machine",
    make_machine,
    controller_module="ccm.controllers.machine.controller",
    groups={**_GROUPS, "poddisruptionbudgets": "policy", "volumeattachments": "storage.k8s.io"},
    permissions=permission_pairs(
        "get namespaces",
        # A drain watches `status.volumesAttached` of the node.
        "get,list,watch,patch nodes",
        "patch nodes/status",
        "delete nodes",
        "list,watch,delete pods",
        "create pods/eviction",
        "list,watch poddisruptionbudgets",
        "get persistentvolumeclaims",
        "get persistentvolumes",
        "list,watch,delete volumeattachments",
    ),
    named_permissions=_reads_crd("machines"),
    namespaced_permissions=_local("get,patch machines", "patch machines/status", "delete machines"),
    # Only some MachineClasses need bootstrap tokens.
    optional_permissions=tuple(
        (verb, "secrets", _TOKENS) for verb in ("create", "patch", "delete")
    ),
    faults=flags.machine_faults,
)

MANIFESTS: Mapping[type, Manifest[Any]] = {
    flags.MachineClassFlags: _manifest(
        "machineclass-controller",
        "machineclass",
        _machine_class,
        namespaced_permissions=_local("get,patch machineclasses", "get,patch secrets"),
    ),
    flags.MachineFlags: MACHINE,
    flags.MachineSafetyFlags: _manifest(
        "machine-safety-controller",
        "machinesafety",
        _machine_safety,
        permissions=permission_pairs("get namespaces", "get,patch nodes"),
        namespaced_permissions=_local(),
    ),
    flags.MachineSetFlags: _manifest(
        "machine-set-controller",
        "machineset",
        make_machine_set,
        fleet=True,
        controller_module="ccm.controllers.machineset.controller",
        named_permissions=_reads_crd("machinesets"),
        namespaced_permissions=_local(
            "get,patch machinesets",
            "patch machinesets/status",
            "get,create,patch,delete machines",
            # A change of a MachineClass, a Secret or a MachineDeployment can end the back-off of a
            # MachineSet.
            follows=("machines", "machinesets", "machinedeployments", "machineclasses", "secrets"),
        ),
    ),
    flags.MachineDeploymentFlags: _manifest(
        "machine-deployment-controller",
        "machinedeployment",
        make_machine_deployment,
        fleet=True,
        controller_module="ccm.controllers.machinedeployment.controller",
        permissions=permission_pairs("get namespaces", "get,patch nodes"),
        named_permissions=_reads_crd("machinedeployments"),
        namespaced_permissions=_local(
            "get,patch machinedeployments",
            "patch machinedeployments/status",
            "get,create,patch,delete machinesets",
            "get,patch machines",
            follows=("machines", "machinesets", "machinedeployments"),
        ),
    ),
    flags.MachineOvershootFlags: _manifest(
        "machine-overshoot-controller",
        "machineovershoot",
        _machine_overshoot,
        fleet=True,
        namespaced_permissions=_local(
            "get,patch machinesets",
            "patch machinesets/status",
            "get,patch machinedeployments",
            "patch machinedeployments/status",
            follows=("machines", "machinesets", "machinedeployments"),
        ),
    ),
}
"""Manifest of each machine controller, by the class of its flags."""
