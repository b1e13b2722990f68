"""Admission webhooks: what the API server is told to ask, and whether a replica answers."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import quote, urlsplit

import msgspec

from ccm.app.options import gates, names
from ccm.app.serving.webhooks import enabled
from ccm.doctor import objects
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, count, fail, ok, some, warn
from ccm.doctor.leases import START
from ccm.kube import errors

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
    return {hook: name for hook, name in named.items() if name in names.WEBHOOKS}


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
