"""The calls of the APIs: method, path, what they do. The fake has those that anybody here uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import balancers, servers, state
from .state import Cloud, Thing

ROOT = "/v2/projects/{projectId}/regions/{region}"

Answer = tuple[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, read: what stands in its path, its query, its body."""

    path: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)
    body: Thing = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, str]:
        """Project and region."""
        return (self.path["projectId"], self.path["region"])


Handler = Callable[[Cloud, Call], Answer]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call; `path` as the vendor's document writes it, behind `ROOT`."""

    method: str
    path: str
    handler: Handler


def _items(things: list[Thing]) -> Answer:
    return 200, {"items": things}


def _list_servers(cloud: Cloud, call: Call) -> Answer:
    found = servers.index(cloud, call.place, call.query.get("label_selector", ""))
    details = call.query.get("details") == "true"
    return _items([servers.public(cloud, one, details) for one in found])


def _get_server(cloud: Cloud, call: Call) -> Answer:
    found = servers.one(cloud, call.path["serverId"], call.place)
    return 200, servers.public(cloud, found, call.query.get("details") == "true")


def _delete_server(cloud: Cloud, call: Call) -> Answer:
    servers.delete(cloud, call.path["serverId"], call.place)
    return 204, None


def _power(on: bool) -> Handler:
    def switch(cloud: Cloud, call: Call) -> Answer:
        servers.one(cloud, call.path["serverId"], call.place)
        servers.power(cloud, call.path["serverId"], on=on)
        return 202, None

    return switch


def _patch_nic(cloud: Cloud, call: Call) -> Answer:
    found = servers.patch_nic(cloud, call.path["networkId"], call.path["nicId"], call.body)
    return 200, found


def _create_nic(cloud: Cloud, call: Call) -> Answer:
    given = {key: call.body[key] for key in ("allowedAddresses", "name") if key in call.body}
    return 201, servers.new_nic(cloud, call.path["networkId"], **given)


def _quotas(cloud: Cloud, call: Call) -> Answer:
    used = sum(place == call.place for place in cloud.places.values())
    whole = {"limit": cloud.settings.servers, "usage": used}
    names = ("backupGigabytes", "backups", "gigabytes", "networks", "nics", "publicIps", "ram")
    more = ("securityGroupRules", "securityGroups", "snapshots", "vcpu", "volumes")
    return 200, {"quotas": dict.fromkeys((*names, *more), whole)}


IAAS = [
    Operation("GET", "/servers", _list_servers),
    Operation(
        "POST", "/servers", lambda cloud, call: (201, servers.create(cloud, call.body, call.place))
    ),
    Operation("GET", "/servers/{serverId}", _get_server),
    Operation("DELETE", "/servers/{serverId}", _delete_server),
    Operation(
        "GET",
        "/servers/{serverId}/nics",
        lambda cloud, call: _items(servers.nics(cloud, call.path["serverId"], call.place)),
    ),
    Operation("POST", "/servers/{serverId}/stop", _power(on=False)),
    Operation("POST", "/servers/{serverId}/start", _power(on=True)),
    Operation("POST", "/networks/{networkId}/nics", _create_nic),
    Operation("PATCH", "/networks/{networkId}/nics/{nicId}", _patch_nic),
    Operation("GET", "/networks", lambda cloud, _: _items(list(cloud.networks.values()))),
    Operation(
        "GET",
        "/networks/{networkId}",
        lambda cloud, call: (200, state.get(cloud.networks, call.path["networkId"], "network")),
    ),
    Operation(
        "GET",
        "/images/{imageId}",
        lambda cloud, call: (200, state.get(cloud.images, call.path["imageId"], "image")),
    ),
    Operation(
        "GET",
        "/volumes/{volumeId}",
        lambda cloud, call: (200, state.get(cloud.volumes, call.path["volumeId"], "volume")),
    ),
    Operation("GET", "/quotas", _quotas),
]
"""Those of the IaaS API."""


def _page(cloud: Cloud, call: Call) -> Answer:
    size = int(call.query.get("pageSize") or 100)
    return 200, balancers.page(cloud, size, call.query.get("pageId", ""))


def _delete_balancer(cloud: Cloud, call: Call) -> Answer:
    balancers.delete(cloud, call.path["name"])
    return 200, {}


def _delete_credentials(cloud: Cloud, call: Call) -> Answer:
    balancers.delete_credentials(cloud, call.path["credentialsRef"])
    return 200, {}


def _get_balancer(cloud: Cloud, call: Call) -> Answer:
    return 200, state.get(cloud.balancers, call.path["name"], "load balancer")


def _pool(cloud: Cloud, call: Call) -> Answer:
    name, pool = call.path["name"], call.path["targetPoolName"]
    return 200, balancers.replace_pool(cloud, name, pool, call.body)


def _credential(cloud: Cloud, call: Call) -> Answer:
    found = balancers.change_credentials(cloud, call.path["credentialsRef"], call.body)
    return 200, {"credential": found}


BALANCERS = [
    Operation("GET", "/load-balancers", _page),
    Operation(
        "POST", "/load-balancers", lambda cloud, call: (200, balancers.create(cloud, call.body))
    ),
    Operation("GET", "/load-balancers/{name}", _get_balancer),
    Operation(
        "PUT",
        "/load-balancers/{name}",
        lambda cloud, call: (200, balancers.replace(cloud, call.path["name"], call.body)),
    ),
    Operation("DELETE", "/load-balancers/{name}", _delete_balancer),
    Operation("PUT", "/load-balancers/{name}/target-pools/{targetPoolName}", _pool),
    Operation(
        "GET",
        "/credentials",
        lambda cloud, _: (200, {"credentials": list(cloud.credentials.values())}),
    ),
    Operation(
        "POST",
        "/credentials",
        lambda cloud, call: (
            200,
            {"credential": balancers.create_credentials(cloud, call.body)},
        ),
    ),
    Operation("PUT", "/credentials/{credentialsRef}", _credential),
    Operation("DELETE", "/credentials/{credentialsRef}", _delete_credentials),
]
"""Those of the load balancer API."""
