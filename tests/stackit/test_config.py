"""Settings are read as the vendor's manager reads them, and all that is wrong is said at once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ccm import cloud
from providers import stackit
from providers.stackit import config
from providers.stackit.testing.state import PROJECT
from providers.stackit.testing.tokens import Account

NETWORK = "2028e5d4-af4f-45e2-98df-502be37a4317"
GOOD = f"""
global: {{projectId: {PROJECT}, region: eu01}}
loadBalancer: {{networkId: {NETWORK}}}
"""
TOKEN = {"STACKIT_SERVICE_ACCOUNT_TOKEN": "a-token-of-somebody"}


def read(text: str = GOOD, **environ: str) -> config.Everything:
    return config.read(cloud.Context(config=text.encode(), environ=environ))


def faults(text: str = GOOD, **environ: str) -> list[str]:
    with pytest.raises(cloud.ConfigError) as caught:
        read(text, **environ)
    return list(caught.value.faults)


@pytest.mark.row("stackit-config-01")
def test_defaults_and_values() -> None:
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
def test_what_is_missing_is_named_in_the_vendors_order(text: str) -> None:
    told = [one.partition(" is missing")[0] for one in faults(text, **TOKEN)]

    assert told == ["global.projectId", "global.region", "loadBalancer.networkId"]


@pytest.mark.row("stackit-config-01")
def test_every_fault_is_in_one_message() -> None:
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
def test_half_of_what_metrics_need(given: str) -> None:
    values = {"ENDPOINT": "https://push.example.com", "USER": "me", "PASSWORD": "hush-hush"}
    one = {f"STACKIT_REMOTEWRITE_{given}": values[given]}

    (told,) = faults(**TOKEN, **one)

    named = {word.strip(",:") for word in told.split() if word.startswith("STACKIT_")}
    assert named == {f"STACKIT_REMOTEWRITE_{word}" for word in values.keys() - {given}}
    assert "hush-hush" not in told


@pytest.mark.row("stackit-config-03")
def test_a_key_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_bytes(Account().key)
    context = cloud.Context(
        config=GOOD.encode(), environ={"STACKIT_SERVICE_ACCOUNT_KEY_PATH": str(file)}
    )

    assert config.read(context).environment.has_credentials
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
def test_a_key_that_is_none(text: str, told: str) -> None:
    (found,) = faults(STACKIT_SERVICE_ACCOUNT_KEY=text)

    assert told in found
    assert text not in found


@pytest.mark.row("stackit-config-03")
def test_no_credentials_at_all() -> None:
    (told,) = faults()

    assert told.startswith("STACKIT_SERVICE_ACCOUNT_KEY_PATH is missing")


@pytest.mark.row("stackit-machine-08")
async def test_an_endpoint_that_is_none_is_refused() -> None:
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
def test_tokens_come_by_https_from_where_the_settings_say(url: str, is_taken: bool) -> None:
    """Of the variable, and of the daemon's own key where there is none."""
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
