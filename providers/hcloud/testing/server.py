"""HTTP server of the fake: authentication, rate limit and routing."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from aiohttp import hdrs, web

from ccm.base import clock
from ccm.testing import fake_api
from ccm.testing.fake_api import Endpoint, Witness

from . import balancers, catalog, extras, networks, servers
from .state import ApiError, Call, Cloud, Handler, Settings

PREFIX = "/v1"
HOUR_S = 3600.0


class Service(fake_api.FakeApi):
    """Fake API of one project over HTTP.

    Args:
        settings: behaviour and limits.
        token: token that requests must have; empty = a random one of the vendor's length.
        witness: called for every call that the API itself answered.
    """

    def __init__(
        self, settings: Settings | None = None, *, token: str = "", witness: Witness | None = None
    ) -> None:
        rows = [
            Endpoint(
                method=method,
                path=path,
                prefix=PREFIX,
                pattern=r"\d+",
                handle=self._handler(handler),
            )
            for method, path, handler in _rows()
        ]
        super().__init__(rows, witness)
        self.cloud = Cloud(settings)
        self.settings = self.cloud.settings
        self.token = token or secrets.token_hex(32)
        self._remaining = float(self.settings.requests)
        self._counted_at = clock.monotonic()
        self._is_exceeded = False

    @property
    def latency_s(self) -> float:
        """Delay of each response in seconds."""
        return self.settings.latency_s

    def _handler(self, handler: Handler) -> Callable[[web.Request, Any], tuple[int, Any]]:
        def handle(request: web.Request, order: Any) -> tuple[int, Any]:
            self.cloud.settle()
            query: dict[str, list[str]] = {}
            for name, value in request.query.items():
                query.setdefault(name, []).append(value)
            number = int(request.match_info.get("id", 0))
            return handler(self.cloud, Call(id=number, query=query, body=order or {}))

        return handle

    def admit(self, request: web.Request) -> None:
        """Check the token and the rate limit."""
        given = request.headers.get(hdrs.AUTHORIZATION, "").encode()
        if not secrets.compare_digest(given, f"Bearer {self.token}".encode()):
            raise ApiError("unauthorized", "unable to authenticate")
        if self._is_exceeded:
            raise ApiError("rate_limit_exceeded", "limit of requests per hour reached")

    def refusal(self, fault: fake_api.Fault) -> ApiError:
        """Return the error response of an injected fault."""
        return ApiError(fault.code or "server_error", fault.message, status=fault.status)

    def rejection(self, request: web.Request, status: int) -> ApiError:
        """Return the error response for an unknown path, a wrong method or a large body."""
        if status == 404:
            return ApiError("not_found", f"no such path: {request.path}")
        if status == 413:
            return ApiError("invalid_input", "the body is too large")
        return ApiError("method_not_allowed", f"no {request.method} here")

    def altered_answer(self, answer: Any, fault: fake_api.Fault) -> Any:  # noqa: ARG002 - one kind
        """Return a response with unknown fields and an unknown server status."""
        return fake_api.with_unknown_fields(answer, of_server="server_type", status="hibernating")

    def headers(self, request: web.Request) -> Mapping[str, str]:  # noqa: ARG002 - all are alike
        """Count the call and return the rate-limit headers."""
        most, now = self.settings.requests, clock.monotonic()
        self._remaining = min(most, self._remaining + (now - self._counted_at) * most / HOUR_S)
        self._counted_at = now
        self._is_exceeded = self._remaining < 1
        self._remaining -= not self._is_exceeded
        full_s = (most - self._remaining) * HOUR_S / most
        return {
            "RateLimit-Limit": str(most),
            "RateLimit-Remaining": str(max(0, math.floor(self._remaining))),
            "RateLimit-Reset": str(math.ceil(clock.now().timestamp() + full_s)),
        }


@contextlib.asynccontextmanager
async def serve(service: Service, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve while the context is open; yields the endpoint, including `/v1`.

    Raises:
        OSError: the address is in use or not available.
    """
    async with fake_api.serve(service, host=host, port=port) as url:
        yield f"{url}{PREFIX}"


# --- operations: method, path below `/v1` as in the OpenAPI document, handler ---------------------

Operation = tuple[str, str, Handler]


def _rows() -> list[Operation]:
    return [
        ("GET", "/actions", extras.actions),
        ("GET", "/actions/{id}", extras.show_handler("action", "actions")),
        ("GET", "/locations", extras.static_list_handler("locations", catalog.LOCATIONS)),
        ("GET", "/server_types", extras.static_list_handler("server_types", catalog.SERVER_TYPES)),
        (
            "GET",
            "/load_balancer_types",
            extras.static_list_handler("load_balancer_types", catalog.BALANCER_TYPES),
        ),
        ("GET", "/images", extras.static_list_handler("images", catalog.IMAGES)),
        ("GET", "/servers", servers.index),
        ("POST", "/servers", servers.create),
        ("GET", "/servers/{id}", extras.show_handler("server", "servers")),
        ("PUT", "/servers/{id}", extras.change_handler("server", "servers")),
        ("DELETE", "/servers/{id}", servers.delete),
        ("POST", "/servers/{id}/actions/poweron", servers.power_handler(on=True)),
        ("POST", "/servers/{id}/actions/poweroff", servers.power_handler(on=False)),
        ("POST", "/servers/{id}/actions/attach_to_network", servers.attach),
        ("GET", "/networks", extras.list_handler("networks")),
        ("POST", "/networks", networks.create),
        ("GET", "/networks/{id}", extras.show_handler("network", "networks")),
        ("POST", "/networks/{id}/actions/add_route", networks.add_route),
        ("POST", "/networks/{id}/actions/delete_route", networks.delete_route),
        ("GET", "/load_balancers", extras.list_handler("load_balancers")),
        ("POST", "/load_balancers", balancers.create),
        ("GET", "/load_balancers/{id}", extras.show_handler("load_balancer", "load_balancers")),
        ("PUT", "/load_balancers/{id}", extras.change_handler("load_balancer", "load_balancers")),
        ("DELETE", "/load_balancers/{id}", balancers.delete),
        *(
            (
                "POST",
                f"/load_balancers/{{id}}/actions/{word}",
                balancers.action_handler(word, change),
            )
            for word, change in _BALANCER_ACTIONS.items()
        ),
        *_kind("ssh_key", "ssh_keys", extras.create_ssh_key),
        *_kind("placement_group", "placement_groups", extras.create_placement_group),
        *_kind("volume", "volumes", extras.create_volume),
        *_kind("firewall", "firewalls", extras.create_firewall),
        *_kind("certificate", "certificates", extras.create_certificate),
    ]


_BALANCER_ACTIONS: dict[str, balancers.Change] = {
    "add_service": balancers.add_service,
    "update_service": balancers.update_service,
    "delete_service": balancers.delete_service,
    "add_target": balancers.add_target,
    "remove_target": balancers.remove_target,
    "attach_to_network": balancers.attach,
    "detach_from_network": balancers.detach,
    "change_algorithm": balancers.change_algorithm,
    "change_type": balancers.change_type,
    "change_dns_ptr": balancers.change_dns_ptr,
    "change_protection": balancers.change_protection,
    "disable_public_interface": balancers.public_interface_change(on=False),
    "enable_public_interface": balancers.public_interface_change(on=True),
}


def _kind(kind: str, table: str, create: Handler) -> list[Operation]:
    return [
        ("GET", f"/{table}", extras.list_handler(table)),
        ("POST", f"/{table}", create),
        ("GET", f"/{table}/{{id}}", extras.show_handler(kind, table)),
        ("PUT", f"/{table}/{{id}}", extras.change_handler(kind, table)),
        ("DELETE", f"/{table}/{{id}}", extras.delete_handler(kind, table)),
    ]
