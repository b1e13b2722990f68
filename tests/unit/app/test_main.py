"""What ends the command, and with which exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from ccm.app import daemon, main, stopping
from ccm.app.provider import Misconfigured
from ccm.sandbox.realserver import write_kubeconfig

ARGV = ["--cloud-provider=sim", "--master=http://127.0.0.1:1"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind here, and the process that would be ended is ours."""
    monkeypatch.setattr(stopping, "LEFT_S", 60.0)


def ends_with(error: BaseException) -> Callable[..., object]:
    async def run(*_: object) -> int:
        await asyncio.sleep(0)
        raise error

    return run


@pytest.mark.row("daemon-exit-03")
@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a group"])
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ZeroDivisionError("by us"), 255, ("the daemon failed unexpectedly", "by us", "Traceback")),
        (Misconfigured("x is wrong"), 1, ("cloud-controller-manager: x is wrong\n",)),
    ],
    ids=["a defect", "what a person has to correct"],
)
def test_how_it_ends(
    error: Exception,
    code: int,
    words: tuple[str, ...],
    together: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A defect with its traceback, a person's mistake with one message."""
    fault = ExceptionGroup("many", [error]) if together else error
    monkeypatch.setattr(daemon, "run", ends_with(fault))

    assert main.main(ARGV) == code

    said = capfd.readouterr().err
    assert all(word in said for word in words)
    assert code == 255 or said == words[0]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("kubeconfig", "{}", "current-context: is not set"),
        ("cloud-config", "url: nowhere", "url is 'nowhere'"),
        ("config", "{}", "apiVersion is missing"),
    ],
)
def test_a_file_that_cannot_be_used_ends_it_with_one_message(
    name: str, content: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_kubeconfig(tmp_path / "kubeconfig", url="http://127.0.0.1:1", token="t")
    (tmp_path / name).write_text(content)
    files = {"kubeconfig": tmp_path / "kubeconfig", name: tmp_path / name}

    argv = [f"--{flag}={file}" for flag, file in files.items()]
    assert main.main(["--cloud-provider=sim", "--secure-port=0", *argv]) == 1

    said = capfd.readouterr().err
    assert said.count("\ncloud-controller-manager: ") + said.startswith("cloud-controller-m") == 1
    assert words in said
    assert "Traceback" not in said
