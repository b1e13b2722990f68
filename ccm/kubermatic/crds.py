"""CustomResourceDefinitions of Kubermatic's machine objects."""

from __future__ import annotations

from ccm.kubermatic import codec, names
from ccm.machines.crds import AGE, Definition

Column = tuple[str, str, str]

_DELETED = ("Deleted*", "date", ".metadata.deletionTimestamp")


def _machine_columns(spec: str) -> tuple[Column, ...]:
    """Return the columns of provider and operating system; `spec` = path of the machine's spec."""
    value = f"{spec}.providerSpec.value"
    return (
        ("Provider", "string", f"{value}.cloudProvider"),
        ("OS", "string", f"{value}.operatingSystem"),
    )


def _kubelet(spec: str) -> Column:
    return ("Kubelet", "string", f"{spec}.versions.kubelet")


_REPLICAS = (
    ("Replicas", "integer", ".spec.replicas"),
    ("Available-Replicas", "integer", ".status.availableReplicas"),
)
_TEMPLATE = ".spec.template.spec"

DEFINITIONS = (
    Definition(
        kind=codec.MACHINES,
        short="ma",
        has_status=False,
        columns=(
            *_machine_columns(".spec"),
            ("Node", "string", ".status.nodeRef.name"),
            _kubelet(".spec"),
            ("Address", "string", ".status.addresses[0].address"),
            AGE,
            _DELETED,
            ("Phase*", "string", ".status.phase"),
        ),
        annotations=names.LEGACY_API,
        keeps_unknown=True,
    ),
    Definition(
        kind=codec.MACHINE_SETS,
        short="ms",
        columns=(
            *_REPLICAS,
            *_machine_columns(_TEMPLATE),
            ("MachineDeployment", "string", ".metadata.ownerReferences[0].name"),
            _kubelet(_TEMPLATE),
            AGE,
            _DELETED,
        ),
        annotations=names.LEGACY_API,
        keeps_unknown=True,
    ),
    Definition(
        kind=codec.MACHINE_DEPLOYMENTS,
        short="md",
        scales=True,
        columns=(*_REPLICAS, *_machine_columns(_TEMPLATE), _kubelet(_TEMPLATE), AGE, _DELETED),
        annotations=names.LEGACY_API,
        keeps_unknown=True,
    ),
)
