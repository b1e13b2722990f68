"""`kube-ccm providers`: a list, a page, and both as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import ccm
from ccm import cli, cloud
from ccm.cli import providers
from ccm.cloud import registry
from tests.contract.memory import MemoryApi, MemoryProvider


@cloud.provider(sdk="2.0")
async def open_plain(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """A provider without configuration, whose source says little."""
    offered = MemoryProvider(MemoryApi())
    facts = {"instances": offered, "inventory": offered} if context.cluster_name else {}
    yield cloud.Cloud(name="plain", **facts)  # type: ignore[arg-type]


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """`plain` works, `broken` does not."""
    found = [
        EntryPoint("plain", f"{__name__}:open_plain", registry.GROUP),
        EntryPoint("broken", "no_such_module:open_cloud", registry.GROUP),
    ]
    for module in (registry, providers):
        monkeypatch.setattr(module, "entry_points", lambda *, group: found)
    return found


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["providers"]) == cli.main(["providers", "-o", "json"]) == 0

    table, _, document = capsys.readouterr().out.partition("[")
    head, *rows = table.splitlines()
    assert head.split() == ["NAME", "PACKAGE", "STATUS"]
    assert ["sim", "kube-ccm", ccm.__version__, "ok"] in [row.split() for row in rows]
    (sim,) = (one for one in json.loads(f"[{document}") if one["name"] == "sim")
    assert sim == {
        "name": "sim",
        "package": f"kube-ccm {ccm.__version__}",
        "target": "providers.sim:open_cloud",
        "usable": True,
        "fault": "",
    }


def test_a_broken_provider_is_listed_with_the_reason(
    entries: list[EntryPoint], capsys: pytest.CaptureFixture[str]
) -> None:
    broken, plain = providers.installed()

    assert (plain["usable"], broken["usable"]) == (True, False)
    assert cli.main(["providers"]) == 0
    assert "ModuleNotFoundError: No module named 'no_such_module'" in capsys.readouterr().out
    entries.clear()
    assert cli.main(["providers"]) == 0
    assert "no provider is installed" in capsys.readouterr().out


def test_one_is_described_as_its_source_says_until_it_is_opened(
    entries: list[EntryPoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text("")

    closed = asyncio.run(providers.describe("plain"))
    opened = asyncio.run(providers.describe("plain", cloud_config=str(file)))

    assert (closed["opened"], closed["offers"]) == (False, None)
    assert closed["cloudConfig"] == {"format": "", "settings": []}
    assert opened["opened"]
    assert opened["offers"][:2] == ["instances", "bulk listing"]
    assert cli.main(["providers", "plain"]) == 0
    said = capsys.readouterr().out
    assert "the source does not tell" in said
    assert "annotations of Services: any" in said


def test_the_simulated_cloud_has_all_that_it_declares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text("url: http://127.0.0.1:1\ntoken: some-secret-token\n")

    assert cli.main(["providers", "sim"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert cli.main(["providers", "sim", "--cloud-config", str(file)]) == 0
    opened = capsys.readouterr().out
    declared = asyncio.run(providers.describe("sim"))

    assert lines[0] == (
        f"sim: providers.sim:open_cloud, of kube-ccm {ccm.__version__}, written for SDK 2.0"
    )
    assert {"offers, as its source says:", "  routes", "cloud config, YAML:"} <= set(lines)
    assert ["url", "text", "required"] in [line.split() for line in lines]
    assert "  load-balancer.sim.cloud/size: small or large, default small" in lines
    assert "offers, asked when open:" in opened
    assert "load balancers compared by digest" in opened
    assert all(f"  {offer}\n" in opened for offer in declared["offers"])
    assert "some-secret-token" not in opened
    assert [one["expects"] for one in declared["serviceAnnotations"]][1] == "small or large"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["sin"], "unknown cloud provider 'sin'; did you mean 'sim'?"),
        (["sim", "--cloud-config", "/nowhere"], "--cloud-config=/nowhere cannot be read"),
        (["sim", "--cloud-config", "{folder}/wrong"], "url is 'nowhere'"),
    ],
)
def test_one_that_cannot_be_described_is_refused_once(
    words: list[str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong").write_text("url: nowhere")
    given = [word.format(folder=tmp_path) for word in words]
    assert cli.main(["providers", *given]) == 1

    told = capsys.readouterr()
    assert told.out == ""
    assert fault in told.err
