"""Names, flags and rights of the machine deployment controller, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ccm.base.flags import (
    at_least_one,
)
from ccm.gardener import flags as gardener
from ccm.runtime.manifest import ControllerContext, Manifest

if TYPE_CHECKING:
    from ccm.runtime.controller import Runnable

NAME = "machine-deployment-controller"


@dataclass(frozen=True, kw_only=True)
class MachineDeploymentFlags(gardener.GardenerFlags):
    """The flags of this controller."""

    machine_deployment_concurrent_syncs: int = gardener.SECTION.flag(
        10,
        "MachineDeployments that are worked on at the same time. The reference calls it "
        "--concurrent-syncs.",
        unit="machine deployments",
        check=at_least_one,
    )
    autoscaler_scaledown_annotation_during_rollout: bool = gardener.SECTION.flag(
        True,
        "While machines are exchanged one by one, or updated in place, annotate their nodes so "
        "that the cluster autoscaler does not remove them.",
    )


def _build(context: ControllerContext, flags: MachineDeploymentFlags) -> Runnable:
    from ccm.controllers.machinedeployment.controller import MachineDeploymentController
    from ccm.gardener.crdguard import CRDGuard
    from ccm.gardener.kinds import MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES
    from ccm.gardener.names import COMPONENT_MANAGER
    from ccm.kube.resources import CRDS, NODES
    from ccm.runtime.lazy import LazyController

    world = gardener.world(context, flags)
    control, target = context.at(gardener.CONTROL), context.at(gardener.TARGET)
    client, events = control.client(MANIFEST.client), control.recorder(COMPONENT_MANAGER)
    guard = CRDGuard(MACHINE_DEPLOYMENTS, client.resource(CRDS), events, context.deletions)

    def make() -> Runnable:
        made = MachineDeploymentController(
            world=world,
            deployments=client.resource(MACHINE_DEPLOYMENTS),
            sets=client.resource(MACHINE_SETS),
            machines=client.resource(MACHINES),
            nodes=target.client(MANIFEST.client).resource(NODES),
            guard=guard,
            events=events,
            settings=replace(
                world.settings, holds_nodes=flags.autoscaler_scaledown_annotation_during_rollout
            ),
            workers=flags.machine_deployment_concurrent_syncs,
        ).controller
        made.explains["machinedeployment"] = lambda key: guard.facts(
            world.machine_deployments.store.get(key), key, namespace=world.namespace
        )
        return made

    return LazyController(lambda: world.ready(MACHINE_SETS, MACHINE_DEPLOYMENTS), make)


MANIFEST: Manifest[MachineDeploymentFlags] = Manifest(
    name=NAME,
    alias="machinedeployment",
    client=gardener.ACCOUNT,
    metric="machinedeployment",
    groups=gardener.GROUPS,
    roles=gardener.roles,
    acts=(("get", "namespaces"), ("get", "nodes"), ("patch", "nodes")),
    named=gardener.reads_crd("machinedeployments"),
    local=gardener.local(
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
    off_by_default=True,
    # Making and deleting VMs is somebody else's part: any provider will do.
    lacks=lambda _cloud: "",
    build=_build,
)
