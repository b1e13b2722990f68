"""The commands of the README files, run literally in an empty home folder.

A checkout, Python, kubectl, helm and an API server are present. The only difference to a real
reader: packages are installed in advance, and pip has no index.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ccm.sandbox import realserver
from tests import forkserver, servers
from tests.architecture.sources import project_files
from tests.readme import readme

UV = Path(sys.executable).parent / "uv"
DEADLINE_S = 150.0
MARK = "END-OF-A-STEP"
CHECKOUT = ("ccm", "providers", "manifests", "pyproject.toml", "README.md", "LICENSE")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Reader:
    """Somebody who reads the pages in their order, and types what they say.

    Args:
        home: an empty folder.
        programs: the folder with kubectl and helm.
    """

    def __init__(self, home: Path, programs: Path) -> None:
        self.home = home
        self.checkout = home / "checkout"
        self.venv = home / "kube-ccm"
        tools = home / "tools"
        tools.mkdir()
        for name in ("kubectl", "helm"):
            (tools / name).symlink_to(programs / name)
        (tools / "python3").symlink_to(Path(sys.executable).resolve())
        self.environment = {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PATH": f"{tools}:{os.defpath}",
            "KUBECONFIG": str(home / "kubeconfig"),
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip takes it for a question: 0 is "without"
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_QUIET": "1",
        }

    def prepare(self) -> None:
        """Prepare a checkout and the packages that pip would fetch."""
        for path in project_files():
            place = path.relative_to(readme.ROOT)
            if place.parts[0] in CHECKOUT:
                (self.checkout / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, self.checkout / place)
        (self.checkout / "cloud.yaml").write_text("url: http://127.0.0.1:8080\n")
        self.uv("venv", "--quiet", "--python", sys.executable, str(self.venv))
        fetched = ["-r", "pyproject.toml", "--extra", "cli", "--extra", "testing"]
        fetched += ["hatchling", "mypy", "ruff"]
        self.uv("pip", "install", "--quiet", "--constraints", "requirements.lock", *fetched)

    def uv(self, *words: str) -> None:
        """Run our own uv for his environment."""
        ours = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "VIRTUAL_ENV": str(self.venv)}
        subprocess.run([UV, *words], cwd=readme.ROOT, env=ours, check=True, capture_output=True)

    def run(self, *command: str | Path, cwd: Path, activated: bool = True) -> str:
        """Run a command, return its output. A failure or a process left behind fails the test."""
        path = f"{self.venv / 'bin'}:{self.environment['PATH']}"
        output = self.home / "output"
        with (
            output.open("wb") as sink,
            subprocess.Popen(
                [str(word) for word in command],
                cwd=cwd,
                env=self.environment | ({"PATH": path} if activated else {}),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its background processes end with it
            ) as process,
        ):
            try:
                process.wait(DEADLINE_S)
            finally:
                with contextlib.suppress(ProcessLookupError):  # all has ended
                    os.killpg(process.pid, signal.SIGKILL)
        said = output.read_text()
        assert process.returncode == 0, said
        return said

    def follow(self, page: str, kubeconfig: Path) -> str:
        """Run the commands of a page in order with an empty cluster; return their output."""
        script = self.home / "page.sh"
        script.write_text(readme.script(readme.text(page), MARK))
        cwd = self.home if page == "providers/README.md" else self.checkout
        shutil.copy(kubeconfig, self.home / "kubeconfig")
        return self.run("bash", script, cwd=cwd, activated=page != "README.md")


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[Path]:
    """A kubeconfig for an empty API server."""
    command = [sys.executable, "-m", "ccm.testing.apiserver", "--data-dir", str(folder)]
    with forkserver.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Path(json.loads(process.stdout.readline())["kubeconfig"])
        process.terminate()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A reader before the first page."""
    found = Reader(tmp_path_factory.mktemp("reader"), servers.require_assets())
    found.prepare()
    return found


@pytest.fixture(scope="module")
def said(reader: Reader, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Page -> output of its commands, one page after the other."""
    found = {}
    for page in readme.PAGES:
        with api_server(tmp_path_factory.mktemp("cluster")) as kubeconfig:
            found[page] = reader.follow(page, kubeconfig)
    return found


@pytest.mark.parametrize("page", readme.PAGES)
def test_commands_print_the_output_that_the_page_shows(page: str, said: Mapping[str, str]) -> None:
    check(page, said[page])


@pytest.mark.envtest
@pytest.mark.soak
async def test_commands_for_operators_work_on_a_real_api_server(
    reader: Reader, said: Mapping[str, str], real_server: realserver.RealServer
) -> None:
    page = "manifests/README.md"

    check(page, reader.follow(page, real_server.kubeconfig_path))


def check(page: str, said: str) -> None:
    """Check that each step ran, and printed the expected lines."""
    ran = [step for step in readme.steps(readme.text(page)) if not (step.file or step.needs)]
    outputs = said.split(f"{MARK}\n")

    assert len(outputs) == len(ran) + 1
    for step, output in zip(ran, outputs, strict=False):
        assert not (line := readme.broken(step.promised, output)), f"{line}\n{output}"


@pytest.fixture(scope="module")
def package(reader: Reader, said: Mapping[str, str]) -> Path:
    """The provider that `kube-ccm new-provider` wrote for the reader of the author's page."""
    return reader.home / "ccm-acme"


def contract(reader: Reader, folder: Path, *words: str) -> int:
    """How many cases of the suite passed."""
    told = reader.run("pytest", "-q", "-p", "no:cacheprovider", *words, cwd=folder)
    counted = re.search(r"(\d+) passed", told)
    assert counted, told
    return int(counted[1])


def edit(file: Path, before: str, after: str) -> None:
    """Replace a text that is there."""
    content = file.read_text()
    assert before in content, file
    file.write_text(content.replace(before, after))


def test_the_provider_guide_runs_enough_contract_cases(said: Mapping[str, str]) -> None:
    counts = [int(number) for number in re.findall(r"(\d+) passed", said["providers/README.md"])]

    new_package, rack = counts
    assert new_package >= 130
    assert rack >= 15


def test_a_generated_provider_can_be_adapted_to_another_api(reader: Reader, package: Path) -> None:
    changed = shutil.copytree(package, reader.home / "changed")
    edit(changed / "tests" / "fake_cloud.py", 'type: str = "small"', 'flavor: str = "small"')
    edit(changed / "tests" / "test_contract.py", "server.type", "server.flavor")
    edit(changed / "ccm_acme" / "client.py", "    type: str", "    flavor: str")
    edit(changed / "ccm_acme" / "instances.py", "server.type", "server.flavor")
    edit(changed / "ccm_acme" / "machines.py", "type=spec.type", "flavor=spec.type")

    assert contract(reader, changed, "-k", "metadata or listing") >= 4


def test_the_image_of_a_provider_needs_only_its_wheel(reader: Reader, package: Path) -> None:
    steps = [line.split() for line in (package / "Dockerfile").read_text().splitlines()]
    (copied,) = (step[1] for step in steps if step[:1] == ["COPY"])
    (wheel,) = package.glob(copied)

    assert f"!{Path(copied).parent}/*.whl" in (package / ".dockerignore").read_text().splitlines()
    assert steps[-1] == ["USER", "65532:65532"]
    # Beside the daemon alone, as the image has it, nothing is missing: pip has no index here.
    reader.run("pip", "install", "--force-reinstall", "--no-deps", wheel, cwd=reader.home)
    reader.run("pip", "check", cwd=reader.home)
    assert "acme" in reader.run("kube-ccm", "providers", "acme", cwd=reader.home)


def test_the_example_providers_pass_mypy(reader: Reader, package: Path) -> None:
    rack = reader.home / "ccm-rack"
    # With the project's settings, so that the cache of `make lint` is used.
    where = f"MYPYPATH={rack}:{package}:{package / 'tests'}"
    written = [rack / "ccm_rack.py", *sorted(package.rglob("*.py"))]
    words = ["env", where, sys.executable, "-m", "mypy", *map(str, written)]
    ended = subprocess.run(words, cwd=readme.ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout
