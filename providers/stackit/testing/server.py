"""The fake over HTTP: three APIs behind one address, `/iaas`, `/balancers` and `/token`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import hdrs, web

from ccm.testing import fake_api
from ccm.testing.fake_api import Row, Witness

from . import balancers, servers, state
from .state import ApiError, Cloud, Settings, Thing
from .tokens import Account

IAAS, BALANCERS = "/iaas", "/balancers"

NETWORK = "7d0a5b1e-3c1f-4b8e-9d52-6f2a1c9e4b70"
IMAGE = "e24b1440-8d9c-431b-8da4-02916720fab5"
"""There from the start."""


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


Operation = tuple[str, str, Handler]
"""Method, path as the vendor's document writes it behind `ROOT`, and what a call does."""


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


IAAS_CALLS: list[Operation] = [
    ("GET", "/servers", _list_servers),
    ("POST", "/servers", lambda cloud, call: (201, servers.create(cloud, call.body, call.place))),
    ("GET", "/servers/{serverId}", _get_server),
    ("DELETE", "/servers/{serverId}", _delete_server),
    (
        "GET",
        "/servers/{serverId}/nics",
        lambda cloud, call: _items(servers.nics(cloud, call.path["serverId"], call.place)),
    ),
    ("POST", "/servers/{serverId}/stop", _power(on=False)),
    ("POST", "/servers/{serverId}/start", _power(on=True)),
    ("POST", "/networks/{networkId}/nics", _create_nic),
    ("PATCH", "/networks/{networkId}/nics/{nicId}", _patch_nic),
    ("GET", "/networks", lambda cloud, _: _items(list(cloud.networks.values()))),
    (
        "GET",
        "/networks/{networkId}",
        lambda cloud, call: (200, state.get(cloud.networks, call.path["networkId"], "network")),
    ),
    (
        "GET",
        "/images/{imageId}",
        lambda cloud, call: (200, state.get(cloud.images, call.path["imageId"], "image")),
    ),
    (
        "GET",
        "/volumes/{volumeId}",
        lambda cloud, call: (200, state.get(cloud.volumes, call.path["volumeId"], "volume")),
    ),
    ("GET", "/quotas", _quotas),
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


BALANCER_CALLS: list[Operation] = [
    ("GET", "/load-balancers", _page),
    ("POST", "/load-balancers", lambda cloud, call: (200, balancers.create(cloud, call.body))),
    ("GET", "/load-balancers/{name}", _get_balancer),
    (
        "PUT",
        "/load-balancers/{name}",
        lambda cloud, call: (200, balancers.replace(cloud, call.path["name"], call.body)),
    ),
    ("DELETE", "/load-balancers/{name}", _delete_balancer),
    ("PUT", "/load-balancers/{name}/target-pools/{targetPoolName}", _pool),
    (
        "GET",
        "/credentials",
        lambda cloud, _: (200, {"credentials": list(cloud.credentials.values())}),
    ),
    (
        "POST",
        "/credentials",
        lambda cloud, call: (
            200,
            {"credential": balancers.create_credentials(cloud, call.body)},
        ),
    ),
    ("PUT", "/credentials/{credentialsRef}", _credential),
    ("DELETE", "/credentials/{credentialsRef}", _delete_credentials),
]
"""Those of the load balancer API."""


class Service(fake_api.FakeApi):
    """One account over HTTP.

    Args:
        settings: how it behaves.
        witness: told of every call that got an answer of the API itself.
    """

    def __init__(self, settings: Settings | None = None, *, witness: Witness | None = None) -> None:
        rows = [
            *self._rows_of(IAAS_CALLS, IAAS),
            *self._rows_of(BALANCER_CALLS, BALANCERS),
            Row(method="POST", path="/token", handle=self._grant),
        ]
        super().__init__(rows, witness)
        self.cloud = Cloud(settings)
        self.settings = self.cloud.settings
        self.account = Account()
        add_network(self.cloud, NETWORK, "k8s", "10.0.0.0/16")
        self.cloud.images[IMAGE] = {"id": IMAGE, "name": "flatcar", "diskFormat": "qcow2"}

    @property
    def latency_s(self) -> float:
        """Before each answer."""
        return self.settings.latency_s

    @property
    def writes(self) -> int:
        """How many calls changed something, or tried to; having a token is no change."""
        named = ((name, number) for name, number in self.calls.items() if name != "POST /token")
        return sum(number for name, number in named if not name.startswith("GET"))

    @property
    def requests(self) -> int:
        """How many calls there were, without those for tokens."""
        return self.calls.total() - self.calls["POST /token"]

    def _rows_of(self, operations: Sequence[Operation], prefix: str) -> list[Row]:
        return [
            Row(
                method=method,
                path=ROOT + path,
                prefix=prefix,
                handle=self._handler(handler, is_of_balancers=prefix == BALANCERS),
            )
            for method, path, handler in operations
        ]

    def _handler(
        self, handler: Handler, *, is_of_balancers: bool
    ) -> Callable[[web.Request, Any], tuple[int, Any]]:
        def handle(request: web.Request, order: Any) -> tuple[int, Any]:
            self.cloud.settle()
            call = Call(path=dict(request.match_info), query=dict(request.query), body=order or {})
            try:
                return handler(self.cloud, call)
            except ApiError as error:
                if is_of_balancers:
                    raise error.of_balancers(silent=self.settings.silent_404) from error
                raise

        return handle

    def _grant(self, _: web.Request, form: Any) -> tuple[int, Any]:
        return 200, self.account.grant(form, self.settings.token_s)

    def admit(self, request: web.Request) -> None:
        """With a token of the account."""
        if request.path == "/token" or self.settings.no_auth:
            return
        try:
            self.account.check(request.headers.get(hdrs.AUTHORIZATION, ""))
        except ApiError as error:
            raise _worded(error, request) from error

    def refusal(self, fault: fake_api.Fault) -> ApiError:
        """In a shape that both APIs' readers take for an error."""
        error = ApiError(fault.code or "server_error", fault.message, status=fault.status)
        error.body = {**error.body, "message": fault.message}
        return error

    def missing(self, request: web.Request, status: int) -> ApiError:
        """No words: it is a proxy that answers here."""
        error = ApiError("", f"no {request.method} {request.path}", status=status)
        error.body = "no route"
        return error

    def spoiled(self, answer: Any, fault: fake_api.Fault) -> Any:  # noqa: ARG002 - one kind
        """With servers that hibernate."""
        return fake_api.novel(answer, of_server="machineType", status="HIBERNATING")


def _worded(error: ApiError, request: web.Request) -> ApiError:
    is_of_balancers = request.path.startswith(BALANCERS)
    return error.of_balancers(silent=False) if is_of_balancers else error


def add_network(cloud: Cloud, number: str, name: str, prefix: str, ipv6: str = "") -> None:
    """A network that servers may be in."""
    cloud.networks[number] = {
        "id": number,
        "name": name,
        "status": "CREATED",
        "routed": True,
        "dhcp": True,
        "ipv4": {"prefixes": [prefix], "nameservers": ["192.0.2.53"]},
        **({"ipv6": {"prefixes": [ipv6], "nameservers": []}} if ipv6 else {}),
    }


serve = fake_api.serve
PROJECT, REGION = state.PROJECT, state.REGION
