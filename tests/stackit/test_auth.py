"""Keys, tokens, their renewal, and that nobody reads them."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from ccm.testing import machine_probes
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import ensured
from ccm.testing.fake_faults import Fault
from ccm.testing.network_probes import nodes as make_nodes
from providers.stackit import auth
from providers.stackit.testing import server
from tests.stackit.harness import ANY_CALL, StackitHarness


@pytest_asyncio.fixture
async def flow(service: server.Service, endpoint: str) -> AsyncIterator[auth.KeyFlow]:
    key = auth.Key(service.account.key)
    async with auth.open_key_flow(key, f"{endpoint}/token") as found:
        yield found


@pytest.mark.row("stackit-auth-01")
async def test_a_token_is_used_until_shortly_before_its_end(
    flow: auth.KeyFlow, service: server.Service
) -> None:
    first = await flow.header()
    many = await asyncio.gather(*(flow.header() for _ in range(20)))

    assert first.startswith("Bearer ")
    assert (set(many), service.account.issued) == ({first}, 1)
    flow._renew_at = 0.0
    assert len(set(await asyncio.gather(*(flow.header() for _ in range(20))))) == 1
    assert service.account.issued == 2


@pytest.mark.row("stackit-auth-01")
async def test_a_key_of_another_account_is_refused(service: server.Service, endpoint: str) -> None:
    key = auth.Key(service.account.key)
    service.account.rotate()
    async with auth.open_key_flow(key, f"{endpoint}/token") as flow:
        with pytest.raises(cloud.Unauthenticated, match="assertion"):
            await flow.header()


@pytest.mark.row("stackit-auth-02")
async def test_renewal_needs_no_assertion_until_it_does(
    flow: auth.KeyFlow, service: server.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    sign: Callable[[], str] = flow._key.assertion

    def noted() -> str:
        made.append("")
        return sign()

    monkeypatch.setattr(flow._key, "assertion", noted)
    await flow.header()
    for _ in range(3):
        flow._renew_at = 0.0
        await flow.header()
    assert len(made) == 1

    service.account._refresh.clear()
    flow._renew_at = 0.0
    await flow.header()

    assert len(made) == 2


@pytest.mark.row("stackit-auth-02")
@pytest.mark.parametrize("kind", ["error", "drop", "garbage"])
async def test_a_token_that_still_counts_survives_a_failed_renewal(
    flow: auth.KeyFlow, service: server.Service, kind: Any
) -> None:
    held = await flow.header()
    service.script.add(Fault(kind=kind, operation="POST /token"))
    flow._renew_at = 0.0

    assert await flow.header() == held
    flow._ends_at = 0.0
    with pytest.raises(cloud.CloudError):
        await flow.header()
    service.heal()
    assert await flow.header() != held


@pytest.mark.row("stackit-auth-03")
async def test_a_token_that_is_revoked_is_renewed_in_the_middle(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    assert project.inventory is not None
    await project.inventory.list_instances()
    account = harness.service.account
    account.revoke()
    with pytest.raises(cloud.Unauthenticated):  # a fresh one is not renewed: no loop
        await project.inventory.list_instances()
    assert account.issued == 1

    flow = _flow(project)
    flow._got_at -= auth.YOUNG_S
    await project.inventory.list_instances()

    assert account.issued == 2


@pytest.mark.row("stackit-auth-03")
@pytest.mark.parametrize("flow_or_token", ["rotated", "token"])
async def test_what_is_refused_for_good_is_unauthenticated(
    harness: StackitHarness, flow_or_token: str
) -> None:
    if flow_or_token == "token":
        harness.variables = {
            "STACKIT_SERVICE_ACCOUNT_KEY": "",
            "STACKIT_SERVICE_ACCOUNT_TOKEN": "of-nobody-known",
        }
    async with harness.open() as project:
        assert project.inventory is not None
        harness.service.account.rotate()
        with pytest.raises(cloud.Unauthenticated):
            await project.inventory.list_instances()


@pytest.mark.row("stackit-auth-03")
async def test_an_emergency_token_opens_load_balancers_alone(harness: StackitHarness) -> None:
    account = harness.service.account
    account._tokens["emergency-token"] = float("inf")
    harness.variables = {"STACKIT_LB_API_EMERGENCY_TOKEN": "emergency-token"}
    async with harness.open() as project:
        await ensured(project.load_balancer, build_service(), [])  # type: ignore[arg-type]

    assert account.issued == 0


def _flow(project: cloud.Cloud) -> auth.KeyFlow:
    instances: Any = project.instances
    found: auth.KeyFlow = instances._api._http.authorizer
    return found


LONG = "x" * 5000


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"[" * 60_000, "must be the JSON"),
        (b'{"credentials": "\xff"}', "must be the JSON"),
        (
            msgspec.json.encode(
                {"credentials": dict.fromkeys(("kid", "iss", "sub", "aud", "privateKey"), LONG)}
            ),
            "5000 characters; give an RSA key of at most 4096 bits",
        ),
    ],
    ids=["deep", "no-text", "long"],
)
def test_a_key_of_a_tenant_costs_no_time(key: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        auth.Key(key)


@pytest.mark.row("stackit-auth-04")
async def test_nothing_tells_a_secret(
    harness: StackitHarness,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A cloud that quotes whatever it was given in whatever it says."""
    caplog.set_level("DEBUG")
    harness.variables = {
        "STACKIT_REMOTEWRITE_ENDPOINT": "https://push.example.com",
        "STACKIT_REMOTEWRITE_USER": "me",
        "STACKIT_REMOTEWRITE_PASSWORD": "hush-hush-hush",
    }
    pem = msgspec.json.decode(harness.service.account.key)["credentials"]["privateKey"]
    async with harness.open() as project:
        (one,) = await make_nodes(project, harness, 1)
        assert project.instances is not None
        token = (await _flow(project).header()).removeprefix("Bearer ")
        told = [repr(project), repr(project.instances), repr(_flow(project))]
        in_one = "".join(pem.splitlines()[1:-1])
        message = f"Bearer {token} with {pem}, {in_one} and hush-hush-hush may not do that"
        machines = machine_probes.machines_of(project, harness)
        instances, balancer = project.instances, project.load_balancer
        asks: list[Any] = [
            lambda: instances.instance_exists(one),
            lambda: ensured(balancer, build_service(), [one]),  # type: ignore[arg-type]
            lambda: machines.create_once(machines.identity()),
        ]
        for code in ("forbidden", "bad_request", "server_error", "unauthorized"):
            harness.service.script.add(Fault(code=code, message=message, operation=ANY_CALL))
            for ask in asks:
                with pytest.raises(cloud.CloudError) as caught:
                    await ask()
                told.append("".join(traceback.format_exception(caught.value)))
            harness.service.heal()
        harness.service.script.add(
            Fault(code="bad_request", message=message, operation="POST /token")
        )
        async with harness.open() as again:
            assert again.inventory is not None
            with pytest.raises(cloud.CloudError) as caught:
                await again.inventory.list_instances()
        told.append("".join(traceback.format_exception(caught.value)))

    printed = capsys.readouterr()
    everything = "\n".join([*told, printed.out, printed.err, caplog.text])
    assert "may not do that" in everything
    secrets = (token, "hush-hush-hush", *pem.splitlines()[1:-1])
    assert [secret for secret in secrets if secret in everything] == []
