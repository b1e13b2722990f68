"""Metrics of the whole process, and the totals that the daemon logs when it stops."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import ccm
from ccm.app.options.controllers import MANIFESTS
from ccm.base import metrics

RUNNING = metrics.gauge(
    "running_managed_controllers",
    "[BETA] Running controllers, by name and manager.",
    ["name", "manager"],
)

_BUILD = metrics.gauge(
    "kubernetes_build_info",
    "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, "
    "git tree state, build date, Go version, and compiler from which Kubernetes was built, and "
    "platform on which it is running.",
    [
        *("major", "minor", "git_version", "git_commit", "git_tree_state", "build_date"),
        *("go_version", "compiler", "platform"),
    ],
)
_REGISTERED = metrics.counter(
    "registered_metrics_total",
    "[BETA] The count of registered metrics broken by stability level and deprecation version.",
    ["stability_level", "deprecated_version"],
)
_DISABLED = metrics.counter("disabled_metrics_total", "[BETA] The count of disabled metrics.")
_HIDDEN = metrics.counter("hidden_metrics_total", "[BETA] The count of hidden metrics.")
_LEVELS = ("ALPHA", "BETA", "STABLE")

_FIGURES = (
    *("api_reads", "api_writes"),
    *("node_writes", "service_writes", "event_writes"),
    "cloud_calls",
)
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def describe(platform_name: str) -> None:
    """Set the constant metrics: build information, and the number of registered metrics.

    Call this function once. Before the count, it imports the metrics modules of all controllers,
    because a controller's own module is imported only when the controller starts.

    Args:
        platform_name: `<os>/<arch>` in Go's spelling.
    """
    for manifest in MANIFESTS:
        import_module(manifest.modules[1])
    release = ccm.__version__.split(".")
    _BUILD.labels(
        *(release[0], release[1], f"v{ccm.__version__}", "", "", ""),
        f"python{platform.python_version()}",
        platform.python_implementation(),
        platform_name,
    ).set(1)
    levels = Counter(
        family.documentation.partition("]")[0].removeprefix("[")
        for family in metrics.REGISTRY.collect()
    )
    for level in _LEVELS:
        _REGISTERED.labels(level, "").inc(levels[level])


@contextmanager
def running(name: str, program: str) -> Iterator[None]:
    """Report a controller as running for the duration of the block.

    Args:
        name: name of the controller in metrics.
        program: name of the program, the label `manager`.
    """
    gauge = RUNNING.labels(name, program)
    gauge.set(1)
    try:
        yield
    finally:
        gauge.set(0)


def summary() -> dict[str, int]:
    """Return the totals of API requests and cloud calls since the start, by name.

    `api_writes` counts every writing request, including those for events and the Lease.
    `node_writes`, `service_writes` and `event_writes` count the writes of one resource each.
    """
    figures = dict.fromkeys(_FIGURES, 0)
    for sample in (item for family in metrics.REGISTRY.collect() for item in family.samples):
        figure = ""
        match sample.name:
            case "rest_client_requests_total":
                is_write = sample.labels.get("method") in _WRITES
                figure = "api_writes" if is_write else "api_reads"
            case "ccm_cloud_calls_total":
                figure = "cloud_calls"
            case "ccm_kube_writes_total":
                figure = f"{sample.labels['resource'].removesuffix('s')}_writes"
        if figure in figures:
            figures[figure] += int(sample.value)
    return figures
