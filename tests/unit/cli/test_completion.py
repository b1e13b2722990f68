"""Completion: derived from the flag tables, and tested in the shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ccm import cli
from ccm.app.machines.commands import COMMANDS
from ccm.app.options import FLAGS, PROGRAM
from ccm.cli import __main__ as commands
from ccm.cli import completion
from ccm.cli.completion import NO_FILES, NO_SPACE, CompletionContext, Option
from ccm.cli.completion import _offer as offer
from ccm.cloud import registry
from ccm.gardener import names as gardener
from ccm.kubermatic import names
from tests.waiting import DEADLINE_S


def place(*before: str) -> CompletionContext:
    return completion.completion_context(cli.build_parser(), before)


def options(here: CompletionContext) -> dict[str, Option]:
    return {option.names[0]: option for option in here.options}


def test_machine_commands_complete_their_own_flags() -> None:
    assert set(completion.DAEMONS) == {PROGRAM, *COMMANDS}
    for name, command in COMMANDS.items():
        shown = {f"--{flag.name}" for flag in command.flags.values() if not flag.deprecated}
        assert set(options(place(name))) == shown


@pytest.mark.parametrize(
    ("before", "last"),
    [
        ([PROGRAM], "--cloud-provider="),
        (["kube-ccm", "sandbox", "--provider"], ""),
        (["kube-ccm", "providers"], ""),
    ],
)
def test_provider_names_are_completed_from_the_registry(before: list[str], last: str) -> None:
    offered, _ = offer(place(*before), before[-1], last)

    assert list(offered) == sorted(registry.installed_providers())


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["kube-ccm", "d"], ["doctor\tfind problems of the daemon, cluster and cloud", ":4"]),
        (["kube-ccm", "sandbox", "--on"], ["--once\texit when all Machines run, all nodes", ":4"]),
        (["kube-ccm", "sandbox", "--latency", ""], [":4"]),
        (["kube-ccm", "sandbox", "powero"], ["poweroff\tpower off", "poweron\tpower on", ":4"]),
        (["kube-ccm", "sandbox", "add", "--"], ["--help\t", "--folder=\tsandbox folder", ":4"]),
        (["kube-ccm", "sandbox", "add", "--folder", ""], [":0"]),
        (["kube-ccm", "sandbox", "--cloud-config", ""], [":0"]),
        (
            ["kube-ccm", "doctor", "--clu"],
            ["--cluster-cidr=\t", "--cluster-id=\t", "--cluster-name=\t", ":4"],
        ),
        (["kube-ccm", "doctor", "--kubec"], ["--kubeconfig=\t", ":6"]),
        (["kube-ccm", "doctor", "-o", ""], ["table", "json", "yaml", ":4"]),
        (["kube-ccm", "doctor", "--output=j"], ["json", ":4"]),
        (["kube-ccm", "completion", "z"], ["zsh", ":4"]),
        ([PROGRAM, "--leader-elect="], ["true", "false", ":4"]),
        ([PROGRAM, "--leader-elect", ""], [":4"]),
        ([PROGRAM, "--cluster-cidr="], [":4"]),
        ([PROGRAM, "--kubeconfig="], [":0"]),
        ([PROGRAM, "--controllers=*,-ser"], ["*,-service-lb-controller", ":6"]),
        ([PROGRAM, "--no-such-flag=x"], [":4"]),
    ],
    ids=" ".join,
)
def test_completion_answers_in_the_protocol_of_cobra(
    typed: list[str], answer: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([completion.COMPLETE_COMMAND, *typed]) == 0

    *offered, directive = capsys.readouterr().out.splitlines()
    assert len(offered) == len(answer) - 1
    for line, start in zip(offered, answer, strict=False):
        assert line.startswith(start)
    assert directive == answer[-1]
    assert (NO_SPACE, NO_FILES) == (2, 4)


def test_kubectl_plugin_completion_gets_the_remaining_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-ccm", "completion", "z"])

    with pytest.raises(SystemExit) as ended:
        commands.complete()

    assert (ended.value.code, capsys.readouterr().out) == (0, "zsh\n:4\n")


def test_completion_imports_no_heavy_modules() -> None:
    """Completion must answer without a noticeable delay."""
    asked = "import sys; from ccm import cli; cli.main(sys.argv[1:]); print(*sys.modules)"
    heavy = {"aiohttp", "ccm.cloud", "cryptography", "kubernetes", "msgspec", "structlog", "yaml"}
    for typed in (["kube-ccm", "doctor", "--kub"], [PROGRAM, "--cloud-provider="]):
        told = subprocess.run(
            [sys.executable, "-c", asked, completion.COMPLETE_COMMAND, *typed],
            capture_output=True,
            text=True,
            check=True,
        )

        assert not heavy & set(told.stdout.split())
        assert "ccm.app.options" in told.stdout


# --- shells ---------------------------------------------------------------------------------------

SET_UP = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -D; source {script}"),
    "fish": (["fish", "--no-config"], "source {script}"),
}

# The text typed before Tab, and the completed word.
LINES = [
    ("kube-ccm doct", "doctor"),
    ("kube-ccm sandbox --onc", "--once"),
    ("kube-ccm providers si", "sim"),
    ("kube-ccm completion fi", "fish"),
    ("kube-ccm doctor --kubec", "--kubeconfig="),
    ("kube-ccm doctor --cloud-provider=si", "--cloud-provider=sim"),
    ("kube-ccm doctor --output=js", "--output=json"),
    ("kube-ccm doctor -o js", "json"),
    ("cloud-controller-manager --cluster-ci", "--cluster-cidr="),
    ("cloud-controller-manager --leader-elect=f", "--leader-elect=false"),
    ("machine-controller --target-kubec", "--target-kubeconfig="),
    ("machine-controller-manager --safety-u", "--safety-up="),
    ("cloud-controller-manager --controllers=node-r", "--controllers=node-route-controller"),
    (
        "cloud-controller-manager --controllers=node-route-controller,serv",
        "--controllers=node-route-controller,service-lb-controller",
    ),
    ("kube-ccm doctor --kubeconfig=clus", "--kubeconfig=cluster.conf"),
    ("kube-ccm sandbox --provider-config clus", "cluster.conf"),
    ("kube-ccm doctor --cluster-cidr=clus", "--cluster-cidr=clus"),
]
FILE = "cluster.conf"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the completion script of each shell."""
    folder = tmp_path_factory.mktemp("completion")
    found = {}
    for shell in completion.SCRIPTS:
        found[shell] = folder / f"kube-ccm.{shell}"
        found[shell].write_text(completion.script(shell))
    return found


def require(shell: str) -> None:
    """Skip the test where the shell is not installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its completion is not tried here")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_bash_and_zsh_complete_the_last_word(
    shell: str, scripts: dict[str, Path], tmp_path: Path
) -> None:
    """Each line is typed on a terminal and completed with Tab."""
    require(shell)
    (tmp_path / FILE).touch()
    terminal = Terminal(shell, scripts[shell], tmp_path)
    try:
        found = [(line, terminal.complete(line)) for line, _ in LINES]
    finally:
        terminal.close()

    # At the end of a line zsh removes the = or comma that it added.
    assert [(line, word.rstrip("=,")) for line, word in found] == [
        (line, word.rstrip("=")) for line, word in LINES
    ]


def test_fish_offers_the_completed_word(scripts: dict[str, Path], tmp_path: Path) -> None:
    """`complete -C` of fish prints its offers; the first column is the word."""
    require("fish")
    (tmp_path / FILE).touch()
    found = []
    for line, expected in LINES:
        told = subprocess.run(
            ["fish", "--no-config", "-c", f"source {scripts['fish']}; complete -C '{line}'"],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        offered = [row.partition("\t")[0] for row in told.stdout.splitlines()]
        # Without an offer the word stays unchanged.
        found.append((line, expected if expected in (offered or line.split()) else offered))

    assert found == LINES


class Terminal:
    """A shell on a terminal, in which the programs print their last word."""

    def __init__(self, shell: str, script: Path, folder: Path) -> None:
        command, set_up = SET_UP[shell]
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "PS1": "", "TERM": "dumb", "HOME": str(folder)}
        environment.pop("PROMPT_COMMAND", None)
        self._child = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        # The quotes distinguish the echoed command from its output.
        self._type(f"{set_up.format(script=script)}\n")
        for name in ("kube-ccm", *completion.DAEMONS):
            self._type(f"{name}() {{ for w; do :; done; echo 'GO''T'\"<$w>\"; }}\n")
        self._type("kube-ccm ready\n")
        assert self._answer() == "ready"

    def complete(self, line: str) -> str:
        """Return the last word of the line after Tab."""
        self._type(line + "\t\n")
        return self._answer()

    def close(self) -> None:
        """End it."""
        self._child.kill()
        self._child.wait(timeout=DEADLINE_S)
        os.close(self._ours)

    def _type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def _answer(self) -> str:
        said = b""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.1)[0]:
                said += os.read(self._ours, 65536)
            start = said.find(b"GOT<")
            end = said.find(b">", start)
            if 0 <= start < end:
                return said[start + 4 : end].decode()
        raise AssertionError(f"no answer: {said!r}")


def test_daemon_completion_offers_every_flag_of_its_help() -> None:
    shown = {f"--{flag.name}" for flag in FLAGS.values() if not flag.deprecated}

    assert completion.DAEMON == PROGRAM
    assert set(options(place(f"/usr/bin/{PROGRAM}"))) == shown


def test_doctor_completion_offers_the_flags_of_the_daemon_and_its_own() -> None:
    daemon = set(options(place(PROGRAM)))

    assert set(options(place("kube-ccm", "doctor"))) == daemon | {"--output", "--timeout", "--as"}


def test_explain_completion_offers_the_kinds_first() -> None:
    machines = {"machine", "machineset", "machinedeployment"}
    groups = {f"{kind}.{group}" for kind in machines for group in (gardener.GROUP, names.GROUP)}
    assert set(place("kube-ccm", "explain").words) == {"node", "service"} | machines | groups
