"""`kube-ccm doctor`: its command line, and what a person or a program gets of it."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pyte
import pytest

from ccm import cli
from ccm.app.options import names
from ccm.app.options.argv import UsageError
from ccm.cli import doctor
from ccm.controllers.route.manifest import MANIFEST as ROUTE


def test_it_takes_the_daemons_flags_and_its_own() -> None:
    words = "--cloud-provider sim -o json --timeout=3s --as=me --controllers=*,-route"
    wanted = doctor.read(words.split())

    assert (wanted.output, wanted.limit_s, wanted.account) == ("json", 3.0, "me")
    assert wanted.options.cloud_provider == "sim"
    assert ROUTE not in names.enabled(wanted.options.controllers)


def test_the_configuration_file_counts(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: cloudcontrollermanager.config.k8s.io/v1alpha1\n"
        "kind: CloudControllerManagerConfiguration\n"
        "KubeCloudShared:\n  ClusterCIDR: 10.9.0.0/16\n  ClusterName: blue\n"
    )

    options = doctor.read([f"--config={file}", "--cluster-name=red"]).options

    assert (options.cluster_cidr, options.cluster_name) == ("10.9.0.0/16", "red")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--kubconfig=x"], "did you mean --kubeconfig?"),
        (["-o", "yaml"], "--output=yaml: must be table or json"),
        (["--timeout=0s"], "--timeout=0s: must be longer than 0s"),
        (["--timeout=soon"], 'invalid argument "soon" for --timeout'),
        (["please"], "'please' is no flag"),
        (["--controllers=nodes"], '"nodes" is not in the list of known controllers'),
        (["--secure-port=99999"], "--secure-port=99999"),
    ],
)
def test_a_wrong_command_line_is_refused(
    words: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        doctor.read(words)

    assert fault in str(refused.value)
    assert cli.main(["doctor", *words]) == doctor.EXIT_USAGE
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("kube-ccm doctor: ")


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_has_both_sorts_of_flags(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--cloud-provider=sim", word]) == 0

    said = capsys.readouterr().out
    assert "--timeout duration  (default 15s)" in said
    assert "--cluster-cidr" in said
    assert "exit status: 0 no failure, 1 a failure, 2" in said


class Terminal(io.StringIO):
    """Remembers what is written to it, as a terminal."""

    buffer = io.BytesIO()

    def isatty(self) -> bool:
        return True


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a cluster around us nor a kubeconfig at home."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("HOME", str(tmp_path))


def test_as_json_there_is_nothing_else_on_stdout(
    nowhere: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["doctor", "-o", "json"])

    told = capsys.readouterr()
    assert code == doctor.EXIT_FAILED
    assert json.loads(told.out)["healthy"] is False
    assert told.err == ""


def test_on_a_terminal_progress_is_shown_and_taken_away(
    nowhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, out = Terminal(), Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "30")

    assert doctor.run([], out=out) == doctor.EXIT_FAILED

    assert "kubeconfig: how to reach" in screen.getvalue()
    seen = pyte.Screen(30, 5)
    seen.set_mode(pyte.modes.LNM)
    pyte.Stream(seen).feed(screen.getvalue())
    assert "".join(seen.display).strip() == ""
    assert not seen.cursor.hidden
    assert "\x1b[1;31mfail\x1b[0m  kubeconfig: " in out.getvalue()


def test_without_rich_or_colours_the_words_are_the_same(
    nowhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted, refused, plain, screen = Terminal(), Terminal(), Terminal(), Terminal()
    doctor.run([], out=painted)
    with monkeypatch.context() as patches:
        patches.setenv("NO_COLOR", "1")
        doctor.run([], out=refused)

    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr("sys.stderr", screen)
    doctor.run([], out=plain)

    assert "\x1b[" in painted.getvalue()
    assert refused.getvalue() == plain.getvalue()
    assert plain.getvalue() == re.sub(r"\x1b\[[0-9;]*m", "", painted.getvalue())
    assert screen.getvalue() == ""


def test_a_kubeconfig_is_found_as_kubectl_finds_it(
    nowhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def first() -> str:
        out = io.StringIO()
        doctor.run(["--timeout=5s"], out=out)
        return out.getvalue().splitlines()[1]

    assert "no kubeconfig is given" in first()
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("{}")
    assert first() == f"fail  kubeconfig: {tmp_path}/.kube/config: current-context: is not set"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "other"))
    assert first() == f"fail  kubeconfig: {tmp_path}/other: no such file"
