"""Resource limits of callers, and responses to invalid requests."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.serving import acceptor, http, policy, tls
from ccm.serving.http import MAX_BODY, BodyLimits, Request, Response, text
from ccm.serving.tls import CertificateSources
from tests import pki
from tests.waiting import DEADLINE_S, due_by, eventually

LOOPBACK = ip_address("127.0.0.1")


async def echo(request: Request) -> Response:
    body = (await request.read()).decode()
    return text(f"{request.method} {request.path} {body} {request.headers.get('X-Fact', '')}")


@asynccontextmanager
async def serving(
    handler: http.Handler = echo, *, context: ssl.SSLContext | None = None, **limits: Any
) -> AsyncIterator[int]:
    """Run a server with this handler; yield its port."""
    server = http.Server(handler, context=context, **limits)
    opened = acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=0))
    await server.start(opened)
    try:
        yield opened.getsockname()[1]
    finally:
        await server.close()


async def exchange(port: int, sent: bytes, **secured: Any) -> bytes:
    """Return everything received until the server closes the connection."""
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
    """Run a server that trusts a CA; yield its port and its callers."""
    told: list[http.Caller] = []
    pair = root.server("localhost")
    keeper = tls.CertReloader(
        policy.parse_policy("", ()), CertificateSources(tls.files(pair.chain, pair.key))
    )
    keeper.trust(root.own)
    await keeper.start()

    async def note(request: Request) -> Response:
        told.append(request.caller)
        return text("")

    async with serving(note, context=keeper.context) as port:
        yield port, told


@pytest.mark.row("serving-tls-05")
async def test_tls_12_caller_is_identified_on_each_connection(tmp_path: Path) -> None:
    """A resumed TLS session would have no certificate chain."""
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
async def test_server_listens_on_ipv4_and_ipv6_addresses(address: str) -> None:
    with acceptor.bind(acceptor.Endpoint(address=ip_address(address), port=0)) as opened:
        port = opened.getsockname()[1]
        host = "::1" if ":" in address else "127.0.0.1"

        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        if address == "::":
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()


async def test_taken_port_is_named_unless_it_is_shared() -> None:
    shared = acceptor.Endpoint(address=LOOPBACK, port=0, share_port=True)
    with acceptor.bind(shared) as opened:
        port = opened.getsockname()[1]
        acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=port, share_port=True)).close()

        with pytest.raises(acceptor.ListenError, match=f"127.0.0.1:{port}: Address already"):
            acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=port))


"""Of a request, behind its path."""


async def size(request: Request) -> Response:
    return text(f"{len(await request.read())} {len(request.query)}")


HALVES = b"".join(b"X-%d: %s\r\n" % (each, b"x" * (http.MAX_HEADER // 2)) for each in range(2))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (LAST + b"Content-Length: 10\r\n\r\n0123456789", b"200"),
        (LAST + b"Content-Length: 11\r\n\r\n0123456789x", b"413"),
        (LAST + b"X-Fact: " + b"x" * (http.MAX_HEADER - 200) + b"\r\n\r\n", b"200"),
        (LAST + HALVES + b"\r\n", b"431"),
        (LAST + b"A: b\r\n" * (http.MAX_FIELDS + 1) + b"\r\n", b"400"),
        (b"GET /%s" % (b"x" * (http.MAX_PATH - 1)) + LAST[5:] + b"\r\n", b"200"),
        (b"GET /%s" % (b"x" * http.MAX_PATH) + LAST[5:] + b"\r\n", b"414"),
        (LAST + b"X-Fact: " + b"x" * (http.MAX_HEADER + 1) + b"\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x00\r\n\r\n", b"400"),
    ],
)
async def test_too_large_or_malformed_request_is_refused(sent: bytes, status: bytes) -> None:
    async with serving(bodies=BodyLimits(max_body=10)) as port:
        assert (await exchange(port, sent))[9:12] == status


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET])
async def test_connection_without_a_complete_header_is_closed_in_time(sent: bytes) -> None:
    # Unread data makes the close a reset.
    async with serving(header_s=0.1) as port:
        with contextlib.suppress(ConnectionResetError):
            assert await exchange(port, sent) == b""


async def test_failing_handler_returns_500_without_details() -> None:
    async def stumble(_request: Request) -> Response:
        raise RuntimeError("a secret")

    async with serving(stumble) as port:
        answer = await exchange(port, LAST + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 500")
    assert answer.endswith(b"\r\n\r\ninternal server error\n")


REST = LAST[5:]


@pytest.mark.parametrize(("length", "status"), [(http.MAX_QUERY, 200), (http.MAX_QUERY + 2, 414)])
async def test_query_length_is_limited_before_parsing(length: int, status: int) -> None:
    query = b"a&" * (length // 2)

    async with serving(size) as port:
        answer = await exchange(port, b"GET /?" + query + REST + b"\r\n")

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_compressed_body_is_not_decompressed() -> None:
    body = gzip.compress(b"\0" * MAX_BODY * 4)
    header = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)

    async with serving(size) as port:
        answer = await exchange(port, b"POST /" + REST + header + body)

    assert answer.endswith(f"\r\n\r\n{len(body)} 0".encode())


async def test_header_limit_applies_to_each_request_of_a_connection() -> None:
    field = b"X-Fact: " + b"x" * (http.MAX_HEADER // 2) + b"\r\n"
    request = b"GET / HTTP/1.1\r\nHost: x\r\n" + field + b"\r\n"
    last = b"GET /" + REST + field + b"\r\n"

    async with serving(size) as port:
        answers = await exchange(port, request * 12 + last)

    assert answers.count(b"HTTP/1.1 200") == 13


async def test_header_with_many_large_fields_closes_the_connection() -> None:
    field = b"x" * (http.MAX_HEADER // 2) + b"\r\n"
    header = b"".join(b"X-%d: %s" % (number, field) for number in range(32))

    async with serving(size) as port:
        with pytest.raises(OSError, match=r"reset|pipe"):
            await exchange(port, b"GET /" + REST + header + b"\r\n")


TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


TRUST.check_hostname = False


TRUST.verify_mode = ssl.CERT_NONE


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    """TLS context of a server."""
    files = pki.Authority(tmp_path, "ca").server("localhost")
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(files.chain, files.key)
    return found


async def come(port: int, number: int, sent: bytes = b"", **how: Any) -> list[asyncio.StreamWriter]:
    """Connect this many callers, one after the other."""
    writers = []
    for _ in range(number):
        _, writer = await asyncio.open_connection("127.0.0.1", port, **how)
        writer.write(sent)
        writers.append(writer)
    return writers


@asynccontextmanager
async def callers(port: int, number: int, sent: bytes = b"", **how: Any) -> AsyncIterator[None]:
    """Keep this many callers connected."""
    writers = await come(port, number, sent, **how)
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("sent", "secured"), [(b"", False), (b"G", False), (GET, True)], ids=["silent", "begun", "tls"]
)
async def test_flood_of_incomplete_requests_does_not_block_a_request(
    monkeypatch: pytest.MonkeyPatch, context: ssl.SSLContext, sent: bytes, secured: bool
) -> None:
    few = {"max_connections": 9, "max_silent": 9}
    monkeypatch.setattr(acceptor.ConnectionLimiter.__init__, "__kwdefaults__", few)
    async with serving(context=context) as port:
        how = {"ssl": TRUST} if secured else {}
        async with callers(port, 30, sent, **how):
            answer = await exchange(port, LAST + b"\r\n", ssl=TRUST)

    assert answer.startswith(b"HTTP/1.1 200")


async def test_too_many_pipelined_requests_close_the_connection(context: ssl.SSLContext) -> None:
    """They would occupy memory while the first one is answered."""
    answered = asyncio.Event()

    async def wait(_request: http.Request) -> http.Response:
        await answered.wait()
        return http.text("")

    field = b"X-Fact: " + b"x" * (http.MAX_HEADER // 2) + b"\r\n"
    async with serving(wait, context=context) as port:
        with pytest.raises(OSError, match=r"reset|pipe|lost"):
            await exchange(port, (GET + field + b"\r\n") * 40, ssl=TRUST)
        answered.set()


def begun_or_waiting() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "caller"]


async def test_tls_handshakes_of_one_address_do_not_delay_other_addresses(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handshakes per address are limited, and an evicted connection leaves the queue."""
    monkeypatch.setattr(acceptor, "PACE_S", 60.0)
    begun: list[acceptor._TlsProtocol] = []
    monkeypatch.setattr(
        acceptor._TlsProtocol, "connection_made", lambda self, _transport: begun.append(self)
    )
    async with serving(echo, context=context) as port:
        crowd = await come(port, acceptor.MAX_CONNECTIONS + 20, b"\x16")
        await eventually(lambda: len(begun) >= acceptor.MAX_HANDSHAKES_PER_ORIGIN)
        await due_by(0.05)
        assert len(begun) == acceptor.MAX_HANDSHAKES_PER_ORIGIN
        assert (
            len(begun_or_waiting()) <= acceptor.MAX_CONNECTIONS + acceptor.MAX_HANDSHAKES_PER_ORIGIN
        )

        other = await come(port, 1, b"\x16", local_addr=("127.0.0.2", 0))
        await eventually(lambda: len(begun) > acceptor.MAX_HANDSHAKES_PER_ORIGIN)
        assert len(begun) == acceptor.MAX_HANDSHAKES_PER_ORIGIN + 1
        for writer in (*crowd, *other):
            writer.transport.abort()
        for each in begun:
            each.seat.release()


class Short(socket.socket):
    """Socket of a process that temporarily has no file descriptor left."""

    lacks = 1

    def accept(self) -> Any:
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_server_recovers_from_a_shortage_of_file_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.05)
    server = http.Server(echo)
    with acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=0)) as opened:
        short = Short(fileno=opened.detach())
    short.setblocking(False)
    await server.start(short)
    began = asyncio.get_running_loop().time()
    with capture_logs() as lines:
        try:
            answer = await exchange(short.getsockname()[1], LAST + b"\r\n")
        finally:
            await server.close()

    assert answer.startswith(b"HTTP/1.1 200")
    assert short.lacks == 0
    assert asyncio.get_running_loop().time() - began >= 0.05, "it does not spin"
    told = [line["log_level"] for line in lines if line["log_level"] != "debug"]
    assert told == ["warning", "info"]
