"""Names, flags and rights of the machine safety controller, and how it is made."""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ccm.base.flags import (
    positive,
)
from ccm.gardener import flags as gardener
from ccm.runtime.manifest import ControllerContext, Manifest

if TYPE_CHECKING:
    from ccm.runtime.controller import Runnable

NAME = "machine-safety-controller"


@dataclass(frozen=True, kw_only=True)
class MachineSafetyFlags(gardener.GardenerFlags):
    """The flags of this controller."""

    machine_safety_orphan_vms_period: timedelta = gardener.SECTION.flag(
        timedelta(minutes=15),
        "Time between two looks for VMs that belong to no Machine, and for nodes that none stands "
        "behind.",
        check=positive,
    )


def _build(context: ControllerContext, flags: MachineSafetyFlags) -> Runnable:
    from ccm.controllers.machinesafety.controller import MachineSafetyController
    from ccm.gardener.kinds import MACHINES
    from ccm.gardener.names import COMPONENT
    from ccm.kube.resources import NODES
    from ccm.runtime.lazy import LazyController

    world = gardener.world(context, flags)
    control, target = context.at(gardener.CONTROL), context.at(gardener.TARGET)

    def make() -> Runnable:
        return MachineSafetyController(
            world=world,
            machines=control.client(MANIFEST.client).resource(MACHINES),
            nodes=target.client(MANIFEST.client).resource(NODES),
            events=control.recorder(COMPONENT),
            period_s=flags.machine_safety_orphan_vms_period.total_seconds(),
        ).controller

    return LazyController(world.ready, make)


MANIFEST: Manifest[MachineSafetyFlags] = Manifest(
    name=NAME,
    alias="machinesafety",
    client=gardener.ACCOUNT,
    metric="machinesafety",
    groups=gardener.GROUPS,
    roles=gardener.roles,
    acts=(
        ("get", "namespaces"),
        ("get", "nodes"),
        ("patch", "nodes"),
    ),
    local=gardener.local(),
    off_by_default=True,
    lacks=gardener.lacks_machines,
    build=_build,
)
