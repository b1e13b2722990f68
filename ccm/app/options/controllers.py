"""The controllers of the daemon.

A further one is a folder in `ccm.controllers`, and here an import and a base: the flags stay
known to the type checker.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ccm.controllers.machine.manifest import MachineFlags
from ccm.controllers.machineclass.manifest import MachineClassFlags
from ccm.controllers.machinedeployment.manifest import MachineDeploymentFlags
from ccm.controllers.machineovershoot.manifest import MachineOvershootFlags
from ccm.controllers.machinesafety.manifest import MachineSafetyFlags
from ccm.controllers.machineset.manifest import MachineSetFlags
from ccm.controllers.node.manifest import NodeFlags
from ccm.controllers.nodelifecycle.manifest import NodeLifecycleFlags
from ccm.controllers.route.manifest import RouteFlags
from ccm.controllers.service.manifest import ServiceFlags
from ccm.runtime.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class ControllerFlags(
    NodeFlags,
    NodeLifecycleFlags,
    ServiceFlags,
    RouteFlags,
    MachineClassFlags,
    MachineFlags,
    MachineSafetyFlags,
    MachineSetFlags,
    MachineDeploymentFlags,
    MachineOvershootFlags,
):
    """The flags of all controllers, which start in the order of these bases."""


MANIFESTS: tuple[Manifest[Any], ...] = tuple(
    sys.modules[base.__module__].MANIFEST for base in ControllerFlags.__bases__
)
"""Each stands in the module of its flags."""

FLAGS_OF: Mapping[str, type] = {
    manifest.alias: base
    for manifest, base in zip(MANIFESTS, ControllerFlags.__bases__, strict=True)
}
"""The flags of each controller, by its short name."""

ALIASES: Mapping[str, str] = {one.alias: one.name for one in MANIFESTS} | {
    one.former: one.name for one in MANIFESTS if one.former
}
"""Short and former names, by what they stand for now."""
