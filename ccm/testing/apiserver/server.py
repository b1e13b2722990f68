"""HTTP/1.1 server on loopback, with or without TLS.

One handler takes every request: a router cannot express the nested API paths.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import ssl
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from aiohttp import web

from ccm.base import files
from ccm.testing.apiserver import api, errors, requests, services
from ccm.testing.apiserver import store as stores

LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 3 * 1024 * 1024
"""Maximum size of a request body (kube-apiserver)."""

_STALLED_WRITE_S = 30.0
_KEEPALIVE_S = 3630.0
_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
_PUBLIC_PATHS = (*_HEALTH_PATHS, "/version")
_CONTEXT = "ccm-sandbox"
_HEADERS = {
    "Content-Type": api.JSON,
    "X-Kubernetes-PF-FlowSchema-UID": "11111111-1111-4111-8111-111111111111",
}
"""Headers of each response; like kube-apiserver, this server limits no client by a rate."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Server:
    front: requests.RequestHandler
    token: str
    """Bearer token that requests must carry, except for `_PUBLIC_PATHS`; empty = none is needed."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except errors.StatusError as error:
            response = _send(msgspec.json.encode(error.status()), error.code)
            if pause_s := error.details.get("retryAfterSeconds"):
                response.headers["Retry-After"] = str(pause_s)
            return response
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - clients get a bug as status 500
            traceback.print_exc(file=sys.stderr)
            failure = errors.StatusError(500, "InternalError", f"Internal error: {error!r}")
            return _send(msgspec.json.encode(failure.status()), 500)

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        path = http.path.rstrip("/") or "/"
        scheme, _, value = http.headers.get("Authorization", "").partition(" ")
        knows = scheme.lower() == "bearer" and value.strip() == self.token
        if self.token and not knows and path not in _PUBLIC_PATHS:
            raise errors.StatusError(401, "Unauthorized", "Unauthorized")
        if path.startswith(_HEALTH_PATHS):
            return web.Response(text="ok")
        request = api.ApiRequest(
            method=http.method,
            path=path,
            query=http.query,
            body=b"" if http.method == "GET" else await _body(http),
            content_type=http.content_type,
            accept=http.headers.get("Accept", ""),
        )
        if (stream := self.front.watch(request)) is not None:
            return await _send_stream(http, stream)
        answer = self.front.handle(request)
        response = _send(answer.body, answer.status)
        for text in answer.warnings:
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{quoted}"')
        return response


@contextlib.asynccontextmanager
async def serve(
    store: stores.ObjectStore,
    *,
    port: int = 0,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    cluster_ips: services.Networks = services.CLUSTER_IPS,
) -> AsyncIterator[str]:
    """Serve a store until the block ends, and then close the store; yield the URL.

    Args:
        port: TCP port; 0 = any free port.
        tls: context for HTTPS; None = HTTP.
        cluster_ips: one or two ranges of different families.

    Raises:
        OSError: the port is not available.
    """
    verbs = api.Api(store, cluster_ips=cluster_ips, token=token)
    front = requests.RequestHandler(verbs)
    # Cancel the handler of a disconnected watcher, which otherwise waits for the next change.
    http = web.Server(
        _Server(front, token).handle,
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
        site = web.TCPSite(
            runner, LOOPBACK, port, backlog=1024, reuse_address=True, ssl_context=tls
        )
        await site.start()
        bound = runner.addresses[0][1]
        verbs.publish(bound)
        yield f"{'https' if tls else 'http'}://{LOOPBACK}:{bound}"
    finally:
        store.close()
        await runner.cleanup()


async def _body(request: web.BaseRequest) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        text = f"the body is larger than {MAX_BODY_BYTES} bytes"
        raise errors.StatusError(413, "RequestEntityTooLarge", text) from error


async def _send_stream(
    request: web.BaseRequest, stream: AsyncIterator[bytes]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_HEADERS)
    await response.prepare(request)
    with contextlib.suppress(ConnectionError, TimeoutError):
        async for chunk in stream:
            async with asyncio.timeout(_STALLED_WRITE_S):
                await response.write(chunk)
        await response.write_eof()
    return response


def _send(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers=_HEADERS)


def write_kubeconfig(path: Path, *, url: str, token: str, ca_file: Path | None = None) -> None:
    """Write a kubeconfig with one context, readable only by its owner.

    Args:
        url: base URL of the API server.
        token: bearer token of the user; empty for a server without authentication.
        ca_file: CA certificates of the server; None for plain HTTP.
    """
    proof = {"certificate-authority": str(ca_file)} if ca_file else {}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _CONTEXT, "cluster": {"server": url, **proof}}],
        "users": [{"name": _CONTEXT, "user": {"token": token} if token else {}}],
        "contexts": [{"name": _CONTEXT, "context": {"cluster": _CONTEXT, "user": _CONTEXT}}],
        "current-context": _CONTEXT,
    }
    files.write_private(path, json.dumps(document, indent=2) + "\n")
