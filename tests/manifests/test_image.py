"""The Dockerfile against the wheel: every path, user and command that it names exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import ccm
from ccm.app.options import FLAGS
from tests.manifests import shipped
from tests.manifests.shipped import ROOT

UV = Path(sys.executable).parent / "uv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction.

    Attributes:
        stage: number of the build stage; -1 before the first.
        word: the instruction, in capitals.
        rest: its arguments, on one line.
    """

    stage: int
    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        """The arguments as a shell would split them."""
        return shlex.split(self.rest)


def steps() -> Iterator[Step]:
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    stage = -1
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            stage += word == "FROM"
            yield Step(stage=stage, word=word, rest=rest.strip())


def found(word: str, stage: int | None = None) -> list[Step]:
    return [one for one in steps() if one.word == word and stage in (None, one.stage)]


def only(word: str, stage: int = 1) -> str:
    (one,) = found(word, stage)
    return one.rest


def commands() -> list[list[str]]:
    """Commands of the build, split into words."""
    lines = [line for step in found("RUN") for line in step.rest.split("&&")]
    return [shlex.split(line) for line in lines]


def entry_point() -> Path:
    command = only("ENTRYPOINT")
    assert re.fullmatch(r'\["[^"]+"\]', command), "the exec form: signals reach the daemon"
    return Path(command[2:-2])


def test_copied_files_exist_and_are_not_ignored_by_docker() -> None:
    copied = {
        source
        for step in found("COPY")
        if not step.rest.startswith("--from")
        for source in step.words[:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in ignored if line.startswith("!")}

    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert "*" in ignored
    assert let_through == copied


def test_the_last_stage_copies_the_environment_of_the_build_stage() -> None:
    (taken,) = [step.words for step in found("COPY", 1)]

    assert taken == ["--from=build", "/opt/ccm", "/opt/ccm"]
    assert ["python", "-m", "venv", "--without-pip", "/opt/ccm"] in commands()
    assert entry_point().parent == Path("/opt/ccm/bin")
    assert "PATH=/opt/ccm/bin:${PATH}" in only("ENV").split()


def test_labels_describe_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = dict(word.split("=") for word in shlex.split(only("LABEL")))

    assert {
        name.removeprefix("org.opencontainers.image."): text for name, text in labels.items()
    } == {
        "title": project["name"],
        "description": project["description"].partition(",")[0],
        "licenses": project["license"],
        "version": ccm.__version__,
    }


def test_the_image_has_no_build_tools() -> None:
    (removed,) = [words for words in commands() if "uninstall" in words]

    assert found("RUN", 1) == []
    assert removed[-1] == "setuptools"
    assert "/opt/ccm/bin/python" in removed


def test_packages_are_installed_from_the_lock_with_hash_checks() -> None:
    (fetch,) = [words for words in commands() if words[:2] == ["pip", "download"]]
    installs = [words for words in commands() if "install" in words]

    assert {"--require-hashes", "--only-binary=:all:", "requirements.lock"} <= set(fetch)
    assert installs
    assert all("--no-index" in words for words in installs)


def test_package_index_settings_reach_only_the_build_stage() -> None:
    """The address of the index may contain a password."""
    names = [one.rest.partition("=")[0] for one in found("ARG", 0)]

    assert names == ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "EXTRAS"]
    assert found("ARG", 1) == []


def test_user_ports_and_mounts_match_the_deployment() -> None:
    user, _, group = only("USER").partition(":")
    context = shipped.deployment()["template"]["spec"]["securityContext"]

    assert int(user) > 0
    assert (int(user), int(group)) == (context["runAsUser"], context["runAsGroup"])
    assert context["runAsNonRoot"] is True
    ports = [FLAGS["secure-port"].default, FLAGS["webhook-secure-port"].default]
    assert [int(word) for word in only("EXPOSE").split()] == ports
    (container,) = shipped.deployment()["template"]["spec"]["containers"]
    for mount in container["volumeMounts"]:
        assert not entry_point().is_relative_to(mount["mountPath"])
    assert "command" not in container


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**clean, "UV_PYTHON_DOWNLOADS": "never", **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_installed_package_runs_read_only_with_locked_dependencies(tmp_path: Path) -> None:
    """Needs the package index or a cache of it, as any installation does.

    The environment stands for `/opt/ccm` on a read-only root file system: commands must not write.
    """
    (words,) = (words for words in commands() if "hatchling" in words and "build" in words)
    options = words[words.index("hatchling") :]
    run(sys.executable, "-m", *[str(tmp_path / "dist") if w == "/dist" else w for w in options])
    (wheel,) = (tmp_path / "dist").glob("kube_ccm-*.whl")
    installed = tmp_path / "ccm"
    run(UV, "venv", "--quiet", "--python", sys.executable, installed)
    requirements = ROOT / "requirements.lock"
    pip = (UV, "pip", "install", "--quiet", "--python", installed / "bin" / "python")
    run(*pip, "--constraints", requirements, wheel)
    program = installed / entry_point().relative_to("/opt/ccm")
    python = installed / "bin" / "python"
    before = files(installed)

    clean = {"PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}
    assert run(program, "--version", env=clean).startswith("cloud-controller-manager ")
    told = run(program, "--help", env=clean)
    (container,) = shipped.deployment()["template"]["spec"]["containers"]
    assert [arg for arg in container["args"] if arg.partition("=")[0] not in told] == []
    script = "from ccm.cloud import registry; print(*registry.installed_providers())"
    assert "sim" in run(python, "-P", "-c", script, env=clean).split()
    assert files(installed) == before

    text = requirements.read_text()
    locked = set(re.findall(r"^([a-z0-9-]+==[^ ;]+)", text, re.MULTILINE))
    frozen = run(UV, "pip", "freeze", "--python", python).split("\n")
    assert [one for one in frozen if one and not one.startswith("kube-ccm ")]
    assert {one for one in frozen if one and not one.startswith("kube-ccm ")} <= locked
