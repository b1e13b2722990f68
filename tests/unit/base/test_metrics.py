"""Metrics as the Go components expose them."""

from __future__ import annotations

import uuid

from ccm.base import metrics


def fresh_name() -> str:
    return f"test_{uuid.uuid4().hex}"


def lines(name: str) -> list[str]:
    text = metrics.exposition().decode()
    return [line for line in text.splitlines() if line.startswith(name)]


def test_a_histogram_has_no_created_series_and_ends_in_infinity() -> None:
    name = fresh_name()
    histogram = metrics.histogram(name, "help", ["verb"], buckets=(0.1, 1.0))

    histogram.labels(verb="get").observe(0.1)

    assert lines(name) == [
        f'{name}_bucket{{le="0.1",verb="get"}} 1.0',
        f'{name}_bucket{{le="1.0",verb="get"}} 1.0',
        f'{name}_bucket{{le="+Inf",verb="get"}} 1.0',
        f'{name}_count{{verb="get"}} 1.0',
        f'{name}_sum{{verb="get"}} 0.1',
    ]


def test_a_counter_has_its_suffix_once_and_no_created_series() -> None:
    name = fresh_name()

    metrics.counter(f"{name}_total", "help").inc()

    assert lines(name) == [f"{name}_total 1.0"]


def test_a_counter_may_do_without_its_suffix() -> None:
    name = fresh_name()

    metrics.plain_counter(name, "help", ["result"]).labels("good").inc()

    text = metrics.exposition().decode()
    assert lines(name) == [f'{name}{{result="good"}} 1.0']
    assert f"# TYPE {name} counter\n" in text


def test_exponential_borders_are_multiplied_step_by_step() -> None:
    borders = metrics.exponential_buckets(0.001, 2, 15)

    assert len(borders) == 15
    assert borders[:3] == (0.001, 0.002, 0.004)
    assert borders[-1] == 16.384
    assert metrics.exponential_buckets(1e-8, 10, 3)[2] == 1e-8 * 10 * 10
