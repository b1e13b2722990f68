"""The API groups of machine objects, for commands that support all of these groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ccm.app import kubermaticcontrollers, machinecontrollers
from ccm.app.options import Options
from ccm.cloud.interface import Cloud
from ccm.gardener import codec as gardener
from ccm.gardener import crds as gardener_crds
from ccm.kube.resources import ResourceKind
from ccm.kubermatic import codec as kubermatic
from ccm.kubermatic import crds as kubermatic_crds
from ccm.kubermatic.flags import KubermaticMachineFlags
from ccm.machines.codec import Codec
from ccm.machines.crds import Definition
from ccm.machines.flags import CONTROL
from ccm.runtime.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineApi:
    """API group of machine objects.

    Attributes:
        codec: converts between hub types and the objects of the group.
        codec_of: returns the codec that matches the flags of a daemon.
        definitions: CustomResourceDefinitions of the group.
        manifest: manifest of the controller of Machines.
        role: role of the cluster that stores the objects.
        view: returns a cloud whose `machines` is the driver for this group.
        former_group: former API group of Machines, with its version; empty = none.
        deletes_orphans: whether a controller deletes the cluster's VMs that have no Machine.
    """

    codec: Codec
    codec_of: Callable[[Options], Codec]
    definitions: Sequence[Definition]
    manifest: Manifest[Any]
    role: str
    view: Callable[[Cloud], Cloud]
    former_group: str = ""
    deletes_orphans: bool = False

    @property
    def group(self) -> str:
        """Name of the API group."""
        return self.codec.machines.group

    @property
    def kinds(self) -> tuple[ResourceKind[Any], ...]:
        """All kinds of the group."""
        codec = self.codec
        kinds = (
            codec.machines,
            codec.machine_classes,
            codec.machine_sets,
            codec.machine_deployments,
        )
        return tuple(kind for kind in kinds if kind is not None)

    def title(self, kind: ResourceKind[Any]) -> str:
        """Return the name of a kind for users; only Gardener's kinds are named without a group."""
        return f"{kind.kind}.{kind.group}" if self.codec.prefix else kind.kind

    def namespace(self, options: Options) -> str:
        """Return the namespace of the objects."""
        return str(getattr(options, self.codec.namespace_flag.replace("-", "_")))


GARDENER = MachineApi(
    codec=gardener.CODEC,
    codec_of=lambda _options: gardener.CODEC,
    definitions=gardener_crds.DEFINITIONS,
    manifest=machinecontrollers.MACHINE,
    role=CONTROL,
    view=lambda cloud: cloud,
    deletes_orphans=True,
)

KUBERMATIC = MachineApi(
    codec=kubermatic.CODEC,
    codec_of=lambda options: kubermatic.KubermaticCodec(options.kubermatic_name),
    definitions=kubermatic_crds.DEFINITIONS,
    manifest=kubermaticcontrollers.MANIFESTS[KubermaticMachineFlags],
    role="",
    view=Cloud.with_kubermatic,
    former_group="machine.k8s.io/v1alpha1",
)

APIS = (GARDENER, KUBERMATIC)
"""All API groups of machines."""

_TITLES: Mapping[tuple[str, str], str] = {
    (kind.api_version, kind.kind): api.title(kind) for api in APIS for kind in api.kinds
}


def title_of(api_version: str, kind: str) -> str:
    """Return the name of a kind for users; see `MachineApi.title`."""
    return _TITLES.get((api_version, kind), kind)
