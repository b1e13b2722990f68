"""Whom we trust and who we are can change while requests are under way."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from ccm.base.keypair import KeyPair
from ccm.kube import tls
from ccm.kube.credentials import Credential
from ccm.kube.tls import TlsSettings
from tests.unit.kube.proxy import (
    CERTS,
    Server,
    connect,
    no_answer,
    serve,
    server_context,
)


def _trusting(authority: str, **settings: Any) -> TlsSettings:
    return TlsSettings(authorities=(CERTS / f"{authority}.pem").read_bytes(), **settings)


def _client(name: str) -> KeyPair:
    return KeyPair(
        chain=(CERTS / f"{name}.pem").read_bytes(), key=(CERTS / f"{name}.key.pem").read_bytes()
    )


@contextlib.asynccontextmanager
async def _secured(clients: str = "", **settings: Any) -> AsyncIterator[Server]:
    """A server that speaks TLS, and a transport to it."""
    async with (
        serve(server_context("server-one", clients=clients)) as server,
        connect(server.url, **settings) as server.transport,
    ):
        yield server


@pytest.mark.parametrize(
    "settings",
    [
        _trusting("authority-one", server_name="apiserver.test"),
        TlsSettings(insecure=True),
    ],
    ids=["by its name", "any on demand"],
)
async def test_a_server_may_be_trusted(settings: TlsSettings) -> None:
    async with _secured(tls=settings) as server:
        assert await server.transport.do("GET", "/") == b"{}"


@pytest.mark.parametrize(
    "settings",
    [
        _trusting("authority-two"),
        _trusting("authority-one", server_name="other.test"),
        TlsSettings(),
    ],
    ids=["another authority", "another name", "none of the system's"],
)
async def test_a_server_of_another_authority_is_not_trusted(settings: TlsSettings) -> None:
    async with _secured(tls=settings) as server:
        with no_answer("tls"):
            await server.transport.do("GET", "/")

    assert server.seen == []


async def test_a_certificate_that_is_adopted_is_shown_and_no_stream_is_lost() -> None:
    go_on = asyncio.Event()

    async def two_lines(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await go_on.wait()
        await response.write(b"two\n")
        return response

    settings = _trusting("authority-one", certificate=_client("client-a"))
    async with _secured("authority-one", tls=settings) as server:
        transport = server.transport
        server.will(two_lines)
        async with transport.stream("/watch", idle_timeout_s=10) as lines:
            first = await anext(lines)
            await transport.do("GET", "/early")
            rotated = _trusting("authority-one", certificate=_client("client-b"))
            transport.adopt(replace(transport.config, tls=rotated))
            await transport.do("GET", "/late")
            go_on.set()
            second = await anext(lines)

    assert (first, second) == (b"one", b"two")
    assert server.peers == ["daemon-a", "daemon-a", "daemon-b"]


async def test_equal_settings_keep_the_session() -> None:
    async with _secured(tls=_trusting("authority-one")) as server:
        transport = server.transport
        with capture_logs() as lines:
            await transport.do("GET", "/")
            transport.adopt(replace(transport.config, tls=_trusting("authority-one")))
            await transport.do("GET", "/")

    assert lines == []


async def test_unusable_settings_are_an_error() -> None:
    async with connect("https://127.0.0.1:1", tls=TlsSettings(authorities=b"none")) as transport:
        with no_answer("tls"):
            await transport.do("GET", "/")


class _Changing:
    """Credentials whose certificate is replaced by the test."""

    def __init__(self) -> None:
        self.name = "client-a"

    async def current(self) -> Credential:
        return Credential(certificate=_client(self.name))

    async def rejected(self, credential: Credential, sent_at: float) -> bool:
        return False


async def test_a_certificate_of_the_credential_is_shown_from_the_next_request_on() -> None:
    settings = _trusting("authority-one")
    source = _Changing()

    async with _secured("authority-one", tls=settings, credentials=source) as server:
        await server.transport.do("GET", "/")
        source.name = "client-b"
        await server.transport.do("GET", "/")

    assert server.peers == ["daemon-a", "daemon-b"]


def test_a_key_that_does_not_fit_is_an_error() -> None:
    certificate = KeyPair(chain=_client("client-a").chain, key=_client("client-b").key)

    with pytest.raises(ssl.SSLError):
        tls.build_context(TlsSettings(certificate=certificate))


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")
def test_a_key_never_touches_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")

    tls.build_context(TlsSettings(certificate=_client("client-a")))


def test_a_key_is_not_printed() -> None:
    assert "PRIVATE" not in repr(TlsSettings(certificate=_client("client-a")))
