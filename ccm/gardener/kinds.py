"""Where this front's objects live on the server."""

from __future__ import annotations

from ccm.gardener import codec
from ccm.gardener import types as documents
from ccm.gardener.names import GROUP, VERSION
from ccm.gardener.sets import MachineDeployment, MachineSet
from ccm.gardener.types import MachineClass
from ccm.kube.resources import Kind
from ccm.model.machines import Machine

MACHINES = Kind(
    group=GROUP,
    version=VERSION,
    plural="machines",
    kind="Machine",
    namespaced=True,
    type=Machine,
    document=documents.Machine,
    convert=codec.machine,
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
