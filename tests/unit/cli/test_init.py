"""The `kube-ccm` command as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ccm
from ccm import cli


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"kube-ccm {ccm.__version__}\n"


def test_help_leads_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])

    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "kube-ccm sandbox --help" in said
    assert "cloud-controller-manager" in said


def test_without_a_command_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([])

    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_nothing_heavy_is_loaded_before_a_command_runs() -> None:
    script = (
        "import sys; from ccm import cli; cli.build_parser(); "
        "print([name for name in ('aiohttp', 'structlog', 'ccm.app') if name in sys.modules])"
    )

    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert told.stdout.strip() == "[]"


def test_ctrl_c_is_quiet_from_the_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupted)

    assert cli.main([]) == cli.INTERRUPTED
