"""Checks of webhooks, Services, blocked deletions and persistent storage.

Storage is opened under the epoch that it has. A higher one, such as that of a Lease which the
daemon does not use, would make storage reject the writes of a running daemon.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from ccm.app.http import enabled_webhooks
from ccm.app.options import gates
from ccm.app.options.controllers import KUBERMATIC_MACHINES, SERVICE_ANNOTATIONS, WEBHOOKS
from ccm.app.provider import Misconfigured
from ccm.controllers.service import plan
from ccm.controllers.service.manifest import MANIFEST
from ccm.doctor import provider
from ccm.doctor.case import (
    Case,
    CheckFinding,
    count,
    fail,
    get_field,
    get_text_field,
    items,
    ok,
    some,
    warn,
)
from ccm.doctor.daemons import START_ADVICE
from ccm.kube import errors
from ccm.kube.resources import CONFIG_MAPS, SERVICES
from ccm.model import names
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.runtime import deletions
from ccm.runtime.deletions import MalformedRecord, blocked_deletions

if TYPE_CHECKING:
    from ccm.app.persistence import PersistenceStores

_MANIFESTS = {
    SERVICE_ANNOTATIONS: "manifests/webhook.yaml",
    KUBERMATIC_MACHINES: "the component components/kubermatic-webhook",
}
"""Webhook -> the manifest with its configuration."""


async def webhooks(case: Case) -> CheckFinding:
    """Compare registered webhooks with the flags, and check that their Services have endpoints."""
    served = enabled_webhooks(case.options)
    registered = await _registered(case)
    if unasked := [name for name in served if name not in {name for _, name in registered}]:
        return warn(
            f"{', '.join(unasked)}: served, but in no webhook configuration",
            f"apply {' and '.join(_MANIFESTS[name] for name in unasked)}, or remove --webhooks",
        )
    if not registered:
        return ok("no webhook is served or registered")
    unserved = sorted({name for _, name in registered if name not in served})
    empty = [hook for hook, _ in registered if not await _has_replica(case, hook)]
    if not (unserved or empty):
        return ok(f"{count(len(registered), 'webhook')} registered, each has a ready replica")
    problems, advice = [], []
    if unserved:
        problems.append(f"{', '.join(unserved)}: registered, but not served with these flags")
        advice.append(
            f"set --feature-gates={gates.WEBHOOK}=true and "
            f"--webhooks={','.join(unserved)}, or delete the webhook configuration"
        )
    if empty:
        keys = {f"Service {_service(hook, 'namespace')}/{_service(hook, 'name')}" for hook in empty}
        problems.append(f"no ready replica behind {some(sorted(keys))}")
        advice.append(START_ADVICE)
    # The default of `failurePolicy` is Fail.
    strict = [
        get_text_field(hook, "name")
        for hook, name in registered
        if (hook in empty or name in unserved) and hook.get("failurePolicy", "Fail") != "Ignore"
    ]
    if strict:
        advice.append(f"meanwhile, set failurePolicy: Ignore in {some(strict)}")
        return fail(
            "; ".join([*problems, "the writes that these webhooks check are rejected"]), *advice
        )
    return warn(
        "; ".join([*problems, "the writes that these webhooks check are not validated"]), *advice
    )


async def _registered(case: Case) -> list[tuple[Any, str]]:
    """Return the registered webhooks whose URL path names a webhook of the daemon.

    Each item is the webhook as in its configuration, and its `--webhooks` name.
    """
    configurations: list[Any] = []
    for kind in ("validating", "mutating"):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
        with suppress(errors.NotFound):
            configurations += await items(case.client, path)
    hooks = []
    for hook in (
        hook for configuration in configurations for hook in configuration.get("webhooks") or ()
    ):
        place = _service(hook, "path") or urlsplit(get_text_field(hook, "clientConfig.url")).path
        name = PurePosixPath(place).name
        if name in WEBHOOKS and (hook, name) not in hooks:
            hooks.append((hook, name))
    return hooks


async def _has_replica(case: Case, hook: Any) -> bool:
    """Return whether the webhook's Service has a ready endpoint; True for a webhook with a URL."""
    if get_field(hook, "clientConfig.service") is None:
        return True
    slices = await items(
        case.client,
        f"/apis/discovery.k8s.io/v1/namespaces/{quote(_service(hook, 'namespace'))}/endpointslices",
        labelSelector=f"kubernetes.io/service-name={_service(hook, 'name')}",
    )
    # Kubernetes counts an endpoint without the condition as ready.
    endpoints = (
        endpoint for endpoint_slice in slices for endpoint in endpoint_slice.get("endpoints") or ()
    )
    return any(get_field(endpoint, "conditions.ready") is not False for endpoint in endpoints)


def _service(hook: Any, field: str) -> str:
    return get_text_field(hook, f"clientConfig.service.{field}")


async def unserved_services(case: Case) -> CheckFinding:
    """Find Services that lack a load balancer because this daemon ignores them or is not active."""
    pages = case.client.resource(SERVICES).pages()
    services = [service async for page in pages for service in page.items]
    balancers = sorted(
        (candidate for candidate in services if candidate.type == TYPE_LOAD_BALANCER),
        key=lambda candidate: candidate.key,
    )
    claimed = frozenset(case.options.load_balancer_classes)
    works = provider.is_startable(case, MANIFEST)
    ours = sorted(
        candidate.key
        for candidate in services
        if works
        # Services for which this daemon has to create or delete a load balancer.
        and (
            plan.needs_cleanup(candidate, claimed)
            or (plan.wants_balancer(candidate, claimed) and not candidate.ingress)
        )
    )
    waiting = [
        candidate
        for candidate in balancers
        if not candidate.ingress and not (works and plan.wants_balancer(candidate, claimed))
    ]
    troubles, advice = list[str](), list[str]()
    if ours and case.lease_holder == "":
        verb = "waits" if len(ours) == 1 else "wait"
        what = f"{count(len(ours), 'Service')} {verb} for the daemon, but no daemon is active"
        troubles.append(f"{what}: {some(ours)}")
        advice.append(START_ADVICE)
    if waiting:
        classes = {candidate.key: candidate.spec.load_balancer_class for candidate in waiting}
        shown = [
            f"{key} ({f'class {name}' if name else 'no class'})" for key, name in classes.items()
        ]
        what = f"{count(len(waiting), 'Service')} without a load balancer, ignored by this daemon"
        troubles.append(f"{what}: {some(shown)}")
        others = ",".join(sorted(filter(None, set(classes.values()))))
        advice.append(
            "nothing to do if another controller serves these classes and needs more time; "
            f"otherwise set --load-balancer-classes={others}"
            if others and works
            else f"enable {MANIFEST.name} with a provider that offers load balancers, or let "
            "another controller serve these Services"
        )
    if troubles:
        return warn("; ".join(troubles), *advice)
    return ok(
        f"{count(len(balancers), 'Service')} of type LoadBalancer, each has a load balancer or is "
        "reconciled by this daemon"
    )


async def report_blocked_deletions(case: Case) -> CheckFinding:
    """Report the blocked deletions in the ConfigMap that records deletions."""
    options = case.options
    namespace, owner = options.leader_elect_resource_namespace, options.leader_elect_resource_name
    where = f"ConfigMap {namespace}/{deletions.CONFIG_MAP_NAME}"
    try:
        record = await case.client.resource(CONFIG_MAPS).get(
            deletions.CONFIG_MAP_NAME, namespace=namespace
        )
        records = blocked_deletions(record, owner)
    except errors.NotFound:
        return ok("no deletion is blocked")
    except MalformedRecord as error:
        return fail(
            f"{where}: {error}", "correct the ConfigMap, or delete it; the daemon creates it again"
        )
    if record.allows_deletion:
        return warn(
            f"{where}: the annotation {names.ANNOTATION_ALLOW_DELETION} allows any number of "
            "deletions",
            "remove the annotation when the intended deletions are done",
        )
    if not records:
        return ok("no deletion is blocked")
    numbers = [count(group.count, kind) for kind, group in sorted(records.items())]
    return warn(
        f"blocked: {', '.join(numbers)}",
        "check whether the objects are really gone; their events have the reason for the block "
        "and how to allow the deletion",
        details=[
            *(
                f"{kind} {held_object.key}: {held_object.reason}, since {held_object.since}"
                for kind, group in sorted(records.items())
                for held_object in group.objects
            ),
            *(
                f"{kind}: and {group.count - len(group.objects)} more"
                for kind, group in sorted(records.items())
                if group.count > len(group.objects)
            ),
        ],
    )


PROBE: Mapping[str, Any] = {
    "apiVersion": "doctor.ccm/v1",
    "kind": "Probe",
    "metadata": {"name": "doctor"},
}


async def persistence(case: Case) -> CheckFinding:
    """Check that the storage of `--persistence-config` opens, and that an object can be written."""
    # Storage in the cluster is not written by a check; the leader reports it with the journal.
    if not case.options.persistence_config:
        return ok("--persistence-config is not set: no state is stored outside the cluster")
    try:
        async with open_stores(case) as stores:
            return await _check_writable(stores)
    except Misconfigured as error:
        return fail(str(error), "correct the file")


@asynccontextmanager
async def open_stores(
    case: Case, file: str = "", cluster_uid: str = "", *, is_outside: bool = False
) -> AsyncIterator[PersistenceStores]:
    """Open the daemon's storage for the block, under the epoch that is stored.

    Args:
        case: case with `client`.
        file: file that configures the storage; empty = that of `--persistence-config`.
        cluster_uid: see `PersistenceStores`.
        is_outside: see `PersistenceStores`.

    Raises:
        Misconfigured: see `PersistenceStores`.
    """
    from ccm.app import persistence as wiring

    options = case.options
    stores = wiring.PersistenceStores(
        file or options.persistence_config,
        case.client,
        namespace=options.leader_elect_resource_namespace,
        lease=options.leader_elect_resource_name,
        next_epoch=_keep_epoch,
        cluster_uid=cluster_uid,
        is_outside=is_outside,
    )
    async with stores.opened(options.cluster_name, "doctor", 0, is_daemon=False):
        yield stores


async def _keep_epoch(stored: int) -> int:
    """Return the epoch in storage: a higher one would stop the writes of the daemon."""
    return stored


async def _check_writable(stores: PersistenceStores) -> CheckFinding:
    from ccm.persistence.errors import PersistenceError

    objects, *secrets = stores.backends()
    for backend in (objects, *secrets):
        await backend.tried.wait()
    if objects.fault:
        return fail(objects.fault, "correct the storage, or the file that configures it")
    try:
        # Not deleted: that would need a permission that the daemon does not have.
        await objects.provider.put_object(objects.instance, PROBE)
    except PersistenceError as error:
        return fail(f"storage is not writable: {error}", "check that storage is up and not full")
    shown = [f"{objects.instance}: up, {1000 * (await objects.latency() or 0):.1f} ms for a write"]
    shown += [f"{one.instance}: {'down' if one.fault else 'up'}, for secrets" for one in secrets]
    if secrets and (fault := secrets[0].fault):
        return warn(f"the secret store is down: {fault}", "correct it, or the file", details=shown)
    return ok("storage belongs to this cluster and is writable", *shown)
