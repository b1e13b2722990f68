"""Tokens, the catalogue, paging and errors."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from msgspec import structs

from ccm import cloud
from ccm.base import tasks
from ccm.cloud import rest
from ccm.testing.fake_api import Fault
from providers.openstack import client, config, neutron, nova
from providers.openstack.testing import compute, identity, server
from tests import pki
from tests.openstack.harness import ANY_CALL, OpenStackHarness
from tests.unit.kube import proxy


def settings(harness: OpenStackHarness, **changed: Any) -> config.Global:
    return structs.replace(config.read_all(harness.context()).file.global_, **changed)


@pytest_asyncio.fixture
async def api(harness: OpenStackHarness) -> AsyncIterator[client.Client]:
    async with client.open_client(settings(harness)) as found:
        yield found


def tokens(harness: OpenStackHarness) -> int:
    return int(harness.service.calls[f"POST {server.TOKENS}"])


# --- tokens and the catalogue ---------------------------------------------------------------------


@pytest.mark.row("openstack-auth-01")
async def test_concurrent_calls_share_one_token(
    harness: OpenStackHarness, api: client.Client
) -> None:
    found = nova.Nova(api)

    async def call(_: int) -> None:
        await found.servers()

    await tasks.run_bounded(range(30), call, limit=30, name="call")

    assert tokens(harness) == 1
    assert harness.service.calls.total() == 31


@pytest.mark.row("openstack-auth-02")
async def test_revoked_token_is_renewed_once(harness: OpenStackHarness, api: client.Client) -> None:
    found = nova.Nova(api)
    await found.servers()
    harness.service.identity.revoke()
    api.keystone._renewed_at -= rest.MIN_RENEW_AGE_S

    assert await found.servers() == ([], 1)
    assert tokens(harness) == 2

    harness.service.identity.revoke()  # a token that is refused at once is not renewed
    with pytest.raises(cloud.Unauthenticated, match="requires authentication"):
        await found.servers()
    assert tokens(harness) == 2


@pytest.mark.row("openstack-auth-02")
async def test_token_is_renewed_before_it_expires(
    harness: OpenStackHarness, api: client.Client
) -> None:
    harness.service.settings.token_s = 90.0
    found = nova.Nova(api)
    await found.servers()
    assert api.keystone._renew_at == pytest.approx(api.keystone._ends_at - 45.0)
    api.keystone._renew_at = 0.0

    await found.servers()

    assert tokens(harness) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"user_id": identity.USER, "username": "", "user_domain_name": ""},
        {
            "application_credential_id": "a0c1d5e2f3b44c5d8e9f0a1b2c3d4e5f",
            "application_credential_secret": "app-s3cret-of-the-fake",
            "username": "",
            "password": "",
        },
        {"trust_id": "t", "trustee_id": identity.USER, "trustee_password": identity.PASSWORD},
    ],
)
@pytest.mark.row("openstack-auth-01")
async def test_each_kind_of_credentials_gets_a_token(
    harness: OpenStackHarness, changed: dict[str, str]
) -> None:
    async with client.open_client(settings(harness, **changed)) as api:
        await api.keystone.header()

    assert harness.service.identity.issued == 1


async def test_address_of_keystone_needs_no_version(harness: OpenStackHarness) -> None:
    url = f"{harness.url}/identity"
    for path in (url, f"{url}/v2.0", f"{url}/v3"):
        async with client.open_client(settings(harness, auth_url=path)) as api:
            await api.keystone.header()


@pytest.mark.parametrize(
    ("changed", "kind", "told"),
    [
        ({"password": "wrong"}, cloud.Unauthenticated, "HTTP 401.*correct auth-url or the cred"),
        ({"auth_url": "http://127.0.0.1:9/v3"}, cloud.Unavailable, "no response: .*refused"),
        (
            {"region": "Two"},
            cloud.FailedPrecondition,
            "no public endpoint .* compute in region Two",
        ),
    ],
)
async def test_unusable_settings_are_reported_by_the_first_call(
    harness: OpenStackHarness, changed: dict[str, str], kind: type[cloud.CloudError], told: str
) -> None:
    async with client.open_client(settings(harness, **changed)) as api:
        with pytest.raises(kind, match=told) as caught:
            await nova.Nova(api).servers()

    assert identity.PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(code="unavailable"), cloud.Unavailable),
        (Fault(kind="rate_limit"), cloud.RetryAfter),
        (Fault(code="forbidden"), cloud.PermissionDenied),
        (Fault(kind="drop"), cloud.Unavailable),
        (Fault(kind="empty", status=201), cloud.Unknown),
        (Fault(kind="garbage", status=502), cloud.Unavailable),
    ],
)
async def test_errors_of_keystone_have_the_class_of_their_status(
    harness: OpenStackHarness, api: client.Client, fault: Fault, kind: type[cloud.CloudError]
) -> None:
    harness.service.script.add(structs.replace(fault, operation=f"POST {server.TOKENS}"))

    with pytest.raises(kind, match="Keystone at "):
        await nova.Nova(api).servers()


@pytest.mark.parametrize(
    ("changed", "kind", "told"),
    [
        ({}, cloud.Unavailable, "no response: .*certificate"),
        ({"ca_file": "cloud.crt"}, cloud.Unknown, "malformed response"),
        ({"tls_insecure": True}, cloud.Unknown, "malformed response"),
    ],
)
async def test_tokens_are_requested_over_trusted_connections(
    harness: OpenStackHarness,
    tmp_path: Path,
    changed: dict[str, Any],
    kind: type[cloud.CloudError],
    told: str,
) -> None:
    files = pki.Authority(tmp_path, "cloud").server("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.chain, files.key)
    if "ca_file" in changed:
        changed = {"ca_file": str(tmp_path / changed["ca_file"])}
    async with proxy.serve(context) as tls:
        tls.will(proxy.says({}, Connection="close"))  # so that no side waits for the other's end
        given = settings(harness, auth_url=tls.url, **changed)
        async with client.open_client(given) as api:
            with pytest.raises(kind, match=told):
                await api.keystone.header()


@pytest.mark.row("openstack-auth-03")
async def test_service_missing_from_the_catalogue_is_named(harness: OpenStackHarness) -> None:
    harness.service.settings.services = ("compute",)
    async with client.open_client(settings(harness)) as api:
        await nova.Nova(api).servers()
        with pytest.raises(cloud.FailedPrecondition, match="endpoint of the service network"):
            await neutron.Neutron(api).project_ports()

        harness.service.settings.services = ("compute", "network")
        api.keystone._renew_at -= rest.MIN_RENEW_AGE_S
        await neutron.Neutron(api).project_ports()
        assert tokens(harness) == 2


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.row("openstack-call-03")
async def test_listing_follows_the_links_of_all_pages(
    harness: OpenStackHarness, api: client.Client
) -> None:
    for _ in range(5):
        await harness.create()
    harness.service.settings.page_size = 2

    servers, requests = await nova.Nova(api).servers()

    assert [one.name for one in servers] == [f"node-{number}" for number in range(1, 6)]
    assert requests == 3
    found, requests = await neutron.Neutron(api).ports_of("device_id", [one.id for one in servers])
    assert len(found) == 5
    assert requests == 3


async def test_server_is_found_by_its_exact_name(
    harness: OpenStackHarness, api: client.Client
) -> None:
    found = nova.Nova(api)
    for name in ("a.b", "axb", "a.bc", "twin", "twin"):
        compute.new_server(harness.service.cloud, name, harness.flavor, harness.network["id"])

    assert [one.name for one in await found.servers_named("a.b")] == ["a.b"]
    assert await found.servers_named("a") == []
    assert len(await found.servers_named("twin")) == 2


@pytest.mark.row("openstack-node-04")
async def test_older_nova_is_called_without_microversion(
    harness: OpenStackHarness, api: client.Client
) -> None:
    made = await harness.create()
    harness.service.settings.microversion = "2.40"
    found = nova.Nova(api)

    (one,) = await found.servers_named(made.name)

    assert (await found.flavor(one.flavor)).name == harness.flavor["name"]
    assert harness.service.calls["GET /compute/servers/detail"] == 2
    await found.servers()
    assert harness.service.calls["GET /compute/servers/detail"] == 3


@pytest.mark.row("openstack-call-03")
async def test_requests_beyond_the_limit_wait(
    harness: OpenStackHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CONNECTIONS", 4)  # two of them for reads
    harness.service.settings.latency_s = 0.01
    handle, running = harness.service._handle, [0, 0]

    async def counted(*args: Any) -> Any:
        running[0] += 1
        running[1] = max(running)
        try:
            return await handle(*args)
        finally:
            running[0] -= 1

    async with client.open_client(settings(harness)) as api:
        found = nova.Nova(api)

        async def call(_: int) -> None:
            await found.servers()

        await found.servers()
        monkeypatch.setattr(harness.service, "_handle", counted)
        await tasks.run_bounded(range(6), call, limit=6, name="call")

    assert running == [0, 2]
    assert harness.service.calls["GET /compute/servers/detail"] == 7


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        (Fault(code="overLimit"), cloud.RetryAfter, "HTTP 429"),
        (Fault(code="unavailable"), cloud.Unavailable, "HTTP 503"),
        (Fault(code="immutable"), client.Immutable, "HTTP 409 immutable: Load Balancer 0 is"),
        (Fault(code="conflict"), cloud.Aborted, "HTTP 409"),
        (Fault(code="quota"), cloud.ResourceExhausted, "HTTP 403 quota: Quota exceeded"),
        (Fault(code="forbidden"), cloud.PermissionDenied, "HTTP 403"),
        (Fault(code="itemNotFound"), cloud.NotFound, "HTTP 404 not_found"),
        (Fault(kind="hang"), cloud.DeadlineExceeded, "timed out"),
        (Fault(kind="drop"), cloud.Unavailable, "no response from"),
        (Fault(kind="garbage"), cloud.Unknown, "malformed response"),
        (Fault(kind="garbage", status=404), cloud.Unknown, "HTTP 404"),
        (Fault(kind="empty"), cloud.Unknown, "malformed response"),
    ],
)
@pytest.mark.row("openstack-call-02")
async def test_errors_of_services_have_the_class_of_their_meaning(
    harness: OpenStackHarness, fault: Fault, kind: type[cloud.CloudError], told: str
) -> None:
    async with client.open_client(settings(harness), 0.5) as api:
        found = neutron.Neutron(api)
        await found.project_ports()
        harness.service.script.add(structs.replace(fault, operation=ANY_CALL))

        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: found.router("r"),
            lambda: nova.Nova(api).servers(),
        ]
        for call in calls:
            with pytest.raises(kind, match=told):
                await call()
        harness.service.heal()


NOVA_404 = {"itemNotFound": {"code": 404, "message": "Instance 1 could not be found."}}
NOVA_QUOTA = {
    "forbidden": {
        "code": 403,
        "message": "Quota exceeded for instances: Requested 1, but already used 10 of 10 instances",
    }
}
OCTAVIA_IMMUTABLE = {
    "faultcode": "Client",
    "faultstring": "Load Balancer 1 is immutable and cannot be updated.",
    "debuginfo": None,
}
OCTAVIA_STATE = {
    "faultcode": "Client",
    "faultstring": "Invalid state PENDING_UPDATE of loadbalancer resource 1",
    "debuginfo": None,
}
OCTAVIA_ERROR = {
    "faultcode": "Client",
    "faultstring": "Invalid state ERROR of loadbalancer resource 1",
    "debuginfo": None,
}
OCTAVIA_QUOTA = {
    "faultcode": "Client",
    "faultstring": "Quota has been met for resources: Load Balancer",
    "debuginfo": None,
}
OCTAVIA_FULL = {
    "faultcode": "Client",
    "faultstring": "The VIP IP address is already in use: No more IP addresses available on "
    "network d046eb2e-a52c-49e7-8237-caab6b26367f.",
    "debuginfo": None,
}
NO_ROUTE = {"itemNotFound": {"code": 404, "message": f"{client.NO_ROUTE}."}}


def neutron_error(kind: str, message: str) -> dict[str, Any]:
    return {"NeutronError": {"type": kind, "message": message, "detail": ""}}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (NOVA_404, "not_found"),
        (NOVA_QUOTA, "quota"),
        (
            {"overLimit": {"code": 413, "message": "Too many requests", "retryAfter": 1}},
            "overLimit",
        ),
        (neutron_error("RouterNotFound", "Router 1 could not be found"), "not_found"),
        (neutron_error("OverQuota", "Quota exceeded for resources: ['port']."), "quota"),
        (neutron_error("RoutesExhausted", "The number of routes exceeds"), "RoutesExhausted"),
        (neutron_error("HTTPNotFound", f"{client.NO_ROUTE}."), "unknown_path"),
        ({"faultcode": "Client", "faultstring": "Load Balancer 1 not found."}, "not_found"),
        (OCTAVIA_IMMUTABLE, "immutable"),
        (OCTAVIA_STATE, "immutable"),
        (OCTAVIA_ERROR, "Client"),  # no change will end that state
        (OCTAVIA_QUOTA, "quota"),
        (OCTAVIA_FULL, "quota"),
        ({"code": 404, "title": "Bad Request", "description": "Pool 1 not found."}, "not_found"),
        ({"code": 404, "title": "Not Found", "description": ""}, "Not Found"),  # an unknown path
        ({"error": {"code": 401, "message": "no", "title": "Unauthorized"}}, "Unauthorized"),
        ({"message": f"{client.NO_ROUTE}.<br />", "code": "404 Not Found"}, "unknown_path"),
        (NO_ROUTE, "unknown_path"),
        (["a list"], ""),
        ("text", ""),
        ({"a": 1, "b": 2}, ""),
    ],
)
@pytest.mark.row("openstack-call-02")
def test_error_responses_of_all_services_are_understood(body: Any, code: str) -> None:
    """A 404 about an unknown path, as of a proxy or a missing extension, is no absence."""
    assert client.parse_refusal(msgspec.json.encode(body)).code == code


@pytest.mark.row("openstack-route-02")
async def test_lost_update_of_a_router_is_refused(
    harness: OpenStackHarness, api: client.Client
) -> None:
    found = neutron.Neutron(api)
    router = await found.router(harness.router["id"])
    route = neutron.ExtraRoute("10.120.0.0/24", "10.6.0.10")
    await found.replace_routes(router, [route])

    with pytest.raises(cloud.Aborted, match="HTTP 412"):
        await found.replace_routes(router, [])

    assert [one["destination"] for one in harness.router["routes"]] == [route.destination]
