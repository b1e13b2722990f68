"""What ends the command, and with which exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ccm.app import daemon, main
from ccm.app.provider import Misconfigured

ARGV = ["--cloud-provider=sim", "--master=http://127.0.0.1:1"]


def ends_with(error: BaseException) -> Callable[..., object]:
    async def run(*_: object) -> int:
        await asyncio.sleep(0)
        raise error

    return run


@pytest.mark.row("daemon-exit-03")
@pytest.mark.parametrize(
    "defect", [ZeroDivisionError("by us"), ExceptionGroup("many", [KeyError("by us")])]
)
def test_a_defect_ends_with_255_and_its_traceback(
    defect: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon, "run", ends_with(defect))

    assert main.main(ARGV) == 255

    said = capfd.readouterr().err
    assert "the daemon failed unexpectedly" in said
    assert "by us" in said
    assert "Traceback" in said


@pytest.mark.parametrize(
    "fault",
    [Misconfigured("x is wrong"), ExceptionGroup("many", [Misconfigured("x is wrong")])],
)
def test_what_a_person_has_to_correct_ends_with_1_and_one_message(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon, "run", ends_with(fault))

    assert main.main(ARGV) == 1

    said = capfd.readouterr().err
    assert said == "cloud-controller-manager: x is wrong\n"
