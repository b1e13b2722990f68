"""Trust and our own certificate follow their files while the daemon runs."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from ccm.kube import errors, tls
from ccm.kube.credentials import Credential
from ccm.kube.tls import ClientCertificate, TlsSettings
from tests.handclock import HandClock
from tests.unit.kube.wire import (
    CERTS,
    connect,
    refuses,
    says,
    serve,
    server_context,
)


def _copy(source: str, target: Path) -> Path:
    target.write_bytes((CERTS / source).read_bytes())
    return target


def _client(name: str) -> ClientCertificate:
    return ClientCertificate(
        chain=(CERTS / f"{name}.pem").read_bytes(), key=(CERTS / f"{name}.key.pem").read_bytes()
    )


async def test_a_server_of_another_authority_is_not_trusted() -> None:
    settings = TlsSettings(ca_file=CERTS / "authority-two.pem")

    async with (
        serve(server_context("server-one")) as server,
        connect(server.url, tls=settings) as wire,
    ):
        with pytest.raises(errors.Unreachable) as caught:
            await wire.do("GET", "/")

    assert caught.value.kind == "tls"
    assert server.seen == []


async def test_without_an_authority_the_systems_are_trusted() -> None:
    async with serve(server_context("server-one")) as server, connect(server.url) as wire:
        with pytest.raises(errors.Unreachable) as caught:
            await wire.do("GET", "/")

    assert caught.value.kind == "tls"


async def test_any_server_is_trusted_on_demand() -> None:
    async with (
        serve(server_context("server-one")) as server,
        connect(server.url, tls=TlsSettings(insecure=True)) as wire,
    ):
        assert await wire.do("GET", "/") == b"{}"


@pytest.mark.parametrize(("name", "trusted"), [("apiserver.test", True), ("other.test", False)])
async def test_the_servers_name_may_be_told(name: str, trusted: bool) -> None:
    settings = TlsSettings(ca_file=CERTS / "authority-one.pem", server_name=name)
    outcome = "trusted"

    async with (
        serve(server_context("server-one")) as server,
        connect(server.url, tls=settings) as wire,
    ):
        try:
            await wire.do("GET", "/")
        except errors.Unreachable as problem:
            outcome = problem.kind

    assert outcome == ("trusted" if trusted else "tls")


async def test_a_rotated_authority_is_found_at_the_first_failure_of_trust(
    hand: HandClock,
    tmp_path: Path,
) -> None:
    file = _copy("authority-one.pem", tmp_path / "ca.crt")
    context = server_context("server-one")

    async with (
        serve(context) as server,
        connect(server.url, tls=TlsSettings(ca_file=file)) as wire,
    ):
        server.will(says({}, Connection="close"))
        await wire.do("PATCH", "/")
        context.load_cert_chain(CERTS / "server-two.pem", CERTS / "server-two.key.pem")
        _copy("authority-two.pem", file)
        hand.advance(6)
        await wire.do("PATCH", "/")

    assert len(server.seen) == 2


async def test_a_rotated_certificate_is_shown_within_a_minute_and_no_stream_is_lost(
    hand: HandClock,
    tmp_path: Path,
) -> None:
    chain = _copy("client-a.pem", tmp_path / "tls.crt")
    key = _copy("client-a.key.pem", tmp_path / "tls.key")
    settings = TlsSettings(ca_file=CERTS / "authority-one.pem", cert_file=chain, key_file=key)
    go_on = asyncio.Event()

    async def two_lines(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await go_on.wait()
        await response.write(b"two\n")
        return response

    async with (
        serve(server_context("server-one", clients="authority-one")) as server,
        connect(server.url, tls=settings) as wire,
    ):
        server.will(two_lines)
        async with wire.stream("/watch", idle_timeout_s=10) as lines:
            first = await anext(lines)
            _copy("client-b.pem", chain)
            _copy("client-b.key.pem", key)
            hand.advance(59)
            await wire.do("GET", "/early")
            hand.advance(1)
            await wire.do("GET", "/late")
            go_on.set()
            second = await anext(lines)

    assert (first, second) == (b"one", b"two")
    assert server.peers == ["daemon-a", "daemon-a", "daemon-b"]


async def test_a_certificate_that_was_rejected_is_looked_for_at_once(
    hand: HandClock, tmp_path: Path
) -> None:
    chain = _copy("client-a.pem", tmp_path / "tls.crt")
    key = _copy("client-a.key.pem", tmp_path / "tls.key")
    settings = TlsSettings(ca_file=CERTS / "authority-one.pem", cert_file=chain, key_file=key)

    async with (
        serve(server_context("server-one", clients="authority-one")) as server,
        connect(server.url, tls=settings) as wire,
    ):
        server.will(says({}), refuses(401, "Unauthorized"))
        await wire.do("GET", "/")
        _copy("client-b.pem", chain)
        _copy("client-b.key.pem", key)
        hand.advance(6)
        await wire.do("GET", "/")

    assert server.peers == ["daemon-a", "daemon-a", "daemon-b"]


@pytest.mark.parametrize("content", [None, "", "half a certifi"])
async def test_unusable_files_leave_the_old_material_in_use(
    hand: HandClock, tmp_path: Path, content: str | None
) -> None:
    file = _copy("authority-one.pem", tmp_path / "ca.crt")

    async with (
        serve(server_context("server-one")) as server,
        connect(server.url, tls=TlsSettings(ca_file=file)) as wire,
    ):
        await wire.do("GET", "/")
        file.unlink()
        if content is not None:
            file.write_text(content)
        hand.advance(61)
        with capture_logs() as lines:
            for _ in range(3):
                await wire.do("GET", "/")
                hand.advance(61)
            _copy("authority-one.pem", file)
            await wire.do("GET", "/")

    assert len(server.seen) == 5
    assert [line["log_level"] for line in lines] == ["warning", "info"]


async def test_files_that_stay_the_same_make_no_new_context(
    hand: HandClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _copy("authority-one.pem", tmp_path / "ca.crt")
    made: list[tls.TlsMaterial] = []
    build = tls.build_context

    def counted(material: tls.TlsMaterial, *, insecure: bool = False) -> ssl.SSLContext:
        made.append(material)
        return build(material, insecure=insecure)

    async with (
        serve(server_context("server-one")) as server,
        connect(server.url, tls=TlsSettings(ca_file=file)) as wire,
    ):
        await wire.do("GET", "/")
        monkeypatch.setattr(tls, "build_context", counted)
        hand.advance(61)
        await wire.do("GET", "/")

    assert not made


async def test_files_that_never_were_usable_are_an_error(tmp_path: Path) -> None:
    async with connect("https://127.0.0.1:1", tls=TlsSettings(ca_file=tmp_path / "no")) as wire:
        with pytest.raises(errors.Unreachable) as caught:
            await wire.do("GET", "/")

    assert caught.value.kind == "tls"


async def test_unchanged_files_keep_the_session(hand: HandClock, tmp_path: Path) -> None:
    file = _copy("authority-one.pem", tmp_path / "ca.crt")

    async with (
        serve(server_context("server-one")) as server,
        connect(server.url, tls=TlsSettings(ca_file=file)) as wire,
    ):
        with capture_logs() as lines:
            for _ in range(3):
                await wire.do("GET", "/")
                hand.advance(61)

    assert lines == []


class _Changing:
    """Credentials whose certificate is replaced by the test."""

    def __init__(self) -> None:
        self.name = "client-a"

    async def current(self) -> Credential:
        return Credential(certificate=_client(self.name))

    async def rejected(self, credential: Credential, sent_at: float) -> bool:
        return False


async def test_a_certificate_of_the_credential_is_shown_from_the_next_request_on() -> None:
    settings = TlsSettings(ca_file=CERTS / "authority-one.pem")
    source = _Changing()

    async with (
        serve(server_context("server-one", clients="authority-one")) as server,
        connect(server.url, tls=settings, credentials=source) as wire,
    ):
        await wire.do("GET", "/")
        source.name = "client-b"
        await wire.do("GET", "/")

    assert server.peers == ["daemon-a", "daemon-b"]


def test_a_key_that_does_not_fit_is_an_error() -> None:
    certificate = ClientCertificate(chain=_client("client-a").chain, key=_client("client-b").key)

    with pytest.raises(ssl.SSLError):
        tls.build_context(tls.TlsMaterial(certificate=certificate))


def test_a_key_is_not_printed() -> None:
    key = (CERTS / "client-a.key.pem").read_bytes()
    settings = TlsSettings(cert_data=b"c", key_data=key)

    assert "PRIVATE" not in repr(settings) + repr(settings.read())
