"""`manifests/crds.yaml`, its copy in the Helm chart, and `manifests/kubermatic-crds.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from ccm.gardener import crds, names
from ccm.kubermatic import crds as kubermatic
from ccm.machines.crds import Definition
from tests.generated import GENERATED, ROOT

FILE = ROOT / "manifests" / "crds.yaml"
CHART_FILE = ROOT / "manifests" / "chart" / "templates" / "crds.yaml"

KUBERMATIC_FILE = ROOT / "manifests" / "kubermatic-crds.yaml"

_KINDS = "# Machine, MachineSet, MachineDeployment and MachineClass.\n"
_KUBERMATIC_KINDS = "# Machine, MachineSet and MachineDeployment of Kubermatic's API.\n"


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of each file."""
    yield FILE, _definitions(_KINDS, crds.DEFINITIONS)
    chart = _definitions(_KINDS, crds.DEFINITIONS, {"annotations": names.KEPT_BY_HELM})
    yield CHART_FILE, f"{{{{- if .Values.machines.enabled }}}}\n{chart}{{{{- end }}}}\n"
    yield KUBERMATIC_FILE, _definitions(_KUBERMATIC_KINDS, kubermatic.DEFINITIONS)


def _definitions(
    head: str, definitions: Iterable[Definition], more: Mapping[str, object] | None = None
) -> str:
    """Return all definitions; each gets more metadata."""
    parts = list[str]()
    for definition in map(Definition.to_manifest, definitions):
        whole = {**definition, "metadata": {**definition["metadata"], **(more or {})}}
        parts.append(yaml.safe_dump(whole, sort_keys=False, width=100))
    return "---\n".join([f"{head}# {GENERATED} of the types.\n{parts[0]}", *parts[1:]])
