"""One request over a connection that is kept: what is sent twice, what never, what is skipped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from ccm.kube import errors
from ccm.kube.credentials import Credential, Fixed
from ccm.kube.transport import Transport
from tests.unit.kube.proxy import Server, connect, no_answer, refuses, sends, streams

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Line:
    """A server that says what it is told, a saying for each request, whatever it is asked.

    Attributes:
        heads: the first lines of the requests.
        connections: how many were opened.
    """

    def __init__(self, *sayings: bytes) -> None:
        self.heads: list[str] = []
        self.connections = 0
        self._sayings = list(sayings)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while saying := (await self._heard(reader)):
                writer.write(saying)
        writer.close()

    async def _heard(self, reader: asyncio.StreamReader) -> bytes:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0])
        return self._sayings.pop(0)


@contextlib.asynccontextmanager
async def _talking(line: Line) -> AsyncIterator[Transport]:
    listening = await asyncio.start_server(line.talk, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, connect(f"http://127.0.0.1:{port}") as transport:
        yield transport


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_what_meets_the_end_of_a_kept_connection_is_sent_again(method: str) -> None:
    """A renewal of the Lease does not fail because the server closes what was idle."""
    line = Line(OK, b"", OK)
    async with _talking(line) as transport:
        await transport.do("GET", "/first")
        assert await transport.do(method, "/x", urgent=True) == b"{}"

    assert line.heads[1:] == [f"{method} /x HTTP/1.1"] * 2
    assert line.connections == 2


@pytest.mark.parametrize("method", ["PATCH", "POST"])
async def test_what_may_not_be_done_twice_is_not_sent_again(method: str) -> None:
    line = Line(OK, b"", OK)
    async with _talking(line) as transport:
        await transport.do("GET", "/first")
        with no_answer("reset"):
            await transport.do(method, "/x")

    assert line.heads[1:] == [f"{method} /x HTTP/1.1"]


async def test_one_connection_serves_requests_one_after_the_other() -> None:
    line = Line(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK, OK, OK)
    async with _talking(line) as transport:
        answers = [await transport.do("GET", f"/{number}") for number in range(3)]

    assert answers == [b"{}"] * 3
    assert line.connections == 1


async def test_what_was_not_read_to_its_end_is_never_taken_for_the_next_answer(
    server: Server,
) -> None:
    server.will(streams(b"of the first", hold=True), sends(b"of the second"))

    with no_answer("timeout"):
        await server.transport.do("PATCH", "/first", timeout_s=0.1)

    assert await server.transport.do("PATCH", "/second") == b"of the second"


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\0"])
async def test_a_header_never_ends_its_line(server: Server, end: str) -> None:
    smuggled = Fixed(Credential(header=f"Bearer t{end}X-Remote-User: root"))
    async with connect(server.url, credentials=smuggled) as transport:
        with no_answer("garbage"):
            await transport.do("PATCH", "/x", body=b"{}")

    assert server.seen == []


async def test_a_refused_write_without_a_body_is_one_whole_request(server: Server) -> None:
    server.will(refuses(409, "Conflict"))

    with pytest.raises(errors.Conflict):
        await server.transport.do("POST", "/x")
    await server.transport.do("DELETE", "/y")

    assert [(seen.method, seen.headers["Content-Length"]) for seen in server.seen] == [
        ("POST", "0"),
        ("DELETE", "0"),
    ]
    assert server.seen[0].headers["Host"] == server.url.removeprefix("http://")


async def test_what_is_no_http_is_said_in_one_line() -> None:
    async with _talking(Line(b"SSH-2.0-OpenSSH\r\n\r\n")) as transport:
        with pytest.raises(errors.Unreachable) as caught:
            await transport.do("PATCH", "/x")

    assert str(caught.value).endswith(
        ": Bad status line: Expected HTTP/, RTSP/ or ICE/: b'SSH-2.0-OpenSSH'"
    )
