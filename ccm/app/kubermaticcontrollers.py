"""Manifests of the controllers of Kubermatic's machine objects.

Except for the approver of node CSRs, they are the machine controllers of
`ccm.app.machinecontrollers` with another codec, another driver of the provider, and other settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ccm.app.machinecontrollers import (
    Inputs,
    lazily,
    make_machine,
    make_machine_deployment,
    make_machine_set,
    permission_pairs,
)
from ccm.kubermatic import flags
from ccm.kubermatic.names import BOOTSTRAP_NAMESPACE, GROUP, LEASE, OLDER_CRD, SIGNER
from ccm.machines.flags import ACCOUNT
from ccm.runtime.manifest import ControllerContext, Manifest, SharedLease

if TYPE_CHECKING:
    from ccm.kube.client import Resource
    from ccm.machines.driver import SharedComponents
    from ccm.model import CustomResourceDefinition
    from ccm.runtime.controller import Controller, Runnable

F = TypeVar("F", bound=flags.KubermaticFlags)

_CRDS = "customresourcedefinitions"
_OBJECTS = ("machines", "machinesets", "machinedeployments")
_REQUESTS, _SIGNERS = "certificatesigningrequests", "signers"
_GROUPS = {**dict.fromkeys(_OBJECTS, GROUP), _CRDS: "apiextensions.k8s.io"}


def _shared(context: ControllerContext, given: Any) -> SharedComponents:
    """Return the components that all these controllers share; the first call creates them.

    `given` has the flags of all controllers: some are read for the machines of both API groups.
    """
    from ccm.cloud.kubermatic import used_variables
    from ccm.kubermatic.codec import KubermaticCodec
    from ccm.machines.caches import Caches
    from ccm.machines.driver import SharedComponents
    from ccm.machines.settings import MachineSettings

    codec, own = KubermaticCodec(given.kubermatic_name), context.cluster("")
    client = context.cloud_client.for_kubermatic()
    settings = MachineSettings(
        names=codec.names,
        cluster=given.cluster_id,
        creation_timeout_s=given.join_cluster_timeout.total_seconds() or None,
        health_timeout_s=None,
        asks_for_vms=True,
        joins_unready=True,
        stores_addresses=True,
        drain_timeout_s=given.skip_eviction_after.total_seconds(),
        detach_timeout_s=given.machine_pv_detach_timeout.total_seconds(),
    )

    def make() -> SharedComponents:
        caches = Caches(
            codec=codec,
            informers=own.informers,
            client=own.client(ACCOUNT),
            namespace=given.kubermatic_namespace,
            settings=settings,
            providers=lambda: client.cloud.machine_providers,
            variables=lambda *given: used_variables(client.cloud.machines, *given),
        )
        return SharedComponents.of(caches, client)

    shared: Any = context.shared_instance(_Key, make)  # type: ignore[arg-type]
    return cast("SharedComponents", shared)


class _Key:
    """Key of the shared components; for Gardener's API group, `SharedComponents` is the key."""


async def warn_of_older_crd(crds: Resource[CustomResourceDefinition]) -> None:
    """Log a warning if the cluster has the CRD of Machines of an older API group."""
    from ccm.base import log
    from ccm.kube.errors import KubeError

    try:
        await crds.get(OLDER_CRD)
    except KubeError:
        return  # absent, or unreadable: nothing else depends on it
    log.logger("machines").warning(
        "CRD of an older Machine API found, machines of that API are not managed",
        crd=OLDER_CRD,
        advice="convert them with Kubermatic's machine-controller, which then deletes the CRD; "
        'see "Kubermatic\'s machine objects" in manifests/README.md',
    )


def _make_machine(parts: Inputs, given: flags.KubermaticMachineFlags) -> Runnable:
    from ccm.kube.resources import CRDS
    from ccm.kubermatic import metrics, observer
    from ccm.runtime.lazy import LazyController

    def make() -> Controller:
        workers = given.worker_count or given.machine_concurrent_syncs
        controller = make_machine(parts, replace(given, machine_concurrent_syncs=workers))
        controller.tasks["metrics"] = observer.MachineObserver(parts.shared).run
        metrics.WORKERS.set(workers)
        return controller

    crds = parts.caches.client.resource(CRDS)
    return LazyController(lambda: warn_of_older_crd(crds), make)


def _make_machine_deployment(parts: Inputs, given: Any) -> Runnable:
    from ccm.kubermatic.observer import observe_deployments

    observe_deployments(parts.caches)
    return make_machine_deployment(parts, given)


def _make_approver(parts: Inputs, _given: flags.NodeCSRApproverFlags) -> Runnable:
    from ccm.controllers.nodecsrapprover import NodeCSRApprover
    from ccm.kube.resources import CERTIFICATE_REQUESTS

    caches = parts.caches
    return NodeCSRApprover(
        caches=caches,
        requests=caches.target.informers.informer_for(CERTIFICATE_REQUESTS),
        client=caches.target.client,
        signer=SIGNER,
    ).controller


def _lease(given: flags.KubermaticFlags) -> SharedLease:
    return SharedLease(
        namespace=given.kubermatic_leader_election_namespace,
        name=LEASE,
        advice="if the holder is Kubermatic's machine-controller, stop it; if it is Gardener's "
        "machine-controller or the daemon of another cloud, set "
        "--kubermatic-leader-election-namespace of this daemon to another namespace",
    )


def _local(*rights: str, follows: Iterable[str]) -> Callable[[F], Iterator[tuple[str, str, str]]]:
    def rights_of(given: F) -> Iterator[tuple[str, str, str]]:
        for verb in ("list", "watch"):
            for resource in follows:
                yield verb, resource, given.kubermatic_namespace
            if "secrets" in follows:
                yield verb, "secrets", BOOTSTRAP_NAMESPACE
        for verb, resource in permission_pairs(*rights):
            yield verb, resource, given.kubermatic_namespace

    return rights_of


def _manifest(
    kind: str, plain: str, make: Callable[[Inputs, Any], Runnable], *, fleet: bool, **more: Any
) -> Manifest[Any]:
    """Return a manifest; `more` adds or replaces fields.

    `kind` and `plain` are the kind of object in names, with and without hyphens.
    """

    def build(context: ControllerContext, given: Any) -> Runnable:
        return lazily(Inputs(context, _shared(context, given), ""), make, given, fleet=fleet)

    common: dict[str, Any] = {
        "name": f"kubermatic-{kind}-controller",
        "alias": f"kubermatic{plain}",
        "client": ACCOUNT,
        "metric": f"kubermatic{plain}",
        "groups": {**_GROUPS, **more.pop("groups", {})},
        "named_permissions": (("get", _CRDS, f"{plain}s.{GROUP}"), *more.pop("reads", ())),
        # Another program may already manage the objects, and would conflict with this one.
        "off_by_default": True,
        "lease": _lease,
        "missing_interface": lambda cloud: (
            ""
            if cloud.kubermatic is not None
            else "the provider does not implement Kubermatic machines"
        ),
        "metrics_module": "ccm.kubermatic.metrics",
        "controller_module": f"ccm.controllers.{plain}.controller",
    }
    return Manifest(build=build, **(common | more))


MANIFESTS: Mapping[type, Manifest[Any]] = {
    flags.KubermaticMachineFlags: _manifest(
        "machine",
        "machine",
        _make_machine,
        fleet=True,
        reads=(("get", _CRDS, OLDER_CRD),),
        groups={"poddisruptionbudgets": "policy", "volumeattachments": "storage.k8s.io"},
        permissions=permission_pairs(
            "get namespaces",
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
        namespaced_permissions=_local(
            "get,patch,delete machines",
            follows=("machines", "machinesets", "machinedeployments", "secrets", "configmaps"),
        ),
    ),
    flags.KubermaticSetFlags: _manifest(
        "machine-set",
        "machineset",
        make_machine_set,
        fleet=True,
        permissions=permission_pairs("get namespaces"),
        namespaced_permissions=_local(
            "get,patch machinesets",
            "patch machinesets/status",
            "get,create,patch,delete machines",
            follows=("machines", "machinesets", "machinedeployments", "secrets", "configmaps"),
        ),
    ),
    flags.KubermaticDeploymentFlags: _manifest(
        "machine-deployment",
        "machinedeployment",
        _make_machine_deployment,
        fleet=True,
        permissions=permission_pairs("get namespaces", "get,patch nodes"),
        namespaced_permissions=_local(
            "get,patch machinedeployments",
            "patch machinedeployments/status",
            "get,create,patch,delete machinesets",
            "get,patch machines",
            follows=_OBJECTS,
        ),
    ),
    flags.NodeCSRApproverFlags: _manifest(
        "node-csr-approver",
        "nodecsrapprover",
        _make_approver,
        fleet=False,
        name="node-csr-approver",
        alias="nodecsrapprover",
        metric="nodecsrapprover",
        controller_module="ccm.controllers.nodecsrapprover",
        groups=dict.fromkeys((_REQUESTS, _SIGNERS), "certificates.k8s.io"),
        watched=(_REQUESTS,),
        permissions=permission_pairs(
            "get namespaces", f"get {_REQUESTS}", f"patch {_REQUESTS}/approval"
        ),
        named_permissions=(("approve", _SIGNERS, SIGNER),),
        namespaced_permissions=_local(follows=("machines",)),
        disabled_by=lambda given: "" if given.node_csr_approver else "--node-csr-approver is false",
    ),
}
"""Manifest of each controller, by the class of its flags."""
