"""The configuration file and the migration plan: read, written, and files of any content."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ccm.app import options
from ccm.app.options import config, documents, migration
from ccm.app.options.argv import UsageError
from ccm.app.options.controllers import MANIFESTS
from ccm.app.options.migration import ControllerLeader, LeaderMigration, LeaseAssignment
from ccm.kube import config as kube_config
from tests.unit.app.options.test_options import ROWS

HEAD = {"apiVersion": config.GROUP_VERSION, "kind": config.KIND}


def read(*argv: str) -> options.Options:
    return config.with_config_file(options.parse(argv))


def file(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(HEAD | content))
    return f"--config={path}"


def settings(chosen: options.Options) -> options.Options:
    """Return the options without the record of where they came from."""
    return replace(
        chosen, explicit=frozenset(), from_file=frozenset(), config="", write_config_to=""
    )


def faults(tmp_path: Path, content: Any) -> list[str]:
    given = file(tmp_path, content)
    with pytest.raises(UsageError) as caught:
        read(given)
    return [fault.removeprefix(f"{given}: ") for fault in caught.value.faults]


@pytest.mark.row("daemon-config-02")
def test_config_file_sets_the_same_options_as_flags(tmp_path: Path) -> None:
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
def test_command_line_overrides_config_file_with_case_insensitive_names(tmp_path: Path) -> None:
    given = file(tmp_path, {"kubecloudshared": {"clusterName": "file"}, "FLAGS": {"v": 2}})

    chosen = read(given, "--cluster-name=line")

    assert (chosen.cluster_name, chosen.v) == ("line", 2)
    assert read(given).cluster_name == "file"


@pytest.mark.parametrize("number", ["1e3", "1.0E+3", "1.e3", "1000", "1000.0"])
def test_config_file_reads_numbers_as_kubernetes(tmp_path: Path, number: str) -> None:
    given = file(
        tmp_path, f"{yaml.safe_dump(HEAD)}Generic: {{ClientConnection: {{qps: {number}}}}}"
    )

    assert read(given).kube_api_qps == 1000.0


def test_config_file_accepts_flags_without_effect(tmp_path: Path) -> None:
    chosen = read(
        file(tmp_path, {"Flags": {"profiling": False, "http2-max-streams-per-connection": 1}})
    )

    assert settings(chosen) == options.Options()


def test_config_file_accepts_deprecated_flag_names(tmp_path: Path) -> None:
    given = file(tmp_path, {"Flags": {"own-nodes": "file", "node-selector": "file"}})

    chosen = read(given)
    assert (chosen.node_selector, set(chosen.aliases)) == ("file", {"own-nodes"})
    assert config.reread(chosen) == chosen
    assert read(given, "--node-selector=line").node_selector == "line"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            "Flags: {own-nodes: a, node-selector: b}",
            "Flags.own-nodes is the deprecated name of --node-selector and has another value",
        ),
        ("Generik: {}", "Generik is unknown; did you mean Generic?"),
        (
            "Generic: {LeaderElection: {leaseDurations: 1s}}",
            "Generic.LeaderElection.leaseDurations",
        ),
        (
            "Generic: {MinResyncPeriod: soon}",
            "Generic.MinResyncPeriod is 'soon'; expected a duration",
        ),
        ("NodeController: {ConcurrentNodeSyncs: '5'}", "NodeController.ConcurrentNodeSyncs is '5'"),
        ("Generic: {LeaderElection: {leaderElect: 'no'}}", "Generic.LeaderElection.leaderElect is"),
        ("Generic: []", "Generic must be a mapping, not a list"),
        ("Flags: {w: 1}", "Flags.w is unknown; use the name of a flag, without leading dashes"),
        ("Flags: {config: x}", "Flags.config is unknown; use the name of a flag"),
        (
            "{KubeCloudShared: {ClusterName: a}, Flags: {cluster_name: b}}",
            "Flags.cluster_name is set twice, also as KubeCloudShared.ClusterName",
        ),
        (
            "Flags: {node-selector: a, node_selector: a}",
            "Flags.node_selector is set twice, also as node-selector",
        ),
        (
            "Flags: {own-nodes: a, own_nodes: a}",
            "Flags.own_nodes is set twice, also as own-nodes",
        ),
        (
            "Generic: {LeaderMigration: {resourceLock: leases}}",
            "Generic.LeaderMigration.leaderName",
        ),
    ],
)
def test_config_file_error_names_the_field(tmp_path: Path, content: str, fault: str) -> None:
    (told,) = faults(tmp_path, yaml.safe_load(content))
    assert told.startswith(fault)


def test_every_field_reports_wrong_types_and_unknown_names(tmp_path: Path) -> None:
    for path in config.FIELDS:
        wrong: dict[str, Any] = {}
        config.put(wrong, path, {"not": "this"})
        config.put(wrong, f"{path}Qx", 1)

        assert {fault.split()[0] for fault in faults(tmp_path, wrong)} == {path, f"{path}Qx"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1, 2]", "must be a mapping of names to values, not a list"),
        ("", "must be a mapping of names to values, not empty"),
        ("a: b: c", "is not valid YAML: line 1, column 5: mapping values are not allowed here"),
        ("\x00", "is not valid YAML"),
        ("a: 1\nA: 2", "is not valid YAML: line 2: duplicate name A"),
        ("kind: x", "apiVersion is missing"),
        ("2024-01-01", "not a date"),
        (f"apiVersion: {config.GROUP_VERSION}\nkind: Node", "kind is 'Node'"),
        ("x" * (1 << 20 | 1), "is larger than"),
    ],
)
def test_config_file_that_is_not_a_configuration_is_refused(
    tmp_path: Path, content: str, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(file(tmp_path, content))

    assert words in str(caught.value)


def test_missing_config_file_error_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--config=/no/file cannot be read: No such file"):
        read("--config=/no/file")


@pytest.mark.row("daemon-config-01")
def test_every_flag_survives_writing_and_reading_a_config_file(tmp_path: Path) -> None:
    taken = [
        list(row.takes) for name, row in ROWS.items() if name not in ("help", "help-all", "version")
    ]
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
def test_zero_and_default_values_and_migration_plan_survive_a_round_trip(
    tmp_path: Path, given: options.Options
) -> None:
    again = read(file(tmp_path, config.write(given)))

    assert settings(again) == settings(given)
    assert config.write(again) == config.write(given)


NODE, LIFECYCLE, SERVICE, ROUTE = (manifest.name for manifest in MANIFESTS[:4])
OLD = ("route-controller", "service-controller", "cloud-node-lifecycle-controller")


def plan(component: str, controllers: tuple[str, ...] = OLD) -> LeaderMigration:
    entries = tuple(ControllerLeader(name=name, component=component) for name in controllers)
    return LeaderMigration(leader_name="migration", leaders=entries)


def document(version: str, body: str) -> str:
    return (
        f"apiVersion: controllermanager.config.k8s.io/{version}\n"
        f"kind: LeaderMigrationConfiguration\n{body}"
    )


def read_of_migration(folder: Path, content: str) -> LeaderMigration:
    file = folder / "migration.yaml"
    file.write_text(content)
    return migration.load(str(file))


@pytest.mark.row("daemon-migration-01")
@pytest.mark.parametrize(
    ("component", "runs"),
    [
        ("kube-controller-manager", LeaseAssignment.ELSEWHERE),
        ("cloud-controller-manager", LeaseAssignment.MIGRATED),
        ("*", LeaseAssignment.MIGRATED),
    ],
)
@pytest.mark.parametrize(
    "spelling", [OLD, (ROUTE, SERVICE, LIFECYCLE), ("route", "service", LIFECYCLE)]
)
def test_migration_plan_assigns_controllers_to_leases(
    component: str, runs: LeaseAssignment, spelling: tuple[str, ...]
) -> None:
    found = plan(component, spelling)

    assert {found.assignment(name) for name in (ROUTE, SERVICE, LIFECYCLE)} == {runs}
    assert found.assignment(NODE) is LeaseAssignment.MAIN


@pytest.mark.row("daemon-migration-04")
def test_default_migration_plan_migrates_all_but_the_node_controller() -> None:
    assert migration.DEFAULT.leader_name == "cloud-provider-extraction-migration"
    assert [migration.DEFAULT.assignment(entry.name) for entry in MANIFESTS[:4]] == [
        LeaseAssignment.MAIN,
        LeaseAssignment.MIGRATED,
        LeaseAssignment.MIGRATED,
        LeaseAssignment.MIGRATED,
    ]


@pytest.mark.row("daemon-migration-02")
@pytest.mark.parametrize(
    ("version", "body"),
    [
        ("v1alpha1", "resourceLock: leases\ncontrollerLeaders: []"),
        ("v1beta1", "resourceLock: leases\ncontrollerLeaders: [{name: route, component: '*'}]"),
        ("v1", "controllerLeaders: [{name: route, component: '*'}]"),
    ],
)
def test_each_api_version_of_a_migration_plan_is_read(
    tmp_path: Path, version: str, body: str
) -> None:
    """The list of controllerLeaders may be empty."""
    leaders = () if "[]" in body else (ControllerLeader(name="route", component="*"),)

    assert read_of_migration(
        tmp_path, document(version, f"leaderName: x\n{body}")
    ) == LeaderMigration(leader_name="x", leaders=leaders)


@pytest.mark.row("daemon-migration-03")
@pytest.mark.parametrize(
    ("version", "body", "words"),
    [
        ("v2", "leaderName: x", "apiVersion is"),
        ("v1", "leaderName: ''", "leaderName is missing"),
        ("v1", "leaderName: x\nresourceLock: leases", "resourceLock is unknown"),
        ("v1alpha1", "leaderName: x", "resourceLock is ''; must be 'leases'"),
        ("v1beta1", "leaderName: x\nresourceLock: endpoints", "resourceLock is 'endpoints'"),
        ("v1", "leaderName: 5", "leaderName must be text, not a number"),
        ("v1", "leaderName: x\ncontrollerLeaders: y", "controllerLeaders must be a list"),
        ("v1", "leaderName: x\ncontrollerLeaders: [{name: a}]", r"\[0\].component is missing"),
        (
            "v1",
            "leaderName: x\ncontrollerLeaders: [{c: d}]",
            r"controllerLeaders\[0\].c is unknown",
        ),
        (
            "v1",
            "leaderName: x\ncontrollerLeaders: [a]",
            r"controllerLeaders\[0\] must be a mapping",
        ),
    ],
)
def test_invalid_migration_plan_error_names_the_field(
    tmp_path: Path, version: str, body: str, words: str
) -> None:
    content = document(version, body)
    with pytest.raises(documents.DocumentError, match=words):
        read_of_migration(tmp_path, content)


def test_migration_plan_of_another_kind_is_refused(tmp_path: Path) -> None:
    content = document("v1", "leaderName: x").replace("Leader", "Leadr", 1)
    with pytest.raises(documents.DocumentError, match="kind is"):
        read_of_migration(tmp_path, content)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
"""Any value that YAML can hold."""

KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "one",
    "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "abcdef"}}],
}


@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.recursive(
            JUNK,
            lambda inner: st.dictionaries(
                st.sampled_from([*KUBECONFIG, "Generic", "Flags", "leaderName", "name", "cluster"]),
                inner | st.lists(inner, max_size=2),
            ),
        ),
    )
)
def test_arbitrary_file_content_raises_only_the_declared_errors(content: Any) -> None:
    data = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_bytes(data)

        for read in (config.load, migration.load):
            with pytest.raises(documents.DocumentError, match=str(file)):
                read(str(file))
        with pytest.raises(kube_config.ClusterConfigError):
            kube_config.load(str(file), environ={})
