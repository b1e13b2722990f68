"""Alerts of the chart, as Prometheus judges them: each fires in its case, and not before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import prometheus
from tests.manifests.test_metrics import DASHBOARDS, alert_groups, dashboard

pytestmark = pytest.mark.envtest

PREFIX = "CloudControllerManager"
JOB = 'job="blue-metrics"'
"""Of the daemon that the chart with the values `EVERYTHING` installs."""
GARDENER = 'group="machine.sapcloud.io"'

Case = tuple[str, Mapping[str, tuple[float | str, float | str]]]
"""Alert, and for each series its value in the calm and in the bad case; `+2`: 2 more a minute."""

CASES: tuple[Case, ...] = (
    ("WithoutLeader", {'leader_election_master_status{name="blue"}': (1, 0)}),
    ("CredentialsRefused", {'ccm_cloud_calls_total{outcome="unauthenticated"}': (0, "+1")}),
    (
        "CloudFails",
        {
            'ccm_cloud_calls_total{outcome="unavailable"}': ("+1", "+5"),
            'ccm_cloud_calls_total{outcome="success"}': ("+10", "+10"),
        },
    ),
    ("CallsLeftBehind", {'ccm_cloud_abandoned_calls{operation="instance_exists"}': (0, 1)}),
    ("ThreadsUsedUp", {'ccm_cloud_threads_free{operation="instance_exists"}': (1, 0)}),
    ("DeletionsHeld", {'ccm_deletions_held{kind="Node",reason="many"}': (0, 1)}),
    ("NodesUninitialized", {"ccm_nodes_uninitialized{}": (0, 1)}),
    (
        "ServicesFail",
        {'ccm_service_operation_duration_seconds_count{outcome="error"}': (0, "+1")},
    ),
    ("RoutesMissing", {'ccm_routes{state="missing"}': (0, 1)}),
    ("WorkerStuck", {'workqueue_longest_running_processor_seconds{name="node"}': (1199, 1201)}),
    ("Forbidden", {'rest_client_requests_total{code="403",method="PATCH"}': (0, "+1")}),
    # Deleted a moment ago at any time, and at the start.
    ("MachineNotDeleted", {'machine_controller_machine_deleted{machine="m"}': ("+60", 0)}),
    ("MachineTerminates", {'mcm_machine_current_status_phase{name="m"}': (1, -4)}),
    (
        "MachinesNotCreated",
        {f'ccm_machines{{{GARDENER},phase="CrashLoopBackOff"}}': (0, 1)},
    ),
    ("MachinesFail", {'ccm_machine_phase_changes_total{phase="Failed"}': ("+0.03", "+0.04")}),
    ("DrainHangs", {f"ccm_machine_drain_longest_seconds{{{GARDENER}}}": (3600, 3601)}),
    ("ReplacementsWait", {"ccm_machine_replacements_waiting{}": (0, 1)}),
    ("MachinesFrozen", {"mcm_machine_controller_frozen{}": (0, 1)}),
    ("MachineSetsFrozen", {"ccm_machine_sets_frozen{}": (0, 1)}),
    (
        "MachinesUnavailable",
        {f'ccm_machine_replicas_unavailable{{{GARDENER},kind="MachineSet",name="web"}}': (0, 1)},
    ),
    (
        "RolloutStuck",
        {'mcm_machine_deployment_status_condition{name="web",condition="Progressing"}': (1, 0)},
    ),
    ("MachineClassesInvalid", {"ccm_machine_classes_invalid{}": (0, 1)}),
    ("OrphansHeld", {'ccm_machine_vms{kind="held"}': (0, 1)}),
    ("OrphanChecksFail", {'ccm_machine_orphan_passes_total{outcome="error"}': (0, "+1")}),
    ("ConfigurationRefused", {'ccm_config_reloads_total{outcome="failure"}': (0, "+1")}),
)

MINUTES = 240
"""Longer than any alert waits."""

EVERY = 20
"""Minutes between two evaluations of the rules, each of which costs time."""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The rules of the chart in a file."""
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": alert_groups(tmp_path)}))
    return file


def names(rules: Path) -> set[str]:
    groups: Iterable[Any] = yaml.safe_load(rules.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def test_prometheus_accepts_the_alerts_and_all_expressions_of_the_dashboards(
    rules: Path, tmp_path: Path
) -> None:
    asked = [one for file in DASHBOARDS for one in dashboard(file)]
    recorded = [
        {"record": f"panel:{number}", "expr": one.replace("$__rate_interval", "2m")}
        for number, one in enumerate(asked)
    ]
    panels = tmp_path / "panels.yaml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))

    status, told = prometheus.promtool("check", "rules", rules, panels)

    assert status == 0, told
    assert f"{len(asked)} rules found" in told


def test_each_alert_fires_in_its_case_and_not_before(rules: Path, tmp_path: Path) -> None:
    def series(case: Case, *, bad: bool) -> list[dict[str, str]]:
        given = {name: values[bad] for name, values in case[1].items()}
        return [
            {
                "series": name.replace("{", f"{{{JOB},"),
                "values": f"0{value}x{MINUTES}"
                if isinstance(value, str)
                else f"{value}+0x{MINUTES}",
            }
            for name, value in given.items()
        ]

    def fires(case: Case, *, bad: bool) -> dict[str, Any]:
        chosen = f'alertname="{PREFIX}{case[0]}",alertstate="firing"'
        return {
            "interval": "1m",
            "input_series": series(case, bad=bad),
            "promql_expr_test": [
                {
                    "expr": f"count(ALERTS{{{chosen}}})",
                    "eval_time": f"{MINUTES}m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if bad else [],
                }
            ],
        }

    tests = [fires(case, bad=bad) for case in CASES for bad in (False, True)]
    file = tmp_path / "tests.yaml"
    content = {"rule_files": [str(rules)], "evaluation_interval": f"{EVERY}m", "tests": tests}
    file.write_text(yaml.safe_dump(content))

    status, told = prometheus.promtool("test", "rules", file)

    assert {f"{PREFIX}{alert}" for alert, _ in CASES} == names(rules)
    assert status == 0, told
