"""Names, flags and rights of the machine set controller, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccm.base.flags import (
    at_least_one,
)
from ccm.gardener import flags as gardener
from ccm.runtime.manifest import ControllerContext, Manifest

if TYPE_CHECKING:
    from ccm.runtime.controller import Runnable

NAME = "machine-set-controller"


@dataclass(frozen=True, kw_only=True)
class MachineSetFlags(gardener.GardenerFlags):
    """The flags of this controller."""

    machine_set_concurrent_syncs: int = gardener.SECTION.flag(
        10,
        "MachineSets that are worked on at the same time. The reference calls it "
        "--concurrent-syncs.",
        unit="machine sets",
        check=at_least_one,
    )


def _build(context: ControllerContext, flags: MachineSetFlags) -> Runnable:
    from ccm.controllers.machineset.controller import MachineSetController
    from ccm.gardener.crdguard import CRDGuard
    from ccm.gardener.kinds import MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES
    from ccm.gardener.names import COMPONENT_SETS
    from ccm.kube.resources import CRDS
    from ccm.runtime.lazy import LazyController

    world, control = gardener.world(context, flags), context.at(gardener.CONTROL)
    client, events = control.client(MANIFEST.client), control.recorder(COMPONENT_SETS)
    guard = CRDGuard(MACHINE_SETS, client.resource(CRDS), events, context.deletions)

    def make() -> Runnable:
        made = MachineSetController(
            world=world,
            sets=client.resource(MACHINE_SETS),
            machines=client.resource(MACHINES),
            guard=guard,
            events=events,
            workers=flags.machine_set_concurrent_syncs,
        ).controller
        made.explains["machineset"] = lambda key: guard.facts(
            world.machine_sets.store.get(key), key, namespace=world.namespace
        )
        return made

    return LazyController(lambda: world.ready(MACHINE_SETS, MACHINE_DEPLOYMENTS), make)


MANIFEST: Manifest[MachineSetFlags] = Manifest(
    name=NAME,
    alias="machineset",
    client=gardener.ACCOUNT,
    metric="machineset",
    groups=gardener.GROUPS,
    roles=gardener.roles,
    acts=(("get", "namespaces"),),
    named=gardener.reads_crd("machinesets"),
    local=gardener.local(
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
    off_by_default=True,
    # Making and deleting VMs is somebody else's part: any provider will do.
    lacks=lambda _cloud: "",
    build=_build,
)
