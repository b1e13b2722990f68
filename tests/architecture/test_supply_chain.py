"""The script behind the make targets, the wheel, the bill of materials and the audit."""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ccm
from tests.architecture.sources import ROOT

SCRIPT = ROOT / ".dev" / "run.py"
NOWHERE = "http://127.0.0.1:9/simple"
"""The port of `discard`, where no server listens."""


@pytest.fixture
def chores() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chores", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_task_script_needs_only_the_standard_library(chores: ModuleType) -> None:
    command = [sys.executable, "-I", "-S", str(SCRIPT), "help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (answer.returncode, "  demo " in answer.stdout) == (0, True), answer.stderr
    assert chores.main(["dance"]) == 2


def test_uv_is_installed_from_the_lock_with_its_hashes(chores: ModuleType) -> None:
    first, *hashes = chores.locked("uv").splitlines()

    assert first.startswith("uv==")
    assert len(hashes) > 5
    assert all(line.strip().startswith("--hash=sha256:") for line in hashes)
    with pytest.raises(chores.Failed, match="nonsense"):
        chores.locked("nonsense")


def test_failed_checks_are_named_by_lint_and_test(
    chores: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    untidy = ["sh", "-c", "echo untidy; echo very >&2; exit 1"]
    monkeypatch.setattr(chores, "prepare", lambda: None)
    monkeypatch.setattr(chores, "checks", lambda: (("style", untidy), ("types", ["true"])))
    assert chores.main(["lint"]) == 1
    assert capfd.readouterr().err.endswith("== failed: style\n")

    monkeypatch.setattr(chores, "passes", lambda name, command: print("tests") is None)
    assert chores.main(["test"]) == 1
    said, complaint = capfd.readouterr()
    assert said == "tests\n== style\nuntidy\nvery\n== types\n"
    assert complaint == "== failed: style\n"


PIP = ("-m", "pip", "download", "--no-cache-dir", "--retries", "1", "--dest", "{folder}")
UV = ("-m", "uv", "pip", "install", "--no-cache", "--target", "{folder}")


@pytest.mark.parametrize(
    ("command", "variable"), [(PIP, "UV_DEFAULT_INDEX"), (UV, "PIP_INDEX_URL")], ids=["pip", "uv"]
)
def test_pip_and_uv_use_the_index_configured_for_either(
    chores: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Sequence[str],
    variable: str,
) -> None:
    """An index that does not answer is reported in one line."""
    words = [word.format(folder=tmp_path) for word in command]
    given = {**os.environ, variable: NOWHERE, "UV_HTTP_RETRIES": "0"}
    monkeypatch.setattr(chores, "ENVIRONMENT", chores.for_both(given))

    with pytest.raises(chores.Failed) as failed:
        chores.fetch("fetching", [sys.executable, *words, "no-such-package"])

    (line,) = str(failed.value).splitlines()
    assert "the package index does not answer" in line


def test_settings_of_pip_and_uv_are_translated_without_overriding(chores: ModuleType) -> None:
    told = chores.for_both({"PIP_CERT": "/ca.pem", "UV_INDEX": "https://a", "PIP_PROXY": ""})

    assert told["SSL_CERT_FILE"] == "/ca.pem"
    assert told["PIP_EXTRA_INDEX_URL"] == "https://a"
    assert "ALL_PROXY" not in told
    assert chores.for_both({"UV_INDEX_URL": NOWHERE})["PIP_INDEX_URL"] == NOWHERE
    assert chores.for_both({"PIP_FIND_LINKS": "/a /b"})["UV_FIND_LINKS"] == "/a,/b"
    assert chores.for_both({"UV_FIND_LINKS": "/a,/b"})["PIP_FIND_LINKS"] == "/a /b"
    both = {"PIP_INDEX_URL": "https://a", "UV_DEFAULT_INDEX": "https://b"}
    assert chores.for_both(both) == both


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_contains_only_the_daemon_and_the_providers(wheel: zipfile.ZipFile) -> None:
    folders = {name.split("/")[0] for name in wheel.namelist()}

    assert {name for name in folders if not name.endswith(".dist-info")} == {"ccm", "providers"}
    assert {"ccm/py.typed", "providers/py.typed"} <= set(wheel.namelist())


def test_the_wheel_declares_its_commands_and_the_simulated_provider(wheel: zipfile.ZipFile) -> None:
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


def test_the_image_does_not_install_rich() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    installs = [line for line in lines if "/dist" in line]
    brought = needed("kube-ccm", set())

    assert [line.split()[-1] for line in installs if "--find-links" in line] == [
        '"kube-ccm[${EXTRAS}]"'
    ]
    assert "ARG EXTRAS=uvloop,openstack" in lines
    assert brought >= {"aiohttp", "structlog"}
    assert "rich" not in brought


LOCK = (ROOT / "requirements.lock").read_text()


def test_package_constraints_match_the_lock(chores: ModuleType) -> None:
    project = tomllib.loads(chores.pinned())

    pins = project["tool"]["uv"]["constraint-dependencies"]
    assert pins == [line[:-2] for line in LOCK.splitlines() if re.match(r"[a-z].*==", line)]
    assert [str(Requirement(pin).marker) for pin in pins if pin.startswith("uvloop==")] == [
        'platform_python_implementation == "CPython"'
    ]
    assert project["project"]["version"] == ccm.__version__
    assert "dynamic" not in project["project"]


@pytest.mark.parametrize(
    ("code", "is_good", "is_skipped"),
    [(0, True, False), (1, False, False), (2, True, True)],
    ids=["nothing known", "a vulnerability", "nobody answers"],
)
def test_the_audit_fails_on_a_vulnerability_and_reports_when_it_is_skipped(
    chores: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    code: int,
    is_good: bool,
    is_skipped: bool,
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\ntest "$1 $2" = "audit --project" && exit {code}\nexit 99\n')
    uv.chmod(0o755)
    monkeypatch.setattr(chores, "UV", uv)

    assert chores.audited() is is_good
    assert ("SKIPPED: there was NO AUDIT" in capfd.readouterr().out) is is_skipped


@pytest.fixture
def bill(chores: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The bill of materials. Its creation reads package requirements from the registry."""
    monkeypatch.setattr(chores, "SBOM", tmp_path / "bill.json")
    monkeypatch.setattr(chores, "prepare", lambda: None)
    try:
        chores.sbom([])
    except chores.IndexUnreachable as trouble:
        pytest.skip(f"NO BILL OF MATERIALS was made, which needs a registry: {trouble}")
    return dict(json.loads((tmp_path / "bill.json").read_text()))


@pytest.mark.soak
def test_the_bill_of_materials_lists_the_locked_packages_of_the_image(bill: dict[str, Any]) -> None:
    components, root = bill["components"], bill["metadata"]["component"]
    names = {each["name"] for each in components}

    assert (bill["bomFormat"], root["name"]) == ("CycloneDX", "kube-ccm")
    extras = {"keystoneauth1", "uvloop"}
    assert names >= {canonicalize_name(name) for name in needed("kube-ccm", set()) | extras}
    assert names & {"pytest", "mypy", "rich", "setuptools"} == set()
    locked = {f"pkg:pypi/{line.split()[0].replace('==', '@')}" for line in LOCK.splitlines()}
    assert {each["purl"] for each in components} - locked == set()
    for each in components:
        hashes = [one["content"] for file in each["externalReferences"] for one in file["hashes"]]
        assert hashes
        assert [one for one in hashes if f"sha256:{one}" not in LOCK] == []
    links = [(each["ref"], *each.get("dependsOn", ())) for each in bill["dependencies"]]
    assert {ref for several in links for ref in several} == {
        each["bom-ref"] for each in (*components, root)
    }
