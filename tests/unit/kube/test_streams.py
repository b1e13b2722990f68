"""Streams of the transport: lines as they come, and how a stream may end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

from ccm.kube import errors, transport
from ccm.kube.transport import Transport
from tests.unit.kube.proxy import (
    Answer,
    Server,
    cuts,
    no_answer,
    refuses,
    sends,
    streams,
)
from tests.waiting import DEADLINE_S


async def _read(transport: Transport, idle_timeout_s: float = 5.0) -> list[bytes]:
    async with transport.stream("/watch", idle_timeout_s=idle_timeout_s) as lines:
        return [line async for line in lines]


@pytest.mark.parametrize(
    "chunks",
    [
        (b"one\ntwo\n", b"three\n"),
        (b"o", b"ne", b"\n", b"two\nth", b"ree", b"\n"),
        (b"one\n\n\ntwo\nthree",),
    ],
    ids=["whole lines", "pieces", "empty lines and no end"],
)
async def test_a_stream_is_cut_into_lines(server: Server, chunks: tuple[bytes, ...]) -> None:
    server.will(streams(*chunks))

    assert await _read(server.transport) == [b"one", b"two", b"three"]


async def test_a_line_of_two_mebibytes_passes(server: Server) -> None:
    line = b"x" * (2 * 1024 * 1024 + 1000)
    server.will(streams(b"first\n" + line + b"\nlast\n"))

    assert await _read(server.transport) == [b"first", line, b"last"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (streams(*[b"x" * 500] * 4), "garbage"),
        (streams(b"one\n", hold=True), "silent"),
        (streams(b"one\n", then=cuts), "reset"),
    ],
    ids=["a line without an end", "silent", "cut"],
)
async def test_a_stream_that_goes_wrong_is_told_from_one_that_ends(
    server: Server, monkeypatch: pytest.MonkeyPatch, answer: Answer, kind: str
) -> None:
    monkeypatch.setattr(transport, "MAX_LINE", 1000)
    server.will(answer)
    with no_answer(kind):
        await _read(server.transport, idle_timeout_s=0.2)


async def test_a_refused_stream_raises_what_the_server_said(server: Server) -> None:
    server.will(refuses(410, "Expired"), sends(b"<html>", status=502, content_type="text/html"))

    with pytest.raises(errors.Gone):
        await _read(server.transport)
    with pytest.raises(errors.ServerError):
        await _read(server.transport)


async def test_a_stream_asks_for_no_compression(server: Server) -> None:
    await _read(server.transport)

    assert server.seen[0].headers["Accept-Encoding"] == "identity"


async def test_a_server_that_never_begins_its_answer_times_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    monkeypatch.setattr(transport, "WATCH_START_TIMEOUT_S", 0.1)
    server.will(never)

    with no_answer("timeout"):
        await _read(server.transport, idle_timeout_s=20)


async def test_leaving_a_stream_closes_its_connection(server: Server) -> None:
    ended = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"tick\n")
                if request.transport is None or request.transport.is_closing():
                    break
                await asyncio.sleep(0.01)
        ended.set()
        return response

    server.will(answer)

    async with server.transport.stream("/", idle_timeout_s=5) as lines:
        assert await anext(lines) == b"tick"
    async with asyncio.timeout(DEADLINE_S):
        await ended.wait()


async def test_many_streams_leave_room_for_a_write(server: Server) -> None:
    """The number of connections has no limit, so watches never starve the writes."""
    server.will(*[streams(b"one\n", hold=True)] * 120)

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(120):
            lines = await stack.enter_async_context(server.transport.stream("/", idle_timeout_s=20))
            assert await anext(lines) == b"one"
        assert await server.transport.do("PATCH", "/x", timeout_s=5) == b"{}"
