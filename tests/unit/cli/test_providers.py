"""`kube-ccm providers`: a list, a page, and both as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ccm
from ccm import cli
from ccm.cli import providers
from ccm.doctor.catalogue import Installed


def test_the_list_names_package_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["providers"]) == 0

    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "PACKAGE", "STATUS"]
    assert ["sim", "kube-ccm", ccm.__version__, "ok"] in [row.split() for row in rows]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            [Installed(name="bad", package="bad 1", target="bad:open", fault="cannot be imported")],
            "bad   bad 1    cannot be imported",
        ),
        ([], "no provider is installed"),
    ],
    ids=["broken", "none"],
)
def test_what_is_broken_or_missing_is_said(
    found: list[Installed],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccm.doctor.catalogue.installed", lambda: found)

    assert cli.main(["providers"]) == 0

    assert told in capsys.readouterr().out


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["providers", "-o", "json"]) == 0

    (sim,) = (one for one in json.loads(capsys.readouterr().out) if one["name"] == "sim")
    assert sim == {
        "name": "sim",
        "package": f"kube-ccm {ccm.__version__}",
        "target": "providers.sim:open_cloud",
        "usable": True,
        "fault": "",
    }


def test_one_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["providers", "sim"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"sim: providers.sim:open_cloud, of kube-ccm {ccm.__version__}, written for SDK 2.0"
    )
    assert {"offers, as its source says:", "  routes", "cloud config, YAML:"} <= set(lines)
    assert ["url", "text", "required"] in [line.split() for line in lines]
    assert "  load-balancer.sim.cloud/size: small or large, default small" in lines


def test_one_is_opened_with_a_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text("url: http://127.0.0.1:1\ntoken: some-secret-token\n")

    assert cli.main(["providers", "sim", "--cloud-config", str(file)]) == 0

    told = capsys.readouterr().out
    assert "offers, asked when open:" in told
    assert "load balancers compared by digest" in told
    assert "some-secret-token" not in told


def test_one_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["providers", "sim", "-o", "json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["cloudConfig"]["format"] == "YAML"
    assert [one["expects"] for one in told["serviceAnnotations"]][1] == "small or large"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["sin"], "unknown cloud provider 'sin'; did you mean 'sim'?"),
        (["sim", "--cloud-config", "/nowhere"], "--cloud-config=/nowhere cannot be read"),
        (["sim", "--cloud-config", "{folder}/wrong"], "url is 'nowhere'"),
    ],
)
def test_what_cannot_be_described_is_said_once(
    words: list[str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong").write_text("url: nowhere")
    given = [word.format(folder=tmp_path) for word in words]
    assert cli.main(["providers", *given]) == providers.EXIT_FAILED

    told = capsys.readouterr()
    assert told.out == ""
    assert fault in told.err
