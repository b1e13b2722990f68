"""Services of type LoadBalancer that nobody looks after."""

from __future__ import annotations

from collections.abc import Sequence

from ccm.controllers.service import plan
from ccm.controllers.service.manifest import MANIFEST
from ccm.doctor import provider
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, count, ok, some, warn
from ccm.kube.resources import SERVICES
from ccm.model import Service
from ccm.model.service import TYPE_LOAD_BALANCER


async def unclaimed(case: Case) -> Finding:
    """Find Services that want a load balancer, have none, and are not ours to serve."""
    pages = case.client.resource(SERVICES).pages()
    every = [service async for page in pages for service in page.items]
    found = [service for service in every if service.type == TYPE_LOAD_BALANCER]
    found.sort(key=lambda service: service.key)
    claimed = frozenset(case.options.load_balancer_classes)
    works = provider.works(case, MANIFEST)
    waiting = [
        service
        for service in found
        if not service.ingress and not (works and plan.wants_balancer(service, claimed))
    ]
    if not waiting:
        return ok(f"{count(len(found), 'Service')} of type LoadBalancer, all ours or served")
    return warn(
        f"{count(len(waiting), 'Service')} without a load balancer, and not ours: "
        f"{some([_shown(service) for service in waiting])}",
        _advice(waiting, works=works),
    )


def _advice(waiting: Sequence[Service], *, works: bool) -> str:
    classes = sorted({service.spec.load_balancer_class or "" for service in waiting} - {""})
    if classes and works:
        return (
            "nothing, if another controller claims these classes and only needs time; else claim "
            f"them with --load-balancer-classes={','.join(classes)}"
        )
    return (
        f"turn on {MANIFEST.name} with a provider that offers load balancers, or let "
        "another controller serve them"
    )


def _shown(service: Service) -> str:
    given = service.spec.load_balancer_class
    return f"{service.key} ({f'class {given}' if given else 'no class'})"
