"""Names, types and labels of the metrics of the Go machine-controller-manager."""

from __future__ import annotations

from pathlib import Path

import pytest

METRICS = (Path(__file__).parents[2] / "golden" / "metrics.txt").read_text()
"""All metrics, which another test compares with those of the daemon."""
GO = """
mcm_machine_items_total gauge {}
mcm_machine_current_status_phase gauge {name,namespace}
mcm_machine_info gauge {createdAt,name,namespace,node_name,spec_class_api_group,spec_class_kind,spec_class_name,spec_provider_id}
mcm_machine_status_condition gauge {condition,name,namespace}
mcm_machine_create_duration_seconds gauge {instance_type,machine_deployment,namespace,zone}
mcm_machine_initialize_duration_seconds gauge {instance_type,machine_deployment,namespace,zone}
mcm_machine_join_duration_seconds gauge {instance_type,machine_deployment,namespace,zone}
mcm_machine_delete_duration_seconds gauge {instance_type,machine_deployment,namespace,zone}
mcm_machine_num_failed_join counter {instance_type,machine_deployment,namespace,zone}
mcm_cloud_api_driver_request_duration_seconds histogram {operation,provider}
mcm_cloud_api_driver_requests_failed_total counter {error_code,operation,provider}
"""  # noqa: E501


@pytest.mark.row("machine-metrics-01", "machine-metrics-02")
@pytest.mark.parametrize("line", GO.split("\n")[1:-1])
def test_metrics_of_the_go_implementation_are_exposed(line: str) -> None:
    """The durations of creation and join exist as histograms too."""
    assert f"\n{line}" in METRICS
    for step in ("create", "join"):
        assert f"\nccm_machine_{step}_duration_seconds histogram" in METRICS
