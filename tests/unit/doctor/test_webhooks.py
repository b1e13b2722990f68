"""What the doctor says of admission webhooks, and of the replicas behind them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from ccm.app import options
from ccm.doctor.case import Case
from ccm.doctor.cluster import webhooks
from ccm.doctor.finding import Finding, Verdict
from ccm.kube.errors import NotFound
from tests.manifests import shipped

FLAGS = ("--feature-gates=CloudControllerManagerWebhook=true", "--webhooks=service-annotations")
SERVICE = "kube-system/cloud-controller-manager-webhook"


def registration(policy: str = "Ignore", **client: Any) -> dict[str, Any]:
    """The shipped one, perhaps with another policy or way to the webhook."""
    found = shipped.only(
        shipped.objects(shipped.MANIFESTS / "webhook.yaml"), "ValidatingWebhookConfiguration"
    )
    (hook,) = found["webhooks"]
    hook["failurePolicy"] = policy
    hook["clientConfig"] = client or hook["clientConfig"]
    return found


def other() -> dict[str, Any]:
    return {"webhooks": [{"name": "x", "clientConfig": {"url": "https://h/validate"}}]}


async def told(
    *registered: dict[str, Any], ready: tuple[bool | None, ...] = (), flags: tuple[str, ...] = FLAGS
) -> Finding:
    """The finding where these are registered, with endpoints that are ready or not."""

    async def raw(method: str, path: str, *, query: dict[str, str] | None = None) -> bytes:
        assert method == "GET"
        if path.endswith("/validatingwebhookconfigurations"):
            return msgspec.json.encode({"items": list(registered)})
        where, _, name = SERVICE.partition("/")
        assert f"/namespaces/{where}/endpointslices" in unquote(path)
        assert query == {"labelSelector": f"kubernetes.io/service-name={name}"}
        endpoints = [{"conditions": {"ready": one}} for one in ready]
        return msgspec.json.encode({"items": [{"endpoints": endpoints}, {"endpoints": None}]})

    case = Case(options=options.parse(["--cloud-provider=sim", *flags]), environ={})
    client: Any = SimpleNamespace(raw=raw)
    case.client = client
    found = await webhooks(case)
    assert found.advice or found.verdict is Verdict.OK
    return found


@pytest.mark.parametrize("ready", [(True,), (False, None)], ids=["ready", "unknown"])
async def test_a_ready_replica_behind_each(ready: tuple[bool | None, ...]) -> None:
    found = await told(registration(), other(), ready=ready)

    assert found.found == "1 webhook registered, each has a ready replica"


async def test_none_is_served_and_none_is_registered() -> None:
    assert (await told(other(), flags=())).verdict is Verdict.OK


async def test_an_api_server_without_the_resource_has_none() -> None:
    async def raw(method: str, path: str) -> bytes:
        raise NotFound(status=404, reason="NotFound", message=f"{method} {path}")

    case = Case(options=options.parse(["--cloud-provider=sim"]), environ={})
    client: Any = SimpleNamespace(raw=raw)
    case.client = client

    assert (await webhooks(case)).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("policy", "verdict", "effect"),
    [
        ("Ignore", Verdict.WARN, "annotations of Services are not checked"),
        ("Fail", Verdict.FAIL, "Services of type LoadBalancer are refused"),
    ],
)
@pytest.mark.parametrize("ready", [(), (False,)], ids=["no endpoint", "none ready"])
async def test_no_ready_replica(
    ready: tuple[bool, ...], policy: str, verdict: Verdict, effect: str
) -> None:
    found = await told(registration(policy), ready=ready)

    assert (found.verdict, found.found) == (
        verdict,
        f"no ready replica behind Service {SERVICE}; {effect}",
    )
    assert found.advice[0].startswith("start the daemon")


async def test_a_webhook_that_the_flags_do_not_serve() -> None:
    """Replicas are ready, and their port is closed."""
    found = await told(registration(), ready=(True,), flags=FLAGS[1:])
    strict = await told(
        registration("Fail", url="https://daemon:10260/service-annotations"), flags=()
    )

    assert found.found.startswith("service-annotations: registered, but not served")
    assert FLAGS[0] in found.advice[0]
    assert (found.verdict, strict.verdict) == (Verdict.WARN, Verdict.FAIL)


async def test_a_webhook_that_no_api_server_asks() -> None:
    found = await told(other())

    assert found.verdict is Verdict.WARN
    assert "no ValidatingWebhookConfiguration names it" in found.found
