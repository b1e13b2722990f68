"""A real API server accepts every manifest, strictly, and says so without storing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccm.sandbox import realserver
from tests.kubectl.tool import Kubectl
from tests.manifests import shipped
from tests.manifests.variants import VARIANTS
from tests.servers import require_assets
from tests.waiting import DEADLINE_S

CRDS = Path(__file__).parent / "monitoring-crds.yaml"
DRY = ("apply", "--dry-run=server", "--validate=strict")

pytestmark = pytest.mark.envtest


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl at an API server of its own, which knows the kinds of the Prometheus operator."""
    folder = tmp_path_factory.mktemp("dry-run")
    ours = shipped.MANIFESTS / "crds.yaml"
    server = realserver.RealServer(assets=require_assets(), data_dir=folder / "server")
    asyncio.run(server.start())
    try:
        kubectl = Kubectl(require_assets() / "kubectl", server.kubeconfig_path, folder)
        kubectl("apply", "-f", str(CRDS))
        kubectl("apply", "-f", str(ours))
        for file in (CRDS, ours):
            kubectl(
                "wait", "--for=condition=Established", f"--timeout={DEADLINE_S:g}s", "-f", str(file)
            )
        yield kubectl
    finally:
        asyncio.run(server.stop())


def accepted(output: str) -> int:
    """How many objects the server would have written; anything else it said is a fault."""
    lines = output.splitlines()
    assert [line for line in lines if not line.endswith("(server dry run)")] == []
    return len(lines)


INCOMPLETE = shipped.MANIFESTS / "deployment.yaml"
WHOLE = [path for path in shipped.files() if path.name != INCOMPLETE.name]


def test_all_files_and_all_variants_of_the_chart(kubectl: Kubectl, tmp_path: Path) -> None:
    wanted = len(shipped.objects(*WHOLE))
    files = [*WHOLE]
    for name, values in VARIANTS.items():
        text = shipped.rendered(tmp_path, values)
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(text)
        wanted += len(shipped.parsed(text))

    words = [f"--filename={file}" for file in files]
    assert accepted(kubectl(*DRY, *words)) == wanted


def test_without_an_image_of_yours_it_is_refused(kubectl: Kubectl) -> None:
    status, output = kubectl.run(*DRY, "-f", str(INCOMPLETE))

    assert status != 0
    assert "containers[0].image: Required value" in output


def test_the_kustomize_base(kubectl: Kubectl, tmp_path: Path) -> None:
    assert accepted(kubectl(*DRY, "-k", str(shipped.overlay(tmp_path)))) == 9
