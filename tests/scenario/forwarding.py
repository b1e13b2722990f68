"""A kubelet that forwards ports, and the Pod that a daemon says it is.

The kubelet speaks what real ones do to an API server: HTTPS with a certificate of its own, and
`v4.channel.k8s.io` on a WebSocket. What comes goes to a port of this machine's loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import WSMsgType, web

from ccm.base import tasks
from ccm.sandbox import process
from tests import pki
from tests.scenario.harness import NODES, Cluster

PROTOCOL = "v4.channel.k8s.io"
PODS = "/api/v1/namespaces/kube-system/pods"


class Kubelet:
    """Forwards ports; `asked` holds path and port of each request."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.tokens: list[str] = []

    async def forward(self, request: web.Request) -> web.WebSocketResponse:
        """One forwarded port, as an API server asks for it."""
        return await self._forward(request, int(request.query["port"]))

    async def of_api_server(self, request: web.Request) -> web.WebSocketResponse:
        """The same as a client asks the API server, without one in between."""
        self.tokens.append(request.headers["Authorization"])
        return await self._forward(request, int(request.query["ports"]))

    async def _forward(self, request: web.Request, port: int) -> web.WebSocketResponse:
        self.asked.append(request.path_qs)
        wire = web.WebSocketResponse(protocols=[PROTOCOL])
        await wire.prepare(request)
        assert wire.ws_protocol == PROTOCOL
        for channel in (0, 1):
            await wire.send_bytes(bytes([channel]) + struct.pack("<H", port))
        try:
            reader, writer = await asyncio.open_connection(process.LOOPBACK, port)
        except OSError as error:
            await wire.send_bytes(b"\x01" + f"cannot connect to {port}: {error}".encode())
        else:
            await tasks.first_of(_up(wire, writer), _down(reader, wire), name="kubelet")
            writer.close()
        await wire.close()
        return wire


async def _up(wire: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
    async for message in wire:
        if message.type is WSMsgType.BINARY:
            assert message.data[0] == 0, "a client sends data only"
            writer.write(message.data[1:])
            await writer.drain()


async def _down(reader: asyncio.StreamReader, wire: web.WebSocketResponse) -> None:
    while data := await reader.read(4096):
        await wire.send_bytes(b"\x00" + data)


@contextlib.asynccontextmanager
async def open_kubelet(folder: Path) -> AsyncIterator[tuple[Kubelet, int]]:
    """A kubelet and its port."""
    made, certificate = Kubelet(), pki.Authority(folder, "kubelets").server(process.LOOPBACK)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.chain, certificate.key)
    app = web.Application()
    app.router.add_get("/portForward/{namespace}/{pod}", made.forward)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        port = process.pick_port()
        await web.TCPSite(runner, process.LOOPBACK, port, ssl_context=context).start()
        yield made, port
    finally:
        await runner.cleanup()


async def pod_of_this_machine(cluster: Cluster, kubelet_port: int, *words: str) -> None:
    """The daemon that runs here is a Pod of the host's network, on a node with that kubelet."""
    host = socket.gethostname().lower()
    await cluster.register(host, ready="True", taints=[], providerID="elsewhere://1")
    status = {
        "addresses": [{"type": "InternalIP", "address": process.LOOPBACK}, {"$patch": "replace"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
    }
    await cluster.patch(f"{NODES}/{host}/status", {"status": status})
    container = {"name": "ccm", "image": "kube-ccm", "args": ["--cloud-provider=sim", *words]}
    spec = {"nodeName": host, "hostNetwork": True, "containers": [container]}
    await cluster.create(PODS, {"metadata": {"name": "ccm-0"}, "spec": spec})
