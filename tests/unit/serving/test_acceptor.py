"""Callers that say nothing, or not enough, and what they cost."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ccm.serving import acceptor, http
from ccm.serving.acceptor import Stage
from ccm.serving.http import MAX_BODY
from tests import pki
from tests.unit.serving.test_http import GET, LAST, LOOPBACK, echo, exchange, serving
from tests.waiting import due_by, eventually

TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUST.check_hostname = False
TRUST.verify_mode = ssl.CERT_NONE


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    """A server's."""
    files = pki.Authority(tmp_path, "ca").server("localhost")
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(files.chain, files.key)
    return found


async def come(port: int, number: int, sent: bytes = b"", **how: Any) -> list[asyncio.StreamWriter]:
    """So many callers, one after the other."""
    writers = []
    for _ in range(number):
        _, writer = await asyncio.open_connection("127.0.0.1", port, **how)
        writer.write(sent)
        writers.append(writer)
    return writers


@asynccontextmanager
async def callers(port: int, number: int, sent: bytes = b"", **how: Any) -> AsyncIterator[None]:
    """So many callers that stay."""
    writers = await come(port, number, sent, **how)
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


async def test_who_says_nothing_costs_next_to_nothing(context: ssl.SSLContext) -> None:
    number = 50
    async with serving(context=context) as port:
        plain = [socket.socket() for _ in range(number)]
        tracemalloc.start()
        try:
            for each in plain:
                each.connect(("127.0.0.1", port))
            await asyncio.sleep(0.1)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            for each in plain:
                each.close()

    assert held / number < 4096


async def test_an_unfinished_request_costs_a_buffer_of_one_record(context: ssl.SSLContext) -> None:
    async with serving(context=context) as port, callers(port, 1, GET, ssl=TRUST):
        await eventually(_past_tls)
        (secured,) = _past_tls()
        read = secured._app_transport.get_read_buffer_limits()
        written = secured._app_transport.get_write_buffer_limits()
        buffer = len(secured._ssl_buffer)

    assert buffer == acceptor.CHUNK
    assert (read[1], written[1]) == (2 * acceptor.CHUNK, 4 * acceptor.CHUNK)


def _past_tls() -> list[Any]:
    return [each for each in _living(acceptor._Secured) if each._app_state.name == "STATE_CON_MADE"]


def _living(kind: type[Any]) -> list[Any]:
    return [each for each in gc.get_objects() if type(each) is kind]


@pytest.mark.parametrize(
    ("sent", "secured"), [(b"", False), (b"G", False), (GET, True)], ids=["silent", "begun", "tls"]
)
async def test_a_crowd_does_not_keep_anybody_from_an_answer(
    monkeypatch: pytest.MonkeyPatch, context: ssl.SSLContext, sent: bytes, secured: bool
) -> None:
    few = {"most": 9, "most_silent": 9}
    monkeypatch.setattr(acceptor.Connections.__init__, "__kwdefaults__", few)
    async with serving(context=context) as port:
        how = {"ssl": TRUST} if secured else {}
        async with callers(port, 30, sent, **how):
            answer = await exchange(port, LAST + b"\r\n", ssl=TRUST)

    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_crowd_that_begins_tls_costs_a_caller_from_elsewhere_nothing(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a crowd from one address a few begin at a time, and who loses its place waits no more."""
    monkeypatch.setattr(acceptor, "PACE_S", 60.0)
    begun: list[acceptor._Secured] = []
    monkeypatch.setattr(
        acceptor._Secured, "connection_made", lambda self, _transport: begun.append(self)
    )
    async with serving(echo, context=context) as port:
        crowd = await come(port, acceptor.MOST + 20, b"\x16")
        await eventually(lambda: len(begun) >= acceptor.STARTS_OF_EACH)
        await due_by(0.05)
        assert len(begun) == acceptor.STARTS_OF_EACH
        assert len(begun_or_waiting()) <= acceptor.MOST + acceptor.STARTS_OF_EACH

        other = await come(port, 1, b"\x16", local_addr=("127.0.0.2", 0))
        await eventually(lambda: len(begun) > acceptor.STARTS_OF_EACH)
        assert len(begun) == acceptor.STARTS_OF_EACH + 1
        for writer in (*crowd, *other):
            writer.transport.abort()
        for each in begun:
            each.seat.leave()


def begun_or_waiting() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "caller"]


async def test_who_hangs_up_without_a_word_leaves_no_trace(context: ssl.SSLContext) -> None:
    server = http.Server(echo, context=context)
    opened = acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=0))
    await server.start(opened)
    try:
        for _ in range(20):
            socket.create_connection(opened.getsockname()).close()
        await due_by(0.1)

        await eventually(lambda: len(server._connections) == 0)
        await eventually(lambda: _living(acceptor._Secured) == [])
    finally:
        await server.close()


async def test_the_stages_of_a_connection(context: ssl.SSLContext) -> None:
    server = http.Server(echo, context=context)
    opened = acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=0))
    await server.start(opened)
    port = opened.getsockname()[1]
    try:
        async with (
            callers(port, 1),
            callers(port, 2, GET, ssl=TRUST),
            callers(port, 3, GET + b"\r\n", ssl=TRUST),
        ):
            held = {Stage.SILENT: 1, Stage.UNFINISHED: 2, Stage.ANONYMOUS: 3, Stage.KNOWN: 0}
            stages = server._connections.by_stage
            await eventually(lambda: {one: len(each) for one, each in stages.items()} == held)
        await eventually(lambda: len(server._connections) == 0)
    finally:
        await server.close()


class Short(socket.socket):
    """A port of a process that has no file descriptor left, for a while."""

    lacks = 1

    def accept(self) -> Any:
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_a_shortage_of_files_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.05)
    server = http.Server(echo)
    with acceptor.bind(acceptor.Endpoint(address=LOOPBACK, port=0)) as opened:
        short = Short(fileno=opened.detach())
    short.setblocking(False)
    await server.start(short)
    try:
        answer = await exchange(short.getsockname()[1], LAST + b"\r\n")
    finally:
        await server.close()

    assert answer.startswith(b"HTTP/1.1 200")
    assert short.lacks == 0


async def test_a_large_body_comes_through_small_buffers(context: ssl.SSLContext) -> None:
    """While it is read slowly, what waits for it stays within them."""

    async def late(request: http.Request) -> http.Response:
        await asyncio.sleep(0.1)
        return http.text(f"{len(await request.read())}")

    body = b"x" * MAX_BODY
    head = b"POST /" + LAST[5:] + b"Content-Length: %d\r\n\r\n" % len(body)
    async with serving(late, context=context) as port:
        answer = await exchange(port, head + body, ssl=TRUST)

    assert answer.endswith(b"\r\n\r\n%d" % len(body))


async def test_who_sends_requests_ahead_is_hung_up_on(context: ssl.SSLContext) -> None:
    """They would be kept while the first is answered."""
    answered = asyncio.Event()

    async def wait(_request: http.Request) -> http.Response:
        await answered.wait()
        return http.text("")

    field = b"X-Fact: " + b"x" * (http.MAX_HEADER // 2) + b"\r\n"
    async with serving(wait, context=context) as port:
        with pytest.raises(OSError, match=r"reset|pipe|lost"):
            await exchange(port, (GET + field + b"\r\n") * 40, ssl=TRUST)
        answered.set()
