"""HTTP server of the fake: all services behind one address."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from ccm.testing import fake_api
from ccm.testing.fake_api import Endpoint, Witness

from . import balancers, compute, creation, floating, identity, network
from .state import MESSAGES, ApiError, Call, Cloud, Handler, Operation, Settings

TOKENS = "/identity/v3/auth/tokens"

TOKEN = web.RequestKey("token", str)

SERVICES: Mapping[str, Sequence[Operation]] = {
    "compute": [*compute.CALLS, *creation.COMPUTE_CALLS],
    "network": [*network.CALLS, *floating.CALLS, *creation.NETWORK_CALLS],
    "load-balancer": balancers.CALLS,
    "image": creation.IMAGE_CALLS,
}
"""Service type -> operations. The name of an operation begins with the service type: `GET
/network/v2.0/ports`."""


class Service(fake_api.FakeApi):
    """Fake services of one project over HTTP.

    Args:
        settings: behaviour and limits.
        witness: called for every call that a service itself answered.

    Attributes:
        url: URL of the services in the catalogue, such as that of a proxy; empty = as requested.
    """

    def __init__(self, settings: Settings | None = None, *, witness: Witness | None = None) -> None:
        rows = [
            Endpoint(
                method=method,
                path=path,
                prefix=identity.PATHS[service],
                operation=f"{method} /{service}{path}",
                handle=self._handler(handler),
            )
            for service, operations in SERVICES.items()
            for method, path, handler in operations
        ]
        tokens = Endpoint(method="POST", path=TOKENS, handle=self._grant)
        super().__init__([tokens, *rows], witness)
        self.cloud = Cloud(settings)
        self.settings = self.cloud.settings
        self.identity = identity.Identity(self.settings)
        self.url = ""

    @property
    def latency_s(self) -> float:
        """Delay of each response in seconds."""
        return self.settings.latency_s

    @property
    def writes(self) -> int:
        """Number of modifying calls, failed ones included, without token requests."""
        return super().writes - self.calls[f"POST {TOKENS}"]

    @property
    def requests(self) -> int:
        """Number of calls without token requests."""
        return self.calls.total() - self.calls[f"POST {TOKENS}"]

    def _grant(self, request: web.Request, order: Any) -> tuple[int, Any]:
        url = self.url or f"{request.scheme}://{request.host}"
        return self.identity.grant(request[TOKEN], url, order or {})

    def _handler(self, handler: Handler) -> Callable[[web.Request, Any], tuple[int, Any]]:
        def handle(request: web.Request, order: Any) -> tuple[int, Any]:
            self.cloud.settle()
            call = Call(
                path=dict(request.match_info),
                query={name: request.query.getall(name) for name in request.query},
                body=order or {},
                headers=request.headers,
                url=str(request.url.with_query(None)),
            )
            return handler(self.cloud, call)

        return handle

    async def _handle(self, row: Endpoint, request: web.Request, body: bytes) -> web.Response:
        try:
            return await super()._handle(row, request, body)
        except ApiError as error:
            raise _shaped(error, request) from error

    def admit(self, request: web.Request) -> None:
        """Check the token."""
        if request.path != TOKENS:
            self.identity.check(request.headers.get("X-Auth-Token", ""))

    def headers(self, request: web.Request) -> Mapping[str, str]:
        """Return a new token for a request for one; `Identity.grant` makes it valid."""
        if request.path != TOKENS:
            return {}
        request[TOKEN] = secrets.token_urlsafe(32)
        return {"X-Subject-Token": request[TOKEN]}

    def refusal(self, fault: fake_api.Fault) -> ApiError:
        """Return the error response of an injected fault."""
        code = fault.code or ("overLimit" if fault.kind == "rate_limit" else "unavailable")
        return ApiError(code, MESSAGES.get(code, fault.message), status=fault.status)

    def rejection(self, request: web.Request, status: int) -> ApiError:
        """Return the error response for an unknown path, a wrong method or a large body."""
        error = ApiError("HTTPNotFound", "The resource could not be found.", status=status)
        return _shaped(error, request)

    def altered_answer(self, answer: Any, fault: fake_api.Fault) -> Any:  # noqa: ARG002 - one kind
        """Return a response with unknown fields and an unknown server status."""
        return fake_api.with_unknown_fields(
            answer,
            of_server="OS-EXT-STS:vm_state",
            status="HIBERNATING",
            mappings=("addresses", "insert_headers", "metadata"),
        )


def _shaped(error: ApiError, request: web.Request) -> ApiError:
    """Return an error in the form of the service of a request."""
    return error.shape(request.path.split("/")[1])


serve = fake_api.serve
