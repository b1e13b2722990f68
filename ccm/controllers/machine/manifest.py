"""Names, flags and rights of the machine controller, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccm.base import flag_checks as checks
from ccm.gardener import flags as gardener
from ccm.runtime.manifest import ControllerContext, Manifest

if TYPE_CHECKING:
    from ccm.runtime.controller import Runnable

NAME = "machine-controller"


@dataclass(frozen=True, kw_only=True)
class MachineFlags(gardener.GardenerFlags):
    """The flags of this controller."""

    machine_concurrent_syncs: int = gardener.SECTION.flag(
        50,
        "Machines that are worked on at the same time, without those that wait for the cloud. The "
        "reference calls it --concurrent-syncs.",
        unit="machines",
        check=checks.at_least_one,
    )


def _build(context: ControllerContext, flags: MachineFlags) -> Runnable:
    from ccm.controllers.machine.controller import MachineController
    from ccm.gardener.kinds import MACHINES
    from ccm.kube.resources import NODES, SECRETS
    from ccm.runtime.deferred import Deferred

    world, client = gardener.world(context, flags), context.client(MANIFEST.client)

    def make() -> Runnable:
        return MachineController(
            world=world,
            machines=client.resource(MACHINES),
            nodes=client.resource(NODES),
            secrets=client.resource(SECRETS),
            turns=flags.machine_concurrent_syncs,
        ).controller

    return Deferred(world.ready, make)


MANIFEST: Manifest[MachineFlags] = Manifest(
    name=NAME,
    alias="machine",
    client=gardener.ACCOUNT,
    metric="machine",
    groups=gardener.GROUPS,
    acts=(
        ("get", "namespaces"),
        ("get", "nodes"),
        # A drain watches the volumes of its node itself.
        ("list", "nodes"),
        ("watch", "nodes"),
        ("patch", "nodes"),
        ("patch", "nodes/status"),
        ("delete", "nodes"),
    ),
    local=gardener.local(
        ("get", "machines"),
        ("patch", "machines"),
        ("patch", "machines/status"),
        ("delete", "machines"),
        tokens=("get", "create", "patch", "delete"),
    ),
    # Another program may see to the same objects already: two of them would fight.
    off_by_default=True,
    lacks=gardener.lacks_machines,
    build=_build,
)
