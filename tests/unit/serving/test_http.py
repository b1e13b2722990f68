"""What a caller may cost, and what a server says to requests it cannot serve."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ccm.serving import http, listener, policy, tls
from ccm.serving.certs import Certificates, Files
from ccm.serving.http import Request, Response, text
from tests import pki

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
    opened = listener.bind(listener.Endpoint(address=LOOPBACK, port=0))
    await server.start(opened)
    try:
        yield opened.getsockname()[1]
    finally:
        await server.close()


async def exchange(port: int, sent: bytes) -> bytes:
    """All that comes back until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def test_a_request_reaches_its_handler_and_the_answer_its_caller() -> None:
    async with (
        serving() as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.post("/a%20b?c=d", data="body", headers={"x-fact": "f"}) as response,
    ):
        assert response.status == 200
        assert await response.text() == "POST /a b body f"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Content-Type"] == "text/plain; charset=utf-8"


async def test_a_handler_that_stumbles_is_a_500_without_a_detail() -> None:
    async def stumble(_request: Request) -> Response:
        raise RuntimeError("a secret")

    async with (
        serving(stumble) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.get("/") as response,
    ):
        assert response.status == 500
        assert await response.text() == "internal server error\n"


async def test_a_body_above_the_limit_is_refused() -> None:
    async with (
        serving(max_body=10) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        async with session.post("/", data="0123456789") as response:
            assert response.status == 200
        async with session.post("/", data="0123456789x") as response:
            assert response.status == 413


async def test_a_header_may_be_large_and_not_larger() -> None:
    async with serving() as port:
        fits = await exchange(
            port,
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Fact: "
            + b"x" * 500_000
            + b"\r\n\r\n",
        )
        too_large = await exchange(
            port,
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Fact: "
            + b"x" * (http.MAX_HEADER + 1)
            + b"\r\n\r\n",
        )

    assert fits.startswith(b"HTTP/1.1 200")
    assert b" 400 Bad Request" in too_large[:30]


async def test_bytes_that_are_no_http_are_a_400() -> None:
    async with serving() as port:
        answer = await exchange(port, b"\x16\x03\x01\x00\r\n\r\n")

    assert b" 400 Bad Request" in answer[:30]


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_who_sends_no_header_in_time_is_hung_up_on(sent: bytes) -> None:
    async with serving(header_s=0.1) as port:
        assert await exchange(port, sent) == b""


async def test_a_connection_without_requests_is_closed() -> None:
    async with serving(idle_s=0.1, header_s=5.0) as port:
        answer = await exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_request_that_takes_long_is_not_idle() -> None:
    async def slowly(_request: Request) -> Response:
        await asyncio.sleep(0.3)
        return text("done")

    async with serving(slowly, idle_s=0.1, header_s=0.1) as port:
        answer = await exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert answer.endswith(b"done")


async def test_a_server_that_closes_lets_a_request_under_way_end() -> None:
    arrived = asyncio.Event()

    async def slowly(_request: Request) -> Response:
        arrived.set()
        await asyncio.sleep(0.2)
        return text("done")

    async with serving(slowly) as port:
        asked = asyncio.create_task(exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
        await arrived.wait()

    assert (await asked).endswith(b"done")


async def test_the_caller_s_certificate_and_its_chain_are_told(tmp_path: Path) -> None:
    root = pki.Authority(tmp_path, "root")
    middle = pki.Authority(tmp_path, "middle", signed_by=root)
    pair = root.server("localhost")
    keeper = tls.CertReloader(policy.policy("", ()), Certificates(Files(pair.chain, pair.key)))
    keeper.trust(root.own)
    await keeper.start()
    told: list[http.Caller] = []

    async def note(request: Request) -> Response:
        told.append(request.caller)
        return text("")

    contexts = [
        middle.client("someone", ["group"]).context(trusts=root.file),
        pki.client_context(root.file),
    ]
    async with serving(note, context=keeper.context) as port:
        for context in contexts:
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
                session.get(f"https://localhost:{port}/") as response,
            ):
                assert response.status == 200

    known, unknown = told
    anchors = [ssl.PEM_cert_to_DER_cert(each.own.decode()) for each in (middle, root)]
    assert known.certificate is not None
    assert list(known.chain[1:]) == anchors
    assert (unknown.certificate, unknown.chain) == (None, ())
    assert known.address.startswith("127.0.0.1:")


@pytest.mark.row("serving-tls-05")
async def test_a_caller_of_tls_12_is_known_again_on_each_connection(tmp_path: Path) -> None:
    """A session that TLS resumes would come without the chain of certificates."""
    root = pki.Authority(tmp_path, "root")
    pair = root.server("localhost")
    keeper = tls.CertReloader(policy.policy("", ()), Certificates(Files(pair.chain, pair.key)))
    keeper.trust(root.own)
    await keeper.start()
    told: list[http.Caller] = []

    async def note(request: Request) -> Response:
        told.append(request.caller)
        return text("")

    context = root.client("someone").context(trusts=root.file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(note, context=keeper.context) as port:

        def call(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
            import socket

            with (
                socket.create_connection(("127.0.0.1", port)) as plain,
                context.wrap_socket(plain, server_hostname="localhost", session=session) as secured,
            ):
                secured.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                while secured.recv(4096):
                    pass
                return secured.session

        first = await asyncio.to_thread(call, None)
        await asyncio.to_thread(call, first)

    assert [len(caller.chain) for caller in told] == [2, 2]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::", "0.0.0.0"])
async def test_both_families_of_addresses_are_listened_on(address: str) -> None:
    with listener.bind(listener.Endpoint(address=ip_address(address), port=0)) as opened:
        port = opened.getsockname()[1]
        host = "::1" if ":" in address else "127.0.0.1"

        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        if address == "::":
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()


async def test_a_port_that_is_taken_is_named() -> None:
    with listener.bind(listener.Endpoint(address=LOOPBACK, port=0)) as opened:
        port = opened.getsockname()[1]

        with pytest.raises(listener.ListenError, match=f"127.0.0.1:{port}: Address already"):
            listener.bind(listener.Endpoint(address=LOOPBACK, port=port))


async def test_a_port_may_be_shared() -> None:
    shared = listener.Endpoint(address=LOOPBACK, port=0, share_port=True)
    with listener.bind(shared) as opened:
        again = listener.Endpoint(address=LOOPBACK, port=opened.getsockname()[1], share_port=True)
        listener.bind(again).close()
