"""`manifests/crds.yaml`, `manifests/kubermatic-crds.yaml`, and their copies in the Helm chart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from ccm.gardener import crds, names
from ccm.kubermatic import crds as kubermatic
from ccm.machines.crds import Definition
from tests.generated import GENERATED, ROOT

FILE = ROOT / "manifests" / "crds.yaml"
KUBERMATIC_FILE = ROOT / "manifests" / "kubermatic-crds.yaml"
CHART_FOLDER = ROOT / "manifests" / "chart" / "templates"

_KINDS = "# Machine, MachineSet, MachineDeployment and MachineClass.\n"
_KUBERMATIC_KINDS = "# Machine, MachineSet and MachineDeployment of Kubermatic's API.\n"


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of each file."""
    for path, kinds, definitions, values in (
        (FILE, _KINDS, crds.DEFINITIONS, "machines"),
        (KUBERMATIC_FILE, _KUBERMATIC_KINDS, kubermatic.DEFINITIONS, "kubermatic"),
    ):
        yield path, _definitions(kinds, definitions, {})
        chart = _definitions(kinds, definitions, names.KEPT_BY_HELM)
        yield (
            CHART_FOLDER / path.name,
            f"{{{{- if .Values.{values}.enabled }}}}\n{chart}{{{{- end }}}}\n",
        )


def _definitions(
    head: str, definitions: Iterable[Definition], annotations: Mapping[str, str]
) -> str:
    """Return all definitions; each gets more annotations."""
    parts = list[str]()
    for definition in map(Definition.to_manifest, definitions):
        metadata = definition["metadata"]
        if annotations:
            more = {**metadata.get("annotations", {}), **annotations}
            metadata = {**metadata, "annotations": more}
        whole = {**definition, "metadata": metadata}
        parts.append(yaml.safe_dump(whole, sort_keys=False, width=100))
    return "---\n".join([f"{head}# {GENERATED} of the types.\n{parts[0]}", *parts[1:]])
