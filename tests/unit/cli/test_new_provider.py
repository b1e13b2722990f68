"""`kube-ccm new-provider`: what it refuses, and what it writes under every name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import ccm
from ccm import cli
from ccm.cli import command, new_provider
from ccm.cloud import SDK_VERSION


def files_of(folder: Path) -> dict[str, str]:
    """Path -> content of all that was written."""
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
def test_a_bad_name_is_refused_in_one_message(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"

    with pytest.raises(SystemExit) as ended:
        cli.main(["new-provider", f"--folder={folder}", "--", name])

    assert ended.value.code == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert "is no name of a provider: lower-case letters, digits and '-'" in told
    assert not folder.exists()


def test_the_name_of_a_provider_that_there_is_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["new-provider", "sim", f"--folder={tmp_path / 'new'}"])

    assert "there is a provider 'sim' already" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_there_is_left_alone(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = Path("ccm-nimbus")
    there.mkdir() if kind == "folder" else there.write_text("mine")

    assert cli.main(["new-provider", "nimbus"]) == command.EXIT_FAILED

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "kube-ccm new-provider: ccm-nimbus is there already; name another by --folder\n"
    )
    assert [*tmp_path.iterdir()] == [tmp_path / there]
    assert kind == "file" or not [*there.iterdir()]


def test_a_folder_that_cannot_be_made_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")

    words = ["new-provider", "nimbus", f"--folder={tmp_path / 'file' / 'new'}"]
    assert cli.main(words) == command.EXIT_FAILED

    assert "new cannot be written: Not a directory\n" in capsys.readouterr().err


def test_the_package_has_the_name_everywhere(
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
