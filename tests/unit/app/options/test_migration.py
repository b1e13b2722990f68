"""Which controllers run under which lease, and how a plan is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccm.app.options import documents, migration
from ccm.app.options.migration import Leader, Plan, Runs
from ccm.app.options.names import (
    MANIFESTS,
)

NODE, LIFECYCLE, SERVICE, ROUTE = (manifest.name for manifest in MANIFESTS[:4])
OLD = ("route-controller", "service-controller", "cloud-node-lifecycle-controller")


def plan(component: str, controllers: tuple[str, ...] = OLD) -> Plan:
    entries = tuple(Leader(name=name, component=component) for name in controllers)
    return Plan(leader_name="migration", leaders=entries)


def document(version: str, body: str) -> str:
    return (
        f"apiVersion: controllermanager.config.k8s.io/{version}\n"
        f"kind: LeaderMigrationConfiguration\n{body}"
    )


def read(folder: Path, content: str) -> Plan:
    file = folder / "migration.yaml"
    file.write_text(content)
    return migration.load(str(file))


@pytest.mark.row("daemon-migration-01")
@pytest.mark.parametrize(
    ("component", "runs"),
    [
        ("kube-controller-manager", Runs.ELSEWHERE),
        ("cloud-controller-manager", Runs.MIGRATED),
        ("*", Runs.MIGRATED),
    ],
)
@pytest.mark.parametrize(
    "spelling", [OLD, (ROUTE, SERVICE, LIFECYCLE), ("route", "service", LIFECYCLE)]
)
def test_the_plan_says_where_a_controller_runs(
    component: str, runs: Runs, spelling: tuple[str, ...]
) -> None:
    found = plan(component, spelling)

    assert {found.of(name) for name in (ROUTE, SERVICE, LIFECYCLE)} == {runs}
    assert found.of(NODE) is Runs.MAIN


@pytest.mark.row("daemon-migration-04")
def test_without_a_file_three_controllers_are_shared() -> None:
    assert migration.DEFAULT.leader_name == "cloud-provider-extraction-migration"
    assert [migration.DEFAULT.of(entry.name) for entry in MANIFESTS[:4]] == [
        Runs.MAIN,
        Runs.MIGRATED,
        Runs.MIGRATED,
        Runs.MIGRATED,
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
def test_each_version_is_read(tmp_path: Path, version: str, body: str) -> None:
    """Its entries may be none."""
    leaders = () if "[]" in body else (Leader(name="route", component="*"),)

    assert read(tmp_path, document(version, f"leaderName: x\n{body}")) == Plan(
        leader_name="x", leaders=leaders
    )


@pytest.mark.row("daemon-migration-03")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (document("v2", "leaderName: x"), "apiVersion is"),
        (document("v1", "leaderName: x").replace("Leader", "Leadr", 1), "kind is"),
        (document("v1", "leaderName: ''"), "leaderName is missing"),
        (document("v1", "leaderName: x\nresourceLock: leases"), "resourceLock is unknown"),
        (document("v1alpha1", "leaderName: x"), "resourceLock is ''; it must be 'leases'"),
        (
            document("v1beta1", "leaderName: x\nresourceLock: endpoints"),
            "resourceLock is 'endpoints'; it must be 'leases'",
        ),
        (document("v1", "leaderName: 5"), "leaderName must be text, not a number"),
        (document("v1", "leaderName: x\ncontrollerLeaders: y"), "controllerLeaders must be a list"),
        (
            document("v1", "leaderName: x\ncontrollerLeaders: [{name: a}]"),
            r"controllerLeaders\[0\].component is missing",
        ),
        (
            document("v1", "leaderName: x\ncontrollerLeaders: [{name: a, component: b, c: d}]"),
            r"controllerLeaders\[0\].c is unknown",
        ),
        (
            document("v1", "leaderName: x\ncontrollerLeaders: [a]"),
            r"controllerLeaders\[0\] must be a mapping, not text",
        ),
    ],
)
def test_a_wrong_plan_is_refused_with_the_place(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(documents.DocumentError, match=words):
        read(tmp_path, content)
