"""What can be typed follows the tables that command lines are read with."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from ccm import cli
from ccm.app.machines.commands import COMMANDS
from ccm.app.options import FLAGS, PROGRAM
from ccm.cli import __main__ as commands
from ccm.cli import completion
from ccm.cli.completion import NO_FILES, NO_SPACE, words
from ccm.cli.completion.words import Option, Place, Value
from ccm.cloud import registry


def place(*before: str) -> Place:
    return words.place(cli.build_parser(), before)


def options(here: Place) -> dict[str, Option]:
    return {option.names[0]: option for option in here.options}


def test_the_daemon_has_every_flag_that_help_shows() -> None:
    shown = {f"--{flag.name}" for flag in FLAGS.values() if not flag.deprecated}

    assert words.DAEMON == PROGRAM
    assert set(options(place(f"/usr/bin/{PROGRAM}"))) == shown


def test_the_commands_for_machines_alone_have_their_own_flags() -> None:
    assert set(words.DAEMONS) == {PROGRAM, *COMMANDS}
    for name, command in COMMANDS.items():
        shown = {f"--{flag.name}" for flag in command.flags.values() if not flag.deprecated}
        assert set(options(place(name))) == shown


def test_the_doctor_takes_the_daemons_flags_and_its_own() -> None:
    daemon = set(options(place(PROGRAM)))

    assert set(options(place("kube-ccm", "doctor"))) == daemon | {"--output", "--timeout", "--as"}


def test_every_command_is_there_with_what_it_does() -> None:
    told = place("kube-ccm").words

    assert set(told) == {
        *("sandbox", "providers", "doctor", "plan", "explain", "orphans", "new-provider"),
        "rollout",
        "completion",
    }
    assert all(told.values())


def test_explain_begins_with_a_kind_of_object() -> None:
    kinds = {"node", "service", "machine", "machineset", "machinedeployment"}
    assert set(place("kube-ccm", "explain").words) == kinds


@pytest.mark.parametrize(
    ("before", "last"),
    [
        ([PROGRAM], "--cloud-provider="),
        (["kube-ccm", "sandbox", "--provider"], ""),
        (["kube-ccm", "providers"], ""),
    ],
)
def test_providers_are_those_that_the_registry_knows(before: list[str], last: str) -> None:
    offered, _ = words.offer(place(*before), before[-1], last)

    assert list(offered) == sorted(registry.available())


def test_an_argparse_tree_is_read_as_it_is() -> None:
    parser = argparse.ArgumentParser(prog="tool")
    commands = parser.add_subparsers()
    one = commands.add_parser("one", help="the first")
    one.add_argument("--fast", action="store_true", help="hurry. Not always.")
    one.add_argument("-m", "--mode", choices=("a", "b"))
    one.add_argument("--log-file")
    one.add_argument("what", choices=("x", "y"))

    assert words.place(parser, ["tool"]).words == {"one": "the first"}
    here = words.place(parser, ["tool", "one"])

    fast, mode, file = here.options[1:]
    assert tuple(here.words) == ("x", "y")
    assert (fast.names[0], fast.value, fast.help) == ("--fast", Value.NONE, "hurry")
    assert (mode.names[1], mode.value, tuple(mode.words)) == ("-m", Value.ONE, ("a", "b"))
    assert file.value is Value.FILE


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["kube-ccm", "d"], ["doctor\tlook for what keeps the daemon from working", ":4"]),
        (["kube-ccm", "sandbox", "--on"], ["--once\tend when every node is initialised", ":4"]),
        (["kube-ccm", "sandbox", "--latency", ""], [":4"]),
        (["kube-ccm", "sandbox", "powero"], ["poweroff\tpower the", "poweron\tpower it", ":4"]),
        (["kube-ccm", "sandbox", "add", "--"], ["--help\t", "--folder=\tof the sandbox", ":4"]),
        (["kube-ccm", "sandbox", "add", "--folder", ""], [":0"]),
        (["kube-ccm", "sandbox", "--cloud-config", ""], [":0"]),
        (
            ["kube-ccm", "doctor", "--clu"],
            ["--cluster-cidr=\t", "--cluster-id=\t", "--cluster-name=\t", ":4"],
        ),
        (["kube-ccm", "doctor", "--kubec"], ["--kubeconfig=\t", ":6"]),
        (["kube-ccm", "doctor", "-o", ""], ["table", "json", ":4"]),
        (["kube-ccm", "doctor", "--output=j"], ["json", ":4"]),
        (["kube-ccm", "plan", "-o", ""], ["text", "json", ":4"]),
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
def test_the_answer_is_what_cobra_would_say(
    typed: list[str], answer: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([completion.ASK, *typed]) == 0

    *offered, directive = capsys.readouterr().out.splitlines()
    assert len(offered) == len(answer) - 1
    for line, start in zip(offered, answer, strict=False):
        assert line.startswith(start)
    assert directive == answer[-1]
    assert (NO_SPACE, NO_FILES) == (2, 4)


def test_kubectl_hands_on_what_stands_behind_the_plugin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-ccm", "completion", "z"])

    with pytest.raises(SystemExit) as ended:
        commands.complete()

    assert (ended.value.code, capsys.readouterr().out) == (0, "zsh\n:4\n")


def test_a_tab_loads_nothing_heavy() -> None:
    """Somebody waits for the answer at a keyboard."""
    asked = "import sys; from ccm import cli; cli.main(sys.argv[1:]); print(*sys.modules)"
    heavy = {"aiohttp", "ccm.cloud", "cryptography", "kubernetes", "msgspec", "structlog", "yaml"}
    for typed in (["kube-ccm", "doctor", "--kub"], [PROGRAM, "--cloud-provider="]):
        told = subprocess.run(
            [sys.executable, "-c", asked, completion.ASK, *typed],
            capture_output=True,
            text=True,
            check=True,
        )

        assert not heavy & set(told.stdout.split())
        assert "ccm.app.options" in told.stdout
