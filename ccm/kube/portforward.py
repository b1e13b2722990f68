"""A port of a Pod, reached through the API server, as `kubectl port-forward` does.

What is sent to a port of our loopback goes through a WebSocket to the API server, from there to the
kubelet of the Pod's node, and there to the Pod's own loopback. The wire is `v4.channel.k8s.io`: in
each binary message the first byte is the channel, 0 for data and 1 for the kubelet's words about
an error; the first message of each channel is the number of the port in two bytes. It knows no
half-closed connection. The bytes are passed on as they are: TLS inside of it is between the two
ends, client certificates included.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import quote

from ccm.base.tasks import cancel_and_join, first_of, spawn
from ccm.base.wire import aiohttp, reason
from ccm.kube import credentials, errors
from ccm.kube.config import ClusterConfig
from ccm.kube.connections import CONNECT_TIMEOUT_S
from ccm.kube.transport import trouble_kind

PROTOCOL = "v4.channel.k8s.io"

LOOPBACK = "127.0.0.1"

_DATA, _ERROR = 0, 1
_CHUNK = 64 << 10
_CLOSE_S = 1.0


@dataclass(slots=True, kw_only=True)
class Forward:
    """The way to a Pod's port while it is open.

    Attributes:
        port: of our loopback, that leads there.
        troubles: what was said about connections that failed.
    """

    port: int = 0
    troubles: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def forwarded(
    config: ClusterConfig, *, namespace: str, pod: str, port: int
) -> AsyncIterator[Forward]:
    """Open the way; it is closed with the block.

    Raises:
        errors.ApiError: the API server refuses; it needs `create`, and by `get` the same, of
            pods/portforward.
        errors.Unreachable: it does not answer, or not as it should.
    """
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/portforward?ports={port}"
    found = Forward()
    async with contextlib.AsyncExitStack() as exits:
        session = await exits.enter_async_context(await _session(config))
        # The first connection is made before anybody waits for it: it tells whether we may.
        ready = [await _connected(session, config, path)]
        exits.push_async_callback(_closed, ready)
        serving: list[asyncio.Task[None]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                socket = ready.pop() if ready else await _connected(session, config, path)
                try:  # both directions, until one of them ends
                    both = (_receive(socket, writer, found), _send(reader, socket))
                    await first_of(*both, name="port-forward")
                finally:
                    await socket.close()
            except (errors.KubeError, aiohttp.ClientError, OSError) as problem:
                found.troubles.append(str(problem))
            finally:
                writer.close()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(spawn(serve(reader, writer), name="port-forward"))

        server = await asyncio.start_server(accept, LOOPBACK, 0)
        try:
            found.port = server.sockets[0].getsockname()[1]
            yield found
        finally:
            server.close()
            await cancel_and_join(*serving)


async def _session(config: ClusterConfig) -> aiohttp.ClientSession:
    credential = await config.credentials.current()
    settings = config.tls
    if credential.certificate is not None:
        settings = credentials.TlsSettings(
            authorities=settings.authorities,
            certificate=credential.certificate,
            server_name=settings.server_name,
            insecure=settings.insecure,
        )
    is_secure = config.server.startswith("https:")
    context = await asyncio.to_thread(credentials.build_context, settings) if is_secure else True
    headers = {"Authorization": credential.header} if credential.header is not None else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context), headers=headers, trust_env=False
    )


async def _connected(
    session: aiohttp.ClientSession, config: ClusterConfig, path: str
) -> aiohttp.ClientWebSocketResponse:
    what = f"port-forward through {config.server}"
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await session.ws_connect(
                config.server + path,
                protocols=[PROTOCOL],
                server_hostname=config.tls.server_name or None,
                max_msg_size=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
            )
    except aiohttp.WSServerHandshakeError as problem:
        if problem.status < 300:
            raise errors.Unreachable(f"{what}: {problem.message}", kind="garbage") from problem
        raise errors.from_response(problem.status, problem.headers or {}, b"") from problem
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        raise errors.Unreachable(
            f"{what}: {reason(problem)}", kind=trouble_kind(problem)
        ) from problem


async def _send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_CHUNK):
        await socket.send_bytes(bytes([_DATA]) + data)


async def _receive(
    socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter, found: Forward
) -> None:
    is_open = set[int]()
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, content = message.data[0], message.data[1:]
        if channel not in is_open:
            # The number of the port; nobody says that nothing may follow in the same message.
            is_open.add(channel)
            content = content[2:]
        if channel == _DATA:
            writer.write(content)
            await writer.drain()
        elif channel == _ERROR and content:
            found.troubles.append(content.decode(errors="replace").strip())


async def _closed(sockets: list[aiohttp.ClientWebSocketResponse]) -> None:
    for socket in sockets:
        await socket.close()
