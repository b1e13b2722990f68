"""HTTP server of the simulated cloud: its operations and their handlers.

`/v1` is the API for clients: calls are counted, and delayed, limited and failed as configured.
`/admin` is the API for the administrator of the simulation: calls are never counted, delayed or
failed. Both require `Authorization: Bearer <token>`.

Every error has the form `{"error": {"code", "message", "request_id"}}`. Listings are paged and in
order of creation; a page has the cursor of the next page, null on the last page.
"""

from __future__ import annotations

import itertools
import math
import operator
import random
import secrets
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

import msgspec
from aiohttp import hdrs, web

from ccm.base import clock
from ccm.base.throttle import Bucket
from ccm.testing import fake_api
from ccm.testing.fake_api import Endpoint, Fault

from . import state, world, world_balancers

ERRORS = {
    "invalid": 400,
    "unauthenticated": 401,
    "not_found": 404,
    "no_such_path": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "busy": 409,
    "protected": 409,
    "quota_exceeded": 403,
    "no_capacity": 409,
    "rate_limited": 429,
    "internal": 500,
}
"""Error code -> HTTP status. An unknown path has its own code, so that no client mistakes it for
a deleted instance."""


class ApiError(fake_api.ErrorResponse):
    """Error response of the API."""

    def __init__(self, body: dict[str, str], *, status: int, retry_after_s: float = 0) -> None:
        super().__init__(body["message"])
        self.status = status
        self.body = {"error": body}
        if retry_after_s:
            self.headers = {hdrs.RETRY_AFTER: str(math.ceil(retry_after_s))}


# --- requests -----------------------------------------------------------------------------------


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Empty query: the operation takes no query parameters."""


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Paging: at most `limit` items after `cursor`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=state.MAX_PAGE)] = state.MAX_PAGE
    cursor: str | None = None

    @property
    def start(self) -> int:
        """Position that the cursor encodes.

        Raises:
            WorldError: `invalid`: the cursor is malformed.
        """
        prefix, _, number = (self.cursor or "after-0").partition("-")
        try:
            if prefix != "after":
                raise ValueError(prefix)
            return int(number, 16)
        except ValueError as error:
            text = f"cursor: {self.cursor!r} is invalid"
            raise world.WorldError("invalid", text) from error

    def filters(self) -> dict[str, Any]:
        """Return the filters as arguments of `list` or `page`; a label as key and value."""
        arguments = msgspec.structs.asdict(self)
        del arguments["limit"], arguments["cursor"]
        if "label" in arguments:
            key, _, value = (arguments["label"] or "").partition("=")
            arguments["label"] = (key, value) if key else None
        return arguments


def _query(*filters: str) -> type[PageQuery]:
    """Return a page query with filters: `name`, `cluster`, or `label` (`key=value`)."""
    query_type = msgspec.defstruct(
        "Query",
        [(filter_name, str | None, None) for filter_name in filters],
        bases=(PageQuery,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast("type[PageQuery]", query_type)


class CallsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of the call log: calls after sequence number `after`."""

    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start or stop of an instance. Idempotent; 409 during a transition."""

    action: world.Action


class GivenInstances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances to create; all of them are created or none."""

    instances: tuple[world.Instance, ...]


class Members(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New member addresses of a load balancer; they replace the existing addresses."""

    members: tuple[str, ...]


class NewName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New name of a load balancer."""

    name: str


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scripted faults, applied in order."""

    faults: tuple[Fault, ...]


SettingsChange = msgspec.defstruct(
    "SettingsChange",
    [
        (field.name, field.type | msgspec.UnsetType, msgspec.UNSET)
        for field in msgspec.structs.fields(state.Settings)
    ],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)


class DecodedRequest(msgspec.Struct, frozen=True):
    """Decoded request: query, body, and the ID in the path (empty = none)."""

    id: str
    query: Any
    body: Any


class Service(fake_api.FakeApi):
    """One simulated cloud over HTTP: state, settings, faults and call log.

    Args:
        token: bearer token that requests must have; empty = a random one.
        seed: seed of the generated IDs, which makes them reproducible; None = random.
        settings: initial settings.
    """

    max_body_bytes = 64 * 1024 * 1024  # room for a hundred thousand instances

    def __init__(
        self, *, token: str = "", seed: int | None = None, settings: state.Settings | None = None
    ) -> None:
        super().__init__([self._row(operation) for operation in OPERATIONS])
        self.token = token or secrets.token_hex(16)
        self.next_token = ""
        """Second valid token during a token rotation; empty = none."""
        self.worlds: state.CloudState = state.CloudState(random.Random(seed))
        self.world: world.InstanceStore = self.worlds.instances
        self._requests = itertools.count(1)
        self.change_settings(settings or state.Settings())

    def change_settings(self, settings: state.Settings) -> None:
        """Apply settings and reset the rate limiters."""
        self.settings = settings
        self.worlds.apply_settings(settings)
        self._rate_limit = _bucket(settings.rate_limit)
        self._order_rate_limit = _bucket(settings.order_rate_limit)

    @property
    def latency_s(self) -> float:
        """Delay of each response in seconds."""
        return self.settings.latency_s

    def _row(self, operation: Operation) -> Endpoint:
        def handle(request: web.Request, body: bytes) -> tuple[int, Any]:
            try:
                asked = DecodedRequest(
                    request.match_info.get("id", ""),
                    msgspec.convert(dict(request.query), operation.query, strict=False),
                    operation.body and msgspec.json.decode(body, type=operation.body),
                )
                answer = operation.handle(self, asked)
            except msgspec.MsgspecError as error:
                raise self._error("invalid", str(error)) from error
            except world.WorldError as error:
                raise self._error(error.code, str(error)) from error
            return (operation.status, answer) if operation.status != 204 else (204, None)

        method, _, path = operation.route.partition(" ")
        is_admin = path.startswith("/admin/")
        return Endpoint(
            method=method, path=path, handle=handle, operation=operation.name, is_admin=is_admin
        )

    def _error(self, code: str, message: str, *, status: int = 0, wait_s: float = 0) -> ApiError:
        body = {"code": code, "message": message, "request_id": f"req-{next(self._requests)}"}
        return ApiError(body, status=status or ERRORS[code], retry_after_s=wait_s)

    def admit(self, request: web.Request) -> None:
        """Check the token; apply the rate limits to `/v1`."""
        given = request.headers.get(hdrs.AUTHORIZATION, "").encode()
        valid = [f"Bearer {token}".encode() for token in (self.token, self.next_token) if token]
        if not any(secrets.compare_digest(given, expected) for expected in valid):
            raise self._error("unauthenticated", "the bearer token is missing or wrong")
        if request.path.startswith("/admin/"):
            return
        wait_s = _take_token(self._rate_limit)
        if (request.method, request.path) == ("POST", "/v1/instances"):
            wait_s = wait_s or _take_token(self._order_rate_limit)
        if wait_s:
            raise self._error("rate_limited", "rate limit exceeded", wait_s=wait_s)

    def refusal(self, fault: Fault) -> ApiError:
        """Return the error response of an injected fault."""
        if fault.kind == "rate_limit":
            return self._error("rate_limited", fault.message, wait_s=fault.retry_after_s)
        return self._error(fault.code or "internal", fault.message, status=fault.status or 500)

    def rejection(self, request: web.Request, status: int) -> ApiError:
        """Return the error response for an unknown path, a wrong method or a large body."""
        if status == 404:
            return self._error("no_such_path", f"no such path: {request.path}")
        if status == 413:
            return self._error("invalid", "the body is too large", status=413)
        return self._error("method_not_allowed", f"method {request.method} is not allowed")

    def read(self, request: web.Request, body: bytes) -> bytes:  # noqa: ARG002 - for any content type
        """Return the raw body; each operation decodes its own type."""
        return body

    def resource_names(self, request: web.Request, body: bytes) -> Sequence[str]:
        """Return ID and name of the object, or the name in query or body; faults match these."""
        if number := request.match_info.get("id"):
            return [word for word in (number, self.worlds.name_of(number)) if word]
        try:
            order = msgspec.json.decode(body or b"{}")
        except msgspec.MsgspecError:
            order = {}
        words = (isinstance(order, dict) and order.get("name"), request.query.get("name"))
        return [str(word) for word in words if word]

    def altered_answer(self, answer: Any, fault: Fault) -> Any:
        """Return a response with unknown fields and states, or with a defective instance."""
        if fault.kind == "novelty":
            return add_unknown_values(msgspec.to_builtins(answer))
        if not isinstance(answer, world.Instance):
            return answer
        wrong = world.AdminChange(joins=False)
        if fault.kind == "doomed":
            wrong = world.AdminChange(state="error", reason=fault.message)
        return self.world.update(answer.id, wrong)


serve = fake_api.serve


def _bucket(rate: float) -> Bucket | None:
    """Return a rate limiter with a burst of one second; None for no limit."""
    return Bucket(qps=rate, burst=max(1.0, rate)) if rate else None


def _take_token(bucket: Bucket | None) -> float:
    """Take a token; return 0.0 on success, otherwise the seconds until a token is available."""
    now = clock.monotonic()
    return 0.0 if bucket is None or bucket.take(now) else bucket.missing_s(now)


def add_unknown_values(answer: Any) -> Any:
    """Return a valid response as a later API version might send it, with unknown values."""
    if isinstance(answer, list | tuple):
        return [add_unknown_values(value) for value in answer]
    if not isinstance(answer, dict):
        return answer
    changed = {name: add_unknown_values(value) for name, value in answer.items()} | {
        "novelty": {"is": [1]}
    }
    if "state" in answer:
        changed["state"] = "dreaming"
    if "labels" in answer:
        changed["labels"] = answer["labels"]
    if "addresses" in answer:
        pigeon = {"kind": "carrier_pigeon", "value": "coo", "ring": 7}
        changed["addresses"] = [pigeon, *answer["addresses"]]
    return changed


# --- operations ---------------------------------------------------------------------------------

Handler = Callable[[Service, DecodedRequest], Any]


class Operation(msgspec.Struct, frozen=True):
    """Operation of the API; `route` is method and path.

    `does` is a function, or the name of a method of `CloudState` or of one of its parts. The method
    gets the ID from the path, and the body, if the request has them.
    """

    name: str
    route: str
    does: str | Handler
    status: int = 200
    body: Any = None
    query: type[msgspec.Struct] = NoQuery

    def handle(self, cloud: Service, asked: DecodedRequest) -> Any:
        """Run the operation."""
        if not isinstance(self.does, str):
            return self.does(cloud, asked)
        arguments = [argument for argument in (asked.id, asked.body) if argument]
        return operator.attrgetter(self.does)(cloud.worlds)(*arguments)


def _cursor(after: int | None) -> str | None:
    return None if after is None else f"after-{after:x}"


def _list_instances(cloud: Service, asked: DecodedRequest) -> Any:
    page = cloud.world.page(
        limit=min(asked.query.limit, cloud.settings.page_size),
        after=asked.query.start,
        **asked.query.filters(),
        stale_s=cloud.settings.list_delay_s,
    )
    return {"instances": page.instances, "next_cursor": _cursor(page.after)}


def _list_handler(part: str) -> Handler:
    def handle(cloud: Service, asked: DecodedRequest) -> Any:
        query = asked.query
        store: world.ObjectStore[Any] = getattr(cloud.worlds, part)
        items = store.list(**query.filters())
        end = query.start + min(query.limit, cloud.settings.page_size)
        more = _cursor(end if end < len(items) else None)
        return {part: items[query.start : end], "next_cursor": more}

    return handle


def _add_faults(cloud: Service, asked: DecodedRequest) -> None:
    for fault in asked.body.faults:
        cloud.script.add(fault)


def _change_settings(cloud: Service, asked: DecodedRequest) -> state.Settings:
    cloud.change_settings(world.apply_change(cloud.settings, asked.body))
    return cloud.settings


def _list_calls(cloud: Service, asked: DecodedRequest) -> Any:
    entries = [entry for entry in cloud.calls.entries if entry.sequence > asked.query.after]
    return {"calls": entries, "counts": dict(cloud.calls), "total": cloud.calls.total()}


def _snapshot(cloud: Service, _: DecodedRequest) -> Any:
    return {
        "instances": cloud.world.snapshot(),
        "balancers": cloud.worlds.balancers.list(),
        "routes": cloud.worlds.routes.list(),
        "volumes": cloud.worlds.volumes.list(),
        "next_cursor": None,
    }


def _admin_variant(row: Operation, **changes: Any) -> Operation:
    """Return the administrator's variant of an operation."""
    route = row.route.replace("/v1/", "/admin/", 1)
    return msgspec.structs.replace(row, name=f"admin_{row.name}", route=route, **changes)


_INSTANCE_PATH = "/v1/instances/{id}"
_BALANCER_PATH = "/v1/balancers/{id}"

_UPDATE = Operation(
    "update_instance", f"PATCH {_INSTANCE_PATH}", "instances.update", body=world.Change
)
_DELETE = Operation("delete_instance", f"DELETE {_INSTANCE_PATH}", "instances.delete", 204)
_ACT = Operation(
    "act_on_instance",
    f"POST {_INSTANCE_PATH}/actions",
    lambda cloud, asked: cloud.world.act(asked.id, asked.body.action),
    body=ActionRequest,
)


def _crud_operations(
    kind: str, part: str, order: type[msgspec.Struct], query: type[PageQuery]
) -> tuple[Operation, ...]:
    """Return the list, create and delete operations of a kind, for clients and administrator."""
    rows = (
        Operation(f"list_{part}", f"GET /v1/{part}", _list_handler(part), query=query),
        Operation(f"create_{kind}", f"POST /v1/{part}", f"{part}.create", 201, order),
        Operation(f"delete_{kind}", f"DELETE /v1/{part}/{{id}}", f"{part}.delete", 204),
    )
    # `admin_delete_balancer` below also deletes protected load balancers.
    twins = rows[:2] if kind == "balancer" else rows
    return (*rows, *(_admin_variant(row) for row in twins))


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "list_instances", "GET /v1/instances", _list_instances, query=_query("name", "label")
    ),
    Operation(
        "get_instance",
        f"GET {_INSTANCE_PATH}",
        lambda cloud, asked: cloud.world.get(asked.id, stale_s=cloud.settings.get_delay_s),
    ),
    Operation("create_instance", "POST /v1/instances", "order", 201, state.Order),
    _UPDATE,
    _DELETE,
    _ACT,
    *_crud_operations(
        "balancer", "balancers", world_balancers.NewBalancer, _query("name", "cluster")
    ),
    Operation("get_balancer", f"GET {_BALANCER_PATH}", "balancers.get"),
    Operation(
        "change_balancer",
        f"PUT {_BALANCER_PATH}",
        "balancers.change",
        body=world_balancers.BalancerSpec,
    ),
    Operation(
        "set_members",
        f"PUT {_BALANCER_PATH}/members",
        lambda cloud, asked: cloud.worlds.balancers.set_members(asked.id, asked.body.members),
        body=Members,
    ),
    Operation(
        "rename_balancer",
        f"PUT {_BALANCER_PATH}/name",
        lambda cloud, asked: cloud.worlds.balancers.rename(asked.id, asked.body.name),
        body=NewName,
    ),
    *_crud_operations("route", "routes", world.NewRoute, _query("cluster")),
    *_crud_operations("volume", "volumes", world.NewVolume, _query("label")),
    Operation(
        "admin_put_instances",
        "POST /admin/instances",
        lambda cloud, asked: {"instances": cloud.world.put_all(asked.body.instances)},
        201,
        GivenInstances,
    ),
    _admin_variant(_UPDATE, body=world.AdminChange),
    _admin_variant(_DELETE, does=lambda cloud, asked: cloud.world.delete(asked.id, at_once=True)),
    _admin_variant(_ACT),
    Operation("admin_get_user_data", "GET /admin/instances/{id}/user-data", "user_data"),
    Operation(
        "admin_update_balancer",
        "PATCH /admin/balancers/{id}",
        "balancers.interfere",
        body=world_balancers.BalancerAdminChange,
    ),
    Operation("admin_delete_balancer", "DELETE /admin/balancers/{id}", "balancers.remove", 204),
    Operation("admin_add_faults", "POST /admin/faults", _add_faults, 204, Faults),
    Operation("admin_clear_faults", "DELETE /admin/faults", lambda cloud, _: cloud.heal(), 204),
    Operation("admin_get_settings", "GET /admin/settings", lambda cloud, _: cloud.settings),
    Operation(
        "admin_change_settings", "PATCH /admin/settings", _change_settings, body=SettingsChange
    ),
    Operation("admin_list_calls", "GET /admin/calls", _list_calls, query=CallsQuery),
    Operation(
        "admin_clear_calls", "DELETE /admin/calls", lambda cloud, _: cloud.calls.clear(), 204
    ),
    Operation("admin_snapshot", "GET /admin/snapshot", _snapshot),
)
