"""Manifest of the route controller."""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ccm.base.flags import FeatureGate, FlagSection, FlagViolation, not_negative, positive
from ccm.runtime.manifest import (
    GENERIC,
    ControllerContext,
    Manifest,
    MassDeletionFlags,
    NodeSelectorFlags,
)

if TYPE_CHECKING:
    from ccm.cloud.interface import Cloud
    from ccm.runtime.controller import Controller

_ROUTES = FlagSection("routes", ours=True)

WATCH_ROUTES = FeatureGate(
    name="CloudControllerManagerWatchBasedRoutesReconciliation",
    # Deviation: alpha and off in Go, where a failed call is not retried if the gate is on.
    default=True,
    stage="BETA",
    help="Compare routes when a node changes, instead of every --route-reconciliation-period.",
)
_NEEDS_GATE = f"Ignored if {WATCH_ROUTES.name} is off."


def _ranges(value: str) -> str:
    """Return the fault of the Pod ranges; empty = valid.

    An invalid value must not disable routes silently.
    """
    from ccm.model.cidr import parse_ranges

    try:
        parse_ranges(value)
    except ValueError as error:
        return str(error)
    return ""


@dataclass(frozen=True, kw_only=True)
class RouteFlags(NodeSelectorFlags, MassDeletionFlags):
    """Flags of the route controller."""

    configure_cloud_routes: bool = GENERIC.flag(
        True,
        "Maintain a cloud route to the Pods of each node.",
        path="KubeCloudShared.ConfigureCloudRoutes",
    )
    cluster_cidr: str = GENERIC.flag(
        "",
        "Pod ranges of the cluster: one, or an IPv4 and an IPv6 range separated by a comma.",
        check=lambda value: _ranges(value) if value.strip() else "",
        path="KubeCloudShared.ClusterCIDR",
    )
    route_reconciliation_period: timedelta = GENERIC.flag(
        timedelta(seconds=10),
        "Time between two comparisons of nodes and routes.",
        check=positive,
        path="KubeCloudShared.RouteReconciliationPeriod",
    )
    route_reconciliation_min_interval: timedelta = _ROUTES.flag(
        timedelta(seconds=10),
        "Minimum time between two comparisons of nodes and routes triggered by node changes. 0 "
        f"means one comparison per burst of changes. {_NEEDS_GATE}",
        check=not_negative,
        former_name="route-shortest-interval",
    )
    route_resync_period: timedelta = _ROUTES.flag(
        timedelta(minutes=10),
        "Maximum time between two comparisons of nodes and routes, plus up to half of it as "
        f"jitter. Comparisons also find routes that other clients changed. {_NEEDS_GATE}",
        check=positive,
        former_name="route-safety-period",
    )
    route_grace_period: timedelta = _ROUTES.flag(
        timedelta(minutes=1),
        "Time for which a node without a Pod range keeps its routes: a recreated node may get "
        "its range soon. 0 means that its routes are deleted at once.",
        check=not_negative,
    )
    route_keep_foreign_conditions: bool = _ROUTES.flag(
        False,
        "Keep a NetworkUnavailable condition that another client, such as a network plugin, "
        "wrote, if its status is right. If false, the condition is rewritten with this daemon's "
        "reason.",
    )


def _faults(flags: RouteFlags) -> Iterator[FlagViolation]:
    if timedelta(0) < flags.route_resync_period < flags.route_reconciliation_min_interval:
        yield "route-resync-period", "cannot be shorter than --route-reconciliation-min-interval"


def _turned_off(flags: RouteFlags) -> str:
    return "" if flags.configure_cloud_routes else "--configure-cloud-routes is false"


def _lacks(cloud: Cloud) -> str:
    return "" if cloud.routes is not None else "the provider does not implement routes"


def _wrong(flags: RouteFlags) -> str:
    if flags.cluster_cidr.strip():
        return ""
    return (
        "--cluster-cidr is not set; set it to the cluster's Pod range, such as 10.244.0.0/16, or "
        "set --configure-cloud-routes=false"
    )


def _build(context: ControllerContext, flags: RouteFlags) -> Controller:
    from ccm.cloud.lookup import NodeOwnership
    from ccm.controllers.route.controller import QUEUE_KEY, RouteController
    from ccm.controllers.route.metrics import observe_call
    from ccm.controllers.route.plan import RouteSettings, has_no_pod_cidrs
    from ccm.kube.resources import NODES
    from ccm.model.cidr import parse_ranges
    from ccm.model.names import COMPONENT_ROUTE
    from ccm.runtime.object_status import ControllerFacts

    watching = context.gates[WATCH_ROUTES.name]
    period_s = flags.route_reconciliation_period.total_seconds()
    nodes, ranges = context.informers.informer_for(NODES), parse_ranges(flags.cluster_cidr)
    routes = RouteController(
        nodes=nodes,
        api=context.client(MANIFEST.client).resource(NODES),
        handle=context.cloud_client.with_observer(observe_call),
        ranges=ranges,
        ownership=NodeOwnership.for_cloud(context.cloud_client.cloud, flags.node_selector),
        events=context.recorder(COMPONENT_ROUTE),
        record=context.deletions,
        settings=RouteSettings(
            concurrency=context.cloud_client.cloud.limits.concurrent_routes,
            period_s=None if watching else period_s,
            interval_s=flags.route_reconciliation_min_interval.total_seconds(),
            safety_s=flags.route_resync_period.total_seconds(),
            grace_s=flags.route_grace_period.total_seconds(),
            keep_foreign_reason=flags.route_keep_foreign_conditions,
            allow_mass_deletion=flags.allow_mass_deletion,
        ),
    )

    def facts(name: str) -> ControllerFacts:
        node = nodes.store.get(name)
        if node is None:
            return ControllerFacts(key=QUEUE_KEY)
        why = "no route: it has no Pod range (spec.podCIDRs)" if has_no_pod_cidrs(node) else ""
        pause_s = routes.pause_s(node)
        plan = "" if pause_s is None else "retry the failed creation of its route"
        return ControllerFacts(key=QUEUE_KEY, plan=plan, blocked=why, next_s=pause_s)

    routes.controller.facts_functions["node"] = facts
    return routes.controller


MANIFEST: Manifest[RouteFlags] = Manifest(
    name="node-route-controller",
    alias="route",
    client="route-controller",
    metric="route",
    # Deviation: the Go cloud-controller-manager refuses its former controller names.
    former_name="route-controller",
    permissions=(("patch", "nodes/status"),),
    gates=(WATCH_ROUTES,),
    faults=_faults,
    disabled_by=_turned_off,
    missing_interface=_lacks,
    config_fault=_wrong,
    build=_build,
)
