"""`make manifests` refuses incomplete manifests, and proposes the missing lines."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests import shipped
from tests.waiting import DEADLINE_S

SCRIPT = shipped.ROOT / ".dev" / "manifests.py"
BASE = shipped.only(shipped.objects(shipped.MANIFESTS / "deployment.yaml"), "Deployment")


def judged(objects: list[shipped.Object]) -> tuple[int, str]:
    told = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=yaml.safe_dump_all(objects),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return told.returncode, told.stderr


def deployment(**container: Any) -> list[shipped.Object]:
    made = copy.deepcopy(BASE)
    made["spec"]["template"]["spec"]["containers"][0] |= container
    return [made]


GIVEN: dict[str, Any] = {"image": shipped.IMAGE, "args": ["--cloud-provider=acme"]}


@pytest.mark.parametrize(
    ("container", "told"),
    [
        ({"image": "kube-ccm:0.1.0"}, "names the image kube-ccm:0.1.0, which no registry has"),
        ({"image": ""}, "names no image"),
        ({"args": []}, "names no provider"),
        ({"args": ["--cloud-provider="]}, "names no provider"),
        ({"args": ["--cloud-provider=sim"]}, "names the provider sim"),
        ({"args": ["--cloud-provider=acme", "--cloud-provider=sim"]}, "names the provider sim"),
    ],
)
def test_a_missing_or_placeholder_image_or_provider_is_refused(
    container: dict[str, Any], told: str
) -> None:
    status, said = judged(deployment(**GIVEN | container))

    assert status == 1
    assert told in said
    assert said.count("below `patches:`") == 1


def test_manifests_without_the_deployment_of_the_daemon_are_refused() -> None:
    assert judged([])[1] == "there is no Deployment of the daemon among these objects\n"
    machines = shipped.objects(shipped.MANIFESTS / "machine-controller" / "deployment.yaml")
    assert judged(machines)[1].count("Deployment machine-controller names no ") == 2


@pytest.mark.envtest
def test_the_proposed_patch_completes_the_base(tmp_path: Path) -> None:
    """The patch sets image and provider, and nothing else."""
    folder = shipped.overlay(tmp_path)
    whole = shipped.parsed(shipped.kustomized(tmp_path, folder))
    file = folder / "kustomization.yaml"
    content = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**content, "patches": []}))
    status, said = judged(shipped.parsed(shipped.kustomized(tmp_path, folder)))
    assert status == 1
    lines = "\n".join(line for line in said.splitlines() if line.startswith("  "))
    lines = lines.replace("REGISTRY/kube-ccm:VERSION", shipped.IMAGE)
    lines = lines.replace("=NAME}", f"={shipped.PROVIDER}}}")

    file.write_text(file.read_text().replace("patches: []", f"patches:\n{lines}"))

    mended = shipped.parsed(shipped.kustomized(tmp_path, folder))
    assert judged(mended) == (0, "")
    assert mended == whole
