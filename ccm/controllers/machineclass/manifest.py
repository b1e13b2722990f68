"""Names and rights of the machine class controller, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccm.gardener import flags as gardener
from ccm.runtime.manifest import ControllerContext, Manifest

if TYPE_CHECKING:
    from ccm.runtime.controller import Runnable

NAME = "machineclass-controller"


@dataclass(frozen=True, kw_only=True)
class MachineClassFlags(gardener.GardenerFlags):
    """It has none of its own."""


def _build(context: ControllerContext, flags: MachineClassFlags) -> Runnable:
    from ccm.controllers.machineclass.controller import MachineClassController
    from ccm.gardener.kinds import MACHINE_CLASSES
    from ccm.gardener.names import COMPONENT
    from ccm.kube.resources import SECRETS
    from ccm.runtime.lazy import LazyController

    world, control = gardener.world(context, flags), context.at(gardener.CONTROL)
    client = control.client(MANIFEST.client)

    def make() -> Runnable:
        return MachineClassController(
            world=world,
            classes=client.resource(MACHINE_CLASSES),
            secrets=client.resource(SECRETS),
            events=control.recorder(COMPONENT),
        ).controller

    return LazyController(world.ready, make)


MANIFEST: Manifest[MachineClassFlags] = Manifest(
    name=NAME,
    alias="machineclass",
    client=gardener.ACCOUNT,
    metric="machineclass",
    groups=gardener.GROUPS,
    roles=gardener.roles,
    acts=(("get", "namespaces"),),
    local=gardener.local(
        ("get", "machineclasses"),
        ("patch", "machineclasses"),
        ("get", "secrets"),
        ("patch", "secrets"),
    ),
    off_by_default=True,
    lacks=gardener.lacks_machines,
    build=_build,
)
