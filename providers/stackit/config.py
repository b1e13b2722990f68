"""Settings of STACKIT, as in STACKIT's own cloud-controller-manager.

The cloud config is YAML in sections. Credentials, and the settings in `Variables`, come from the
environment. Settings that only concern STACKIT's own manager are accepted without effect.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from ccm import cloud
from ccm.base.credentials import check_header_value
from ccm.base.parsing import parse_url
from ccm.cloud import rest
from ccm.model.ip import parse_ip

from . import auth

IAAS_URL = "https://iaas.api.stackit.cloud"
BALANCER_URL = "https://load-balancer.api.stackit.cloud"

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
REGION = re.compile(r"[a-z0-9]+", re.ASCII)

ProviderIdForm = Literal["short", "project"]


def parse_uuid(text: str) -> str:
    """Return a UUID in lower case. Raises `ValueError`."""
    if not UUID.fullmatch(text):
        raise ValueError(text)
    return text.lower()


def parse_region(text: str) -> str:
    """Return a region unchanged. Raises `ValueError`."""
    if not REGION.fullmatch(text):
        raise ValueError(text)
    return text


def parse_token_url(text: str) -> str:
    """Return the URL of a token API. Raises `ValueError` for HTTP, except to loopback."""
    url, parts = parse_url(text), urlsplit(text)
    address = parse_ip(parts.hostname or "")
    is_local = parts.hostname == "localhost" or (address is not None and address.is_loopback)
    if parts.scheme != "https" and not is_local:
        raise ValueError(text)
    return url


_URL: Mapping[str, Any] = {"parse": parse_url, "expects": "look like https://host"}
_UUID: Mapping[str, Any] = {"parse": parse_uuid, "expects": "be a UUID"}


def _camel(name: str) -> str:
    first, *more = name.rstrip("_").split("_")
    return first + "".join(map(str.capitalize, more))


class Endpoints(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """Addresses of the APIs."""

    iaas_api: Annotated[str, cloud.setting("URL of the IaaS API.", **_URL)] = IAAS_URL
    load_balancer_api: Annotated[str, cloud.setting("URL of the load balancer API.", **_URL)] = (
        BALANCER_URL
    )


class Global(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """Project and region of the cluster, and addresses of the APIs."""

    project_id: Annotated[str, cloud.setting("ID of the cluster's project.", **_UUID)]
    region: Annotated[
        str,
        cloud.setting(
            "Region of the cluster.", parse=parse_region, expects="be a region such as eu01"
        ),
    ]
    api_endpoints: Endpoints = Endpoints()


class Metadata(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """Settings of STACKIT's own manager, without effect."""

    search_order: Annotated[str, cloud.setting("No effect.")] = ""
    request_timeout: Annotated[timedelta | None, cloud.setting("No effect.")] = None


class LoadBalancer(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """Settings of all load balancers."""

    network_id: Annotated[
        str, cloud.setting("ID of the network of nodes and load balancers.", **_UUID)
    ]
    extra_labels: Annotated[dict[str, str], cloud.setting("Labels of all load balancers.")] = {}  # noqa: RUF012 - a Struct copies it


class Instance(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """Settings of node metadata."""

    default_network: Annotated[
        str, cloud.setting("Name or ID of the network whose addresses are listed first.")
    ] = ""
    provider_id_form: Annotated[
        ProviderIdForm,
        cloud.setting(
            "Format of new provider IDs: short = stackit://<server>, project = "
            "stackit://<project>/<server>, as for machines. Both formats are accepted."
        ),
    ] = "short"


class Config(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """Cloud config of STACKIT."""

    global_: Global
    metadata: Metadata = Metadata()
    load_balancer: LoadBalancer
    instance: Instance = Instance()


_KEY = "STACKIT_SERVICE_ACCOUNT_KEY, or the file of STACKIT_SERVICE_ACCOUNT_KEY_PATH,"


def _variable(name: str) -> str:
    return f"STACKIT_{name.upper()}"


class Variables(cloud.Settings, frozen=True, kw_only=True, rename=_variable):
    """Environment variables of STACKIT."""

    service_account_key: Annotated[
        str,
        cloud.setting(
            "Service account key in JSON.", secret=True, file="STACKIT_SERVICE_ACCOUNT_KEY_PATH"
        ),
    ] = ""
    private_key: Annotated[
        str,
        cloud.setting(
            "Private key in PEM, for a service account key without one.",
            secret=True,
            file="STACKIT_PRIVATE_KEY_PATH",
        ),
    ] = ""
    service_account_token: Annotated[
        str,
        cloud.setting(
            "Token to use instead of a key; not renewed.", secret=True, parse=check_header_value
        ),
    ] = ""
    service_account_email: Annotated[str, cloud.setting("No effect.")] = ""
    token_baseurl: Annotated[
        str,
        cloud.setting(
            "URL of the token API; empty = the URL in the service account key. The URL in the key "
            "of a MachineClass is never used.",
            parse=parse_token_url,
            expects="look like https://host; http is accepted for loopback only",
        ),
    ] = ""
    no_auth: Annotated[bool, cloud.setting("Send no credentials; for a fake.")] = False
    iaas_endpoint: Annotated[
        str,
        cloud.setting(
            "URL of the IaaS API for machines; empty = as in the cloud config, or the vendor's.",
            **_URL,
        ),
    ] = ""
    lb_api_emergency_token: Annotated[
        str,
        cloud.setting(
            "Token for the load balancer API only.", secret=True, parse=check_header_value
        ),
    ] = ""
    remotewrite_endpoint: Annotated[
        str, cloud.setting("Remote-write URL for the metrics of load balancers.", **_URL)
    ] = ""
    remotewrite_user: Annotated[str, cloud.setting("Remote-write user.")] = ""
    remotewrite_password: Annotated[str, cloud.setting("Remote-write password.", secret=True)] = ""

    @classmethod
    def contradictions(cls, values: Mapping[str, Any]) -> Sequence[str]:
        """Return conflicts: incomplete remote-write settings, and an invalid key."""
        words = ("remotewrite_endpoint", "remotewrite_user", "remotewrite_password")
        missing = [_variable(word) for word in words if not values[word]]
        faults = []
        if missing and len(missing) < len(words):
            faults.append(f"{', '.join(missing)}: missing; set all three or none")
        if text := values["service_account_key"]:
            try:
                endpoint = auth.ServiceAccountKey(
                    text, values["private_key"] or ""
                ).fields.token_endpoint
            except ValueError as error:
                faults.append(f"{_KEY} {error}")
            else:
                faults += _token_endpoint_fault(endpoint)
        return faults

    @property
    def has_credentials(self) -> bool:
        """Whether credentials are configured, or none are required."""
        return bool(self.service_account_key or self.service_account_token or self.no_auth)


def _token_endpoint_fault(endpoint: str) -> Sequence[str]:
    try:
        parse_token_url(endpoint or auth.TOKEN_URL)
    except ValueError:
        return [f"{_KEY} has tokenEndpoint {endpoint!r}; it must look like https://host"]
    return []


class AllSettings(NamedTuple):
    """Cloud config and environment variables."""

    file: Config
    environment: Variables


def read_all(context: cloud.Context) -> AllSettings:
    """Read all settings of the provider.

    Raises:
        ConfigError: settings are invalid; the message lists every problem, first those of the cloud
            config.
    """
    faults: list[str] = []
    results: list[Any] = []
    for reader in (lambda: context.settings(Config), lambda: read_variables(context)):
        try:
            results.append(reader())
        except cloud.ConfigError as error:
            faults += error.faults
    if not faults and not results[1].has_credentials:
        faults.append(
            "STACKIT_SERVICE_ACCOUNT_KEY_PATH is missing; set it to the file with the service "
            "account key, or set STACKIT_SERVICE_ACCOUNT_TOKEN"
        )
    if faults:
        raise cloud.ConfigError(*faults)
    return AllSettings(*results)


def read_variables(context: cloud.Context) -> Variables:
    """Read the environment variables only. Raises `ConfigError`."""
    bare = cloud.Context(environ=context.environ, followed=context.followed)
    return bare.settings(Variables, environment=True)


@asynccontextmanager
async def open_authorizer(given: Variables) -> AsyncIterator[rest.Authorizer]:
    """Open the authorizer for the configured credentials; a key takes precedence over a token."""
    if given.no_auth:
        yield auth.NoAuthorizer()
    elif given.service_account_key:
        key = auth.ServiceAccountKey(given.service_account_key, given.private_key)
        url = given.token_baseurl or key.fields.token_endpoint
        async with auth.open_key_flow(key, url) as flow:
            yield flow
    else:
        yield auth.StaticToken(given.service_account_token)
