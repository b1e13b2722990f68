"""The names, kinds and labels by which dashboards of the Go machine-controller ask."""

from __future__ import annotations

from importlib import import_module

import pytest

from ccm.base import metrics
from ccm.cloud.machines import Credentials
from ccm.gardener import decoding
from ccm.gardener.types import Machine
from ccm.machines.classes import ResolvedClass
from ccm.machines.metrics import took
from ccm.model import ObjectMeta

_WHO = "namespace machine_deployment instance_type zone"
_OBJECT = "name namespace"
_CLASS = "spec_class_api_group spec_class_kind spec_class_name"
GO: dict[str, tuple[str, str]] = {
    "mcm_machine_items_total": ("gauge", ""),
    "mcm_machine_current_status_phase": ("gauge", "name namespace"),
    "mcm_machine_info": ("gauge", f"{_OBJECT} createdAt spec_provider_id {_CLASS} node_name"),
    "mcm_machine_status_condition": ("gauge", "name namespace condition"),
    "mcm_machine_create_duration_seconds": ("gauge", _WHO),
    "mcm_machine_initialize_duration_seconds": ("gauge", _WHO),
    "mcm_machine_join_duration_seconds": ("gauge", _WHO),
    "mcm_machine_delete_duration_seconds": ("gauge", _WHO),
    "mcm_machine_num_failed_join": ("counter", _WHO),
    "mcm_cloud_api_driver_request_duration_seconds": ("histogram", "provider operation"),
    "mcm_cloud_api_driver_requests_failed_total": ("counter", "provider operation error_code"),
}


@pytest.mark.row("machine-metrics-01")
@pytest.mark.parametrize(("name", "kind", "labels"), [(name, *GO[name]) for name in GO])
def test_a_metric_of_the_go_program(name: str, kind: str, labels: str) -> None:
    for module in ("ccm.machines.metrics", "ccm.machines.driver"):
        import_module(module)

    assert f"# TYPE {name} {kind}\n" in metrics.exposition().decode()
    bare = name.removesuffix("_total") if kind == "counter" else name
    (found,) = [
        each for each in metrics.REGISTRY._collector_to_names if getattr(each, "_name", "") == bare
    ]
    assert set(found._labelnames) == set(labels.split())  # type: ignore[attr-defined]


@pytest.mark.row("machine-metrics-02")
def test_times_of_creations_and_joins_are_histograms_too() -> None:
    machine = decoding.machine(Machine(metadata=ObjectMeta(name="m", namespace="default")))
    made_of = ResolvedClass(metadata=ObjectMeta(name="c"), credentials=Credentials({}))
    took("create", machine, made_of, 3.0)

    told = metrics.exposition().decode()
    for step in ("create", "join"):
        assert f"# TYPE ccm_machine_{step}_duration_seconds histogram\n" in told
    assert 'ccm_machine_create_duration_seconds_bucket{le="5.0"}' in told
