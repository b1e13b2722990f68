"""The configuration file: what it sets, what overrides it, and that it survives a round trip."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.app import options
from ccm.app.options import config, documents, migration
from ccm.app.options.argv import UsageError

HEAD = {"apiVersion": config.GROUP_VERSION, "kind": config.KIND}

_INT32 = options.FLAGS["concurrent-node-syncs"].kind.wants

OTHER: dict[str, str] = {
    "feature-gates": "AllAlpha=true,CloudControllerManagerWebhook=false",
    "vmodule": "node*=4,ccm/kube/*=6",
    "bind-address": "::1",
    "tls-sni-cert-key": "a.crt,a.key:a.example",
    "tls-curve-preferences": "29",
    "logging-format": "json",
    "log-text-info-buffer-size": "64Ki",
    "kube-api-qps": "0.5",
    "controllers": '*,-route,"odd,name"',
}
"""Values of flags that are neither boolean, number, text nor duration, and some that are."""

_BY_WORD = {"bool": "true", "int": "7", "int32": "7", "level": "7", "float": "7.5"}
_BY_WORD |= {"duration": "1h2m3.5s", "string": "some: text #", "strings": "a,b", "quantity": "7"}
_BY_WORD |= {"ip": "10.0.0.1", "int32s": "1,2", "cert,key[:names]": "a,b"}


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
                    "ClientConnection": {"qps": 50, "burst": 60, "kubeconfig": "/kube"},
                    "LeaderElection": {"leaderElect": False, "leaseDuration": "30s"},
                    "Controllers": ["*", "-route"],
                },
                "KubeCloudShared": {
                    "CloudProvider": {"Name": "sim"},
                    "ConfigureCloudRoutes": False,
                },
                "NodeController": {"ConcurrentNodeSyncs": 5},
                "Flags": {"v": 4, "master": "https://host", "cloud-api-qps": 2.5},
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
        "configure-cloud-routes": "false",
        "controllers": "[*,-route]",
        "kube-api-burst": "60",
        "kube-api-qps": "50",
        "kubeconfig": "/kube",
        "leader-elect": "false",
        "leader-elect-lease-duration": "30s",
        "master": "https://host",
        "min-resync-period": "1h0m0s",
        "v": "4",
    }


@pytest.mark.row("daemon-config-02")
def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    given = file(tmp_path, {"KubeCloudShared": {"ClusterName": "file"}, "Flags": {"v": 2}})

    chosen = read(given, "--cluster-name=line")

    assert (chosen.cluster_name, chosen.v) == ("line", 2)


@pytest.mark.row("daemon-config-02")
def test_the_case_of_names_does_not_matter(tmp_path: Path) -> None:
    chosen = read(
        file(
            tmp_path,
            {"kubecloudshared": {"clusterName": "a"}, "GENERIC": {"minresyncperiod": "1s"}},
        )
    )

    assert (chosen.cluster_name, chosen.min_resync_period.total_seconds()) == ("a", 1.0)


@pytest.mark.parametrize(
    "zero",
    [{"ClientConnection": {"qps": 0, "burst": 0}}, {"MinResyncPeriod": "0s"}, {"Controllers": []}],
)
def test_zero_means_the_default(tmp_path: Path, zero: dict[str, Any]) -> None:
    assert settings(read(file(tmp_path, {"Generic": zero}))) == options.Options()


def test_json_is_read_too(tmp_path: Path) -> None:
    content = f'{{"apiVersion":"{config.GROUP_VERSION}","kind":"{config.KIND}","Flags":{{"v":3}}}}'

    assert read(file(tmp_path, content)).v == 3


def test_what_nobody_reads_is_accepted(tmp_path: Path) -> None:
    idle = {"Port": 0, "Address": "0.0.0.0", "ClientConnection": {"acceptContentTypes": ""}}

    assert settings(read(file(tmp_path, {"Generic": idle}))) == options.Options()


def test_a_migration_plan_may_stand_in_the_file(tmp_path: Path) -> None:
    plan = migration.Plan(leader_name="x", leaders=(migration.Leader(name="a", component="*"),))

    chosen = read(file(tmp_path, {"Generic": {"LeaderMigration": migration.write(plan)}}))

    assert chosen.leader_migration == plan


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
            {"Generic": {"MinResyncPeriod": 5}},
            "Generic.MinResyncPeriod is 5; it takes a duration such as 300ms, 10s or 1h30m",
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


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    found = faults(tmp_path, {"Generic": {"MinResyncPeriod": "x", "Port": 0}, "Webhooks": 1})

    assert [fault.split()[0] for fault in found] == ["Generic.MinResyncPeriod", "Webhooks"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1, 2]", "must be a mapping of names to values, not a list"),
        ("", "must be a mapping of names to values, not empty"),
        ("a: b: c", "is not valid YAML: line 1, column 5"),
        ("\x00", "is not valid YAML"),
        ("a: 1\nA: 2", "A is given twice, again in line 2"),
        ("kind: x", "apiVersion is missing"),
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
    for name, flag in options.FLAGS.items():
        if name not in ("help", "version"):
            given = options.parse([f"--{name}={OTHER.get(name) or _BY_WORD[flag.kind.word]}"])

            assert settings(read(file(tmp_path, config.write(given)))) == settings(given), name


@pytest.mark.row("daemon-config-01")
@pytest.mark.parametrize(
    "argv",
    [
        ["--kube-api-qps=0", "--kube-api-burst=0", "--min-resync-period=0"],
        ["--controllers=", "--cluster-name=", "--leader-elect=false", "--profiling=false"],
        [],
    ],
    ids=["zeros", "empty and false", "defaults"],
)
def test_zeros_survive_a_round_trip(tmp_path: Path, argv: list[str]) -> None:
    given = options.parse(argv)

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


def test_the_plan_survives_a_round_trip(tmp_path: Path) -> None:
    given = replace(options.Options(), leader_migration=migration.DEFAULT)

    assert settings(read(file(tmp_path, config.write(given)))) == given


def test_every_field_names_a_flag() -> None:
    assert set(config.FIELDS.values()) <= set(options.FLAGS)
    assert len(set(config.FIELDS.values())) == len(config.FIELDS)


def test_a_document_with_a_date_is_refused_in_words() -> None:
    with pytest.raises(documents.DocumentError, match="a date"):
        documents.parse(b"2024-01-01", "x")
