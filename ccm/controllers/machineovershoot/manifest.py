"""Names, flags and rights of the machine overshoot controller, and how it is made."""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ccm.base.flags import (
    positive,
    zero_or_more,
)
from ccm.gardener import flags as gardener
from ccm.runtime.manifest import ControllerContext, Manifest

if TYPE_CHECKING:
    from ccm.runtime.controller import Runnable

NAME = "machine-overshoot-controller"


@dataclass(frozen=True, kw_only=True)
class MachineOvershootFlags(gardener.GardenerFlags):
    """The flags of this controller."""

    safety_up: int = gardener.SECTION.flag(
        2,
        "A MachineSet with so many machines more than its MachineDeployment may have, or than "
        "twice its replicas if it has none, is frozen: it makes no more.",
        unit="machines",
        check=zero_or_more(),
    )
    safety_down: int = gardener.SECTION.flag(
        1,
        "A frozen MachineSet thaws when it has so many machines less than would freeze it.",
        unit="machines",
        check=zero_or_more(),
    )
    machine_safety_overshooting_period: timedelta = gardener.SECTION.flag(
        timedelta(minutes=1),
        "Time between two looks for MachineSets with too many machines.",
        check=positive,
    )


def _build(context: ControllerContext, flags: MachineOvershootFlags) -> Runnable:
    from ccm.controllers.machineovershoot.controller import MachineOvershootController
    from ccm.gardener.kinds import MACHINE_DEPLOYMENTS, MACHINE_SETS
    from ccm.gardener.names import COMPONENT_MANAGER
    from ccm.machines.overshoot import Margins
    from ccm.runtime.lazy import LazyController

    world, control = gardener.world(context, flags), context.at(gardener.CONTROL)
    client = control.client(MANIFEST.client)

    def make() -> Runnable:
        return MachineOvershootController(
            world=world,
            sets=client.resource(MACHINE_SETS),
            deployments=client.resource(MACHINE_DEPLOYMENTS),
            events=control.recorder(COMPONENT_MANAGER),
            margins=Margins(up=flags.safety_up, down=flags.safety_down),
            period_s=flags.machine_safety_overshooting_period.total_seconds(),
        ).controller

    return LazyController(lambda: world.ready(MACHINE_SETS, MACHINE_DEPLOYMENTS), make)


MANIFEST: Manifest[MachineOvershootFlags] = Manifest(
    name=NAME,
    alias="machineovershoot",
    client=gardener.ACCOUNT,
    metric="machineovershoot",
    groups=gardener.GROUPS,
    roles=gardener.roles,
    acts=(("get", "namespaces"),),
    local=gardener.local(
        ("get", "machinesets"),
        ("patch", "machinesets"),
        ("patch", "machinesets/status"),
        ("get", "machinedeployments"),
        ("patch", "machinedeployments"),
        ("patch", "machinedeployments/status"),
        follows=("machines", "machinesets", "machinedeployments"),
    ),
    off_by_default=True,
    # It asks no cloud anything: any provider will do.
    lacks=lambda _cloud: "",
    build=_build,
)
