"""cloud.conf is read as by the Go manager, and every wrong value has one clear message."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm import cloud
from ccm.cloud.settings import table
from providers.openstack import client, config, gcfg

GOOD = {
    "auth-url": "https://keystone.test:5000/v3/",
    "username": "k8s",
    "password": "hunter2-of-the-test",
    "user-domain-name": "Default",
    "tenant-name": "prod",
    "tenant-domain-name": "Default",
}
ID = "2028e5d4-af4f-45e2-98df-502be37a4317"


def text_of(settings: dict[str, str], rest: str = "") -> str:
    lines = (f"{key} = {text}" for key, text in settings.items() if text)
    return "\n".join(["[Global]", *lines, rest])


def read(text: str, **environ: str) -> config.AllSettings:
    return config.read_all(cloud.Context(config=text.encode(), environ=environ))


def good(rest: str = "", **changed: str) -> config.Config:
    more = {name.replace("_", "-"): text for name, text in changed.items()}
    return read(text_of({**GOOD, **more}, rest)).file


def faults(text: str, **environ: str) -> list[str]:
    with pytest.raises(cloud.ConfigError) as caught:
        read(text, **environ)
    return list(caught.value.faults)


# --- the format -----------------------------------------------------------------------------------


@pytest.mark.row("openstack-config-01")
def test_sections_keys_quotes_comments_and_repeated_keys_are_parsed() -> None:
    found = gcfg.parse(
        "\ufeff; a comment\n"
        "[Global] # another\n"
        'password = "a;b # \\"c\\\\"  ; of the user\n'
        "REGION=  one two  \n"
        "bare\n"
        "empty =\n"
        '[LoadBalancerClass "a b"]\n'
        "network-id = x\\\n"
        "  y\n"
        "network-id = z\n"
        "[global]\n"
        "region = three\n"
    )

    assert found == {
        ("global", ""): {
            "password": ['a;b # "c\\'],
            "region": ["one two", "three"],
            "bare": [None],
            "empty": [""],
        },
        ("loadbalancerclass", "a b"): {"network-id": ["x  y", "z"]},
    }


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("region = one", "line 2: a key before the first section"),
        ("[Global\nregion = one", "line 2: a section must look like"),
        ('[Global]\npassword = "secret', "line 3: a quote is not closed"),
        ("[Global]\npassword = sec\\ret", "line 3: a backslash must be written"),
        ("[Global]\nsecret words", "line 3: a setting must look like key = value"),
        ("[Global]\n= secret", "line 3: a setting must look like key = value"),
        ("[Global]\npassword = secret\\", "line 3: the file ends after a backslash"),
    ],
)
@pytest.mark.row("openstack-config-02")
def test_malformed_line_is_named_without_its_text(line: str, told: str) -> None:
    (fault,) = faults(f"\n{line}")

    assert f"cloud config: {told}" in fault
    assert "secret" not in fault


def test_config_that_is_no_text_is_a_fault() -> None:
    with pytest.raises(cloud.ConfigError, match="byte 8 is not UTF-8"):
        config.read_all(cloud.Context(config=b"[Global]\xff"))


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.row("openstack-config-01")
def test_every_setting_of_the_go_manager_is_declared() -> None:
    names = {entry.name for entry in table(config.Config)}
    counts = {
        section: len([name for name in names if name.startswith(f"{section}.")])
        for section in ("Global", "Networking", "Route", "LoadBalancer", "LoadBalancerClass")
    }

    assert counts == {
        "Global": 28,
        "Networking": 4,
        "Route": 1,
        "LoadBalancer": 28,
        "LoadBalancerClass": 7,
    }


@pytest.mark.row("openstack-config-01")
def test_values_and_defaults_are_parsed() -> None:
    found = good(
        f"""
        [Networking]
        public-network-name = public
        public-network-name = dmz
        ipv6-support-disabled
        address-sort-order = 10.0.0.0/8, 2001:db8::/32
        [LoadBalancer]
        floating-network-id = {ID.upper()}
        monitor-delay = 1m
        max-shared-lb = 1
        max-shared-lb = 5
        create-monitor = yes
        cascade-delete = off
        lb-method =
        [LoadBalancerClass "dmz"]
        subnet-id = {ID}
        [Route]
        router-id = "{ID}"
        """,
        os_endpoint_type="internalURL",
    )

    assert found.global_.auth_url == "https://keystone.test:5000/v3"
    assert found.global_.os_endpoint_type == "internalURL"
    assert found.networking.public_network_name == ("public", "dmz")
    assert found.networking.ipv6_support_disabled
    balancers = found.load_balancer
    assert balancers.floating_network_id == ID
    assert balancers.monitor_delay == timedelta(minutes=1)
    assert (balancers.max_shared_lb, balancers.create_monitor) == (5, True)
    assert (balancers.cascade_delete, balancers.lb_method) == (False, "ROUND_ROBIN")
    assert found.load_balancer_class == {"dmz": config.BalancerClass(subnet_id=ID)}
    assert found.route.router_id == ID
    assert found.metadata.request_timeout == timedelta(seconds=30)
    assert GOOD["password"] not in repr(found)


@pytest.mark.row("openstack-config-04")
def test_unknown_settings_are_logged_and_ignored() -> None:
    with capture_logs() as logs:
        found = good("[LoadBalancer]\nfloating-netwrok-id = x\n[BlockStorage]\nbs-version = v2")

    assert found.load_balancer.floating_network_id == ""
    assert [entry["settings"] for entry in logs] == [
        [
            "LoadBalancer.floating-netwrok-id (did you mean floating-network-id?)",
            "[blockstorage]",
        ]
    ]


WRONG = [
    ("Global", "auth-url", "keystone.test", "must look like https://host/v3"),
    ("Global", "os-endpoint-type", "external", "must be one of admin, adminURL, internal"),
    ("Global", "tls-insecure", "maybe", "must be true or false"),
    ("Global", "use-clouds", "2", "must be true or false"),
    ("Global", "token", "a\tb", "hidden because it is a secret"),
    ("Networking", "ipv6-support-disabled", "never", "must be true or false"),
    ("Networking", "address-sort-order", "10.0.0.0/33", "must be CIDRs"),
    ("Networking", "address-sort-order", "10.0.0.1;10.0.0.2", "must be CIDRs"),
    ("Route", "router-id", "router", "must be a UUID"),
    ("Route", "router-id", "2028e5d4af4f45e298df502be37a4317", "must be a UUID"),
    ("LoadBalancer", "enabled", "enabled", "must be true or false"),
    ("LoadBalancer", "floating-network-id", "public", "must be a UUID"),
    ("LoadBalancer", "floating-subnet-id", "public-v4", "must be a UUID"),
    ("LoadBalancer", "subnet-id", "{ID}", "must be a UUID"),
    ("LoadBalancer", "member-subnet-id", ID[:-1], "must be a UUID"),
    ("LoadBalancer", "network-id", f"{ID} {ID}", "must be a UUID"),
    ("LoadBalancer", "flavor-id", "large", "must be a UUID"),
    ("LoadBalancer", "lb-version", "v1", "must be one of v2"),
    ("LoadBalancer", "lb-method", "round_robin", "must be one of LEAST_CONNECTIONS, ROUND_"),
    ("LoadBalancer", "container-store", "vault", "must be one of barbican, external"),
    ("LoadBalancer", "monitor-delay", "5", "must be a duration"),
    ("LoadBalancer", "monitor-timeout", "-3s", "must be a duration above zero"),
    ("LoadBalancer", "monitor-max-retries", "0", "must be at least 1"),
    ("LoadBalancer", "monitor-max-retries-down", "three", "must be a whole number"),
    ("LoadBalancer", "max-shared-lb", "1.5", "must be a whole number"),
    ("LoadBalancer", "node-selector", "a in b", "must be a label selector"),
    ("LoadBalancer", "manage-security-groups", "ja", "must be true or false"),
    ("LoadBalancer", "create-monitor", "tru", "must be true or false"),
    ("LoadBalancer", "internal-lb", "intern", "must be true or false"),
    ("LoadBalancer", "cascade-delete", "3", "must be true or false"),
    ('LoadBalancerClass "dmz"', "subnet-id", "dmz", "must be a UUID"),
    ("Metadata", "request-timeout", "60", "must be a duration"),
]


@pytest.mark.parametrize(("section", "key", "value", "told"), WRONG)
@pytest.mark.row("openstack-config-02")
def test_wrong_value_has_one_message_with_place_value_and_rule(
    section: str, key: str, value: str, told: str
) -> None:
    shown = value.replace("\t", "\\t")
    (fault,) = faults(text_of(GOOD, f'[{section}]\n{key} = "{shown}"'))

    place = section.replace(' "', ".").replace('"', "")
    assert fault.startswith(f"{place}.{key} is ")
    assert repr(value) in fault or "hidden" in fault
    assert told in fault


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"auth-url": ""}, ["Global.auth-url is missing; it is required"]),
        ({"username": ""}, ["username is missing; set it, or user-id, or application-cre"]),
        ({"password": ""}, ["password is missing"]),
        ({"user-domain-name": ""}, ["username needs a domain"]),
        ({"tenant-name": ""}, ["tenant-id is missing"]),
        (
            {"tenant-domain-name": "", "user-domain-name": "", "username": "", "user-id": "u"},
            ["tenant-name needs a domain"],
        ),
        ({"application-credential-id": "a"}, ["application-credential-secret is missing"]),
        (
            {"username": "", "application-credential-name": "a"},
            ["application-credential-secret is missing", "application-credential-name needs"],
        ),
        ({"trust-id": "t"}, ["trust-id needs trustee-id and trustee-password"]),
        ({"cert-file": "c.pem"}, ["cert-file and key-file: only one is set"]),
        (
            {"username": "", "password": "", "tenant-name": ""},
            ["username is missing", "tenant-id is missing"],
        ),
    ],
)
@pytest.mark.row("openstack-config-02")
def test_incomplete_credentials_are_reported(changed: dict[str, str], told: list[str]) -> None:
    found = faults(text_of({**GOOD, **changed}))

    assert len(found) == len(told)
    assert all(part in fault for part, fault in zip(told, found, strict=True))


@pytest.mark.parametrize(
    "changed",
    [
        {"user-id": "u", "username": "", "user-domain-name": "", "tenant-id": "p"},
        {"user-domain-name": "", "tenant-domain-name": "", "domain-id": "default"},
        {"token": "t0ken", "username": "", "password": ""},
        {
            "application-credential-id": "a",
            "application-credential-secret": "s3cret",
            **dict.fromkeys(("username", "password", "tenant-name", "user-domain-name"), ""),
        },
        {"trust-id": "t", "trustee-id": "u", "trustee-password": "p4ss", "tenant-name": ""},
    ],
)
def test_each_kind_of_credentials_is_accepted(changed: dict[str, str]) -> None:
    read(text_of({**GOOD, **changed}))


# --- clouds.yaml and the environment --------------------------------------------------------------

CLOUDS = """
clouds:
  other: {auth: {auth_url: "https://other.test"}}
  prod:
    region_name: two
    interface: internal
    verify: false
    auth:
      auth_url: https://clouds.test/v3
      application_credential_id: a-c
"""
SECURE = "clouds: {prod: {auth: {application_credential_secret: s3cret-of-the-test}}}"


@pytest.mark.parametrize("how", ["cloud.conf", "environment"])
@pytest.mark.row("openstack-config-03")
def test_clouds_yaml_completes_the_cloud_config(tmp_path: Path, how: str) -> None:
    path = tmp_path / "clouds.yaml"
    path.write_text(CLOUDS)
    (tmp_path / "secure.yaml").write_text(SECURE)
    text, environ = "[Global]\nregion = one\n", {"OS_CLIENT_CONFIG_FILE": str(path)}
    if how == "cloud.conf":
        text, environ = f"{text}use-clouds = true\nclouds-file = {path}\ncloud = prod", {}
    else:
        environ["OS_CLOUD"] = "prod"
    context = cloud.Context(config=text.encode(), environ=environ)

    found = config.read_all(context).file.global_

    assert (found.region, found.auth_url) == ("one", "https://clouds.test/v3")
    assert (found.os_endpoint_type, found.tls_insecure) == ("internal", True)
    assert found.application_credential_secret == "s3cret-of-the-test"
    assert {file.name for file in context.followed} == {"clouds.yaml", "secure.yaml"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        ("clouds: [", "is not valid YAML: line 1"),
        ("- a", "must be a mapping with the name clouds"),
        ("clouds: {other: {}}", "has no cloud 'prod'; it has other"),
    ],
)
@pytest.mark.row("openstack-config-03")
def test_unusable_clouds_yaml_is_a_fault(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "clouds.yaml"
    if content is not None:
        path.write_text(content)

    (fault,) = faults("", OS_CLOUD="prod", OS_CLIENT_CONFIG_FILE=str(path))

    assert fault.startswith(f"{path} {told}")


def test_provider_ids_have_the_region_by_a_variable() -> None:
    assert read(text_of(GOOD), OS_CCM_REGIONAL="1").variables.os_ccm_regional
    assert not read(text_of(GOOD)).variables.os_ccm_regional


@pytest.mark.row("openstack-config-03")
def test_files_of_certificates_are_followed(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("ca-file", "cert-file", "key-file")}
    context = cloud.Context(config=text_of({**GOOD, **files}).encode())

    config.read_all(context)

    assert {file.name for file in context.followed} == set(files)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ca_file": "missing.pem"}, "Global.ca-file missing.pem: No such file"),
        ({"cert_file": "pyproject.toml", "key_file": "pyproject.toml"}, "not a valid certificate"),
    ],
)
async def test_unreadable_certificates_are_a_fault(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(cloud.ConfigError, match=told):
        async with client.open_client(good(**changed).global_):
            pass


async def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(cloud.ProviderError, match="keystoneauth1 is missing; install"):
        async with client.open_client(good().global_):
            pass
