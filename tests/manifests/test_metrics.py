"""The dashboards and the alerts ask only for metrics and labels that the daemon has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from ccm.cloud.blocking import _free_threads
from tests.manifests import shipped
from tests.manifests.shipped import CHART, EVERYTHING, ROOT

DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))

# Put there by Prometheus itself, which renames a label `namespace` of the metric.
OF_PROMETHEUS = frozenset({"job", "instance", "namespace", "exported_namespace", "pod"})

_SELECTOR = re.compile(r"([a-z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}")
_MATCHER = re.compile(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"\s*(?:,|$)')
_GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")


@pytest.fixture(scope="module")
def series() -> Mapping[str, frozenset[str]]:
    """Every series that the daemon has, and its labels: those of the golden file and the library's,
    and one that is made when a provider has threads."""
    library = prometheus_client.generate_latest().decode()
    of_process = re.findall(r"^(process_\w+) ", library, re.MULTILINE)
    found = dict.fromkeys(of_process, frozenset[str]())
    free = _free_threads()
    found[free._name] = frozenset(free._labelnames)
    for line in (ROOT / "tests" / "golden" / "metrics.txt").read_text().splitlines():
        name, kind, labels, *_ = line.split(" ")
        parts = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        known = frozenset(labels.strip("{}").split(","))
        found |= dict.fromkeys([f"{name}{part}" for part in parts], known)
    return found


def dashboard(file: Path) -> list[str]:
    panels = json.loads(file.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def alert_groups(home: Path) -> list[dict[str, Any]]:
    """The rules of the chart, as Prometheus reads them."""
    objects = shipped.parsed(shipped.rendered(home, EVERYTHING))
    return list(shipped.only(objects, "PrometheusRule")["spec"]["groups"])


def alerts(home: Path) -> list[str]:
    return [rule["expr"] for group in alert_groups(home) for rule in group["rules"]]


def faults(expression: str, series: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield metrics and labels of an expression that do not exist."""
    selectors = _SELECTOR.findall(expression)
    if not selectors:
        yield f"no metric in {expression}"
    known: set[str] = set(OF_PROMETHEUS) | {"le"}
    for name, matchers in selectors:
        if name not in series:
            yield f"{name} is no metric"
            continue
        known |= series[name]
        labels = _MATCHER.findall(matchers)
        if _MATCHER.sub("", matchers).strip():
            yield f"{matchers} cannot be read"
        if "job" not in labels:
            yield f"{name} is not asked of the daemon alone"
        yield from (
            f"{name} has no label {label}"
            for label in labels
            if label not in series[name] | OF_PROMETHEUS
        )
    for group in _GROUPING.findall(expression):
        yield from (
            f"nothing to group by {label} in {expression}"
            for label in re.split(r"\s*,\s*", group.strip())
            if label not in known
        )


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_the_dashboards_use_known_metrics_and_labels(
    series: Mapping[str, frozenset[str]], file: Path
) -> None:
    asked = dashboard(file)

    assert len(asked) > 20
    assert [fault for one in asked for fault in faults(one, series)] == []


@pytest.mark.envtest
@pytest.mark.row("kubermatic-metrics-06")
def test_alerts_use_known_metrics_and_labels(
    tmp_path: Path, series: Mapping[str, frozenset[str]]
) -> None:
    asked = alerts(tmp_path)

    assert len(asked) >= 10
    assert any("machine_controller_machine_deleted" in one for one in asked)
    assert [fault for one in asked for fault in faults(one, series)] == []


@pytest.mark.envtest
def test_the_chart_renders_the_dashboards_unchanged(tmp_path: Path) -> None:
    values = {**EVERYTHING, "persistence": {}}  # which has a ConfigMap too
    objects = shipped.parsed(shipped.rendered(tmp_path, values))
    data = shipped.only(objects, "ConfigMap")["data"]

    assert {name: json.loads(content) for name, content in data.items()} == {
        file.name: json.loads(file.read_text()) for file in DASHBOARDS
    }
