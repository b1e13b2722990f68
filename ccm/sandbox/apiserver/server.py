"""The HTTP side: plain HTTP/1.1 on loopback in front of the verbs and watches.

One handler takes every request, because API paths carry their meaning in their
steps and a router would only be in the way. A request is authenticated, routed,
carried out and answered; refusals are Status objects.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import gzip
import sys
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
from aiohttp import web

from ccm.sandbox.apiserver import (
    api,
    deletion,
    discovery,
    errors,
    kinds,
    ledger,
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

_GZIP_FROM_BYTES = 128 * 1024
_FUTURE_WAIT_S = 3.0
_STALLED_WRITE_S = 30.0
_KEEPALIVE_S = 3630.0
_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
_PUBLIC_PATHS = (*_HEALTH_PATHS, "/version")
_AGGREGATED_GROUP = "apidiscovery.k8s.io"
_VERBS = {"PUT": "update", "PATCH": "patch"}


class Server:
    """Answers API requests on one store.

    With a token every request must bring it, as a bearer token or as the password of
    basic authentication (kubectl never sends a bearer token over plain HTTP).
    """

    def __init__(
        self,
        store: stores.Store,
        *,
        token: str = "",
        bookmark_interval_s: float = watch.BOOKMARK_INTERVAL_S,
        cluster_ips: Sequence[ledger.Network] = ledger.CLUSTER_IPS,
    ) -> None:
        self._api = api.Api(store, cluster_ips=cluster_ips)
        self._store = store
        self._token = token
        self._bookmark_interval_s = bookmark_interval_s

    def publish(self, port: int) -> None:
        """Keep the Service `kubernetes`, now that the port is known."""
        self._api.publish(port)

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
        path = request.path
        if self._token and path not in _PUBLIC_PATHS:
            self._authenticate(request.headers.get("Authorization", ""))
        target = routes.parse(path)
        if target is None:
            return await self._answer_about_itself(request)
        if target.name:
            return await self._answer_object(request, target)
        return await self._answer_collection(request, target)

    def _authenticate(self, header: str) -> None:
        scheme, _, value = header.partition(" ")
        if scheme.lower() == "basic":
            with contextlib.suppress(binascii.Error, UnicodeDecodeError):
                value = base64.b64decode(value).decode().partition(":")[2]
        if scheme.lower() not in ("basic", "bearer") or value.strip() != self._token:
            raise errors.unauthorized()

    async def _answer_about_itself(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        accept = request.headers.get("Accept", "")
        if path.startswith(_HEALTH_PATHS):
            return web.Response(text="ok")
        wished = [form for _, form in render.alternatives(accept)]
        aggregated = any(
            form.get("g") == _AGGREGATED_GROUP and form.get("v") == "v2" for form in wished
        )
        found = discovery.answer(path, aggregated=aggregated)
        media = render.JSON
        if found is not None and aggregated and path in ("/api", "/apis"):
            media += f";g={_AGGREGATED_GROUP};v=v2;as=APIGroupDiscoveryList"
        if found is None:
            found = openapi.answer(path)
        if found is None:
            return web.Response(status=404, text="404 page not found\n")
        return await self._send(request, msgspec.json.encode(found), media=media)

    async def _answer_collection(
        self, request: web.BaseRequest, target: api.Target
    ) -> web.StreamResponse:
        if request.method == "GET":
            return await self._list_or_watch(request, target)
        if request.method == "POST" and not (target.kind.namespaced and not target.namespace):
            _check_verb(target, "create")
            options = query.write_options(request.query)
            renderer = _renderer(request, target.kind)
            body, content_type = await _body(request)
            written = self._api.create(target, body, content_type, options)
            return await self._send_written(request, renderer, written)
        if request.method == "DELETE" and not (target.kind.namespaced and not target.namespace):
            _check_verb(target, "deletecollection")
            selection = query.list_options(target.kind, request.query)
            options_body, content_type = await _body(request)
            deleting = deletion.options(options_body, content_type, dict(request.query))
            page = self._api.delete_collection(target, selection, deleting)
            return await self._send_page(request, _renderer(request, target.kind), page)
        raise errors.method_not_allowed()

    async def _list_or_watch(
        self, request: web.BaseRequest, target: api.Target
    ) -> web.StreamResponse:
        options = query.list_options(target.kind, request.query)
        _check_verb(target, "watch" if options.watch else "list")
        renderer = _renderer(request, target.kind)
        if options.watch:
            if options.initial_events is not None:
                await self._wait_for(options.revision)
            return await self._watch(request, target, options, renderer)
        await self._wait_for(options.revision)
        return await self._send_page(request, renderer, self._api.list_page(target, options))

    async def _answer_object(
        self, request: web.BaseRequest, target: api.Target
    ) -> web.StreamResponse:
        renderer = _renderer(request, target.kind)
        if request.method == "GET":
            _check_verb(target, "get")
            options = query.list_options(target.kind, request.query)
            await self._wait_for(options.revision)
            return await self._send(request, renderer.one(self._api.get(target)))
        body, content_type = await _body(request)
        if request.method == "DELETE" and not target.subresource:
            _check_verb(target, "delete")
            deleting = deletion.options(body, content_type, dict(request.query))
            written = self._api.delete(target, deleting)
            if written.deleted and not api.is_returned_when_deleted(target.kind):
                return await self._send(request, _success(target, written))
            return await self._send(request, renderer.one(written.entry))
        if request.method not in _VERBS:
            raise errors.method_not_allowed()
        _check_verb(target, _VERBS[request.method])
        write = self._api.update if request.method == "PUT" else self._api.patch
        written = write(target, body, content_type, query.write_options(request.query))
        return await self._send_written(request, renderer, written)

    async def _wait_for(self, revision: int | None) -> None:
        """Wait a little for a revision that has not happened yet.

        Raises:
            ApiError: 504, it still has not.
        """
        if revision is None or revision <= self._store.revision:
            return
        try:
            async with asyncio.timeout(_FUTURE_WAIT_S):
                await self._store.reached(revision)
        except TimeoutError as error:
            raise errors.too_large_version(revision, self._store.revision) from error

    async def _watch(
        self,
        request: web.BaseRequest,
        target: api.Target,
        options: query.ListOptions,
        renderer: render.Renderer,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": render.JSON})
        await response.prepare(request)
        wishes = watch.Watch(
            kind=target.kind,
            namespace=target.namespace,
            options=options,
            renderer=renderer,
            bookmark_interval_s=self._bookmark_interval_s,
        )
        with contextlib.suppress(ConnectionError, TimeoutError):
            async for chunk in watch.stream(self._store, wishes):
                async with asyncio.timeout(_STALLED_WRITE_S):
                    await response.write(chunk)
            await response.write_eof()
        return response

    async def _send_page(
        self, request: web.BaseRequest, renderer: render.Renderer, page: listing.Page
    ) -> web.StreamResponse:
        meta = render.ListMeta(
            revision=page.revision, next_token=page.next_token, remaining=page.remaining
        )
        return await self._send(request, renderer.many(page.entries, meta))

    async def _send_written(
        self, request: web.BaseRequest, renderer: render.Renderer, written: api.Written
    ) -> web.StreamResponse:
        return await self._send(
            request,
            renderer.one(written.entry),
            status=201 if written.created else 200,
            warnings=written.warnings,
        )

    async def _send(
        self,
        request: web.BaseRequest,
        body: bytes,
        *,
        status: int = 200,
        warnings: tuple[str, ...] = (),
        media: str = render.JSON,
    ) -> web.StreamResponse:
        encoding = ""
        if len(body) > _GZIP_FROM_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
            # Off the loop: it frees the interpreter while it works.
            body = await asyncio.to_thread(gzip.compress, body, 1)
            encoding = "gzip"
        response = web.Response(body=body, status=status, headers={"Content-Type": media})
        if encoding:
            response.headers["Content-Encoding"] = encoding
            response.headers["Vary"] = "Accept-Encoding"
        for text in warnings:
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{quoted}"')
        return response


@contextlib.asynccontextmanager
async def serve(
    store: stores.Store,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    bookmark_interval_s: float = watch.BOOKMARK_INTERVAL_S,
    cluster_ips: Sequence[ledger.Network] = ledger.CLUSTER_IPS,
) -> AsyncIterator[str]:
    """Serve a store until the block ends; yields the URL. The store is closed at the end.

    Port 0 takes a free one. `cluster_ips` are one or two ranges of different families.

    Raises:
        OSError: the port cannot be had.
    """
    answers = Server(
        store, token=token, bookmark_interval_s=bookmark_interval_s, cluster_ips=cluster_ips
    )
    # A watcher that left must not keep a stream open until the next change.
    http = web.Server(
        answers.handle,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=_KEEPALIVE_S,
    )
    runner = web.ServerRunner(http, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024, reuse_address=True)
        await site.start()
        bound = runner.addresses[0][1]
        answers.publish(bound)
        yield f"http://{host}:{bound}"
    finally:
        store.close()
        await runner.cleanup()


def _check_verb(target: api.Target, verb: str) -> None:
    allowed = kinds.STATUS_VERBS if target.subresource else target.kind.verbs
    if verb not in allowed:
        raise errors.method_not_allowed()


def _renderer(request: web.BaseRequest, kind: kinds.Kind) -> render.Renderer:
    return render.choose(kind, request.headers.get("Accept", ""), request.query)


async def _body(request: web.BaseRequest) -> tuple[bytes, str]:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise errors.too_large()
    body = b""
    if request.body_exists:
        body = await request.content.read(MAX_BODY_BYTES + 1)
        while not request.content.at_eof() and len(body) <= MAX_BODY_BYTES:
            body += await request.content.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise errors.too_large()
    return body, request.content_type


def _success(target: api.Target, written: api.Written) -> bytes:
    uid = written.entry.body()["metadata"]["uid"]
    return msgspec.json.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {**target.kind.resource.details(target.name), "uid": uid},
        }
    )


def _refusal(error: errors.ApiError) -> web.Response:
    headers = {"Content-Type": render.JSON}
    wait: Mapping[str, object] = error.details or {}
    if "retryAfterSeconds" in wait:
        headers["Retry-After"] = str(wait["retryAfterSeconds"])
    body = msgspec.json.encode(error.status())
    return web.Response(body=body, status=error.code, headers=headers)
