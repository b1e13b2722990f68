"""Port-forward to a Pod through the API server, as `kubectl port-forward` does.

Bytes sent to a port on the local loopback interface pass through a WebSocket to the API server,
from there to the kubelet of the Pod's node, and from the kubelet to the loopback interface of the
Pod.

The protocol is `v4.channel.k8s.io`. The first byte of each binary message is the channel: 0 for
data, 1 for error texts of the kubelet. The first message of each channel is the port number in two
bytes. There are no half-closed connections. The bytes are forwarded unchanged, so TLS, including
client certificates, is end to end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import quote

from ccm.base.lazy_aiohttp import aiohttp, describe_error
from ccm.base.tasks import cancel_and_join, first_of, spawn
from ccm.kube import credentials, errors
from ccm.kube.config import ClusterConfig
from ccm.kube.connections import CONNECT_TIMEOUT_S
from ccm.kube.transport import failure_kind

PROTOCOL = "v4.channel.k8s.io"

LOOPBACK = "127.0.0.1"

_DATA, _ERROR = 0, 1
_CHUNK = 64 << 10
"""Maximum bytes of one message: the default buffer limit of a stream reader (asyncio)."""

_CLOSE_S = 1.0
"""Time limit in seconds for the closing handshake. Short, because the caller waits for it, but
does not need a result."""


@dataclass(slots=True, kw_only=True)
class PortForward:
    """Open port-forward.

    Attributes:
        port: local TCP port on `LOOPBACK`.
        errors: messages about failed connections.
    """

    port: int = 0
    errors: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def forward_port(
    config: ClusterConfig, *, namespace: str, pod: str, port: int
) -> AsyncIterator[PortForward]:
    """Open a port-forward for the duration of the block.

    Args:
        config: API server and identity.
        namespace: namespace of the Pod.
        pod: name of the Pod.
        port: port of the Pod.

    Raises:
        errors.ApiError: the API server refuses the port-forward, which needs the permissions
            `create` and `get` for pods/portforward.
        errors.Unreachable: the API server does not answer, or does not open a WebSocket.
    """
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/portforward?ports={port}"
    forward = PortForward()
    async with contextlib.AsyncExitStack() as exits:
        session = await exits.enter_async_context(await _session(config))
        # Open the first WebSocket in advance, so that a refusal is raised at the start of the
        # block.
        ready = [await _connect(session, config, path)]
        exits.push_async_callback(_close_all, ready)
        serving: list[asyncio.Task[None]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                socket = ready.pop() if ready else await _connect(session, config, path)
                try:  # both directions, until one of them ends
                    both = (_receive(socket, writer, forward), _send(reader, socket))
                    await first_of(*both, name="port-forward")
                finally:
                    await socket.close()
            except (errors.KubeError, aiohttp.ClientError, OSError) as problem:
                forward.errors.append(str(problem))
            finally:
                writer.close()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(spawn(serve(reader, writer), name="port-forward"))

        server = await asyncio.start_server(accept, LOOPBACK, 0)
        try:
            forward.port = server.sockets[0].getsockname()[1]
            yield forward
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


async def _connect(
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
            f"{what}: {describe_error(problem)}", kind=failure_kind(problem)
        ) from problem


async def _send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_CHUNK):
        await socket.send_bytes(bytes([_DATA]) + data)


async def _receive(
    socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter, forward: PortForward
) -> None:
    is_open = set[int]()
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, content = message.data[0], message.data[1:]
        if channel not in is_open:
            # Skip the port number; the protocol allows data after it in the same message.
            is_open.add(channel)
            content = content[2:]
        if channel == _DATA:
            writer.write(content)
            await writer.drain()
        elif channel == _ERROR and content:
            forward.errors.append(content.decode(errors="replace").strip())


async def _close_all(sockets: list[aiohttp.ClientWebSocketResponse]) -> None:
    for socket in sockets:
        await socket.close()
