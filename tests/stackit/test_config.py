"""Settings and credentials."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from ccm.cloud import rest
from ccm.testing import machine_probes
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import ensured
from ccm.testing.fake_api import Fault
from ccm.testing.probes import nodes as make_nodes
from providers import stackit
from providers.stackit import auth, config
from providers.stackit.testing import server
from providers.stackit.testing.state import PROJECT
from providers.stackit.testing.tokens import Account
from tests.stackit.harness import ANY_CALL, StackitHarness

NETWORK = "2028e5d4-af4f-45e2-98df-502be37a4317"
GOOD = f"""
global: {{projectId: {PROJECT}, region: eu01}}
loadBalancer: {{networkId: {NETWORK}}}
"""
TOKEN = {"STACKIT_SERVICE_ACCOUNT_TOKEN": "a-token-of-somebody"}


def read(text: str = GOOD, **environ: str) -> config.AllSettings:
    return config.read_all(cloud.Context(config=text.encode(), environ=environ))


def faults(text: str = GOOD, **environ: str) -> list[str]:
    with pytest.raises(cloud.ConfigError) as caught:
        read(text, **environ)
    return list(caught.value.faults)


@pytest.mark.row("stackit-config-01")
def test_the_cloud_config_is_parsed_with_defaults() -> None:
    found = read(
        f"""
        global:
          projectId: {PROJECT.upper()}
          region: eu02
          apiEndpoints: {{iaasApi: "http://127.0.0.1:1/"}}
        metadata: {{searchOrder: "configDrive", requestTimeout: 5s}}
        loadBalancer: {{networkId: {NETWORK}, extraLabels: {{team: a}}}}
        instance: {{defaultNetwork: k8s, providerIdForm: project}}
        """,
        **TOKEN,
    )

    assert found.file.global_.project_id == PROJECT
    assert found.file.global_.api_endpoints.iaas_api == "http://127.0.0.1:1"
    assert found.file.global_.api_endpoints.load_balancer_api == config.BALANCER_URL
    assert found.file.load_balancer.extra_labels == {"team": "a"}
    assert found.file.instance.provider_id_form == "project"
    assert read(**TOKEN).file.instance == config.Instance()
    assert "a-token-of-somebody" not in repr(found)


@pytest.mark.row("stackit-config-01")
@pytest.mark.parametrize("text", ["", "global: {}\nloadBalancer: {}"])
def test_missing_settings_are_reported_in_the_vendors_order(text: str) -> None:
    told = [one.partition(" is missing")[0] for one in faults(text, **TOKEN)]

    assert told == ["global.projectId", "global.region", "loadBalancer.networkId"]


@pytest.mark.row("stackit-config-01")
def test_all_invalid_settings_are_reported_at_once() -> None:
    told = faults(
        "global: {projectId: mine, region: eu-01}\nloadBalancer: {networkId: net, extra: 1}",
        STACKIT_NO_AUTH="perhaps",
        STACKIT_TOKEN_BASEURL="nowhere",
    )

    assert sorted(one.split()[0] for one in told) == [
        "STACKIT_NO_AUTH",
        "STACKIT_TOKEN_BASEURL",
        "global.projectId",
        "global.region",
        "loadBalancer.extra",
        "loadBalancer.networkId",
    ]


@pytest.mark.row("stackit-config-02")
@pytest.mark.parametrize("given", ["ENDPOINT", "USER", "PASSWORD"])
def test_incomplete_metrics_settings_name_the_missing_ones(given: str) -> None:
    values = {"ENDPOINT": "https://push.example.com", "USER": "me", "PASSWORD": "hush-hush"}
    one = {f"STACKIT_REMOTEWRITE_{given}": values[given]}

    (told,) = faults(**TOKEN, **one)

    named = {word.strip(",:") for word in told.split() if word.startswith("STACKIT_")}
    assert named == {f"STACKIT_REMOTEWRITE_{word}" for word in values.keys() - {given}}
    assert "hush-hush" not in told


@pytest.mark.row("stackit-config-03")
def test_a_service_account_key_is_read_from_its_path(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_bytes(Account().key)
    context = cloud.Context(
        config=GOOD.encode(), environ={"STACKIT_SERVICE_ACCOUNT_KEY_PATH": str(file)}
    )

    assert config.read_all(context).environment.has_credentials
    assert file in context.followed


@pytest.mark.row("stackit-config-03")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "credentials.kid"),
        ('"a string, though valid"', "credentials.kid"),
        ('{"credentials": {"kid": "k", "iss": "i", "sub": "s", "aud": "a"}}', "RSA key"),
        (
            '{"credentials": {"kid": "k", "iss": "i", "sub": "s", "aud": "a", "privateKey": "no"}}',
            "RSA key",
        ),
    ],
)
def test_a_malformed_service_account_key_is_refused_without_quoting_it(
    text: str, told: str
) -> None:
    (found,) = faults(STACKIT_SERVICE_ACCOUNT_KEY=text)

    assert told in found
    assert "file of STACKIT_SERVICE_ACCOUNT_KEY_PATH" in found  # the variable of the guide
    assert text not in found


@pytest.mark.row("stackit-config-03")
def test_missing_credentials_are_reported() -> None:
    (told,) = faults()

    assert told.startswith("STACKIT_SERVICE_ACCOUNT_KEY_PATH is missing")


@pytest.mark.row("stackit-machine-08")
async def test_an_invalid_endpoint_is_refused() -> None:
    given = cloud.Context(environ={"STACKIT_IAAS_ENDPOINT": "ftp://x"})
    with pytest.raises(cloud.ConfigError, match="STACKIT_IAAS_ENDPOINT"):
        async with stackit.open_machines(given):
            pass


@pytest.mark.row("stackit-config-03")
@pytest.mark.parametrize(
    ("url", "is_taken"),
    [
        ("https://tokens.example.com/token", True),
        ("http://127.0.0.1:8080/token", True),
        ("http://localhost:8080/token", True),
        ("http://[::1]:8080/token", True),
        ("http://tokens.example.com/token", False),
        ("http://169.254.169.254/token", False),
        ("http://127.0.0.1.example.com/token", False),
        ("file:///etc/passwd", False),
    ],
)
def test_the_token_endpoint_must_use_https_or_loopback(url: str, is_taken: bool) -> None:
    """Given by the variable or, without one, by the daemon's own key."""
    key = msgspec.json.decode(Account().key)
    key["credentials"]["tokenEndpoint"] = url
    text = msgspec.json.encode(key).decode()

    for environ in (
        {**TOKEN, "STACKIT_TOKEN_BASEURL": url},
        {"STACKIT_SERVICE_ACCOUNT_KEY": text},
    ):
        if is_taken:
            assert read(**environ).environment.has_credentials
        else:
            (told,) = faults(**environ)
            assert url in told
            assert "https://host" in told


@pytest_asyncio.fixture
async def flow(service: server.Service, endpoint: str) -> AsyncIterator[auth.KeyFlow]:
    key = auth.ServiceAccountKey(service.account.key)
    async with auth.open_key_flow(key, f"{endpoint}/token") as found:
        yield found


@pytest.mark.row("stackit-auth-01")
async def test_a_token_is_shared_until_shortly_before_it_expires(
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
async def test_a_rotated_service_account_key_is_unauthenticated(
    service: server.Service, endpoint: str
) -> None:
    key = auth.ServiceAccountKey(service.account.key)
    service.account.rotate()
    async with auth.open_key_flow(key, f"{endpoint}/token") as flow:
        with pytest.raises(cloud.Unauthenticated, match="assertion"):
            await flow.header()


@pytest.mark.row("stackit-auth-02")
async def test_renewal_uses_the_refresh_token_until_it_is_refused(
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
async def test_a_valid_token_stays_in_use_after_a_failed_renewal(
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
async def test_a_revoked_token_is_renewed_once_it_is_old_enough(harness: StackitHarness) -> None:
    await harness.project.inventory.list_instances()
    account = harness.service.account
    account.revoke()
    with pytest.raises(cloud.Unauthenticated):  # a fresh one is not renewed: no loop
        await harness.project.inventory.list_instances()
    assert account.issued == 1

    flow = _flow(harness.project)
    flow._renewed_at -= rest.MIN_RENEW_AGE_S
    await harness.project.inventory.list_instances()

    assert account.issued == 2


@pytest.mark.row("stackit-auth-03")
@pytest.mark.parametrize("flow_or_token", ["rotated", "token"])
async def test_refused_keys_and_tokens_raise_unauthenticated(
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
async def test_the_emergency_token_alone_serves_load_balancers(harness: StackitHarness) -> None:
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


@pytest.mark.row("stackit-auth-04")
async def test_secrets_are_in_no_error_log_or_repr(
    harness: StackitHarness,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cloud quotes the secrets in all its error messages."""
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
