"""Services of type LoadBalancer that no manager claims, or that wait while no daemon works."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ccm.controllers.service import plan
from ccm.controllers.service.manifest import MANIFEST
from ccm.doctor import provider
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, count, ok, some, warn
from ccm.doctor.leases import START
from ccm.kube.resources import SERVICES
from ccm.model import Service
from ccm.model.service import TYPE_LOAD_BALANCER


async def unclaimed(case: Case) -> Finding:
    """Find Services that wait for a load balancer which none of our daemons will make."""
    pages = case.client.resource(SERVICES).pages()
    every = [service async for page in pages for service in page.items]
    found = [service for service in every if service.type == TYPE_LOAD_BALANCER]
    found.sort(key=lambda service: service.key)
    claimed = frozenset(case.options.load_balancer_classes)
    works = provider.works(case, MANIFEST)
    ours = [service for service in every if works and _waits(service, claimed)]
    waiting = [
        service
        for service in found
        if not service.ingress and not (works and plan.wants_balancer(service, claimed))
    ]
    troubles: list[str] = []
    advice: list[str] = []
    if ours and case.holder == "":
        keys = some(sorted(service.key for service in ours))
        verb = "waits" if len(ours) == 1 else "wait"
        troubles.append(
            f"{count(len(ours), 'Service')} {verb} for a daemon, and none works: {keys}"
        )
        advice.append(START)
    if waiting:
        troubles.append(
            f"{count(len(waiting), 'Service')} without a load balancer, and not ours: "
            f"{some([_shown(service) for service in waiting])}"
        )
        advice.append(_advice(waiting, works=works))
    if troubles:
        return warn("; ".join(troubles), *advice)
    return ok(f"{count(len(found), 'Service')} of type LoadBalancer, each is claimed or served")


def _waits(service: Service, claimed: Collection[str]) -> bool:
    """Whether a Service of ours waits for a load balancer, or for its end."""
    if plan.needs_cleanup(service, claimed):
        return True
    return plan.wants_balancer(service, claimed) and not service.ingress


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
