"""CustomResourceDefinitions of Gardener's machine objects."""

from __future__ import annotations

from ccm.gardener import codec, names
from ccm.machines.crds import AGE, Definition

_FROZEN = ("Frozen*", "string", f".metadata.labels.{names.LABEL_FREEZE}")

DEFINITIONS = (
    Definition(
        kind=codec.MACHINES,
        short="mc",
        columns=(
            ("Status", "string", ".status.currentStatus.phase"),
            AGE,
            ("Node", "string", ".metadata.labels.node"),
            ("ProviderID*", "string", ".spec.providerID"),
            ("Class*", "string", ".spec.class.name"),
        ),
    ),
    Definition(
        kind=codec.MACHINE_SETS,
        short="mcs",
        scales=True,
        columns=(
            ("Desired", "integer", ".spec.replicas"),
            ("Current", "integer", ".status.replicas"),
            ("Ready", "integer", ".status.readyReplicas"),
            AGE,
            _FROZEN,
        ),
    ),
    Definition(
        kind=codec.MACHINE_DEPLOYMENTS,
        short="mcd",
        scales=True,
        columns=(
            ("Ready", "integer", ".status.readyReplicas"),
            ("Desired", "integer", ".spec.replicas"),
            ("Up-to-date", "integer", ".status.updatedReplicas"),
            ("Available", "integer", ".status.availableReplicas"),
            AGE,
            _FROZEN,
        ),
    ),
    Definition(kind=codec.MACHINE_CLASSES, short="mcc", has_status=False),
)
