"""Metrics of the node controller; the histograms have the names of the Go controller's."""

from __future__ import annotations

from ccm.base import metrics

_DELAYS_S = metrics.exponential_buckets(1, 4, 6)

TAINT_REMOVAL_DELAY = metrics.histogram(
    "node_controller_cloud_provider_taint_removal_delay_seconds",
    "[ALPHA] Time from the creation of a Node to the removal of its init taint.",
    buckets=_DELAYS_S,
)
INITIAL_SYNC_DELAY = metrics.histogram(
    "node_controller_initial_node_sync_delay_seconds",
    "[ALPHA] Time from the creation of a Node to the end of its initialisation.",
    buckets=_DELAYS_S,
)
INITIALIZATION_FAILURES = metrics.counter(
    "ccm_node_initialization_failures", "Failed initialisations, by class of the error.", ["error"]
)
ADDRESS_UPDATES = metrics.counter(
    "ccm_node_address_updates",
    "Address checks of nodes in the periodic pass, by outcome.",
    ["outcome"],
)
for _outcome in ("unchanged", "updated", "no_answer", "error"):
    ADDRESS_UPDATES.labels(_outcome)
UNINITIALIZED = metrics.gauge("ccm_nodes_uninitialized", "Uninitialised nodes of this cloud.")
