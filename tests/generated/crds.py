"""`manifests/crds.yaml` and its copy in the Helm chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from ccm.gardener import crds, names
from ccm.machines.crds import Definition
from tests.generated import GENERATED, ROOT

FILE = ROOT / "manifests" / "crds.yaml"
CHART_FILE = ROOT / "manifests" / "chart" / "templates" / "crds.yaml"

_HEAD = f"""\
# Machine, MachineSet, MachineDeployment and MachineClass.
# {GENERATED} of the types.
"""


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of each file."""
    yield FILE, _definitions({})
    chart = _definitions({"annotations": names.KEPT_BY_HELM})
    yield CHART_FILE, f"{{{{- if .Values.machines.enabled }}}}\n{chart}{{{{- end }}}}\n"


def _definitions(more: Mapping[str, object]) -> str:
    """Return all definitions; each gets more metadata."""
    parts = list[str]()
    for definition in map(Definition.to_manifest, crds.DEFINITIONS):
        whole = {**definition, "metadata": {**definition["metadata"], **more}}
        parts.append(yaml.safe_dump(whole, sort_keys=False, width=100))
    return "---\n".join([_HEAD + parts[0], *parts[1:]])
