"""`kube-ccm providers` and `kube-ccm new-provider`."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

import ccm
from ccm import cli, cloud
from ccm.base.flags import PROVIDERS
from ccm.cli import command, new_provider, providers
from ccm.cloud import SDK_VERSION, registry
from tests.contract.memory import MemoryApi, MemoryProvider


@cloud.provider(sdk="2.0")
async def open_plain(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Provider without declarations."""
    offered = MemoryProvider(MemoryApi())
    facts = {"instances": offered, "inventory": offered} if context.cluster_name else {}
    yield cloud.Cloud(name="plain", **facts)  # type: ignore[arg-type]


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """`plain` works, `broken` does not."""
    found = [
        EntryPoint("plain", f"{__name__}:open_plain", PROVIDERS),
        EntryPoint("broken", "no_such_module:open_cloud", PROVIDERS),
    ]
    for module in (registry, providers):
        monkeypatch.setattr(module, "entry_points", lambda *, group: found)
    return found


def test_providers_are_listed_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["providers"]) == cli.main(["providers", "-o", "json"]) == 0

    table, _, document = capsys.readouterr().out.partition("[")
    assert cli.main(["providers", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == json.loads(f"[{document}")
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


def test_broken_provider_is_listed_with_the_reason(
    entries: list[EntryPoint], capsys: pytest.CaptureFixture[str]
) -> None:
    broken, plain = providers.installed()

    assert (plain["usable"], broken["usable"]) == (True, False)
    assert cli.main(["providers"]) == 0
    assert "ModuleNotFoundError: No module named 'no_such_module'" in capsys.readouterr().out
    entries.clear()
    assert cli.main(["providers"]) == 0
    assert "no provider is installed" in capsys.readouterr().out


def test_provider_is_described_from_its_declarations_until_opened(
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
    assert "not declared; use --cloud-config FILE" in said
    assert "Service annotations: any" in said


def test_sim_provider_is_described_with_all_its_declarations(
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
    assert {"capabilities, as declared:", "  routes", "cloud config, YAML:"} <= set(lines)
    assert ["url", "text", "required"] in [line.split() for line in lines]
    assert "  load-balancer.sim.cloud/size: small or large, default small" in lines
    assert "capabilities, when open:" in opened
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
def test_undescribable_provider_causes_one_error(
    words: list[str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong").write_text("url: nowhere")
    given = [word.format(folder=tmp_path) for word in words]
    assert cli.main(["providers", *given]) == 1

    told = capsys.readouterr()
    assert told.out == ""
    assert fault in told.err


def files_of(folder: Path) -> dict[str, str]:
    """Return the content of each written file by path."""
    return {
        file.relative_to(folder).as_posix(): file.read_text()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "Acme",
            "my_cloud",
            "-cloud",
            "cloud-",
            "my--cloud",
            "9cloud",
            "a/b",
            "..",
            "wölkchen",
        ),
        "a" * (new_provider.NAME_LENGTH + 1),
        "acme\n",
    ],
)
def test_new_provider_refuses_an_invalid_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"

    with pytest.raises(SystemExit) as ended:
        cli.main(["new-provider", f"--folder={folder}", "--", name])

    assert ended.value.code == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert "is not a valid provider name; use lower-case letters, digits and '-'" in told
    assert not folder.exists()


def test_new_provider_refuses_an_installed_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["new-provider", "sim", f"--folder={tmp_path / 'new'}"])

    assert "provider 'sim' is already installed" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_new_provider_does_not_overwrite_an_existing_path(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = Path("ccm-nimbus")
    there.mkdir() if kind == "folder" else there.write_text("mine")

    assert cli.main(["new-provider", "nimbus"]) == command.EXIT_FAILED

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "kube-ccm new-provider: ccm-nimbus already exists; choose another with --folder\n"
    )
    assert [*tmp_path.iterdir()] == [tmp_path / there]
    assert kind == "file" or not [*there.iterdir()]


def test_new_provider_reports_an_unwritable_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")

    words = ["new-provider", "nimbus", f"--folder={tmp_path / 'file' / 'new'}"]
    assert cli.main(words) == command.EXIT_FAILED

    assert "new cannot be written: Not a directory\n" in capsys.readouterr().err


def test_new_provider_package_uses_the_given_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "some" / "where"

    assert cli.main(["new-provider", "blue-sky", f"--folder={folder}"]) == command.EXIT_OK

    assert f"cd {folder}\n" in capsys.readouterr().out
    written = files_of(folder)
    assert {"ccm_blue_sky/__init__.py", "ccm_blue_sky/py.typed", "tests/test_contract.py"} <= {
        *written
    }
    for place, text in written.items():
        assert not re.search("(?i:acme|tmpl)|@[A-Z]", place + text), place
    project = tomllib.loads(written["pyproject.toml"])["project"]
    assert project["name"] == "ccm-blue-sky"
    assert project["entry-points"]["ccm.providers"] == {"blue-sky": "ccm_blue_sky:open_cloud"}
    assert "class BlueSkyInstances(" in written["ccm_blue_sky/instances.py"]
    assert f'sdk="{SDK_VERSION}"' in written["ccm_blue_sky/__init__.py"]
    assert f"kube-ccm:{ccm.__version__}\n" in written["Dockerfile"]
    assert "ccm_blue_sky/machines.py" in written
    assert "ccm_blue_sky/kubermatic.py" not in written


def test_new_provider_package_implements_the_given_machine_api(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    words = ["new-provider", "blue-sky", f"--folder={folder}", "--machines=kubermatic"]

    assert cli.main(words) == command.EXIT_OK

    written = files_of(folder)
    assert "ccm_blue_sky/machines.py" not in written
    assert "return cloud.from_kubermatic(" in written["ccm_blue_sky/kubermatic.py"]
    for place, text in written.items():
        assert not re.search("(?i:acme|tmpl)|@[A-Z]|@if|@end", place + text), place


def test_new_provider_refuses_an_unknown_machine_api(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["new-provider", "nimbus", f"--folder={tmp_path / 'new'}", "--machines=cluster"])

    assert ended.value.code == 2
    assert "invalid choice: 'cluster'" in capsys.readouterr().err
