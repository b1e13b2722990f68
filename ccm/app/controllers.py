"""Makes the controllers: flags and shared parts in, work that is ready to run out.

Each controller has one maker here, which either yields its work or says what the provider
lacks. The order in which they start is that of `names.CONTROLLERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from ccm.app import gates, names
from ccm.app.clients import Clients
from ccm.app.events import Events
from ccm.app.options import Options
from ccm.base import log
from ccm.cloud.calls.handle import Handle
from ccm.cloud.calls.routes import RouteCalls
from ccm.cloud.calls.services import ServiceCalls
from ccm.cloud.inventory import SharedInventory
from ccm.cloud.lookup import InstanceLookup
from ccm.controllers.node import controller as node
from ccm.controllers.nodelifecycle import controller as nodelifecycle
from ccm.controllers.nodelifecycle.metrics import observe_call
from ccm.controllers.nodelifecycle.plan import Protection
from ccm.controllers.route import controller as route
from ccm.controllers.route import metrics as route_metrics
from ccm.controllers.route import plan as route_plan
from ccm.controllers.route.schedule import Times
from ccm.controllers.service import controller as service
from ccm.kube.informer import Informers
from ccm.kube.resources import NODES, SERVICES
from ccm.model.names import (
    COMPONENT_NODE,
    COMPONENT_NODE_LIFECYCLE,
    COMPONENT_ROUTE,
    COMPONENT_SERVICE,
)
from ccm.runtime.controller import Controller


class NotOffered(Exception):
    """The provider lacks what the controller needs; the message says what."""


class TurnedOff(Exception):
    """A flag turns the controller off; the message says which."""


class WrongSetting(Exception):
    """A flag that only this controller reads is wrong; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What controllers are made of.

    Attributes:
        options: the flags.
        clients: makes API clients.
        events: makes event recorders.
        informers: the shared caches.
        handle: the handle to the cloud.
        inventory: the shared listing of instances; None where the provider has none.
    """

    options: Options
    clients: Clients
    events: Events
    informers: Informers
    handle: Handle
    inventory: SharedInventory | None


def enabled(
    parts: Parts,
    among: Collection[names.Controller] = names.CONTROLLERS,
    left_out: Callable[[str, str], object] = lambda _name, _why: None,
) -> Iterator[tuple[names.Controller, Controller]]:
    """Those of some controllers that are turned on and that the provider can serve.

    `left_out` is told (name, why) of those that are turned on and will not run.
    """
    logger = log.logger("daemon")
    for controller in names.disabled(parts.options.controllers):
        if controller in among:
            logger.warning("controller is disabled", controller=controller.name)
    for controller in names.enabled(parts.options.controllers):
        if controller not in among:
            continue
        try:
            work = _MAKERS[controller](parts)
        except (NotOffered, TurnedOff) as reason:
            logger.info("controller is skipped", controller=controller.name, error=str(reason))
            left_out(controller.name, str(reason))
        except WrongSetting as fault:
            # The others can do their work; the Go reference ends the whole process here.
            logger.error("controller cannot start", controller=controller.name, error=str(fault))
            left_out(controller.name, str(fault))
        else:
            yield controller, work


def _node(parts: Parts) -> Controller:
    _need_instances(parts)
    options = parts.options
    return node.NodeController(
        nodes=parts.informers.of(NODES),
        api=parts.clients.named(names.NODE.client).resource(NODES),
        lookup=InstanceLookup(parts.handle, parts.inventory),
        schemes=tuple(parts.handle.cloud.provider_schemes),
        events=parts.events.recorder(COMPONENT_NODE),
        settings=node.Settings(
            workers=options.concurrent_node_syncs,
            status_workers=options.node_status_workers,
            status_period_s=options.node_status_update_frequency.total_seconds(),
        ),
    ).controller


def _node_lifecycle(parts: Parts) -> Controller:
    _need_instances(parts)
    options = parts.options
    return nodelifecycle.NodeLifecycleController(
        nodes=parts.informers.of(NODES),
        api=parts.clients.named(names.NODE_LIFECYCLE.client).resource(NODES),
        lookup=InstanceLookup(parts.handle.observe(observe_call), parts.inventory),
        schemes=tuple(parts.handle.cloud.provider_schemes),
        events=parts.events.recorder(COMPONENT_NODE_LIFECYCLE),
        settings=nodelifecycle.Settings(
            workers=options.concurrent_node_lifecycle_syncs,
            period_s=options.node_monitor_period.total_seconds(),
            protection=Protection(
                least_age_s=options.node_deletion_least_age.total_seconds(),
                most_deletions=options.node_deletion_limit,
            ),
        ),
    ).controller


def _route(parts: Parts) -> Controller:
    options = parts.options
    if not options.configure_cloud_routes:
        raise TurnedOff("--configure-cloud-routes is false")
    if parts.handle.cloud.routes is None:
        raise NotOffered("the provider offers no routes")
    try:
        ranges = route_plan.parse_ranges(options.cluster_cidr)
    except ValueError as error:
        raise WrongSetting(
            f"--cluster-cidr {error}; --configure-cloud-routes=false does without routes"
        ) from error
    on_changes = gates.build(options.feature_gates).enabled(gates.WATCH_ROUTES)
    period_s = options.route_reconciliation_period.total_seconds()
    return route.RouteController(
        nodes=parts.informers.of(NODES),
        api=parts.clients.named(names.ROUTE.client).resource(NODES),
        cloud=RouteCalls(
            parts.handle.observe(route_metrics.observe_call), cluster_name=options.cluster_name
        ),
        ranges=ranges,
        events=parts.events.recorder(COMPONENT_ROUTE),
        settings=route.Settings(
            concurrency=parts.handle.cloud.limits.concurrent_routes,
            times=Times(
                period_s=None if on_changes else period_s,
                interval_s=options.route_shortest_interval.total_seconds(),
                safety_s=options.route_safety_period.total_seconds(),
            ),
            grace_s=options.route_grace_period.total_seconds(),
            keep_foreign_reason=options.route_keep_foreign_conditions,
        ),
    ).controller


def _service(parts: Parts) -> Controller:
    if parts.handle.cloud.load_balancer is None:
        raise NotOffered("the provider offers no load balancers")
    options = parts.options
    return service.ServiceController(
        services=parts.informers.of(SERVICES),
        nodes=parts.informers.of(NODES),
        api=parts.clients.named(names.SERVICE.client).resource(SERVICES),
        calls=ServiceCalls(parts.handle, cluster_name=options.cluster_name),
        events=parts.events.recorder(COMPONENT_SERVICE),
        settings=service.Settings(
            workers=options.concurrent_service_syncs,
            classes=frozenset(options.load_balancer_classes),
            quiet_s=options.load_balancer_nodes_quiet_period.total_seconds(),
            longest_wait_s=options.load_balancer_nodes_longest_wait.total_seconds(),
            drift_period_s=options.load_balancer_drift_check_period.total_seconds(),
            drift_budget=options.load_balancer_drift_check_budget,
        ),
    ).controller


def _need_instances(parts: Parts) -> None:
    cloud = parts.handle.cloud
    if cloud.instances is None and cloud.instances_v1 is None:
        raise NotOffered("the provider offers no instances")


_MAKERS: Mapping[names.Controller, Callable[[Parts], Controller]] = {
    names.NODE: _node,
    names.NODE_LIFECYCLE: _node_lifecycle,
    names.SERVICE: _service,
    names.ROUTE: _route,
}
