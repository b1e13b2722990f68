"""Settings of the Hetzner Cloud, named as in hcloud-cloud-controller-manager.

They come from the environment, or from the cloud config, a YAML mapping of the same names, which
takes precedence. Settings that only concern hcloud-cloud-controller-manager are accepted without
effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from ccm import cloud
from ccm.base import log, parsing
from ccm.base.credentials import check_header_value
from ccm.base.parsing import parse_url
from ccm.cloud.settings import fields_of, unwrap

ENDPOINT = "https://api.hetzner.cloud/v1"
ROBOT_ENDPOINT = "https://robot-ws.your-server.de"

TOKEN_LENGTH = 64
"""Length of the API tokens that the cloud has issued so far."""

Family = Literal["ipv4", "ipv6", "dualstack"]
Algorithm = Literal["round_robin", "least_connections"]


def parse_cidr(text: str) -> str:
    """Return the text unchanged. Raises `ValueError` unless it is a CIDR."""
    if cloud.parse_cidr(text) is None:
        raise ValueError(text)
    return text


def parse_duration(text: str) -> timedelta:
    """Parse a Go duration, zero included. Raises `ValueError`."""
    duration = parsing.parse_duration(text)
    if duration < timedelta(0):
        raise ValueError(text)
    return duration


_DURATION: Mapping[str, Any] = {"parse": parse_duration, "expects": "be a duration such as 15s"}


def _variable(name: str) -> str:
    """Return the variable of a field: `balancers_type` -> `HCLOUD_LOAD_BALANCERS_TYPE`."""
    if name.startswith("robot_"):
        return name.upper()
    return f"HCLOUD_{name.replace('balancers_', 'load_balancers_', 1).upper()}"


class Config(cloud.Settings, frozen=True, kw_only=True, rename=_variable):
    """Settings; None = the API's default."""

    token: Annotated[
        str,
        cloud.setting(
            "API token with write permission.",
            secret=True,
            file="HCLOUD_TOKEN_FILE",
            parse=check_header_value,
        ),
    ]
    endpoint: Annotated[
        str, cloud.setting("URL of the API.", parse=parse_url, expects="look like https://host/v1")
    ] = ENDPOINT
    network: Annotated[str, cloud.setting("Name or ID of the private network; empty = none.")] = ""
    network_routes_enabled: Annotated[
        bool, cloud.setting("Create routes to Pods; needs a network.")
    ] = True
    network_disable_attached_check: Annotated[
        bool, cloud.setting("No effect: the metadata service is not used.")
    ] = False
    instances_address_family: Annotated[
        Family, cloud.setting("IP families of the public node addresses.")
    ] = "ipv4"
    instances_zone_label_enabled: Annotated[bool, cloud.setting("Set the zone label of nodes.")] = (
        True
    )
    balancers_enabled: Annotated[bool, cloud.setting("Manage load balancers for Services.")] = True
    balancers_adopt_by_name: Annotated[
        bool,
        cloud.setting(
            "Let a Service adopt an existing load balancer that has the name the Service asks for "
            "and belongs to no Service. When the Service is deleted, an adopted load balancer is "
            "released and not deleted."
        ),
    ] = True
    balancers_location: Annotated[
        str, cloud.setting("Location of new load balancers; alternative: network zone.")
    ] = ""
    balancers_network_zone: Annotated[
        str, cloud.setting("Network zone of new load balancers; alternative: location.")
    ] = ""
    balancers_type: Annotated[str, cloud.setting("Type of load balancers; empty = lb11.")] = ""
    balancers_algorithm_type: Annotated[
        Algorithm | None, cloud.setting("Algorithm that selects a target.")
    ] = None
    balancers_disable_private_ingress: Annotated[
        bool, cloud.setting("Leave private addresses out of the status of Services.")
    ] = False
    balancers_use_private_ip: Annotated[
        bool, cloud.setting("Reach targets by their private addresses; needs a network.")
    ] = False
    balancers_disable_ipv6: Annotated[
        bool, cloud.setting("Leave IPv6 out of the status of Services.")
    ] = False
    balancers_disable_public_network: Annotated[
        bool | None, cloud.setting("Disable the public interface of load balancers.")
    ] = None
    balancers_uses_proxyprotocol: Annotated[
        bool | None, cloud.setting("Send targets the client's address by the PROXY protocol.")
    ] = None
    balancers_health_check_interval: Annotated[
        timedelta | None, cloud.setting("Time between checks; 0 = the API's default.", **_DURATION)
    ] = None
    balancers_health_check_timeout: Annotated[
        timedelta | None, cloud.setting("Timeout of a check; 0 = the API's default.", **_DURATION)
    ] = None
    balancers_health_check_retries: (
        Annotated[
            int,
            cloud.setting("Failures until a target is unhealthy; 0 = the API's default.", least=0),
        ]
        | None
    ) = None
    balancers_private_subnet_ip_range: Annotated[
        str,
        cloud.setting(
            "Subnet of the private addresses of load balancers.",
            parse=parse_cidr,
            expects="be a CIDR such as 10.0.0.0/24",
        ),
    ] = ""
    debug: Annotated[bool, cloud.setting("No effect: see --v.")] = False
    server_cache_mode: Annotated[
        Literal["all", "one", "off"],
        cloud.setting(
            "No effect: all servers are listed; a server missing in the list is read on its own."
        ),
    ] = "all"
    server_cache_max_age: Annotated[
        timedelta, cloud.setting("No effect: see --inventory-max-age.", **_DURATION)
    ] = timedelta(seconds=10)
    metrics_enabled: Annotated[bool, cloud.setting("No effect: see --secure-port.")] = True
    metrics_address: Annotated[str, cloud.setting("No effect: see --secure-port.")] = ":8233"
    robot_enabled: Annotated[
        bool,
        cloud.setting(
            "The cluster has dedicated servers (Robot). The other settings of Robot have an effect "
            "only with this one. Without credentials, dedicated servers are only targets of load "
            "balancers."
        ),
    ] = False
    robot_endpoint: Annotated[
        str,
        cloud.setting("URL of Robot's API.", parse=parse_url, expects="look like https://host"),
    ] = ROBOT_ENDPOINT
    robot_user: Annotated[
        str, cloud.setting("User of Robot's API.", secret=True, file="ROBOT_USER_FILE")
    ] = ""
    robot_password: Annotated[
        str, cloud.setting("Password of that user.", secret=True, file="ROBOT_PASSWORD_FILE")
    ] = ""
    robot_cache_timeout: Annotated[
        timedelta, cloud.setting("Maximum age of the list of servers; 0 = 5m.", **_DURATION)
    ] = timedelta(minutes=5)
    robot_rate_limit_wait_time: Annotated[
        timedelta,
        cloud.setting("Pause after Robot's rate limit was exceeded, at least 30s.", **_DURATION),
    ] = timedelta(0)
    robot_forward_internal_ips: Annotated[
        bool, cloud.setting("Keep the internal addresses that the kubelet reports.")
    ] = True

    @classmethod
    def contradictions(cls, values: Mapping[str, Any]) -> Sequence[str]:
        """Return conflicts: location and zone, one Robot credential alone, Robot and routes."""
        messages = []
        if values["balancers_location"] and values["balancers_network_zone"]:
            messages.append(
                "HCLOUD_LOAD_BALANCERS_LOCATION conflicts with "
                "HCLOUD_LOAD_BALANCERS_NETWORK_ZONE; remove one of the two"
            )
        user, password = values["robot_user"], values["robot_password"]
        if bool(user) != bool(password):
            absent, given = ("PASSWORD", "USER") if user else ("USER", "PASSWORD")
            messages.append(f"ROBOT_{absent} is missing; set it, or remove ROBOT_{given}")
        if ":" in (user or ""):
            messages.append(
                "ROBOT_USER is invalid (hidden because it is a secret); it must not contain a colon"
            )
        has_routes = values["network"] and values["network_routes_enabled"] is not False
        if values["robot_enabled"] and has_routes:
            messages.append(
                "ROBOT_ENABLED conflicts with routes, which Robot servers cannot have; set "
                "HCLOUD_NETWORK_ROUTES_ENABLED to false"
            )
        return messages

    @property
    def has_routes(self) -> bool:
        """Whether the provider offers routes."""
        return bool(self.network) and self.network_routes_enabled


def settings_without_effect(settings: Config) -> Sequence[str]:
    """Return the names of the settings that are set but have no effect."""
    plain = Config(token=settings.token)
    return [
        setting.encode_name
        for setting in fields_of(Config)
        if (
            unwrap(setting.type)[1]["description"].startswith("No effect")
            or (setting.name.startswith("robot_") and not settings.robot_enabled)
        )
        and getattr(settings, setting.name) != getattr(plain, setting.name)
    ]


def log_unusual_settings(settings: Config) -> None:
    """Log the names of settings without effect, and warn if the token has an unusual length."""
    logger = log.logger("hcloud")
    if names := settings_without_effect(settings):
        logger.info("settings without effect ignored", settings=names)
    if len(settings.token) != TOKEN_LENGTH:
        logger.warning("token without the usual length, possibly truncated", length=TOKEN_LENGTH)
