"""Helpers of these tests: a scripted server that records its requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import web

from ccm.kube import errors
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import CredentialSource, StaticCredentials, TlsSettings
from ccm.kube.transport import Transport

CERTS = Path(__file__).parent / "certs"

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A request as it arrived; `target` is the raw path with its query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))


@dataclass(kw_only=True)
class Server:
    """A server that sends its scripted answers in order, then always `{}`."""

    url: str = ""
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    answers: deque[Answer] = field(default_factory=deque)
    peers: list[str] = field(default_factory=list)
    transport: Transport = field(init=False)

    def will(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = Seen(
            method=request.method,
            target=request.raw_path,
            headers=request.headers.copy(),
            body=await request.read(),
        )
        self.seen.append(seen)
        tls = request.transport.get_extra_info("ssl_object") if request.transport else None
        shown = tls.getpeercert() if tls is not None else None
        self.peers.append(shown["subject"][0][0][1] if shown else "")
        answer = self.answers.popleft() if self.answers else says({})
        return await answer(request)


def says(content: Any, *, status: int = 200, **headers: str) -> Answer:
    """An answer with a JSON body; header names are written with underscores."""
    return sends(json.dumps(content).encode(), status=status, **headers)


def sends(
    body: bytes, *, status: int = 200, content_type: str = "application/json", **headers: str
) -> Answer:
    """An answer with raw bytes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, body=body, content_type=content_type, headers=named)

    return answer


def refuses(status: int, reason: str, message: str = "no", **headers: str) -> Answer:
    """An answer with a Status."""
    return says(a_status(status, reason, message), status=status, **headers)


def a_status(code: int, reason: str, message: str = "no") -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


async def cuts(request: web.BaseRequest) -> web.StreamResponse:
    """Reset the connection instead of answering."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def streams(*chunks: bytes, then: Answer | None = None, hold: bool = False) -> Answer:
    """Send chunks; then end, or go on with `then` (a cut), or hold the line silently."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if hold:
            await asyncio.sleep(3600)
        if then is not None:
            await then(request)
            return response
        await response.write_eof()
        return response

    return answer


@contextlib.asynccontextmanager
async def serve(context: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Server]:
    server = Server()
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=context)
    await site.start()
    server.port = runner.addresses[0][1]
    server.url = f"{'https' if context else 'http'}://127.0.0.1:{server.port}"
    try:
        yield server
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def no_answer(kind: str) -> Iterator[None]:
    """The block fails because there was no answer, for this reason."""
    with pytest.raises(errors.Unreachable) as caught:
        yield
    assert caught.value.kind == kind


def server_context(name: str, *, clients: str = "") -> ssl.SSLContext:
    """Return the TLS context of a server; `clients` names the CA for client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTS / f"{name}.pem", CERTS / f"{name}.key.pem")
    if clients:
        context.load_verify_locations(CERTS / f"{clients}.pem")
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def connect(
    url: str,
    *,
    credentials: CredentialSource | None = None,
    tls: TlsSettings | None = None,
    disable_compression: bool = False,
    user_agent: str = "ccm/1.0 (linux/amd64) kubernetes/abc1234",
    reads_only: bool = False,
) -> Transport:
    config = ClusterConfig(
        server=url,
        credentials=credentials or StaticCredentials(),
        tls=tls or TlsSettings(),
        disable_compression=disable_compression,
        source="a test",
    )
    return Transport(config, user_agent=user_agent, read_only=reads_only)
