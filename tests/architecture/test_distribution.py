"""What gets installed: the wheel's contents, and commands that start."""

from __future__ import annotations

import configparser
import importlib.metadata
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

from tests.architecture.sources import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_daemon_the_providers_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    folders = {name.split("/")[0] for name in wheel.namelist()}

    assert {name for name in folders if not name.endswith(".dist-info")} == {"ccm", "providers"}
    assert {"ccm/py.typed", "providers/py.typed"} <= set(wheel.namelist())


def test_the_wheel_brings_its_commands_and_the_simulated_cloud(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    entries = configparser.ConfigParser()
    entries.read_string(wheel.read(name).decode())

    assert set(entries["console_scripts"]) == {
        "cloud-controller-manager",
        "kube-ccm",
        "kubectl-ccm",
        "kubectl_complete-ccm",
        "machine-controller",
        "machine-controller-manager",
    }
    assert set(entries["ccm.providers"]) >= {"sim"}


def needed(name: str, found: set[str]) -> set[str]:
    """The distributions that one brings along, extras left out."""
    for text in importlib.metadata.requires(name) or ():
        wanted = Requirement(text)
        is_plain = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if is_plain and wanted.name not in found:
            found |= needed(wanted.name, {*found, wanted.name})
    return found


def test_the_image_has_nothing_to_draw_with() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    installs = [line for line in lines if "/dist" in line]
    brought = needed("kube-ccm", set())

    assert [line.split()[-1] for line in installs if "--find-links" in line] == [
        '"kube-ccm[${EXTRAS}]"'
    ]
    assert "ARG EXTRAS=uvloop" in lines
    assert brought >= {"aiohttp", "structlog"}
    assert "rich" not in brought
