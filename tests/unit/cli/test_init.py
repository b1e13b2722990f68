"""The `kube-ccm` command as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ccm
from ccm import cli
from ccm.cli import completion


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("--version", 0, f"kube-ccm {ccm.__version__}\n"),
        ("--help", 0, "kube-ccm sandbox --help"),
        ("--help", 0, "cloud-controller-manager"),
        ("", 2, "COMMAND"),
        (completion.ASK, 2, ""),
        ("providers --cloud-config x", 2, "needs the NAME of a provider"),
        ("sandbox --help", 0, "KUBEBUILDER_ASSETS"),
    ],
)
def test_what_ends_at_once(
    words: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())

    said = capsys.readouterr()
    assert ended.value.code == code
    assert told in (said.err if code else said.out)
    assert code == 0 or said.out == ""


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
