"""Metrics and the store."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ccm.base.metrics import exposition
from ccm.kube import metrics
from ccm.kube.informer import Store
from ccm.model import Service
from ccm.testing.builders import service

_SECONDS = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60]
_BYTES = [64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216]


@pytest.mark.parametrize(
    ("child", "name", "borders"),
    [
        (metrics.request_duration, "rest_client_request_duration_seconds", _SECONDS),
        (metrics.limiter_duration, "rest_client_rate_limiter_duration_seconds", _SECONDS),
        (metrics.request_size, "rest_client_request_size_bytes", _BYTES),
        (metrics.response_size, "rest_client_response_size_bytes", _BYTES),
    ],
)
def test_a_histogram_has_go_s_borders(child: Any, name: str, borders: list[float]) -> None:
    child("GET", "borders.test").observe(1)

    text = exposition().decode()

    lines = re.findall(
        rf'^{name}_bucket{{host="borders.test",le="([^"]+)",verb="GET"}}', text, re.MULTILINE
    )
    assert [float(border) for border in lines] == [*borders, float("inf")]


def test_counters_have_go_s_labels_and_nothing_is_created() -> None:
    metrics.requests(metrics.ERROR_CODE, "GET", "labels.test").inc()
    metrics.retries("200", "PATCH", "labels.test").inc()

    text = exposition().decode()

    assert 'rest_client_requests_total{code="<error>",host="labels.test",method="GET"} 1.0' in text
    assert (
        'rest_client_request_retries_total{code="200",host="labels.test",verb="PATCH"} 1.0' in text
    )
    assert "_created{" not in text


def test_children_are_made_once() -> None:
    assert metrics.requests("200", "GET", "h") is metrics.requests("200", "GET", "h")


def test_a_store_keeps_the_newest_of_each_key_and_hands_out_copies() -> None:
    store: Store[Service] = Store()
    first, second, other = service("a"), service("a"), service("a", namespace="other")
    for obj in (first, second, other):
        store.put(obj)
    listed = store.list()
    assert store.get("default/a") is second
    assert store.pop("default/a") is second
    assert store.pop("default/a") is None
    assert (len(store), list(store), list(store.keys())) == (1, [other], ["other/a"])
    assert "default/a" not in store
    assert listed == [second, other]
