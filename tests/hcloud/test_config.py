"""Settings are read as by the vendor's manager, and all faults are reported at once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ccm import cloud
from providers.hcloud import config

TOKEN = "t" * 64


def read(**environ: str) -> config.Config:
    return cloud.Context(environ=environ).settings(config.Config, environment=True)


@pytest.mark.row("hcloud-config-01")
def test_a_token_alone_is_enough() -> None:
    """The defaults are those of the table in the guide."""
    found = read(HCLOUD_TOKEN=TOKEN)

    assert (found.endpoint, found.has_routes) == ("https://api.hetzner.cloud/v1", False)
    assert TOKEN not in repr(found)


@pytest.mark.row("hcloud-config-01")
@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("NETWORK", "k8s", "has_routes", True),
        ("LB_ENABLED", "0", "balancers_enabled", False),
        ("LB_USE_PRIVATE_IP", "T", "balancers_use_private_ip", True),
        ("LB_DISABLE_PUBLIC_NETWORK", "f", "balancers_disable_public_network", False),
        ("LB_HEALTH_CHECK_INTERVAL", "0s", "balancers_health_check_interval", timedelta(0)),
        ("LB_HEALTH_CHECK_RETRIES", "5", "balancers_health_check_retries", 5),
        ("LB_ALGORITHM_TYPE", "least_connections", "balancers_algorithm_type", "least_connections"),
        ("LB_LOCATION", "", "balancers_location", ""),
        ("ROBOT_ENABLED", "TRUE", "robot_enabled", True),
        ("SERVER_CACHE_MAX_AGE", "0s", "server_cache_max_age", timedelta(0)),
        ("SOMETHING_NEW", "x", "network", ""),
    ],
)
def test_environment_variables_are_parsed(name: str, text: str, field: str, value: Any) -> None:
    name = f"HCLOUD_{name.replace('LB_', 'LOAD_BALANCERS_')}" if "ROBOT" not in name else name

    assert getattr(read(HCLOUD_TOKEN=TOKEN, **{name: text}), field) == value


@pytest.mark.row("hcloud-config-02")
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"HCLOUD_TOKEN": ""}, "HCLOUD_TOKEN"),
        ({"HCLOUD_ENDPOINT": "api.hetzner.cloud"}, "HCLOUD_ENDPOINT"),
        ({"HCLOUD_INSTANCES_ADDRESS_FAMILY": "IPv4"}, "HCLOUD_INSTANCES_ADDRESS_FAMILY"),
        ({"HCLOUD_SERVER_CACHE_MODE": "none"}, "HCLOUD_SERVER_CACHE_MODE"),
        ({"HCLOUD_SERVER_CACHE_MAX_AGE": "ten"}, "HCLOUD_SERVER_CACHE_MAX_AGE"),
        ({"HCLOUD_NETWORK_ROUTES_ENABLED": "yes"}, "HCLOUD_NETWORK_ROUTES_ENABLED"),
        ({"HCLOUD_LOAD_BALANCERS_ENABLED": "on"}, "HCLOUD_LOAD_BALANCERS_ENABLED"),
        (
            {
                "HCLOUD_LOAD_BALANCERS_LOCATION": "fsn1",
                "HCLOUD_LOAD_BALANCERS_NETWORK_ZONE": "eu-central",
            },
            "HCLOUD_LOAD_BALANCERS_LOCATION",
        ),
        (
            {"HCLOUD_LOAD_BALANCERS_HEALTH_CHECK_INTERVAL": "15"},
            "HCLOUD_LOAD_BALANCERS_HEALTH_CHECK_INTERVAL",
        ),
        (
            {"HCLOUD_LOAD_BALANCERS_HEALTH_CHECK_TIMEOUT": "-1s"},
            "HCLOUD_LOAD_BALANCERS_HEALTH_CHECK_TIMEOUT",
        ),
        (
            {"HCLOUD_LOAD_BALANCERS_HEALTH_CHECK_RETRIES": "-1"},
            "HCLOUD_LOAD_BALANCERS_HEALTH_CHECK_RETRIES",
        ),
        ({"ROBOT_PASSWORD": "s3cret"}, "ROBOT_USER"),
        ({"ROBOT_USER": "s3cret"}, "ROBOT_PASSWORD"),
        ({"ROBOT_USER": "s3cret:", "ROBOT_PASSWORD": "s3cret"}, "ROBOT_USER"),
        ({"ROBOT_ENDPOINT": "robot-ws.your-server.de"}, "ROBOT_ENDPOINT"),
        ({"ROBOT_CACHE_TIMEOUT": "-5m"}, "ROBOT_CACHE_TIMEOUT"),
        ({"ROBOT_RATE_LIMIT_WAIT_TIME": "300"}, "ROBOT_RATE_LIMIT_WAIT_TIME"),
        ({"ROBOT_FORWARD_INTERNAL_IPS": "yes"}, "ROBOT_FORWARD_INTERNAL_IPS"),
        ({"ROBOT_ENABLED": "true", "HCLOUD_NETWORK": "k8s"}, "ROBOT_ENABLED"),
    ],
    ids=str,
)
def test_each_invalid_setting_is_reported_by_its_name(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(cloud.ConfigError) as caught:
        read(**{"HCLOUD_TOKEN": TOKEN, **wrong})

    assert [each.split()[0] for each in caught.value.faults] == [told]
    assert "s3cret" not in str(caught.value)


@pytest.mark.row("hcloud-config-03")
def test_secret_files_are_read_and_watched(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    context = cloud.Context(environ={"HCLOUD_TOKEN_FILE": str(file)})

    assert context.settings(config.Config, environment=True).token == TOKEN
    assert file in context.followed


@pytest.mark.row("hcloud-config-03")
def test_the_cloud_config_takes_precedence_over_the_environment() -> None:
    context = cloud.Context(
        config=b"HCLOUD_NETWORK: other\nHCLOUD_LOAD_BALANCERS_ENABLED: false",
        environ={"HCLOUD_TOKEN": TOKEN, "HCLOUD_NETWORK": "k8s"},
    )

    found = context.settings(config.Config, environment=True)

    assert (found.network, found.balancers_enabled, found.token) == ("other", False, TOKEN)
    with pytest.raises(cloud.ConfigError):
        context.settings(config.Config)  # without `environment`, variables are ignored
