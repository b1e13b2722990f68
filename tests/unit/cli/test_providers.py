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


def test_a_broken_one_is_listed_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Installed(name="bad", package="bad 1", target="bad:open", fault="cannot be imported")
    monkeypatch.setattr("ccm.doctor.catalogue.installed", lambda: [broken])

    assert cli.main(["providers"]) == 0

    assert "bad   bad 1    cannot be imported" in capsys.readouterr().out


def test_where_none_is_installed_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccm.doctor.catalogue.installed", list)

    assert cli.main(["providers"]) == 0

    assert capsys.readouterr().out.startswith("no provider is installed")


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
        f"sim: providers.sim:open_cloud, of kube-ccm {ccm.__version__}, written for SDK 1.0"
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
    ],
)
def test_what_cannot_be_described_is_said_once(
    words: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["providers", *words]) == providers.EXIT_FAILED

    told = capsys.readouterr()
    assert told.out == ""
    assert fault in told.err


def test_a_configuration_without_a_name_makes_no_sense(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["providers", "--cloud-config", "x"])

    assert ended.value.code == 2
    assert "needs the NAME of a provider" in capsys.readouterr().err
