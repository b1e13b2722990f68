"""The model of what can be typed follows the tables it is made from."""

from __future__ import annotations

import argparse

from ccm import cli
from ccm.app.options import FLAGS, PROGRAM
from ccm.cli.completion import words
from ccm.cli.completion.words import Value


def programs() -> dict[str, words.Program]:
    return {program.name: program for program in words.programs(cli.build_parser())}


def test_the_daemon_has_every_flag_that_help_shows() -> None:
    shown = {f"--{flag.name}" for flag in FLAGS.values() if not flag.deprecated}

    assert {option.long for option in programs()[PROGRAM].options} == shown


def test_the_doctor_takes_the_daemons_flags_and_its_own() -> None:
    daemon = {option.long for option in programs()[PROGRAM].options}
    (doctor,) = (one for one in programs()["ccm"].commands if one.name == "doctor")

    assert {option.long for option in doctor.options} == daemon | {"--output", "--timeout", "--as"}


def test_every_command_is_there_with_what_it_does() -> None:
    told = {one.name: one.help for one in programs()["ccm"].commands}

    assert set(told) >= {"sandbox", "providers", "doctor", "completion"}
    assert all(told.values())


def test_values_are_known_where_a_table_has_them() -> None:
    daemon = {option.long: option for option in programs()[PROGRAM].options}

    assert "sim" in daemon["--cloud-provider"].words
    assert (daemon["--kubeconfig"].value, daemon["--cluster-cidr"].value) == (Value.FILE, Value.ANY)
    assert daemon["--leader-elect"].words == ("true", "false")
    assert "-node-route-controller" in daemon["--controllers"].words


def test_an_argparse_tree_is_read_as_it_is() -> None:
    parser = argparse.ArgumentParser(prog="tool")
    commands = parser.add_subparsers()
    one = commands.add_parser("one", help="the first")
    one.add_argument("--fast", action="store_true", help="hurry. Not always.")
    one.add_argument("-m", "--mode", choices=("a", "b"))
    one.add_argument("--log-file")
    one.add_argument("what", choices=("x", "y"))

    (command,) = words.programs(parser)[0].commands

    fast, mode, file = command.options[1:]
    assert (command.name, command.help, tuple(command.words)) == ("one", "the first", ("x", "y"))
    assert (fast.long, fast.value, fast.help) == ("--fast", Value.NONE, "hurry")
    assert (mode.short, mode.value, tuple(mode.words)) == ("-m", Value.ONE, ("a", "b"))
    assert file.value is Value.FILE
