"""The providers of `providers/README.md`, as its reader makes them, in an empty environment.

One is printed there whole, one is written by `kube-ccm new-provider`. Each command is the one that
stands there; where `pip` and `docker` would fetch something, it is done from what is here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.readme import readme

UV = Path(sys.executable).parent / "uv"
GUIDE = readme.commands("One of your own, over HTTP")

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

    assert {"rack", "sim"} <= {
        *run(environment / "python", "-P", "-c", script, cwd=project).split()
    }


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


@pytest.fixture(scope="module")
def package(environment: Path, project: Path) -> Path:
    """The folder that the first command writes, from the wheel's templates."""
    run(environment / "kube-ccm", *command("kube-ccm", "new-provider"), cwd=project)
    return project / "ccm-acme"


def command(*words: str) -> Sequence[str]:
    """What stands behind the program in the one command of the guide that begins so."""
    (found,) = (one for one in GUIDE if one[: len(words)] == [*words])
    return [word for word in found[1:] if word != "&"]


def contract(environment: Path, package: Path, *words: str) -> int:
    """How many cases of the suite passed."""
    assert ["pytest"] in GUIDE
    python = environment / "python"
    told = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, cwd=package)
    counted = re.search(r"(\d+) passed", told)
    assert counted, told
    return int(counted[1])


def edit(file: Path, before: str, after: str) -> None:
    """Replace a text that is there."""
    content = file.read_text()
    assert before in content, file
    file.write_text(content.replace(before, after))


def test_a_new_provider_is_green_at_once(environment: Path, package: Path) -> None:
    assert contract(environment, package) >= 70


def test_a_new_provider_follows_its_cloud(environment: Path, package: Path) -> None:
    edit(package / "tests" / "fake_cloud.py", 'type: str = "small"', 'flavor: str = "small"')
    edit(package / "tests" / "test_contract.py", "server.type", "server.flavor")
    edit(package / "ccm_acme" / "client.py", "    type: str", "    flavor: str")
    edit(package / "ccm_acme" / "instances.py", "server.type", "server.flavor")
    edit(package / "ccm_acme" / "machines.py", "type=spec.type", "flavor=spec.type")

    assert contract(environment, package, "-k", "metadata or listing") >= 4


@pytest.fixture(scope="module")
def image_layer(environment: Path, package: Path) -> Path:
    """The package's wheel, installed beside the daemon as the image's last step does."""
    folder = command("pip", "wheel")[command("pip", "wheel").index("--wheel-dir") + 1]
    built = package / folder
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built, cwd=package)
    steps = [line.split() for line in (package / "Dockerfile").read_text().splitlines()]
    (copied,) = (step[1] for step in steps if step[:1] == ["COPY"])
    (wheel,) = package.glob(copied)
    assert wheel.match(copied)
    assert f"!{folder}/*.whl" in (package / ".dockerignore").read_text().splitlines()
    assert steps[-1] == ["USER", "65532:65532"]
    # Without an index: the daemon's image has all that it needs.
    python = environment / "python"
    run(UV, "pip", "install", "--quiet", "--no-index", "--python", python, wheel, cwd=package)
    return environment


def test_a_new_provider_initialises_the_nodes_of_a_sandbox(
    image_layer: Path, package: Path
) -> None:
    start = [word if word != "8080" else "0" for word in command("python", "tests/fake_cloud.py")]
    with subprocess.Popen(
        [image_layer / "python", *start], cwd=package, stdout=subprocess.PIPE, text=True
    ) as fake:
        try:
            assert fake.stdout
            where = [fake.stdout.readline() for _ in range(2)]
            edit(package / "cloud.yaml", "url: http://127.0.0.1:8080\n", where[0])
            assert where[1] in (package / "cloud.yaml").read_text()

            told = run(image_layer / "kube-ccm", *command("kube-ccm", "sandbox"), cwd=package)
        finally:
            fake.kill()

    assert told.splitlines()[-1].startswith("done: 3 nodes initialised"), told


def test_the_providers_are_typed_against_the_sdk(project: Path, package: Path) -> None:
    # By the project's own settings, so that what `make lint` has read is not read again.
    where = f"MYPYPATH={project}:{package}:{package / 'tests'}"
    ours = [project / name for name in readme.files() if name.startswith("ccm_")]
    written = [*ours, *package.rglob("*.py")]
    run("env", where, sys.executable, "-m", "mypy", *written, cwd=readme.ROOT)
