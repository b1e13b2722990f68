"""Callers that say nothing, or not enough, and what they cost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ccm.serving import acceptor
from tests import pki
from tests.unit.serving.test_http import GET, LAST, exchange, serving

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
