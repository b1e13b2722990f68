"""The HTTP side: HTTP/1.1 on loopback, plain or over TLS, in front of the verbs and watches.

One handler takes every request, because API paths carry their meaning in their
steps and a router would only be in the way. A request is authenticated, routed,
carried out and answered; refusals are Status objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import ssl
import sys
import traceback
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from ccm.sandbox.apiserver import (
    allocate,
    api,
    decode,
    discovery,
    errors,
    kinds,
    listing,
    openapi,
    query,
    render,
    routes,
    watch,
)
from ccm.sandbox.apiserver import store as stores

MAX_BODY_BYTES = 3 * 1024 * 1024
"""The largest request body; kube-apiserver's limit."""

_STALLED_WRITE_S = 30.0
_KEEPALIVE_S = 3630.0
_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
_PUBLIC_PATHS = (*_HEALTH_PATHS, "/version")
_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A request that is about objects."""

    http: web.BaseRequest
    target: routes.Target
    renderer: render.Whole
    body: bytes
    content_type: str

    def selection(self) -> query.ListOptions:
        return query.list_options(self.target.kind, self.http.query)


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """Answers API requests on one store.

    With a token every request must bring it.
    """

    verbs: api.Api
    token: str
    bookmark_interval_s: float

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        try:
            return await self._answer(request)
        except errors.ApiError as error:
            return _refusal(error)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug must be an answer, not silence
            traceback.print_exc(file=sys.stderr)
            return _refusal(errors.ApiError(500, "InternalError", f"Internal error: {error!r}"))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        if self.token and path not in _PUBLIC_PATHS:
            self._authenticate(request)
        if path.startswith(_HEALTH_PATHS):
            return web.Response(text="ok")
        served = self.verbs.store.kinds
        target = routes.parse(served, path)
        if target is not None:
            return await self._act(request, target)
        found = discovery.answer(served, path) or openapi.answer(served, path)
        if found is None:
            return web.Response(status=404, text="404 page not found\n")
        return _send(msgspec.json.encode(found))

    def _authenticate(self, request: web.BaseRequest) -> None:
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and value.strip() == self.token:
            return
        raise errors.ApiError(401, "Unauthorized", "Unauthorized")

    async def _act(self, request: web.BaseRequest, target: routes.Target) -> web.StreamResponse:
        verb = (_OBJECT_VERBS if target.name else _COLLECTION_VERBS).get(request.method, "")
        if verb == "list" and request.query.get("watch") in ("1", "true"):
            verb = "watch"
        part = target.subresource
        if part == kinds.EVICTION and request.method == "POST":
            verb = "create"
        allowed = target.kind.part_verbs(part) if part else target.kind.verbs
        everywhere = target.kind.namespaced and not target.namespace
        if verb not in allowed or (everywhere and verb not in ("list", "watch")):
            text = "the server does not allow this method on the requested resource"
            raise errors.ApiError(405, "MethodNotAllowed", text)
        renderer = render.choose(target.kind, request.headers.get("Accept", ""), request.query)
        body = b"" if verb in ("get", "list", "watch") else await _body(request)
        call = _Call(request, target, renderer, body, request.content_type)
        act = {
            "get": self._get, "list": self._list, "watch": self._watch, "delete": self._delete,
            "deletecollection": self._delete_collection,
        }.get(verb)  # fmt: skip
        return await act(call) if act else await self._write(call, verb)

    async def _get(self, call: _Call) -> web.StreamResponse:
        return _send(call.renderer.one(self.verbs.get(call.target)))

    async def _list(self, call: _Call) -> web.StreamResponse:
        kind, namespace = call.target.kind, call.target.namespace
        return _send_page(call, listing.page(self.verbs.store, kind, namespace, call.selection()))

    async def _watch(self, call: _Call) -> web.StreamResponse:
        options = call.selection()
        response = web.StreamResponse(headers={"Content-Type": render.JSON})
        await response.prepare(call.http)
        wishes = watch.Watch(
            kind=call.target.kind,
            namespace=call.target.namespace,
            options=options,
            renderer=call.renderer,
            bookmark_interval_s=self.bookmark_interval_s,
        )
        with contextlib.suppress(ConnectionError, TimeoutError):
            async for chunk in watch.stream(self.verbs.store, wishes):
                async with asyncio.timeout(_STALLED_WRITE_S):
                    await response.write(chunk)
            await response.write_eof()
        return response

    async def _write(self, call: _Call, verb: str) -> web.StreamResponse:
        options = query.write_options(call.http.query)
        if call.target.subresource == kinds.EVICTION:
            self.verbs.evict(call.target, call.body, call.content_type)
            return _send(msgspec.json.encode(errors.status_object("Success", code=201)), 201)
        act = {"create": self.verbs.create, "update": self.verbs.update, "patch": self.verbs.patch}
        written = act[verb](call.target, call.body, call.content_type, options)
        response = _send(call.renderer.one(written.entry), 201 if written.created else 200)
        for text in written.warnings:
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{quoted}"')
        return response

    async def _delete(self, call: _Call) -> web.StreamResponse:
        target = call.target
        options = decode.delete_options(call.body, call.content_type, dict(call.http.query))
        written = self.verbs.delete(target, options)
        if not written.deleted or target.kind.is_returned_when_deleted:
            return _send(call.renderer.one(written.entry))
        uid = written.entry.body()["metadata"]["uid"]
        details = {**target.kind.details(target.name), "uid": uid}
        success = errors.status_object("Success", details=details)
        return _send(msgspec.json.encode(success))

    async def _delete_collection(self, call: _Call) -> web.StreamResponse:
        options = decode.delete_options(call.body, call.content_type, dict(call.http.query))
        page = self.verbs.delete_collection(call.target, call.selection(), options)
        return _send_page(call, page)


@contextlib.asynccontextmanager
async def serve(
    store: stores.Store,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    bookmark_interval_s: float = watch.BOOKMARK_INTERVAL_S,
    cluster_ips: allocate.Networks = allocate.CLUSTER_IPS,
) -> AsyncIterator[str]:
    """Serve a store until the block ends; yields the URL. The store is closed at the end.

    Port 0 takes a free one; with `tls` it is HTTPS. `cluster_ips` are one or two ranges of
    different families.

    Raises:
        OSError: the port cannot be had.
    """
    verbs = api.Api(store, cluster_ips=cluster_ips, token=token)
    answers = Server(verbs, token, bookmark_interval_s)
    # A watcher that left must not keep a stream open until the next change.
    http = web.Server(
        answers.handle,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=_KEEPALIVE_S,
        request_factory=functools.partial(
            web.BaseRequest, loop=asyncio.get_running_loop(), client_max_size=MAX_BODY_BYTES
        ),
    )
    runner = web.ServerRunner(http, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024, reuse_address=True, ssl_context=tls)
        await site.start()
        bound = runner.addresses[0][1]
        verbs.publish(bound)
        yield f"{'https' if tls else 'http'}://{host}:{bound}"
    finally:
        store.close()
        await runner.cleanup()


async def _body(request: web.BaseRequest) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise errors.ApiError(413, "RequestEntityTooLarge", "limit is 3145728") from error


def _send_page(call: _Call, page: listing.Page) -> web.StreamResponse:
    return _send(call.renderer.many(page.entries, page.meta))


def _send(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": render.JSON})


def _refusal(error: errors.ApiError) -> web.Response:
    response = _send(msgspec.json.encode(error.status()), error.code)
    if pause_s := error.details.get("retryAfterSeconds"):
        response.headers["Retry-After"] = str(pause_s)
    return response
