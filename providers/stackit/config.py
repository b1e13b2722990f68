"""Settings of STACKIT: the cloud config and the variables of the vendor's manager.

The cloud config is YAML in sections, as there; credentials come from the environment. What only
concerns the vendor's process is taken and has no effect.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from ccm import cloud
from ccm.base.credentials import header_value
from ccm.base.parsing import parse_url
from ccm.cloud import rest
from ccm.model.ip import parse_ip

from . import auth

IAAS_URL = "https://iaas.api.stackit.cloud"
BALANCER_URL = "https://load-balancer.api.stackit.cloud"

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
REGION = re.compile(r"[a-z0-9]+", re.ASCII)

Form = Literal["short", "project"]


def parse_uuid(text: str) -> str:
    """A UUID in small letters; ValueError for any other text."""
    if not UUID.fullmatch(text):
        raise ValueError(text)
    return text.lower()


def parse_region(text: str) -> str:
    """A region; ValueError for any other text."""
    if not REGION.fullmatch(text):
        raise ValueError(text)
    return text


def parse_token_url(text: str) -> str:
    """Return the address of a token API; ValueError where another host could read along."""
    found, parts = parse_url(text), urlsplit(text)
    address = parse_ip(parts.hostname or "")
    is_local = parts.hostname == "localhost" or (address is not None and address.is_loopback)
    if parts.scheme != "https" and not is_local:
        raise ValueError(text)
    return found


_URL: Mapping[str, Any] = {"parse": parse_url, "expects": "look like https://host"}
_UUID: Mapping[str, Any] = {"parse": parse_uuid, "expects": "be a UUID"}


def _camel(name: str) -> str:
    first, *more = name.rstrip("_").split("_")
    return first + "".join(map(str.capitalize, more))


class Endpoints(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """Where the APIs are."""

    iaas_api: Annotated[str, cloud.setting("Where the IaaS API is.", **_URL)] = IAAS_URL
    load_balancer_api: Annotated[str, cloud.setting("Where the load balancer API is.", **_URL)] = (
        BALANCER_URL
    )


class Global(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """Where the cluster is."""

    project_id: Annotated[str, cloud.setting("The project that the cluster is in.", **_UUID)]
    region: Annotated[
        str,
        cloud.setting(
            "The region that the cluster is in.",
            parse=parse_region,
            expects="be a region such as eu01",
        ),
    ]
    api_endpoints: Endpoints = Endpoints()


class Metadata(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """Of the vendor's process."""

    search_order: Annotated[str, cloud.setting("No effect.")] = ""
    request_timeout: Annotated[timedelta | None, cloud.setting("No effect.")] = None


class LoadBalancer(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """What load balancers have in common."""

    network_id: Annotated[
        str, cloud.setting("The network of the nodes, in which load balancers are.", **_UUID)
    ]
    extra_labels: Annotated[dict[str, str], cloud.setting("Labels of all load balancers.")] = {}  # noqa: RUF012 - a Struct copies it


class Instance(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """What is told of nodes."""

    default_network: Annotated[
        str, cloud.setting("Network, by name or ID, whose addresses come first.")
    ] = ""
    provider_id_form: Annotated[
        Form,
        cloud.setting(
            "Form of new provider IDs: stackit://<server>, or stackit://<project>/<server> as "
            "machines have them. Both are understood."
        ),
    ] = "short"


class Config(cloud.Settings, frozen=True, kw_only=True, rename=_camel):
    """A valid cloud config."""

    global_: Global
    metadata: Metadata = Metadata()
    load_balancer: LoadBalancer
    instance: Instance = Instance()


def _variable(name: str) -> str:
    return f"STACKIT_{name.upper()}"


class Variables(cloud.Settings, frozen=True, kw_only=True, rename=_variable):
    """Valid variables of the environment."""

    service_account_key: Annotated[
        str,
        cloud.setting(
            "The service account's key, JSON.", secret=True, file="STACKIT_SERVICE_ACCOUNT_KEY_PATH"
        ),
    ] = ""
    private_key: Annotated[
        str,
        cloud.setting(
            "The private half, PEM, where the key lacks it.",
            secret=True,
            file="STACKIT_PRIVATE_KEY_PATH",
        ),
    ] = ""
    service_account_token: Annotated[
        str,
        cloud.setting(
            "A token in place of the key; nobody renews it.", secret=True, parse=header_value
        ),
    ] = ""
    service_account_email: Annotated[str, cloud.setting("No effect.")] = ""
    token_baseurl: Annotated[
        str,
        cloud.setting(
            "Where the token API is; else as the key above says, and never as the key of a machine "
            "class does.",
            parse=parse_token_url,
            expects="look like https://host; http is for loopback alone",
        ),
    ] = ""
    no_auth: Annotated[bool, cloud.setting("Ask without credentials; for a fake.")] = False
    iaas_endpoint: Annotated[
        str,
        cloud.setting(
            "Where the IaaS API is, for machines; else as the cloud config says, or the vendor's.",
            **_URL,
        ),
    ] = ""
    lb_api_emergency_token: Annotated[
        str,
        cloud.setting("A token for the load balancer API alone.", secret=True, parse=header_value),
    ] = ""
    remotewrite_endpoint: Annotated[
        str, cloud.setting("Where load balancers send their metrics.", **_URL)
    ] = ""
    remotewrite_user: Annotated[str, cloud.setting("The user there.")] = ""
    remotewrite_password: Annotated[str, cloud.setting("The password there.", secret=True)] = ""

    @classmethod
    def contradictions(cls, values: Mapping[str, Any]) -> Sequence[str]:
        """Half of what metrics need, and a key that is none."""
        words = ("remotewrite_endpoint", "remotewrite_user", "remotewrite_password")
        missing = [_variable(one) for one in words if not values[one]]
        found = []
        if missing and len(missing) < len(words):
            found.append(f"{', '.join(missing)}: missing; all three of them are needed, or none")
        if text := values["service_account_key"]:
            try:
                endpoint = auth.Key(text, values["private_key"] or "").said.token_endpoint
            except ValueError as error:
                found.append(f"STACKIT_SERVICE_ACCOUNT_KEY {error}")
            else:
                found += _token_endpoint_fault(endpoint)
        return found

    @property
    def has_credentials(self) -> bool:
        """Whether there is anything to ask with."""
        return bool(self.service_account_key or self.service_account_token or self.no_auth)


def _token_endpoint_fault(endpoint: str) -> Sequence[str]:
    try:
        parse_token_url(endpoint or auth.TOKEN_URL)
    except ValueError:
        name = "STACKIT_SERVICE_ACCOUNT_KEY: credentials.tokenEndpoint"
        return [f"{name} is {endpoint!r}; it must look like https://host"]
    return []


class Everything(NamedTuple):
    """Both."""

    file: Config
    environment: Variables


def read(context: cloud.Context) -> Everything:
    """The settings of the whole provider.

    Raises:
        ConfigError: they are wrong; every fault is named, those of the file first.
    """
    faults: list[str] = []
    found: list[Any] = []
    for one in (lambda: context.settings(Config), lambda: variables(context)):
        try:
            found.append(one())
        except cloud.ConfigError as error:
            faults += error.faults
    if not faults and not found[1].has_credentials:
        faults.append(
            "STACKIT_SERVICE_ACCOUNT_KEY_PATH is missing; it names the file with the service "
            "account's key. Or give STACKIT_SERVICE_ACCOUNT_TOKEN"
        )
    if faults:
        raise cloud.ConfigError(*faults)
    return Everything(*found)


def variables(context: cloud.Context) -> Variables:
    """The variables alone. Raises ConfigError."""
    bare = cloud.Context(environ=context.environ, followed=context.followed)
    return bare.settings(Variables, environment=True)


@asynccontextmanager
async def open_authorizer(given: Variables) -> AsyncIterator[rest.Authorizer]:
    """What the variables give to ask with; a key goes before a token."""
    if given.no_auth:
        yield auth.Nobody()
    elif given.service_account_key:
        key = auth.Key(given.service_account_key, given.private_key)
        url = given.token_baseurl or key.said.token_endpoint
        async with auth.open_key_flow(key, url) as flow:
            yield flow
    else:
        yield auth.Token(given.service_account_token)
