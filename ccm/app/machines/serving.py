"""The HTTP server of the machine commands: no TLS and no authentication, as in the Go programs.

The server offers health, metrics and settings, read-only. `--address` sets the listen address.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ccm.app import metrics as own_metrics
from ccm.app.clients import platform_name
from ccm.app.health import Checks
from ccm.app.http import ServerContext, metrics_page
from ccm.app.provider import Misconfigured
from ccm.base import log, redact
from ccm.base.tasks import cancel_and_join, spawn
from ccm.serving import acceptor, http
from ccm.serving.health import HealthEndpoint, Slis


@asynccontextmanager
async def serving(context: ServerContext) -> AsyncIterator[asyncio.Task[None]]:
    """Serve HTTP inside the block; the yielded task ends only with an exception.

    Raises:
        Misconfigured: the port cannot be opened.
    """
    options: Any = context.options  # `commands.CommandOptions`, whose module needs this one
    try:
        port = acceptor.bind(acceptor.Endpoint(address=options.address, port=options.port))
    except acceptor.ListenError as error:
        raise Misconfigured(f"--port={options.port}: {error}") from error
    with contextlib.closing(port):
        task = spawn(_serve(context, port), name="serving")
        try:
            yield task
        finally:
            await cancel_and_join(task)


async def _serve(context: ServerContext, port: socket.socket) -> None:
    own_metrics.describe(platform_name())
    async with AsyncExitStack() as stack:
        checks = context.checks()
        stack.push_async_callback(checks.close)
        handlers = pages(context, checks)

        async def answer(request: http.Request) -> http.Response:
            if request.method not in ("GET", "HEAD"):
                return http.text("method not allowed\n", 405, ("Allow", "GET, HEAD"))
            page = http.find_page(handlers, request.path)
            return http.text("404 page not found\n", 404) if page is None else await page(request)

        server = http.Server(answer, name="plain")
        stack.push_async_callback(server.close)
        await server.start(port)
        host, number = port.getsockname()[:2]
        log.logger("serving").info("serving", address=f"{host}:{number}")
        await context.vitals.measure_loop_lag()


def pages(context: ServerContext, checks: Checks) -> dict[str, http.Handler]:
    """Return the handlers by path; a path with a trailing slash stands for all paths below it."""
    slis = Slis()

    async def healthz(request: http.Request) -> http.Response:
        # Response bodies as in Gardener's MCM. Unlike /livez, this fails once the process stops.
        answer = await alive.all(request)
        is_well = answer.status == 200 and not context.vitals.stopping()
        return http.text("OK") if is_well else http.text("Unhealthy", 500)

    async def configz(_request: http.Request) -> http.Response:
        written = context.options.written()
        settings = {name: redact.mask_text(text) for name, text in written.items()}
        body = json.dumps({"componentconfig": settings}, indent=2).encode() + b"\n"
        return http.Response(body=body, content_type=http.JSON)

    alive = HealthEndpoint("livez", checks.livez, slis=slis)
    return {
        "/healthz": healthz,
        "/metrics": metrics_page,
        "/metrics/slis": slis.page,
        "/configz": configz,
        **alive.pages,
        **HealthEndpoint("readyz", checks.readyz, slis=slis).pages,
    }
