"""HTTP server of the fake: three APIs behind one address, `/iaas`, `/balancers` and `/token`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import hdrs, web

from ccm.testing import fake_api
from ccm.testing.fake_api import Endpoint, Witness

from . import balancers, servers, state
from .state import ApiError, Call, Cloud, Handler, Settings
from .tokens import Account

IAAS, BALANCERS = "/iaas", "/balancers"

NETWORK = "7d0a5b1e-3c1f-4b8e-9d52-6f2a1c9e4b70"
IMAGE = "e24b1440-8d9c-431b-8da4-02916720fab5"
"""Network and image that exist from the start."""


ROOT = "/v2/projects/{projectId}/regions/{region}"

Operation = tuple[str, str, Handler]
"""Method, path below `ROOT` as in the OpenAPI document, and handler."""


def _show_handler(table: str, key: str, kind: str) -> Handler:
    """Return a handler that returns one resource of a kind."""
    return lambda cloud, call: (200, state.get(getattr(cloud, table), call.path[key], kind))


def _list_handler(table: str, key: str) -> Handler:
    """Return a handler that lists all resources of a kind."""
    return lambda cloud, _: (200, {key: list(getattr(cloud, table).values())})


IAAS_CALLS: list[Operation] = [
    ("GET", "/servers", servers.index),
    ("POST", "/servers", servers.create),
    ("GET", "/servers/{serverId}", servers.show),
    ("PATCH", "/servers/{serverId}", servers.patch),
    ("DELETE", "/servers/{serverId}", servers.delete),
    ("GET", "/servers/{serverId}/nics", servers.nics),
    ("POST", "/servers/{serverId}/stop", servers.power_handler(on=False)),
    ("POST", "/servers/{serverId}/start", servers.power_handler(on=True)),
    ("POST", "/networks/{networkId}/nics", servers.create_nic),
    ("PATCH", "/networks/{networkId}/nics/{nicId}", servers.patch_nic),
    ("GET", "/networks", _list_handler("networks", "items")),
    ("GET", "/networks/{networkId}", _show_handler("networks", "networkId", "network")),
    ("GET", "/images/{imageId}", _show_handler("images", "imageId", "image")),
    ("GET", "/volumes/{volumeId}", _show_handler("volumes", "volumeId", "volume")),
    ("GET", "/quotas", servers.quotas),
]
"""Operations of the IaaS API."""

BALANCER_CALLS: list[Operation] = [
    ("GET", "/load-balancers", balancers.index),
    ("POST", "/load-balancers", lambda cloud, call: (200, balancers.create(cloud, call.body))),
    ("GET", "/load-balancers/{name}", _show_handler("balancers", "name", "load balancer")),
    ("PUT", "/load-balancers/{name}", balancers.replace),
    ("DELETE", "/load-balancers/{name}", balancers.delete),
    ("PUT", "/load-balancers/{name}/target-pools/{targetPoolName}", balancers.replace_pool),
    ("GET", "/credentials", _list_handler("credentials", "credentials")),
    ("POST", "/credentials", balancers.order_credentials),
    ("PUT", "/credentials/{credentialsRef}", balancers.replace_credentials),
    ("DELETE", "/credentials/{credentialsRef}", balancers.delete_credentials),
]
"""Operations of the load balancer API."""


class Service(fake_api.FakeApi):
    """Fake APIs of one account over HTTP.

    Args:
        settings: behaviour and limits.
        witness: called for every call that the API itself answered.
    """

    def __init__(self, settings: Settings | None = None, *, witness: Witness | None = None) -> None:
        rows = [
            *self._rows_of(IAAS_CALLS, IAAS),
            *self._rows_of(BALANCER_CALLS, BALANCERS),
            Endpoint(
                method="POST",
                path="/token",
                handle=lambda _, form: (200, self.account.grant(form, self.settings.token_s)),
            ),
        ]
        super().__init__(rows, witness)
        self.cloud = Cloud(settings)
        self.settings = self.cloud.settings
        self.account = Account()
        add_network(self.cloud, NETWORK, "k8s", "10.0.0.0/16")
        self.cloud.images[IMAGE] = {"id": IMAGE, "name": "flatcar", "diskFormat": "qcow2"}

    @property
    def latency_s(self) -> float:
        """Delay of each response in seconds."""
        return self.settings.latency_s

    @property
    def writes(self) -> int:
        """Number of modifying calls, failed ones included, without token requests."""
        named = ((name, number) for name, number in self.calls.items() if name != "POST /token")
        return sum(number for name, number in named if not name.startswith("GET"))

    @property
    def requests(self) -> int:
        """Number of calls without token requests."""
        return self.calls.total() - self.calls["POST /token"]

    def _rows_of(self, operations: Sequence[Operation], prefix: str) -> list[Endpoint]:
        return [
            Endpoint(
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
                    raise error.as_balancer_error(silent=self.settings.silent_404) from error
                raise

        return handle

    def admit(self, request: web.Request) -> None:
        """Check the token."""
        if request.path == "/token" or self.settings.no_auth:
            return
        try:
            self.account.check(request.headers.get(hdrs.AUTHORIZATION, ""))
        except ApiError as error:
            is_of_balancers = request.path.startswith(BALANCERS)
            raise (error.as_balancer_error(silent=False) if is_of_balancers else error) from error

    def refusal(self, fault: fake_api.Fault) -> ApiError:
        """Return the error response of an injected fault, in a form valid for both APIs."""
        error = ApiError(fault.code or "server_error", fault.message, status=fault.status)
        error.body = {**error.body, "message": fault.message}
        return error

    def rejection(self, request: web.Request, status: int) -> ApiError:
        """Return an error response that does not have the API's form, like that of a proxy."""
        error = ApiError("", f"no {request.method} {request.path}", status=status)
        error.body = "no route"
        return error

    def altered_answer(self, answer: Any, fault: fake_api.Fault) -> Any:  # noqa: ARG002 - one kind
        """Return a response with unknown fields and an unknown server status."""
        return fake_api.with_unknown_fields(answer, of_server="machineType", status="HIBERNATING")


def add_network(cloud: Cloud, number: str, name: str, prefix: str, ipv6: str = "") -> None:
    """Add a network."""
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
