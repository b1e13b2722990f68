"""Checks of what belongs to the daemon: webhooks, Services, deletions that are held, storage.

Storage is opened with the epoch of the Lease as it is, so that no daemon is fenced by a check.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from ccm.app.http import enabled
from ccm.app.options import gates
from ccm.app.options.names import WEBHOOKS
from ccm.app.provider import Misconfigured
from ccm.controllers.service import plan
from ccm.controllers.service.manifest import MANIFEST
from ccm.doctor import provider
from ccm.doctor.case import Case, Finding, at, count, fail, items, ok, some, text_at, warn
from ccm.doctor.daemons import START
from ccm.kube import errors
from ccm.kube.resources import CONFIG_MAPS, LEASES, SERVICES
from ccm.model import names
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.runtime import deletions
from ccm.runtime.deletions import GarbledRecord, held_back


async def webhooks(case: Case) -> Finding:
    """Compare the registered webhooks with the flags, and look for replicas behind them."""
    served = enabled(case.options)
    registered = await _registered(case)
    if unasked := [name for name in served if name not in {name for _, name in registered}]:
        return warn(
            f"{', '.join(unasked)}: served, but no ValidatingWebhookConfiguration names it",
            "kubectl apply -f manifests/webhook.yaml, or leave --webhooks out",
        )
    if not registered:
        return ok("none is served, and none registered")
    unserved = sorted({name for _, name in registered if name not in served})
    empty = [hook for hook, _ in registered if not await _has_replica(case, hook)]
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
        keys = {f"Service {_service(hook, 'namespace')}/{_service(hook, 'name')}" for hook in empty}
        found.append(f"no ready replica behind {some(sorted(keys))}")
        advice.append(START)
    # Without a failure policy, failures refuse requests.
    strict = [
        text_at(hook, "name")
        for hook, name in registered
        if (hook in empty or name in unserved) and hook.get("failurePolicy", "Fail") != "Ignore"
    ]
    if strict:
        advice.append(f"until then set failurePolicy: Ignore in {some(strict)}")
        return fail("; ".join([*found, "Services of type LoadBalancer are refused"]), *advice)
    return warn("; ".join([*found, "annotations of Services are not checked"]), *advice)


async def _registered(case: Case) -> list[tuple[Any, str]]:
    """Return the webhooks with a path of ours, each with its name in `--webhooks`."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    try:
        configurations = await items(case.client, path)
    except errors.NotFound:
        return []
    found = []
    for hook in (hook for each in configurations for hook in each.get("webhooks") or ()):
        place = _service(hook, "path") or urlsplit(text_at(hook, "clientConfig.url")).path
        name = PurePosixPath(place).name
        if name in WEBHOOKS and (hook, name) not in found:
            found.append((hook, name))
    return found


async def _has_replica(case: Case, hook: Any) -> bool:
    """Whether a ready endpoint is behind the Service; True for a URL, which has none."""
    if at(hook, "clientConfig.service") is None:
        return True
    slices = await items(
        case.client,
        f"/apis/discovery.k8s.io/v1/namespaces/{quote(_service(hook, 'namespace'))}/endpointslices",
        labelSelector=f"kubernetes.io/service-name={_service(hook, 'name')}",
    )
    # Where nothing is said, an endpoint counts as ready (Kubernetes).
    endpoints = (endpoint for one in slices for endpoint in one.get("endpoints") or ())
    return any(at(endpoint, "conditions.ready") is not False for endpoint in endpoints)


def _service(hook: Any, field: str) -> str:
    return text_at(hook, f"clientConfig.service.{field}")


async def unclaimed(case: Case) -> Finding:
    """Find Services that wait for a load balancer which none of our daemons will make."""
    pages = case.client.resource(SERVICES).pages()
    every = [service async for page in pages for service in page.items]
    balancers = sorted(
        (one for one in every if one.type == TYPE_LOAD_BALANCER), key=lambda one: one.key
    )
    claimed = frozenset(case.options.load_balancer_classes)
    works = provider.works(case, MANIFEST)
    ours = sorted(
        one.key
        for one in every
        if works
        # Of a Service of ours that waits for a load balancer, or for its end.
        and (
            plan.needs_cleanup(one, claimed)
            or (plan.wants_balancer(one, claimed) and not one.ingress)
        )
    )
    waiting = [
        one
        for one in balancers
        if not one.ingress and not (works and plan.wants_balancer(one, claimed))
    ]
    troubles, advice = list[str](), list[str]()
    if ours and case.holder == "":
        verb = "waits" if len(ours) == 1 else "wait"
        what = f"{count(len(ours), 'Service')} {verb} for a daemon, and none works"
        troubles.append(f"{what}: {some(ours)}")
        advice.append(START)
    if waiting:
        classes = {one.key: one.spec.load_balancer_class for one in waiting}
        shown = [
            f"{key} ({f'class {name}' if name else 'no class'})" for key, name in classes.items()
        ]
        what = f"{count(len(waiting), 'Service')} without a load balancer, and not ours"
        troubles.append(f"{what}: {some(shown)}")
        others = ",".join(sorted(filter(None, set(classes.values()))))
        advice.append(
            "nothing, if another controller claims these classes and only needs time; else claim "
            f"them with --load-balancer-classes={others}"
            if others and works
            else f"turn on {MANIFEST.name} with a provider that offers load balancers, or let "
            "another controller serve them"
        )
    if troubles:
        return warn("; ".join(troubles), *advice)
    return ok(f"{count(len(balancers), 'Service')} of type LoadBalancer, each is claimed or served")


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
            *(
                f"{kind} {one.key}: {one.reason}, since {one.since}"
                for kind, each in sorted(found.items())
                for one in each.objects
            ),
            *(
                f"{kind}: and {each.count - len(each.objects)} more"
                for kind, each in sorted(found.items())
                if each.count > len(each.objects)
            ),
        ],
    )


PROBE: Mapping[str, Any] = {
    "apiVersion": "doctor.ccm/v1",
    "kind": "Probe",
    "metadata": {"name": "doctor"},
}


async def persistence(case: Case) -> Finding:
    """Open the storage of `--persistence-config`, write something and remove it."""
    options = case.options
    if not options.persistence_config:
        return ok("no --persistence-config: nothing is kept outside the cluster, nor needs to be")
    from ccm.app import persistence as wiring

    namespace, name = options.leader_elect_resource_namespace, options.leader_elect_resource_name
    try:
        stores = wiring.Stores(options.persistence_config, case.client, namespace=namespace)
        try:
            lease = await case.client.resource(LEASES).get(name, namespace=namespace)
            epoch = lease.spec.lease_transitions or 0
        except errors.NotFound:
            epoch = 0
        async with stores.opened(options.cluster_name, "doctor", epoch, rotates=False):
            return await _tried(stores)
    except Misconfigured as error:
        if case.holder and "in use by another process" in str(error):
            return warn(f"not tried: {error}", "that is as it should be, if it is the daemon")
        return fail(str(error), "correct the file, or what it names")


async def _tried(stores: Any) -> Finding:
    from ccm.persistence.errors import PersistenceError
    from ccm.persistence.interface import GVK

    manager = stores.manager
    try:
        key = await manager.put_object(PROBE)
        await manager.delete_object(GVK.of(PROBE["apiVersion"], PROBE["kind"]), key)
        await manager.settled()
    except PersistenceError as error:
        return fail(f"nothing can be written: {error}", "see that storage is there and not full")
    latencies = {one.name: await one.latency() for one in manager.members}
    secrets = await stores.secret_latencies()
    shown = [
        f"{name}: {'down' if took is None else f'up, {1000 * took:.1f} ms for a write'}"
        for name, took in sorted(latencies.items())
    ]
    shown += [
        f"{name}: {'down' if took is None else 'up'}, for secrets"
        for name, took in sorted(secrets.items())
    ]
    if None in (*latencies.values(), *secrets.values()):
        return warn("some storage is down", "see why; the rest is used meanwhile", details=shown)
    return ok("storage is ours, and can be written", *shown)
