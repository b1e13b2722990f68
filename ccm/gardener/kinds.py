"""Where this front's objects live on the server."""

from __future__ import annotations

from ccm.gardener.names import GROUP, VERSION
from ccm.gardener.sets import MachineDeployment, MachineSet
from ccm.gardener.types import Machine, MachineClass
from ccm.kube.resources import Kind

MACHINES = Kind(
    group=GROUP, version=VERSION, plural="machines", kind="Machine", namespaced=True, type=Machine
)
MACHINE_SETS = Kind(
    group=GROUP,
    version=VERSION,
    plural="machinesets",
    kind="MachineSet",
    namespaced=True,
    type=MachineSet,
)
MACHINE_DEPLOYMENTS = Kind(
    group=GROUP,
    version=VERSION,
    plural="machinedeployments",
    kind="MachineDeployment",
    namespaced=True,
    type=MachineDeployment,
)
MACHINE_CLASSES = Kind(
    group=GROUP,
    version=VERSION,
    plural="machineclasses",
    kind="MachineClass",
    namespaced=True,
    type=MachineClass,
)
