"""What the bill of materials and the audit are made of is the lock, and nothing else."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.utils import canonicalize_name

import ccm
from tests.architecture.sources import ROOT
from tests.architecture.test_chores import chores
from tests.architecture.test_distribution import needed

__all__ = ["chores"]

LOCK = (ROOT / "requirements.lock").read_text()


def test_each_locked_package_is_tied_to_its_version(chores: ModuleType) -> None:
    project = tomllib.loads(chores.pinned())

    pins = project["tool"]["uv"]["constraint-dependencies"]
    assert pins == [line.split()[0] for line in LOCK.splitlines() if re.match(r"[a-z].*==", line)]
    assert project["project"]["version"] == ccm.__version__
    assert "dynamic" not in project["project"]


@pytest.mark.parametrize(
    ("code", "is_good", "is_skipped"),
    [(0, True, False), (1, False, False), (2, True, True)],
    ids=["nothing known", "a vulnerability", "nobody answers"],
)
def test_a_known_vulnerability_fails_and_silence_is_loud(
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
    """The bill of materials; a registry is asked what packages require."""
    monkeypatch.setattr(chores, "SBOM", tmp_path / "bill.json")
    monkeypatch.setattr(chores, "prepare", lambda: None)
    try:
        chores.sbom([])
    except chores.Failed as trouble:
        pytest.skip(f"NO BILL OF MATERIALS was made, which needs a registry: {trouble}")
    return dict(json.loads((tmp_path / "bill.json").read_text()))


@pytest.mark.soak
def test_the_bill_of_materials_is_the_images_part_of_the_lock(bill: dict[str, Any]) -> None:
    components, root = bill["components"], bill["metadata"]["component"]
    names = {each["name"] for each in components}

    assert (bill["bomFormat"], root["name"]) == ("CycloneDX", "kube-ccm")
    assert names >= {canonicalize_name(name) for name in (*needed("kube-ccm", set()), "uvloop")}
    assert names & {"pytest", "mypy", "rich"} == set()
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
