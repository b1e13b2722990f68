"""The README's provider, built and installed as its reader would, in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme import readme

UV = Path(sys.executable).parent / "uv"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(*command: str | Path, cwd: Path, timeout_s: float = 120) -> str:
    """What a command prints; its whole output if it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean | {"UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's files, and the configuration that it describes."""
    folder = tmp_path_factory.mktemp("rack")
    for name, content in readme.files().items():
        (folder / name).write_text(content)
    (folder / "rack.yaml").write_text(f"inventory: {folder / 'inventory.yaml'}\n")
    return folder


@pytest.fixture(scope="module")
def environment(project: Path) -> Path:
    """The `bin` folder of an environment with our wheel, the provider's, and its test tools."""
    dist = project / "dist"
    for source in (readme.ROOT, project):
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, cwd=source)
    (ours,) = dist.glob("kube_ccm-*.whl")
    (theirs,) = dist.glob("ccm_rack-*.whl")
    run(UV, "venv", "--quiet", "--python", sys.executable, project / "venv", cwd=project)
    python = project / "venv" / "bin" / "python"
    install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", python]
    pins: list[str | Path] = ["--constraints", readme.ROOT / "requirements.lock"]
    run(*install, *pins, f"kube-ccm[testing] @ {ours.as_uri()}", theirs, cwd=project)
    return python.parent


def test_the_provider_is_found_by_its_name(environment: Path, project: Path) -> None:
    script = "from ccm.cloud import registry; print(*sorted(registry.available()))"

    assert run(environment / "python", "-P", "-c", script, cwd=project).split() == ["rack", "sim"]


def test_the_provider_passes_the_contract(environment: Path, project: Path) -> None:
    told = run(
        environment / "python",
        "-P",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "test_ccm_rack.py",
        cwd=project,
    )

    counted = re.search(r"(\d+) passed", told)
    assert counted, told
    assert int(counted[1]) >= 15


def test_the_provider_initialises_the_nodes_of_a_sandbox(environment: Path, project: Path) -> None:
    told = run(
        environment / "kube-ccm",
        "sandbox",
        "--once",
        "--nodes",
        "3",
        "--provider",
        "rack",
        "--provider-config",
        "rack.yaml",
        cwd=project,
    )

    assert told.splitlines()[-1].startswith("done: 3 nodes initialised"), told


def test_the_provider_is_typed_against_the_sdk(project: Path) -> None:
    run(
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--config-file=",
        "--follow-imports=silent",
        project / "ccm_rack.py",
        cwd=readme.ROOT,
    )
