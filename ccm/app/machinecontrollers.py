"""Manifests of the machine controllers: names and rights, and how each is made.

Here the controllers, which know hub types alone, meet the codec of the API group that is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ccm.gardener.names import GROUP
from ccm.machines import flags, reasons
from ccm.machines.flags import ACCOUNT, CONTROL, NO_TARGET, TARGET, SharedFlags
from ccm.runtime.manifest import ControllerContext, Manifest

if TYPE_CHECKING:
    from ccm.cloud.interface import Cloud
    from ccm.machines.crdguard import CRDGuard
    from ccm.machines.driver import Shared
    from ccm.runtime.controller import Runnable

F = TypeVar("F", bound=SharedFlags)

_CRDS = "customresourcedefinitions"
_OBJECTS = ("machines", "machinesets", "machinedeployments", "machineclasses")
_GROUPS = {**dict.fromkeys(_OBJECTS, GROUP), _CRDS: "apiextensions.k8s.io"}
_TOKENS = "kube-system"


# --- rights -------------------------------------------------------------------------------------


def _local(
    *acts: tuple[str, str], follows: Iterable[str] = ("machines", "machineclasses", "secrets")
) -> Callable[[SharedFlags], Iterator[tuple[str, str, str]]]:
    def found(given: SharedFlags) -> Iterator[tuple[str, str, str]]:
        for verb in ("list", "watch"):
            yield from ((verb, resource, given.namespace) for resource in follows)
        yield from ((verb, resource, given.namespace) for verb, resource in acts)
        if given.target_kubeconfig == NO_TARGET:
            # Its UID is the marker then.
            yield "get", "namespaces", given.namespace

    return found


def _roles(given: SharedFlags, resource: str, namespace: str) -> Collection[str]:
    found = []
    if namespace == given.namespace or resource == _CRDS:
        found.append(CONTROL)
    is_theirs = resource.partition("/")[0] not in _GROUPS and namespace in ("", _TOKENS)
    if is_theirs and given.target_kubeconfig != NO_TARGET:
        found.append(TARGET)
    return found


def _reads_crd(plural: str) -> tuple[tuple[str, str, str], ...]:
    """Return the right of a controller that deletes objects of a kind."""
    return (("get", _CRDS, f"{plural}.{GROUP}"),)


def _lacks_machines(cloud: Cloud) -> str:
    return "" if cloud.machines is not None else "the provider offers no machines"


def _lacks_nothing(_cloud: Cloud) -> str:
    # Creating and deleting VMs is another controller's part: any provider will do.
    return ""


# --- how they are made --------------------------------------------------------------------------


def _shared(context: ControllerContext, given: SharedFlags) -> Shared:
    """Return what the machine controllers share, made by the first that asks."""
    from ccm.gardener.codec import CODEC
    from ccm.machines.caches import Caches, Target
    from ccm.machines.driver import Shared
    from ccm.machines.settings import Settings

    control, target = context.at(CONTROL), context.at(TARGET)
    settings = Settings(
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

    def make() -> Shared:
        caches = Caches(
            codec=CODEC,
            informers=control.informers,
            client=control.client(ACCOUNT),
            namespace=given.namespace,
            settings=settings,
            providers=lambda: context.handle.cloud.machine_providers,
            target=Target(informers=target.informers, client=target.client(ACCOUNT)),
        )
        return Shared.of(caches, context.handle)

    return context.once(Shared, make)


def _guard(context: ControllerContext, kind: Any, component: str) -> CRDGuard:
    from ccm.kube.resources import CRDS
    from ccm.machines.crdguard import CRDGuard

    control = context.at(CONTROL)
    events = control.recorder(component)
    return CRDGuard(kind, control.client(ACCOUNT).resource(CRDS), events, context.deletions)


def _machine(context: ControllerContext, given: flags.MachineFlags) -> Runnable:
    from ccm.controllers.machine.controller import MachineController
    from ccm.controllers.machine.drain import Drainer
    from ccm.machines.drain import Settings
    from ccm.runtime.account import Facts
    from ccm.runtime.lazy import LazyController

    shared = _shared(context, given)
    caches = shared.caches
    kind, events = caches.codec.machines, context.at(CONTROL).recorder(reasons.COMPONENT)
    guard = _guard(context, kind, reasons.COMPONENT)
    settings = Settings(
        max_evict_retries=given.machine_max_evict_retries,
        detach_timeout_s=given.machine_pv_detach_timeout.total_seconds(),
        reattach_timeout_s=given.machine_pv_reattach_timeout.total_seconds(),
    )

    def make() -> Runnable:
        made = MachineController(
            shared=shared,
            guard=guard,
            drains=Drainer(shared=shared, settings=settings, events=events),
            check_period_s=given.machine_safety_apiserver_statuscheck_period.total_seconds(),
            check_timeout_s=given.machine_safety_apiserver_statuscheck_timeout.total_seconds(),
            events=events,
            turns=given.machine_concurrent_syncs,
        )

        def facts(key: str) -> Facts:
            obj = caches.machines.store.get(key)
            found = guard.facts(obj, key, namespace=caches.namespace)
            if obj is None:
                return found
            return replace(found, next_s=made.paused_s(obj) or None)

        made.controller.explains["machine"] = facts
        return made.controller

    return LazyController(caches.ready, make)


def _machine_class(context: ControllerContext, given: flags.MachineClassFlags) -> Runnable:
    from ccm.controllers.machineclass import MachineClassController
    from ccm.runtime.lazy import LazyController

    shared = _shared(context, given)

    def make() -> Runnable:
        return MachineClassController(
            shared=shared,
            events=context.at(CONTROL).recorder(reasons.COMPONENT),
        ).controller

    return LazyController(shared.caches.ready, make)


def _machine_safety(context: ControllerContext, given: flags.MachineSafetyFlags) -> Runnable:
    from ccm.controllers.machinesafety import MachineSafetyController
    from ccm.runtime.lazy import LazyController

    shared = _shared(context, given)

    def make() -> Runnable:
        return MachineSafetyController(
            shared=shared,
            events=context.at(CONTROL).recorder(reasons.COMPONENT),
            period_s=given.machine_safety_orphan_vms_period.total_seconds(),
        ).controller

    return LazyController(shared.caches.ready, make)


def _machine_set(context: ControllerContext, given: flags.MachineSetFlags) -> Runnable:
    from ccm.controllers.machineset.controller import MachineSetController
    from ccm.runtime.lazy import LazyController

    shared = _shared(context, given)
    caches, codec = shared.caches, shared.caches.codec
    guard = _guard(context, codec.machine_sets, reasons.COMPONENT_SETS)

    def make() -> Runnable:
        made = MachineSetController(
            caches=caches,
            guard=guard,
            events=context.at(CONTROL).recorder(reasons.COMPONENT_SETS),
            workers=given.machine_set_concurrent_syncs,
        ).controller
        made.explains["machineset"] = lambda key: guard.facts(
            caches.machine_sets.store.get(key), key, namespace=caches.namespace
        )
        return made

    return LazyController(lambda: caches.ready(codec.machine_sets, codec.machine_deployments), make)


def _machine_deployment(
    context: ControllerContext, given: flags.MachineDeploymentFlags
) -> Runnable:
    from ccm.controllers.machinedeployment.controller import MachineDeploymentController
    from ccm.runtime.lazy import LazyController

    shared = _shared(context, given)
    caches, codec = shared.caches, shared.caches.codec
    guard = _guard(context, codec.machine_deployments, reasons.COMPONENT_MANAGER)

    def make() -> Runnable:
        made = MachineDeploymentController(
            caches=caches,
            guard=guard,
            events=context.at(CONTROL).recorder(reasons.COMPONENT_MANAGER),
            settings=replace(
                caches.settings, holds_nodes=given.autoscaler_scaledown_annotation_during_rollout
            ),
            workers=given.machine_deployment_concurrent_syncs,
        ).controller
        made.explains["machinedeployment"] = lambda key: guard.facts(
            caches.machine_deployments.store.get(key), key, namespace=caches.namespace
        )
        return made

    return LazyController(lambda: caches.ready(codec.machine_sets, codec.machine_deployments), make)


def _machine_overshoot(context: ControllerContext, given: flags.MachineOvershootFlags) -> Runnable:
    from ccm.controllers.machineovershoot import MachineOvershootController, Margins
    from ccm.runtime.lazy import LazyController

    shared = _shared(context, given)
    caches, codec = shared.caches, shared.caches.codec

    def make() -> Runnable:
        return MachineOvershootController(
            caches=caches,
            events=context.at(CONTROL).recorder(reasons.COMPONENT_MANAGER),
            margins=Margins(up=given.safety_up, down=given.safety_down),
            period_s=given.machine_safety_overshooting_period.total_seconds(),
        ).controller

    return LazyController(lambda: caches.ready(codec.machine_sets, codec.machine_deployments), make)


# --- manifests ----------------------------------------------------------------------------------


def _manifest(
    name: str, alias: str, build: Callable[[ControllerContext, F], Runnable], **more: Any
) -> Manifest[F]:
    common: dict[str, Any] = {
        "client": ACCOUNT,
        "metric": alias,
        "groups": _GROUPS,
        "roles": _roles,
        "acts": (("get", "namespaces"),),
        # Another program may see to the same objects already: two of them would fight.
        "off_by_default": True,
        "lacks": _lacks_machines,
        "meters": "ccm.machines.metrics",
        "code": f"ccm.controllers.{alias}",
    }
    return Manifest(name=name, alias=alias, build=build, **(common | more))


MACHINE = _manifest(
    "machine-controller",
    "machine",
    _machine,
    code="ccm.controllers.machine.controller",
    groups={
        **_GROUPS,
        "poddisruptionbudgets": "policy",
        "volumeattachments": "storage.k8s.io",
    },
    acts=(
        ("get", "namespaces"),
        ("get", "nodes"),
        # A drain watches the volumes of its node itself.
        ("list", "nodes"),
        ("watch", "nodes"),
        ("patch", "nodes"),
        ("patch", "nodes/status"),
        ("delete", "nodes"),
        ("list", "pods"),
        ("watch", "pods"),
        ("delete", "pods"),
        ("create", "pods/eviction"),
        ("list", "poddisruptionbudgets"),
        ("watch", "poddisruptionbudgets"),
        ("get", "persistentvolumeclaims"),
        ("get", "persistentvolumes"),
        ("list", "volumeattachments"),
        ("watch", "volumeattachments"),
        ("delete", "volumeattachments"),
    ),
    named=_reads_crd("machines"),
    local=_local(
        ("get", "machines"),
        ("patch", "machines"),
        ("patch", "machines/status"),
        ("delete", "machines"),
    ),
    # Some classes want bootstrap tokens.
    optional=tuple((verb, "secrets", _TOKENS) for verb in ("create", "patch", "delete")),
    faults=flags.machine_faults,
)

MANIFESTS: Mapping[type, Manifest[Any]] = {
    flags.MachineClassFlags: _manifest(
        "machineclass-controller",
        "machineclass",
        _machine_class,
        local=_local(
            ("get", "machineclasses"),
            ("patch", "machineclasses"),
            ("get", "secrets"),
            ("patch", "secrets"),
        ),
    ),
    flags.MachineFlags: MACHINE,
    flags.MachineSafetyFlags: _manifest(
        "machine-safety-controller",
        "machinesafety",
        _machine_safety,
        acts=(("get", "namespaces"), ("get", "nodes"), ("patch", "nodes")),
        local=_local(),
    ),
    flags.MachineSetFlags: _manifest(
        "machine-set-controller",
        "machineset",
        _machine_set,
        code="ccm.controllers.machineset.controller",
        named=_reads_crd("machinesets"),
        local=_local(
            ("get", "machinesets"),
            ("patch", "machinesets"),
            ("patch", "machinesets/status"),
            ("get", "machines"),
            ("create", "machines"),
            ("patch", "machines"),
            ("delete", "machines"),
            # A change of a class, a Secret or a deployment ends the pause of a set.
            follows=("machines", "machinesets", "machinedeployments", "machineclasses", "secrets"),
        ),
        lacks=_lacks_nothing,
    ),
    flags.MachineDeploymentFlags: _manifest(
        "machine-deployment-controller",
        "machinedeployment",
        _machine_deployment,
        code="ccm.controllers.machinedeployment.controller",
        acts=(("get", "namespaces"), ("get", "nodes"), ("patch", "nodes")),
        named=_reads_crd("machinedeployments"),
        local=_local(
            ("get", "machinedeployments"),
            ("patch", "machinedeployments"),
            ("patch", "machinedeployments/status"),
            ("get", "machinesets"),
            ("create", "machinesets"),
            ("patch", "machinesets"),
            ("delete", "machinesets"),
            ("get", "machines"),
            ("patch", "machines"),
            follows=("machines", "machinesets", "machinedeployments"),
        ),
        lacks=_lacks_nothing,
    ),
    flags.MachineOvershootFlags: _manifest(
        "machine-overshoot-controller",
        "machineovershoot",
        _machine_overshoot,
        local=_local(
            ("get", "machinesets"),
            ("patch", "machinesets"),
            ("patch", "machinesets/status"),
            ("get", "machinedeployments"),
            ("patch", "machinedeployments"),
            ("patch", "machinedeployments/status"),
            follows=("machines", "machinesets", "machinedeployments"),
        ),
        lacks=_lacks_nothing,
    ),
}
"""Manifests by the class of their flags."""
