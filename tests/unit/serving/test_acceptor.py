"""Callers that say nothing, or not enough, and what they cost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ccm.serving import acceptor, http
from tests import pki
from tests.unit.serving.test_http import GET, LAST, echo, exchange, serving
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


def begun_or_waiting() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "caller"]


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
