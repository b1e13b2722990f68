"""Which sandbox a person means."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from ccm.sandbox import running
from ccm.sandbox.running import NoSandbox, Running

OURS = Running(url="http://127.0.0.1:1", token="t")


def folder(home: Path, name: str) -> Path:
    made = home / f"{running.PREFIX}{name}"
    made.mkdir()
    return made


def test_the_only_one_is_meant_while_it_runs(tmp_path: Path) -> None:
    """The folder may outlive it, and its file says nothing then."""
    kept = folder(tmp_path, "a")
    with running.announced(kept, OURS):
        assert running.find(None, "", home=tmp_path) == OURS
        assert running.find(kept, "", home=tmp_path / "elsewhere") == OURS

    with pytest.raises(NoSandbox, match=rf"none in {tmp_path}\); start one: kube-ccm sandbox$"):
        running.find(None, "", home=tmp_path)
    with pytest.raises(NoSandbox, match=f"no sandbox runs in {kept}"):
        running.find(kept, "", home=tmp_path)


def test_only_its_owner_may_read_how_to_reach_the_cloud(tmp_path: Path) -> None:
    with running.announced(folder(tmp_path, "a"), OURS):
        (file,) = tmp_path.rglob("*.json")

        assert file.stat().st_mode & 0o077 == 0


def test_of_several_somebody_has_to_choose(tmp_path: Path) -> None:
    both = [folder(tmp_path, name) for name in "ab"]
    with contextlib.ExitStack() as stack:
        for number, each in enumerate(both):
            stack.enter_context(running.announced(each, Running(url=str(number))))

        with pytest.raises(NoSandbox) as refused:
            running.find(None, "/etc/kubeconfig", home=tmp_path)
        kubeconfig = str(both[1] / "apiserver" / "kubeconfig")
        assert running.find(None, kubeconfig, home=tmp_path).url == "1"
        assert running.find(both[0], kubeconfig, home=tmp_path).url == "0"

    said = str(refused.value)
    assert said.startswith(f"2 sandboxes run: {both[0]}, {both[1]}; ")
    assert "--folder=" in said


def test_a_garbled_file_is_nobodys(tmp_path: Path) -> None:
    made = folder(tmp_path, "a")
    with running.announced(made, OURS):
        (made / "sandbox.json").write_text("{")

        with pytest.raises(NoSandbox):
            running.find(None, "", home=tmp_path)
