"""What a user reads about each refusal of OpenStack: the event on the Service, and its message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import names
from ccm.testing.fake_api import Fault
from providers.openstack.testing import identity
from tests import servers
from tests.scenario.harness import Environment, wait_for
from tests.scenario.machines import SERVICES
from tests.vendors import impatient
from tests.vendors.clouds import OpenStack

CREATE = "POST /load-balancer/v2/lbaas/loadbalancers"
FAILED = "Error syncing load balancer: failed to ensure load balancer: "
BUSY = "Error syncing load balancer: the cloud is still busy: "


def script(**fault: Any) -> Callable[[OpenStack], None]:
    return lambda vendor: vendor.fake.script.add(Fault(operation=CREATE, **fault))


def limit(**settings: Any) -> Callable[[OpenStack], None]:
    def change(vendor: OpenStack) -> None:
        for name, value in settings.items():
            setattr(vendor.fake.settings, name, value)

    return change


def lock_out(vendor: OpenStack) -> None:
    """The password was changed, and the token has expired."""
    vendor.fake.identity.password = "another"
    vendor.fake.identity.revoke()


def unlist(vendor: OpenStack) -> None:
    """The catalogue of the next token has no load balancers."""
    vendor.fake.settings.services = ("compute", "network", "image")
    vendor.fake.identity.revoke()


ROWS: Mapping[str, tuple[Callable[[OpenStack], None], str]] = {
    "rate-limit": (script(kind="rate_limit"), f"{BUSY}POST /v2/lbaas/loadbalancers: HTTP 429 "),
    "outage": (script(code="unavailable"), f"{FAILED}POST /v2/lbaas/loadbalancers: HTTP 503"),
    "immutable": (script(code="immutable"), f"{BUSY}.*HTTP 409 immutable: Load Balancer .* is imm"),
    "pending": (limit(balancer_s=600.0), f"{BUSY}load balancer kube_service_.* is PENDING_CREATE$"),
    "quota": (limit(balancers=0), f"{FAILED}.*HTTP 403 quota: Quota has been met for resources: "),
    "no-address": (
        limit(floating_ips=0),
        f"{FAILED}POST /v2.0/floatingips: HTTP 409 quota: Quota exceeded for resources: ",
    ),
    "token": (
        lock_out,
        f"{FAILED}Keystone at http.*: HTTP 401: .*; correct auth-url or the credentials$",
    ),
    "no-endpoint": (
        unlist,
        (
            f"{FAILED}the catalogue of .* has no public endpoint of the service load-balancer.*; "
            "create one, or correct region or os-endpoint-type$"
        ),
    ),
}
"""Service -> what is wrong, and the beginning of the event's message."""


@pytest.mark.slow
@pytest.mark.row("openstack-event-01")
@pytest.mark.timeout(600)
@servers.only_builtin
async def test_each_refusal_is_one_event_with_cause_and_remedy(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    vendor = OpenStack()
    vendor.flags = {**vendor.flags, "controllers": SERVICE.name, "leader-elect": "false"}
    async with vendor.opened(api_server, tmp_path) as (env, _):
        daemon = await env.start(**vendor.how, module=impatient.__name__)
        for name, (break_it, message) in ROWS.items():
            before = vars(vendor.fake.settings).copy()
            break_it(vendor)
            spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
            await env.cluster.create(SERVICES, {"metadata": {"name": name}, "spec": spec})
            told = await wait_for(partial(warnings, env, name), f"{name} is reported")
            assert re.match(message, told[0]), told
            assert vendor.fake.identity.password not in told[0]
            vendor.fake.heal()
            vendor.fake.identity.password = identity.PASSWORD
            vars(vendor.fake.settings).update(before)
            vendor.fake.cloud.settle(all_of_them=True)
        assert daemon.surprises() == []


async def warnings(env: Environment, name: str) -> list[str]:
    """Messages of the Warning events on a Service about its load balancer."""
    events = await env.cluster.events(name, names.REASON_SYNC_BALANCER_FAILED)
    return [str(event["message"]) for event in events]


@pytest.mark.slow
@pytest.mark.row("openstack-event-01")
@servers.only_builtin
async def test_an_expired_token_is_renewed_without_an_event(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    vendor = OpenStack()
    vendor.flags = {**vendor.flags, "controllers": SERVICE.name, "leader-elect": "false"}
    async with vendor.opened(api_server, tmp_path) as (env, _):
        await env.start(**vendor.how, module=impatient.__name__)
        for name in ("first", "second"):
            spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
            await env.cluster.create(SERVICES, {"metadata": {"name": name}, "spec": spec})
            await wait_for(partial(is_served, env, name), f"{name} is served")
            vendor.fake.identity.revoke()
        assert vendor.fake.identity.issued == 2
        assert await warnings(env, "first") == await warnings(env, "second") == []


async def is_served(env: Environment, name: str) -> bool:
    status = (await env.cluster.get(f"{SERVICES}/{name}") or {}).get("status") or {}
    return bool(status.get("loadBalancer", {}).get("ingress"))
