"""The port of these commands: plain HTTP, for everybody, as the Go programs have it.

What can be read there is health, metrics and settings, and with `--profiling` profiles; nothing can
be changed. `--address` says who reaches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from ccm.app import metrics as own_metrics
from ccm.app.clients import platform_name
from ccm.app.machines.options import CommandOptions
from ccm.app.provider import Misconfigured
from ccm.app.serving.health import Checks
from ccm.app.serving.server import ServerContext, exposition
from ccm.base import log, redact
from ccm.base.tasks import cancel_and_join, spawn
from ccm.serving import http, listener
from ccm.serving.health import Health
from ccm.serving.profiling import Profiling
from ccm.serving.slis import Slis


@asynccontextmanager
async def serving(context: ServerContext) -> AsyncIterator[asyncio.Task[None]]:
    """Serve inside the block; the task ends only by an exception.

    Raises:
        Misconfigured: the port cannot be opened.
    """
    options = context.options
    assert isinstance(options, CommandOptions)
    with contextlib.closing(_bind(options)) as port:
        task = spawn(_serve(context, options, port), name="serving")
        try:
            yield task
        finally:
            await cancel_and_join(task)


def _bind(options: CommandOptions) -> socket.socket:
    port = options.by_flag["port"]
    try:
        return listener.bind(listener.Endpoint(address=options.by_flag["address"], port=port))
    except listener.ListenError as error:
        raise Misconfigured(f"--port={port}: {error}") from error


async def _serve(context: ServerContext, options: CommandOptions, port: socket.socket) -> None:
    own_metrics.describe(platform_name())
    async with AsyncExitStack() as stack:
        checks = context.checks()
        stack.push_async_callback(checks.close)
        found = Pages(pages(context, options, checks))
        server = http.Server(found.answer, name="plain")
        stack.push_async_callback(server.close)
        await server.start(port)
        host, number = port.getsockname()[:2]
        log.logger("serving").info("serving", address=f"{host}:{number}")
        await context.vitals.beat()


def pages(
    context: ServerContext, options: CommandOptions, checks: Checks
) -> dict[str, http.Handler]:
    """What is served, by path; one that ends with a slash covers all below it."""
    slis = Slis()

    async def healthz(request: http.Request) -> http.Response:
        # The reference's words: it fails once the process is told to stop.
        answer = await alive.all(request)
        is_well = answer.status == 200 and not context.vitals.stopping()
        return http.text("OK") if is_well else http.text("Unhealthy", 500)

    async def configz(_request: http.Request) -> http.Response:
        told = {name: redact.words(text) for name, text in options.written().items()}
        return http.Response(body=_json({"componentconfig": told}), content_type=http.JSON)

    alive = Health("livez", checks.livez, slis=slis)
    found: dict[str, http.Handler] = {
        "/healthz": healthz,
        "/metrics": exposition,
        "/metrics/slis": slis.page,
        "/configz": configz,
        **alive.pages,
        **Health("readyz", checks.readyz, slis=slis).pages,
    }
    return found | (Profiling().pages if options.profiling else {})


class Pages:
    """Answers whoever asks: nothing here is anybody's alone, so nobody is asked who they are.

    Args:
        pages: see the function of that name.
    """

    def __init__(self, pages: Mapping[str, http.Handler]) -> None:
        self._pages = pages

    async def answer(self, request: http.Request) -> http.Response:
        """Answer one request; the server is only read."""
        if request.method not in ("GET", "HEAD"):
            return http.text("method not allowed\n", 405, ("Allow", "GET, HEAD"))
        page = self._pages.get(request.path) or self._below(request.path)
        return http.text("404 page not found\n", 404) if page is None else await page(request)

    def _below(self, path: str) -> http.Handler | None:
        folders = [one for one in self._pages if one.endswith("/") and path.startswith(one)]
        return self._pages[max(folders, key=len)] if folders else None


def _json(document: object) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
