"""The configuration file: what it sets, what overrides it, and that it survives a round trip."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.app import options
from ccm.app.options import config, migration
from ccm.app.options.argv import UsageError
from tests.unit.app.options.test_every_flag import ROWS

HEAD = {"apiVersion": config.GROUP_VERSION, "kind": config.KIND}

_INT32 = options.FLAGS["concurrent-node-syncs"].kind.wants


def read(*argv: str) -> options.Options:
    return config.effective(options.parse(argv))


def file(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(HEAD | content))
    return f"--config={path}"


def settings(chosen: options.Options) -> options.Options:
    """All but where they came from."""
    return replace(
        chosen, explicit=frozenset(), from_file=frozenset(), config="", write_config_to=""
    )


def faults(tmp_path: Path, content: Any) -> list[str]:
    given = file(tmp_path, content)
    with pytest.raises(UsageError) as caught:
        read(given)
    return [fault.removeprefix(f"{given}: ") for fault in caught.value.faults]


@pytest.mark.row("daemon-config-02")
def test_a_file_sets_what_flags_set(tmp_path: Path) -> None:
    chosen = read(
        file(
            tmp_path,
            {
                "Generic": {
                    "MinResyncPeriod": "1h",
                    "ClientConnection": {"qps": 50},
                    "LeaderElection": {"leaderElect": False},
                    "Controllers": ["*", "-route"],
                },
                "KubeCloudShared": {"CloudProvider": {"Name": "sim"}},
                "NodeController": {"ConcurrentNodeSyncs": 5},
                "Flags": {"cloud-api-qps": 2.5},
            },
        )
    )

    assert {
        name: options.FLAGS[name].kind.write(chosen.get(name)) for name in sorted(chosen.explicit)
    } == {
        "cloud-api-qps": "2.5",
        "cloud-provider": "sim",
        "concurrent-node-syncs": "5",
        "config": str(tmp_path / "config.yaml"),
        "controllers": "[*,-route]",
        "kube-api-qps": "50",
        "leader-elect": "false",
        "min-resync-period": "1h0m0s",
    }


@pytest.mark.row("daemon-config-02")
def test_the_command_line_overrides_the_file_whose_names_match_in_any_case(tmp_path: Path) -> None:
    given = file(tmp_path, {"kubecloudshared": {"clusterName": "file"}, "FLAGS": {"v": 2}})

    chosen = read(given, "--cluster-name=line")

    assert (chosen.cluster_name, chosen.v) == ("line", 2)
    assert read(given).cluster_name == "file"


@pytest.mark.parametrize(
    "generic",
    [
        {"ClientConnection": {"qps": 0, "burst": 0}},
        {"MinResyncPeriod": "0s"},
        {"Controllers": []},
        {"Port": 0, "Debugging": {"enableProfiling": True}, "Address": "0.0.0.0"},
    ],
    ids=["zeros", "no time", "an empty list", "what nobody reads"],
)
def test_what_means_the_default(tmp_path: Path, generic: dict[str, Any]) -> None:
    assert settings(read(file(tmp_path, {"Generic": generic}))) == options.Options()


def test_a_list_in_a_file_may_hold_commas(tmp_path: Path) -> None:
    chosen = read(file(tmp_path, {"Flags": {"requestheader-allowed-names": ["a,b", "c"]}}))

    assert chosen.requestheader_allowed_names == ("a,b", "c")
    assert settings(read(file(tmp_path, config.write(chosen)))) == settings(chosen)


def test_flags_without_effect_may_stand_in_a_file(tmp_path: Path) -> None:
    chosen = read(
        file(tmp_path, {"Flags": {"profiling": False, "http2-max-streams-per-connection": 1}})
    )

    assert settings(chosen) == options.Options()


def test_json_is_read_too(tmp_path: Path) -> None:
    assert read(file(tmp_path, json.dumps({**HEAD, "Flags": {"v": 3}}))).v == 3


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"Generik": {}}, "Generik is unknown; did you mean Generic?"),
        (
            {"Generic": {"LeaderElection": {"leaseDurations": "1s"}}},
            "Generic.LeaderElection.leaseDurations is unknown; did you mean leaseDuration?",
        ),
        (
            {"Generic": {"MinResyncPeriod": "soon"}},
            "Generic.MinResyncPeriod is 'soon'; it takes a duration such as 300ms, 10s or 1h30m",
        ),
        (
            {"NodeController": {"ConcurrentNodeSyncs": "5"}},
            f"NodeController.ConcurrentNodeSyncs is '5'; it takes {_INT32}",
        ),
        (
            {"Generic": {"LeaderElection": {"leaderElect": "no"}}},
            "Generic.LeaderElection.leaderElect is 'no'; it takes true or false",
        ),
        ({"Generic": []}, "Generic must be a mapping, not a list"),
        ({"Flags": {"w": 1}}, "Flags.w is unknown; it must be the name of a flag, without dashes"),
        (
            {"Flags": {"config": "x"}},
            "Flags.config is unknown; it must be the name of a flag, without dashes",
        ),
        (
            {"KubeCloudShared": {"ClusterName": "a"}, "Flags": {"cluster_name": "b"}},
            "Flags.cluster_name is given twice, as KubeCloudShared.ClusterName too",
        ),
        (
            {"Generic": {"LeaderMigration": {"resourceLock": "leases"}}},
            "Generic.LeaderMigration.leaderName is missing; it names the shared lease",
        ),
    ],
)
def test_a_fault_is_told_with_its_place(tmp_path: Path, content: Any, fault: str) -> None:
    assert faults(tmp_path, content) == [fault]


def test_a_wrong_type_and_a_wrong_name_are_told_of_every_field(tmp_path: Path) -> None:
    for path in config.FIELDS:
        wrong: dict[str, Any] = {}
        config.put(wrong, path, {"not": "this"})
        config.put(wrong, f"{path}Qx", 1)

        assert {fault.split()[0] for fault in faults(tmp_path, wrong)} == {path, f"{path}Qx"}


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    found = faults(tmp_path, {"Generic": {"MinResyncPeriod": "x", "Port": 0}, "Webhooks": 1})

    assert [fault.split()[0] for fault in found] == ["Generic.MinResyncPeriod", "Webhooks"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1, 2]", "must be a mapping of names to values, not a list"),
        ("", "must be a mapping of names to values, not empty"),
        ("a: b: c", "is not valid YAML: line 1, column 5: mapping values are not allowed here"),
        ("\x00", "is not valid YAML"),
        ("a: 1\nA: 2", "is not valid YAML: A is given twice, again in line 2"),
        ("kind: x", "apiVersion is missing"),
        ("2024-01-01", "not a date"),
        (f"apiVersion: {config.GROUP_VERSION}\nkind: Node", "kind is 'Node'"),
        ("x" * (1 << 20 | 1), "is larger than"),
    ],
)
def test_what_is_no_such_document_is_refused(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(file(tmp_path, content))

    assert words in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--config=/no/file cannot be read: No such file"):
        read("--config=/no/file")


@pytest.mark.row("daemon-config-01")
def test_every_setting_survives_a_round_trip(tmp_path: Path) -> None:
    taken = [list(row.takes) for name, row in ROWS.items() if name not in ("help", "version")]
    for words in taken:
        given = options.parse([words[-1]])

        assert settings(read(file(tmp_path, config.write(given)))) == settings(given), words


@pytest.mark.row("daemon-config-01")
@pytest.mark.parametrize(
    "given",
    [
        options.parse(["--kube-api-qps=0", "--kube-api-burst=0", "--min-resync-period=0"]),
        options.parse(["--controllers=", "--cluster-name=", "--leader-elect=false"]),
        options.Options(),
        options.Options(leader_migration=migration.DEFAULT),
    ],
    ids=["zeros", "empty and false", "defaults", "a migration plan"],
)
def test_zeros_survive_a_round_trip_and_a_plan(tmp_path: Path, given: options.Options) -> None:
    again = read(file(tmp_path, config.write(given)))

    assert settings(again) == settings(given)
    assert config.write(again) == config.write(given)


def test_a_file_read_again_replaces_what_it_said_and_not_the_command_line(tmp_path: Path) -> None:
    first = {"Flags": {"v": 2, "cloud-api-qps": 5}, "Generic": {"Controllers": ["a"]}}
    given = file(tmp_path, first)
    before = read(given, "--v=3")
    file(tmp_path, {"Flags": {"v": 1, "cloud-api-burst": 7}})

    after = config.reread(before)

    assert (after.v, after.cloud_api_qps, after.cloud_api_burst) == (3, 0.0, 7)
    assert after.controllers == ("*",)
    assert after.from_file == {"cloud-api-burst"}
    assert config.reread(after) == after
