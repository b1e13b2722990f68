"""Callers that nobody has let in cost neither much memory nor much time."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from pathlib import Path

import pytest

from ccm.serving import http
from ccm.serving.http import Request, Response, text
from tests import pki
from tests.unit.serving.test_http import exchange, serving

REST = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


async def size(request: Request) -> Response:
    return text(f"{len(await request.read())} {len(request.query)}")


async def test_many_large_fields_of_a_header_are_not_kept() -> None:
    field = b"x" * (http.MAX_HEADER // 2) + b"\r\n"
    header = b"".join(b"X-%d: %s" % (number, field) for number in range(8))

    async with serving(size) as port:
        with pytest.raises(OSError, match=r"reset|pipe"):
            await exchange(port, b"GET /" + REST + header + b"\r\n")


async def test_requests_on_one_connection_do_not_add_up() -> None:
    field = b"X-Fact: " + b"x" * (http.MAX_HEADER // 2) + b"\r\n"
    request = b"GET / HTTP/1.1\r\nHost: x\r\n" + field + b"\r\n"
    last = b"GET /" + REST + field + b"\r\n"

    async with serving(size) as port:
        answers = await exchange(port, request * 12 + last)

    assert answers.count(b"HTTP/1.1 200") == 13


async def test_a_body_on_its_own_may_be_larger_than_a_header() -> None:
    body = b"x" * http.MAX_BODY
    request = b"POST /%s\r\nContent-Length: %d\r\n\r\n%s"

    async with serving(size) as port:
        answer = await exchange(
            port,
            request % (b" HTTP/1.1\r\nHost: x", len(body), body) * 2 + b"GET /" + REST + b"\r\n",
        )

    assert answer.count(b"%d 0" % len(body)) == 2


@pytest.mark.parametrize(("length", "status"), [(http.MAX_QUERY, 200), (http.MAX_QUERY + 2, 414)])
async def test_a_query_has_a_limit_before_it_is_taken_apart(length: int, status: int) -> None:
    query = b"a&" * (length // 2)

    async with serving(size) as port:
        answer = await exchange(port, b"GET /?" + query + REST + b"\r\n")

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_body_is_not_unpacked() -> None:
    body = gzip.compress(b"\0" * http.MAX_BODY * 4)
    header = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)

    async with serving(size) as port:
        answer = await exchange(port, b"POST /" + REST + header + body)

    assert answer.endswith(f"\r\n\r\n{len(body)} 0".encode())


async def test_who_never_gets_beyond_tls_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CLOSE_S", 0.1)
    files = pki.Authority(tmp_path, "ca").server("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.chain, files.key)

    async with asyncio.timeout(http.HANDSHAKE_S / 2):
        async with serving(size, context=context) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.05)
        writer.close()
