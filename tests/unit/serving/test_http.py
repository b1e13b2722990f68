"""What a caller may cost, and what a server says to requests it cannot serve."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from ccm.serving import acceptor, http, policy, tls
from ccm.serving.http import Request, Response, text
from ccm.serving.tls import Certificates, Files
from tests import pki
from tests.waiting import DEADLINE_S

LOOPBACK = ip_address("127.0.0.1")


async def echo(request: Request) -> Response:
    body = (await request.read()).decode()
    return text(f"{request.method} {request.path} {body} {request.headers.get('X-Fact', '')}")


@asynccontextmanager
async def serving(
    handler: http.Handler = echo, *, context: ssl.SSLContext | None = None, **limits: Any
) -> AsyncIterator[int]:
    """A server of this handler; its port."""
    server = http.Server(handler, context=context, **limits)
    opened = acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=0))
    await server.start(opened)
    try:
        yield opened.getsockname()[1]
    finally:
        await server.close()


async def exchange(port: int, sent: bytes, **secured: Any) -> bytes:
    """All that comes back until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **secured)
    try:
        writer.write(sent)
        async with asyncio.timeout(DEADLINE_S):
            return await reader.read()
    finally:
        writer.close()


GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
LAST = GET + b"Connection: close\r\n"


async def slowly(_request: Request) -> Response:
    await asyncio.sleep(0.3)
    return text("done")


@asynccontextmanager
async def knowing(root: pki.Authority) -> AsyncIterator[tuple[int, list[http.Caller]]]:
    """A server that believes an authority: its port, and who called."""
    told: list[http.Caller] = []
    pair = root.server("localhost")
    keeper = tls.CertReloader(policy.policy("", ()), Certificates(Files(pair.chain, pair.key)))
    keeper.trust(root.own)
    await keeper.start()

    async def note(request: Request) -> Response:
        told.append(request.caller)
        return text("")

    async with serving(note, context=keeper.context) as port:
        yield port, told


@pytest.mark.row("serving-tls-05")
async def test_a_caller_of_tls_12_is_known_again_on_each_connection(tmp_path: Path) -> None:
    """A session that TLS resumes would come without the chain of certificates."""
    root = pki.Authority(tmp_path, "root")
    context = root.client("someone").context(trusts=root.file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with knowing(root) as (port, told):

        def call(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
            with (
                socket.create_connection(("127.0.0.1", port)) as plain,
                context.wrap_socket(plain, server_hostname="localhost", session=session) as secured,
            ):
                secured.sendall(LAST + b"\r\n")
                while secured.recv(4096):
                    pass
                return secured.session

        first = await asyncio.to_thread(call, None)
        await asyncio.to_thread(call, first)

    assert [len(caller.chain) for caller in told] == [2, 2]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::", "0.0.0.0"])
async def test_both_families_of_addresses_are_listened_on(address: str) -> None:
    with acceptor.bind(acceptor.Endpoint(address=ip_address(address), port=0)) as opened:
        port = opened.getsockname()[1]
        host = "::1" if ":" in address else "127.0.0.1"

        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        if address == "::":
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()


async def test_a_port_that_is_taken_is_named_and_one_may_be_shared() -> None:
    shared = acceptor.Endpoint(address=LOOPBACK, port=0, share_port=True)
    with acceptor.bind(shared) as opened:
        port = opened.getsockname()[1]
        acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=port, share_port=True)).close()

        with pytest.raises(acceptor.ListenError, match=f"127.0.0.1:{port}: Address already"):
            acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=port))


"""Of a request, behind its path."""


async def size(request: Request) -> Response:
    return text(f"{len(await request.read())} {len(request.query)}")
