"""A client that brings no TLS context trusts the machine's authorities, and no others."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientConnectorCertificateError, ClientSession, connector

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
    monkeypatch.setattr(connector, "_SSL_CONTEXT_VERIFIED", context)
    assert context.cert_store_stats()["x509_ca"] == 0

    async with ClientSession() as session:
        if known:
            async with session.get(url) as response:
                assert await response.text() == "http/1.1"
        else:
            with pytest.raises(ClientConnectorCertificateError):
                await session.get(url)


def test_aiohttp_has_no_context_but_ours() -> None:
    assert isinstance(connector._SSL_CONTEXT_VERIFIED, wire.TrustOnUse)
    assert "set_default_verify_paths" not in vars(ssl.SSLContext), "others load as ever"


def test_it_is_as_strict_as_python_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    ours, pythons = wire._context(), ssl.create_default_context()
    for name in (
        *("verify_flags", "verify_mode", "check_hostname", "options", "minimum_version"),
        "keylog_filename",
    ):
        assert getattr(ours, name) == getattr(pythons, name), name
