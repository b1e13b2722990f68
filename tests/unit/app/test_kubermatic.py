"""Start of the controllers of Kubermatic's machine objects."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.app.kubermaticcontrollers import MANIFESTS, warn_of_older_crd
from ccm.kube.resources import CRDS
from ccm.kubermatic import crds, flags, names
from tests.unit.controllers.machines import DEFINITIONS
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time


async def started(server: MemoryServer) -> list[Any]:
    """Log lines of a start."""
    with capture_logs() as lines:
        await warn_of_older_crd(server.client().resource(CRDS))
    return lines


@pytest.mark.row("kubermatic-older-01")
async def test_machines_of_an_older_group_are_named_with_what_to_do() -> None:
    server = MemoryServer()
    assert await started(server) == []
    older: dict[str, Any] = deepcopy(dict(crds.DEFINITIONS[0].to_manifest()))
    older["metadata"]["name"], older["spec"]["group"] = names.OLDER_CRD, "machine.k8s.io"
    server.put(DEFINITIONS, older)

    (line,) = await started(server)

    assert line["crd"] == "machines.machine.k8s.io"
    assert "convert them with Kubermatic's machine-controller" in line["advice"]


def test_only_the_controller_of_machines_reads_the_older_crd() -> None:
    readers = [
        kind
        for kind, manifest in MANIFESTS.items()
        if names.OLDER_CRD in [name for _, _, name in manifest.named_permissions]
    ]

    assert readers == [flags.KubermaticMachineFlags]
