"""Checks of what belongs to the daemon: webhooks, Services, deletions that are held, storage.

Storage is opened with the epoch of the Lease as it is, so that no daemon is fenced by a check.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from ccm.app.http import (
    enabled,
)
from ccm.app.options import gates
from ccm.app.options.names import WEBHOOKS
from ccm.app.provider import Misconfigured
from ccm.controllers.service import plan
from ccm.controllers.service.manifest import MANIFEST
from ccm.doctor import objects, provider
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, count, fail, ok, some, warn
from ccm.doctor.leases import START
from ccm.kube import errors
from ccm.kube.resources import CONFIG_MAPS, LEASES, SERVICES
from ccm.model import Service, names
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.runtime import deletions
from ccm.runtime.deletions import GarbledRecord, held_back

_IGNORE = "Ignore"


async def webhooks(case: Case) -> Finding:
    """Compare the registered webhooks with the flags, and look for replicas behind them."""
    served = enabled(case.options)
    registered = await _registered(case)
    if unasked := [name for name in served if name not in registered.values()]:
        return warn(
            f"{', '.join(unasked)}: served, but no ValidatingWebhookConfiguration names it",
            "kubectl apply -f manifests/webhook.yaml, or leave --webhooks out",
        )
    if not registered:
        return ok("none is served, and none registered")
    unserved = sorted({name for name in registered.values() if name not in served})
    empty = [hook for hook in registered if not await _has_replica(case, hook)]
    if not (unserved or empty):
        return ok(f"{count(len(registered), 'webhook')} registered, each has a ready replica")
    found, advice = [], []
    if unserved:
        found.append(f"{', '.join(unserved)}: registered, but not served with these flags")
        advice.append(
            f"give the daemon --feature-gates={gates.WEBHOOK}=true and "
            f"--webhooks={','.join(unserved)}, or delete the ValidatingWebhookConfiguration"
        )
    if empty:
        found.append(f"no ready replica behind {some(sorted({_service(hook) for hook in empty}))}")
        advice.append(START)
    troubled = [hook for hook, name in registered.items() if hook in empty or name in unserved]
    if strict := [hook.name for hook in troubled if hook.failure_policy != _IGNORE]:
        advice.append(f"until then set failurePolicy: Ignore in {some(strict)}")
        return fail("; ".join([*found, "Services of type LoadBalancer are refused"]), *advice)
    return warn("; ".join([*found, "annotations of Services are not checked"]), *advice)


async def _registered(case: Case) -> dict[objects.Webhook, str]:
    """The webhooks with a path of ours, and the name that `--webhooks` has for each."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    try:
        answer = await case.client.raw("GET", path)
    except errors.NotFound:
        return {}
    found = msgspec.json.decode(answer, type=objects.WebhookConfigurations)
    hooks = [hook for each in found.items or () for hook in each.webhooks or ()]
    named = {hook: PurePosixPath(_path(hook)).name for hook in hooks}
    return {hook: name for hook, name in named.items() if name in WEBHOOKS}


async def _has_replica(case: Case, hook: objects.Webhook) -> bool:
    """Whether a ready endpoint is behind the Service; True for a URL, which has none."""
    service = hook.client_config.service
    if service is None:
        return True
    answer = await case.client.raw(
        "GET",
        f"/apis/discovery.k8s.io/v1/namespaces/{quote(service.namespace)}/endpointslices",
        query={"labelSelector": f"kubernetes.io/service-name={service.name}"},
    )
    slices = msgspec.json.decode(answer, type=objects.EndpointSlices).items or ()
    return any(
        endpoint.conditions.ready is not False for one in slices for endpoint in one.endpoints or ()
    )


def _path(hook: objects.Webhook) -> str:
    service = hook.client_config.service
    return service.path if service is not None else urlsplit(hook.client_config.url).path


def _service(hook: objects.Webhook) -> str:
    service = hook.client_config.service
    return f"Service {service.namespace}/{service.name}" if service else hook.client_config.url


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


async def deletions_held(case: Case) -> Finding:
    """Read the record of deletions."""
    options = case.options
    namespace, owner = options.leader_elect_resource_namespace, options.leader_elect_resource_name
    where = f"ConfigMap {namespace}/{deletions.NAME}"
    try:
        record = await case.client.resource(CONFIG_MAPS).get(deletions.NAME, namespace=namespace)
        found = held_back(record, owner)
    except errors.NotFound:
        return ok("none is held back")
    except GarbledRecord as error:
        return fail(f"{where}: {error}", "correct it, or delete it: the daemon makes a new one")
    if record.allows_deletion:
        return warn(
            f"{where} allows deletions of any number, by its annotation "
            f"{names.ANNOTATION_ALLOW_DELETION}",
            "take the annotation away once all is well",
        )
    if not found:
        return ok("none is held back")
    numbers = [count(each.count, kind) for kind, each in sorted(found.items())]
    return warn(
        f"held back: {', '.join(numbers)}",
        "find out whether they are gone indeed: the events of the objects say why they are held, "
        "and how to allow it",
        details=[
            f"{kind} {one.key}: {one.reason}, since {one.since}"
            for kind, each in sorted(found.items())
            for one in each.objects
        ]
        + [
            f"{kind}: and {each.count - len(each.objects)} more"
            for kind, each in sorted(found.items())
            if each.count > len(each.objects)
        ],
    )


API_VERSION, KIND = "doctor.ccm/v1", "Probe"
PROBE = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "doctor"}}


async def persistence(case: Case) -> Finding:
    """Open the storage of `--persistence-config`, write something and remove it."""
    options = case.options
    if not options.persistence_config:
        return ok("no --persistence-config: nothing is kept outside the cluster, nor needs to be")
    from ccm.app import persistence as wiring

    try:
        stores = wiring.Stores(
            options.persistence_config,
            case.client,
            namespace=options.leader_elect_resource_namespace,
        )
        epoch = await _epoch(case)
        async with stores.opened(options.cluster_name, "doctor", epoch, rotates=False):
            return await _tried(stores)
    except Misconfigured as error:
        if case.holder and "in use by another process" in str(error):
            return warn(f"not tried: {error}", "that is as it should be, if it is the daemon")
        return fail(str(error), "correct the file, or what it names")


async def _epoch(case: Case) -> int:
    options = case.options
    where = options.leader_elect_resource_namespace
    try:
        name = options.leader_elect_resource_name
        found = await case.client.resource(LEASES).get(name, namespace=where)
    except errors.NotFound:
        return 0
    return found.spec.lease_transitions or 0


async def _tried(stores: Any) -> Finding:
    from ccm.persistence.errors import PersistenceError
    from ccm.persistence.interface import GVK

    manager = stores.manager
    try:
        key = await manager.put_object(PROBE)
        await manager.delete_object(GVK.of(API_VERSION, KIND), key)
        await manager.settled()
    except PersistenceError as error:
        return fail(f"nothing can be written: {error}", "see that storage is there and not full")
    found = {one.name: await one.latency() for one in manager.members}
    secrets = await stores.secret_latencies()
    shown = tuple(
        f"{name}: {'down' if took is None else f'up, {1000 * took:.1f} ms for a write'}"
        for name, took in sorted(found.items())
    ) + tuple(
        f"{name}: {'down' if took is None else 'up'}, for secrets"
        for name, took in sorted(secrets.items())
    )
    if None in (*found.values(), *secrets.values()):
        return warn("some storage is down", "see why; the rest is used meanwhile", details=shown)
    return ok("storage is ours, and can be written", *shown)
