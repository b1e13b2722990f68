"""Port-forwarding to Pods: data, and errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from ccm.kube import errors
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import StaticCredentials, TlsSettings, bearer
from ccm.kube.portforward import LOOPBACK, PortForward, forward_port
from tests.scenario.forwarding import Kubelet
from tests.waiting import DEADLINE_S

PATH = "/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def api_server(handler: Handler) -> AsyncIterator[ClusterConfig]:
    """Run an API server whose port-forward has this handler."""
    app = web.Application()
    app.router.add_get(PATH, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield ClusterConfig(
            server=f"http://{LOOPBACK}:{runner.addresses[0][1]}",
            credentials=StaticCredentials(bearer("who-i-am")),
            tls=TlsSettings(),
        )
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """Serve a port that echoes each line until an empty one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()).strip():
            writer.write(line)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0, limit=1 << 20)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def way(config: ClusterConfig, port: int) -> contextlib.AbstractAsyncContextManager[PortForward]:
    return forward_port(config, namespace="kube-system", pod="ccm-0", port=port)


async def said(forward: PortForward, *lines: bytes) -> bytes:
    """Return what is received until the peer closes."""
    reader, writer = await asyncio.open_connection(LOOPBACK, forward.port)
    for line in lines:
        writer.write(line)
    async with asyncio.timeout(DEADLINE_S):
        found = await reader.read()
    writer.close()
    return found


async def test_port_forward_carries_bytes_both_ways_per_connection() -> None:
    kubelet, long = Kubelet(), b"x" * 200_000 + b"\n"

    async with (
        echo() as port,
        api_server(kubelet.of_api_server) as config,
        way(config, port) as forward,
    ):
        assert await said(forward, b"one\n", b"\n") == b"one\n"
        assert await said(forward, long, b"\n") == long

    assert (
        kubelet.asked == [f"/api/v1/namespaces/kube-system/pods/ccm-0/portforward?ports={port}"] * 2
    )
    assert kubelet.tokens == ["Bearer who-i-am"] * 2


async def test_port_forward_refusal_raises_the_error_of_the_api_server() -> None:
    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response({}, status=403)

    async with api_server(refuse) as config:
        with pytest.raises(errors.Forbidden):
            async with way(config, 1):
                pass


async def test_port_forward_without_websocket_is_unreachable() -> None:
    async def page(_request: web.Request) -> web.StreamResponse:
        return web.Response(text="hello")

    async with api_server(page) as config:
        with pytest.raises(errors.Unreachable, match="port-forward through"):
            async with way(config, 1):
                pass


async def test_exception_inside_the_port_forward_is_raised_unchanged() -> None:
    async with echo() as port, api_server(Kubelet().of_api_server) as config:
        with pytest.raises(KeyError):
            async with way(config, port):
                raise KeyError("mine")
