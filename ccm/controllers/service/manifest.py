"""Manifest of the service controller."""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ccm.base.flags import FlagSection, FlagViolation, at_least_one, not_negative, qualified
from ccm.base.parsing import format_duration
from ccm.runtime.manifest import ControllerContext, Manifest, MassDeletionFlags

if TYPE_CHECKING:
    from ccm.cloud.interface import Cloud
    from ccm.runtime.controller import Controller

NAME = "service-lb-controller"
_SECTION = FlagSection(NAME)
_BALANCERS = FlagSection("load balancers", ours=True)


@dataclass(frozen=True, kw_only=True)
class ServiceFlags(MassDeletionFlags):
    """Flags of the service controller."""

    # Deviation: see the flag's text.
    concurrent_service_syncs: int = _SECTION.flag(
        16,
        "Services that are reconciled concurrently. The Go implementation's default is 1; here a "
        "load balancer that takes long must not delay the other Services.",
        unit="services",
        check=at_least_one,
        path="ServiceController.ConcurrentServiceSyncs",
    )
    load_balancer_classes: tuple[str, ...] = _BALANCERS.flag(
        (),
        "loadBalancerClass values of the Services to serve, besides Services without one. "
        "Services of other classes are ignored.",
        check=qualified("class"),
    )
    load_balancer_node_update_quiet_period: timedelta = _BALANCERS.flag(
        timedelta(seconds=1),
        "Time without node changes after which the members of all load balancers are updated "
        "together.",
        check=not_negative,
        former_name="load-balancer-nodes-quiet-period",
    )
    load_balancer_node_update_max_delay: timedelta = _BALANCERS.flag(
        timedelta(seconds=10),
        "Maximum delay of a member update after the first node change, if further nodes change. "
        "The removal of a node never waits longer; new nodes wait until the nodes created with "
        "them are initialised (at most 10m), and up to 1m after a slow update.",
        former_name="load-balancer-nodes-longest-wait",
    )
    load_balancer_drift_check_period: timedelta = _BALANCERS.flag(
        timedelta(0),
        "Time between two drift checks, which find load balancers that other clients changed; "
        "jitter of up to 20 % is added. 0 disables the checks.",
        check=not_negative,
    )
    load_balancer_drift_check_budget: int = _BALANCERS.flag(
        10,
        "Maximum load balancers that one drift check repairs; the rest wait for the next check. "
        "If the provider cannot list load balancers, each check instead ensures up to this many, "
        "changed or not, beginning with those whose last call to the provider is oldest.",
        unit="services",
        check=at_least_one,
    )


def _faults(flags: ServiceFlags) -> Iterator[FlagViolation]:
    quiet = flags.load_balancer_node_update_quiet_period
    if flags.load_balancer_node_update_max_delay < quiet:
        least = f"--load-balancer-node-update-quiet-period={format_duration(quiet)}"
        yield "load-balancer-node-update-max-delay", f"cannot be shorter than {least}"


def _lacks(cloud: Cloud) -> str:
    return (
        "" if cloud.load_balancer is not None else "the provider does not implement load balancers"
    )


def _build(context: ControllerContext, flags: ServiceFlags) -> Controller:
    from ccm.controllers.service.controller import ServiceController, ServiceControllerSettings
    from ccm.controllers.service.plan import ServiceAction, is_foreign
    from ccm.kube.resources import NODES, SERVICES
    from ccm.model.names import COMPONENT_SERVICE
    from ccm.runtime.object_status import ControllerFacts

    classes = frozenset(flags.load_balancer_classes)
    services = ServiceController(
        services=context.informers.informer_for(SERVICES),
        nodes=context.informers.informer_for(NODES),
        api=context.client(MANIFEST.client).resource(SERVICES),
        handle=context.cloud_client,
        events=context.recorder(COMPONENT_SERVICE),
        about=context.deletions.reference,
        record=context.deletions,
        settings=ServiceControllerSettings(
            workers=flags.concurrent_service_syncs,
            classes=classes,
            quiet_s=flags.load_balancer_node_update_quiet_period.total_seconds(),
            max_wait_s=flags.load_balancer_node_update_max_delay.total_seconds(),
            drift_period_s=flags.load_balancer_drift_check_period.total_seconds(),
            drift_budget=flags.load_balancer_drift_check_budget,
            allow_mass_deletion=flags.allow_mass_deletion,
        ),
    )

    def facts(key: str) -> ControllerFacts:
        service, record, action = services.decide(key)
        if action is ServiceAction.NOTHING and record is not None and record.failing:
            action = ServiceAction.ENSURE  # after its back-off
        foreign = ""
        if service is not None and is_foreign(service, classes):
            foreign = f"its loadBalancerClass is {service.spec.load_balancer_class}"
        plan = "" if action is ServiceAction.NOTHING else f"{action.value} its load balancer"
        return ControllerFacts(plan=plan, foreign=foreign)

    services.controller.facts_functions["service"] = facts
    return services.controller


MANIFEST: Manifest[ServiceFlags] = Manifest(
    name=NAME,
    alias="service",
    client="service-controller",
    metric="service",
    # Deviation: the Go cloud-controller-manager refuses its former controller names.
    former_name="service-controller",
    watched=("nodes", "services"),
    permissions=(("get", "services"), ("patch", "services/status")),
    faults=_faults,
    missing_interface=_lacks,
    build=_build,
)
