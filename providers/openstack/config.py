"""Settings of OpenStack: the `cloud.conf` of openstack-cloud-controller-manager, read as it is.

A setting of `[Global]` that `cloud.conf` lacks is taken from `clouds.yaml`, if `use-clouds` or
OS_CLOUD selects a cloud there. Sections and settings of other programs are ignored, and their names
are logged.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from ccm import cloud
from ccm.base import log, strict_yaml
from ccm.base.credentials import check_header_value
from ccm.base.parsing import parse_url
from ccm.cloud.settings import fields_of, unwrap
from ccm.model.selectors import parse_labels

from . import gcfg

S = TypeVar("S", bound=msgspec.Struct)

_log = log.logger("openstack")


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID, the ID of most resources, rather than a name."""
    return _UUID.fullmatch(text) is not None


def parse_uuid(text: str) -> str:
    """Return a UUID in lower case. Raises `ValueError`."""
    if not is_uuid(text):
        raise ValueError(text)
    return text.lower()


def parse_sort_order(text: str) -> str:
    """Return a list of CIDRs, separated by commas, unchanged. Raises `ValueError`."""
    if cloud.parse_cidrs(text) is None:
        raise ValueError(text)
    return text


def parse_selector(text: str) -> str:
    """Return a label selector unchanged. Raises `ValueError`."""
    parse_labels(text)
    return text


def _key(name: str) -> str:
    """Return the key of a field: `auth_url` -> `auth-url`."""
    return name.replace("_", "-")


_uuid = functools.partial(cloud.setting, parse=parse_uuid, expects="be a UUID")
_NO_EFFECT = cloud.setting("No effect.")


def _seconds(number: int) -> timedelta:
    return timedelta(seconds=number)


class Global(cloud.Settings, frozen=True, kw_only=True, rename=_key):
    """Address of the cloud, credentials and project.

    A domain without prefix is the domain of the user and of the project, unless these have their
    own.
    """

    auth_url: Annotated[
        str, cloud.setting("URL of Keystone.", parse=parse_url, expects="look like https://host/v3")
    ]
    os_endpoint_type: Annotated[
        Literal["public", "internal", "admin", "publicURL", "internalURL", "adminURL"],
        cloud.setting("Interface of the endpoints in the catalogue."),
    ] = "public"
    region: Annotated[str, cloud.setting("Region; empty = the first in the catalogue.")] = ""
    ca_file: Annotated[str, cloud.setting("File with certificate authorities of the cloud.")] = ""
    cert_file: Annotated[str, cloud.setting("File with a client certificate.")] = ""
    key_file: Annotated[str, cloud.setting("File with the key of the client certificate.")] = ""
    tls_insecure: Annotated[bool, cloud.setting("Accept any certificate; unsafe.")] = False
    username: Annotated[str, cloud.setting("Name of the user; needs a domain.")] = ""
    user_id: Annotated[str, cloud.setting("ID of the user.")] = ""
    password: Annotated[str, cloud.setting("Password of the user.")] = ""
    domain_id: Annotated[str, cloud.setting("ID of the domain of user and project.")] = ""
    domain_name: Annotated[str, cloud.setting("Name of the domain of user and project.")] = ""
    user_domain_id: Annotated[str, cloud.setting("ID of the user's domain.")] = ""
    user_domain_name: Annotated[str, cloud.setting("Name of the user's domain.")] = ""
    tenant_id: Annotated[str, cloud.setting("ID of the project.")] = ""
    tenant_name: Annotated[str, cloud.setting("Name of the project; needs a domain.")] = ""
    tenant_domain_id: Annotated[str, cloud.setting("ID of the project's domain.")] = ""
    tenant_domain_name: Annotated[str, cloud.setting("Name of the project's domain.")] = ""
    trust_id: Annotated[str, cloud.setting("ID of a trust; needs a trustee.")] = ""
    trustee_id: Annotated[str, cloud.setting("ID of the user to which the trust is given.")] = ""
    trustee_password: Annotated[str, cloud.setting("Password of the trustee.")] = ""
    application_credential_id: Annotated[str, cloud.setting("ID of a credential.")] = ""
    application_credential_name: Annotated[str, cloud.setting("Its name; needs a user.")] = ""
    application_credential_secret: Annotated[str, cloud.setting("Its secret.")] = ""
    token: Annotated[str, cloud.setting("Token, never renewed.", parse=check_header_value)] = ""
    use_clouds: Annotated[bool, cloud.setting("Read further settings from clouds.yaml.")] = False
    clouds_file: Annotated[str, cloud.setting("Path of clouds.yaml; empty = as usual.")] = ""
    cloud: Annotated[str, cloud.setting("Name of the cloud in clouds.yaml; empty = OS_CLOUD.")] = ""

    @property
    def user_domain(self) -> Mapping[str, str]:
        """Domain of the user, as arguments of keystoneauth1; empty for a user given by ID."""
        return self._domain("user", "user_domain", "domain")

    @property
    def project_domain(self) -> Mapping[str, str]:
        """Domain of the project, as arguments of keystoneauth1; the user's if it has none."""
        return self._domain("project", "tenant_domain", "domain", "user_domain")

    def _domain(self, owner: str, *settings: str) -> Mapping[str, str]:
        for setting in settings:
            for word in ("id", "name"):
                if text := getattr(self, f"{setting}_{word}"):
                    return {f"{owner}_domain_{word}": text}
        return {}

    @classmethod
    def contradictions(cls, values: Mapping[str, Any]) -> Sequence[str]:
        """Return faults of the credentials: none or incomplete ones, and half a key pair."""

        def has(*names: str) -> bool:
            return any(values.get(name) for name in names)

        user, domain = has("username", "user_id"), has("domain_id", "domain_name")
        by_name = has("username") and not has("user_id")
        pair = "cert-file and key-file: only one is set; set both or none"
        faults = {
            pair: has("cert_file") != has("key_file"),
            "username needs a domain; set user-domain-name, or user-id": by_name
            and not (domain or has("user_domain_id", "user_domain_name")),
        }
        if has("application_credential_id", "application_credential_name"):
            faults["application-credential-secret is missing"] = not has(
                "application_credential_secret"
            )
            is_anonymous = not (has("application_credential_id") or user)
            faults["application-credential-name needs username or user-id"] = is_anonymous
        elif has("trust_id"):
            is_complete = has("trustee_id") and has("trustee_password")
            faults["trust-id needs trustee-id and trustee-password"] = not is_complete
        else:
            domains = ("user_domain_id", "user_domain_name", "tenant_domain_id")
            domain = domain or has(*domains, "tenant_domain_name")
            needs_domain = has("tenant_name") and not has("tenant_id")
            text = "username is missing; set it, or user-id, or application-credential-id"
            faults[text] = not (user or has("token"))
            faults["password is missing"] = user and not has("token", "password")
            is_lost = not has("tenant_id", "tenant_name")
            faults["tenant-id is missing; set it, or tenant-name"] = is_lost
            text = "tenant-name needs a domain; set tenant-domain-name, or tenant-id"
            faults[text] = needs_domain and not domain
        return [f"Global.{text}" for text, is_fault in faults.items() if is_fault]


class Networking(cloud.Settings, frozen=True, kw_only=True, rename=_key):
    """Addresses of nodes."""

    ipv6_support_disabled: Annotated[bool, cloud.setting("Leave out IPv6 addresses.")] = False
    public_network_name: Annotated[
        tuple[str, ...], cloud.setting("Network of external addresses; may be repeated.")
    ] = ()
    internal_network_name: Annotated[
        tuple[str, ...],
        cloud.setting("The only network of internal addresses; may be repeated; none = all."),
    ] = ()
    address_sort_order: Annotated[
        str,
        cloud.setting(
            "CIDRs whose addresses are first, in this order.",
            parse=parse_sort_order,
            expects="be CIDRs separated by commas, such as 10.0.0.0/8, 2001:db8::/32",
        ),
    ] = ""


class Route(cloud.Settings, frozen=True, kw_only=True, rename=_key):
    """Routes to Pods."""

    router_id: Annotated[str, _uuid("Router that gets the routes; empty = no routes.")] = ""


class BalancerClass(cloud.Settings, frozen=True, kw_only=True, rename=_key):
    """Networks of load balancers of one class."""

    floating_network_id: Annotated[str, _uuid("Network of floating IPs; empty = found.")] = ""
    floating_subnet_id: Annotated[str, _uuid("Subnet of floating IPs.")] = ""
    floating_subnet: Annotated[
        str,
        cloud.setting("Name of that subnet: a glob, or a regular expression after `~`; `!` = not."),
    ] = ""
    floating_subnet_tags: Annotated[
        str, cloud.setting("Tags of that subnet, with commas: any, or all after `&`; `!` = not.")
    ] = ""
    network_id: Annotated[str, _uuid("Network of load balancers.")] = ""
    subnet_id: Annotated[str, _uuid("Subnet of load balancers.")] = ""
    member_subnet_id: Annotated[str, _uuid("Subnet of members; empty = as load balancers.")] = ""


class LoadBalancer(BalancerClass, frozen=True, kw_only=True, rename=_key):
    """Settings of all load balancers."""

    enabled: Annotated[bool, cloud.setting("Manage load balancers for Services.")] = True
    lb_version: Annotated[Literal["v2"], cloud.setting("Version of the Octavia API.")] = "v2"
    lb_provider: Annotated[str, cloud.setting("Provider, such as amphora or ovn.")] = "amphora"
    lb_method: Annotated[
        Literal["ROUND_ROBIN", "LEAST_CONNECTIONS", "SOURCE_IP", "SOURCE_IP_PORT"],
        cloud.setting("Algorithm that selects a member; ovn has SOURCE_IP_PORT only."),
    ] = "ROUND_ROBIN"
    manage_security_groups: Annotated[bool, cloud.setting("Open the node ports.")] = False
    create_monitor: Annotated[bool, cloud.setting("Create health monitors.")] = False
    monitor_delay: Annotated[timedelta, cloud.setting("Time between checks.")] = _seconds(5)
    monitor_timeout: Annotated[timedelta, cloud.setting("Limit of a check.")] = _seconds(3)
    monitor_max_retries: Annotated[
        int, cloud.setting("Successes until a member is ONLINE.", least=1)
    ] = 1
    monitor_max_retries_down: Annotated[
        int, cloud.setting("Failures until a member is in ERROR.", least=1)
    ] = 3
    internal_lb: Annotated[bool, cloud.setting("By default without floating IP.")] = False
    node_selector: Annotated[
        str,
        cloud.setting(
            "Label selector of the members.",
            parse=parse_selector,
            expects="be a label selector such as role=worker,zone",
        ),
    ] = ""
    cascade_delete: Annotated[bool, cloud.setting("Delete all parts in one call.")] = True
    flavor_id: Annotated[str, _uuid("Flavor.")] = ""
    availability_zone: Annotated[str, cloud.setting("Zone.")] = ""
    enable_ingress_hostname: Annotated[
        bool, cloud.setting("With proxy protocol, report a hostname instead of the IP.")
    ] = False
    ingress_hostname_suffix: Annotated[str, cloud.setting("Suffix of that hostname.")] = "nip.io"
    default_tls_container_ref: Annotated[str, cloud.setting("TLS secret of listeners.")] = ""
    container_store: Annotated[Literal["barbican", "external"], _NO_EFFECT] = "barbican"
    max_shared_lb: Annotated[
        int, cloud.setting("Maximum number of Services that share a load balancer.", least=1)
    ] = 2
    provider_requires_serial_api_calls: Annotated[
        bool, cloud.setting("Create the parts of a load balancer one after the other.")
    ] = False


class Metadata(cloud.Settings, frozen=True, kw_only=True, rename=_key):
    """Metadata of instances, which comes from the API only."""

    search_order: Annotated[str, _NO_EFFECT] = "configDrive,metadataService"
    request_timeout: Annotated[timedelta, cloud.setting("Limit of one request.")] = _seconds(30)


class Config(cloud.Settings, frozen=True, kw_only=True, rename="pascal"):
    """`cloud.conf`."""

    global_: Global
    networking: Networking = Networking()
    route: Route = Route()
    load_balancer: LoadBalancer = LoadBalancer()
    load_balancer_class: Annotated[
        dict[str, BalancerClass],
        cloud.setting('Class, given by the annotation `class`: a section [LoadBalancerClass "x"].'),
    ] = {}  # noqa: RUF012 - a Struct copies it
    metadata: Metadata = Metadata()


class Variables(cloud.Settings, frozen=True, kw_only=True, rename="upper"):
    """Environment variables of OpenStack."""

    os_ccm_regional: Annotated[
        bool, cloud.setting("Write provider IDs with the region: openstack://<region>/<server>.")
    ] = False
    occm_wait_lb_active_steps: Annotated[int, _NO_EFFECT] = 23
    os_client_config_file: Annotated[str, cloud.setting("Path of clouds.yaml.")] = ""
    os_cloud: Annotated[
        str, cloud.setting("Name of the cloud in clouds.yaml; set = clouds.yaml is read.")
    ] = ""


class AllSettings(NamedTuple):
    """`cloud.conf`, completed from `clouds.yaml`, and environment variables."""

    file: Config
    variables: Variables


def read_all(context: cloud.Context) -> AllSettings:
    """Read all settings of the provider.

    Raises:
        ConfigError: settings are invalid; the message lists every fault.
    """
    variables = read_variables(context)
    try:
        sections = gcfg.parse(context.config.decode())
    except UnicodeDecodeError as error:
        raise cloud.ConfigError(f"{context.source}: byte {error.start} is not UTF-8") from error
    except ValueError as error:
        raise cloud.ConfigError(f"{context.source}: {error}") from error
    values = _shape_sections(sections)
    own: dict[str, Any] = values.setdefault("Global", {})
    if own.get("use-clouds") == "true" or variables.os_cloud:
        own.update({**_read_clouds(context, variables, own), **own})
    for name in ("ca-file", "cert-file", "key-file"):
        if own.get(name):
            context.follow(own[name])
    settings = cloud.Fields(values).read(Config)
    return AllSettings(settings, variables)


def read_variables(context: cloud.Context) -> Variables:
    """Read the environment variables only. Raises `ConfigError`."""
    return cloud.Context(environ=context.environ).settings(Variables, environment=True)


# --- cloud.conf -----------------------------------------------------------------------------------


def _shape_sections(sections: Mapping[tuple[str, str], gcfg.Key]) -> dict[str, Any]:
    """Convert parsed sections to the form of `Config`; log the names of unknown ones."""
    declared = {field.encode_name.lower(): field for field in fields_of(Config)}
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for (section, name), keys in sections.items():
        field = declared.get(section)
        is_class = field is not None and field.name == "load_balancer_class"
        if field is None or is_class != bool(name):
            unknown.append(f"[{section}]")
            continue
        kind, _ = unwrap(field.type)
        struct = kind.value_type if isinstance(kind, inspect.DictType) else kind
        assert isinstance(struct, inspect.StructType)
        shaped, strangers = _shape_keys(struct.cls, keys)
        unknown += [f"{field.encode_name}.{stranger}" for stranger in strangers]
        if is_class:
            values.setdefault(field.encode_name, {})[name] = shaped
        else:
            values[field.encode_name] = shaped
    if unknown:
        _log.warning("unknown settings ignored", settings=unknown)
    return values


def _shape_keys(declared: type[msgspec.Struct], keys: gcfg.Key) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a section, and the names of its unknown keys with a hint.

    The last value of a repeated key counts, unless the setting is a list.
    """
    fields = {field.encode_name: unwrap(field.type)[0] for field in fields_of(declared)}
    values: dict[str, Any] = {}
    unknown = []
    for key, texts in keys.items():
        kind = fields.get(key)
        if kind is None:
            near = difflib.get_close_matches(key, fields, n=1)
            unknown.append(f"{key} (did you mean {near[0]}?)" if near else key)
        elif isinstance(kind, inspect.VarTupleType):
            values[key] = [text or "" for text in texts]
        elif isinstance(kind, inspect.BoolType):
            values[key] = _BOOLEANS.get((texts[-1] or "true").lower(), texts[-1])
        elif texts[-1]:  # an empty value counts as unset
            values[key] = texts[-1]
    return values, unknown


_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), "true"),
    **dict.fromkeys(("false", "no", "off", "0"), "false"),
}
"""Spellings of booleans in git's configuration files; a key without value is true."""


# --- clouds.yaml ----------------------------------------------------------------------------------

_AUTH = {
    **{name: _key(name) for name in Global.__struct_fields__},
    **{f"project_{word}": f"tenant-{word}" for word in ("id", "name")},
    **{f"project_domain_{word}": f"tenant-domain-{word}" for word in ("id", "name")},
}
"""Name below `auth` in clouds.yaml -> key of `[Global]`."""

_PLACE = {
    "region_name": "region",
    "endpoint_type": "os-endpoint-type",
    "interface": "os-endpoint-type",
    "cacert": "ca-file",
    "cert": "cert-file",
    "key": "key-file",
}
"""Name beside `auth` in clouds.yaml -> key of `[Global]`."""

_FOLDERS = (".", "{HOME}/.config/openstack", "/etc/openstack")
"""Folders in which clouds.yaml is looked for."""


def _read_clouds(
    context: cloud.Context, variables: Variables, own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of the selected cloud in clouds.yaml, and of secure.yaml beside it."""
    path = _clouds_path(context.environ, own.get("clouds-file") or variables.os_client_config_file)
    name = own.get("cloud") or variables.os_cloud
    clouds = _read_yaml(context.follow(path))
    selected = clouds.get(name) if name else next(iter(clouds.values()), None)
    if not isinstance(selected, dict):
        known = ", ".join(map(str, clouds)) or "none"
        raise cloud.ConfigError(f"{path} has no cloud {name!r}; it has {known}")
    secure = context.follow(path.with_name("secure.yaml"))
    more = _read_yaml(secure).get(name) if secure.exists() else None
    settings: dict[str, Any] = {}
    for source in (selected, more if isinstance(more, dict) else {}):
        auth = source.get("auth")
        for names, given in ((_AUTH, auth if isinstance(auth, dict) else {}), (_PLACE, source)):
            settings |= {
                key: str(given[word]) for word, key in names.items() if given.get(word) is not None
            }
        if source.get("verify") is False:
            settings["tls-insecure"] = "true"
    return settings


def _clouds_path(environ: Mapping[str, str], given: str) -> Path:
    if given:
        return Path(given)
    folders = [Path(folder.format(HOME=environ.get("HOME", "/"))) for folder in _FOLDERS]
    paths = [folder / "clouds.yaml" for folder in folders]
    return next((path for path in paths if path.exists()), paths[-1])


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the `clouds` of a file."""
    try:
        document = strict_yaml.load(path.read_bytes())
    except OSError as error:
        raise cloud.ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except strict_yaml.LOAD_ERRORS as error:
        text = strict_yaml.describe_error(error)
        raise cloud.ConfigError(f"{path} is not valid YAML: {text}") from error
    clouds = document.get("clouds") if isinstance(document, dict) else None
    if not isinstance(clouds, dict):
        raise cloud.ConfigError(f"{path} must be a mapping with the name clouds")
    return clouds
