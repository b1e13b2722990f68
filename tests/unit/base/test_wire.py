"""A client that brings no TLS context trusts the machine's authorities, and no others."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ClientSession,
    ServerDisconnectedError,
    connector,
)
from aiohttp.client_reqrep import ConnectionKey

from ccm.base import wire
from tests import pki


@pytest.fixture
def authority(tmp_path: Path) -> pki.Authority:
    return pki.Authority(tmp_path, "machine")


@pytest_asyncio.fixture
async def url(authority: pki.Authority) -> AsyncIterator[str]:
    """A server whose certificate is of that authority."""
    pair = authority.server("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.chain, pair.key)
    context.set_alpn_protocols(["http/1.1"])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        agreed = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{agreed}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("known", [True, False])
async def test_authorities_are_read_when_they_are_needed(
    known: bool,
    url: str,
    authority: pki.Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = tmp_path / "none.pem"
    nobody.write_bytes(b"")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file if known else nobody))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    context = wire._context()
    context.set_alpn_protocols(["http/1.1"])
    monkeypatch.setattr(connector, "_SSL_CONTEXT_VERIFIED", context)
    assert context.cert_store_stats()["x509_ca"] == 0

    async with ClientSession() as session:
        if known:
            async with session.get(url) as response:
                assert await response.text() == "http/1.1"
        else:
            with pytest.raises(ClientConnectorCertificateError) as caught:
                await session.get(url)
            assert wire.reason(caught.value).startswith("certificate verify failed: ")


def test_the_daemon_starts_without_the_machines_authorities() -> None:
    program = (
        "import ccm.__main__; from aiohttp import connector;"
        "context = connector._SSL_CONTEXT_VERIFIED;"
        "print(type(context).__name__, context.cert_store_stats()['x509_ca'])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert done.stdout == b"TrustOnUse 0\n"
    assert "set_default_verify_paths" not in vars(ssl.SSLContext), "others load as ever"


def test_it_is_as_strict_as_python_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    ours, pythons = wire._context(), ssl.create_default_context()
    for name in (
        *("verify_flags", "verify_mode", "check_hostname", "options", "minimum_version"),
        "keylog_filename",
    ):
        assert getattr(ours, name) == getattr(pythons, name), name


def key(host: str = "127.0.0.1") -> ConnectionKey:
    return ConnectionKey(host, 1, False, True, None, None, None)


def plain_http() -> ssl.SSLError:
    """What the TLS library says of an answer in plain HTTP."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = ssl.create_default_context().wrap_bio(received, sent, server_hostname="x")
    received.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ssl.SSLError) as caught:
        connection.do_handshake()
    return caught.value


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ClientConnectorError(key(), OSError(111, "Connect call failed ('127.0.0.1', 1)")),
            "Connection refused",
        ),
        (
            ClientConnectorError(key(), OSError("Multiple: [Errno 111] failed, [Errno 101] no")),
            "Multiple: failed, no",
        ),
        (
            ClientConnectorDNSError(key("nowhere"), socket.gaierror(-2, "Name not known")),
            "Name not known",
        ),
        (
            ClientConnectorSSLError(key(), ssl.SSLError(1, "[SSL: X] wrong version (_ssl.c:99)")),
            "wrong version",
        ),
        (
            ClientConnectorSSLError(key(), plain_http()),
            "what answers there speaks no TLS",
        ),
        (ServerDisconnectedError(), "Server disconnected"),
        (TimeoutError(), "TimeoutError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_went_wrong_is_said_without_numbers_and_tls(error: Exception, said: str) -> None:
    assert wire.reason(error) == said
