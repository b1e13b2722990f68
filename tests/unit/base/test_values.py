"""Values from text of others: numbers, durations, flags, gates, credentials, files, proxies."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ServerDisconnectedError,
)
from aiohttp.client_reqrep import ConnectionKey
from hypothesis import given
from hypothesis import strategies as st

from ccm.base import wire
from ccm.base.backoff import Exponential, Streak, jittered
from ccm.base.flags import (
    ADDRESS,
    BOOL,
    CERTIFICATES,
    DURATION,
    FLOAT,
    GATES,
    INT32,
    LEVEL,
    LEVELS,
    NUMBERS,
    QUANTITY,
    STRINGS,
    VERSION,
    Gate,
    Gates,
    Kind,
)
from ccm.base.parsing import format_duration, parse_digits, parse_duration
from ccm.base.proxies import Proxies
from tests import pki


@given(st.text())
def test_what_is_read_is_what_is_written(text: str) -> None:
    found = parse_digits(text)

    assert found is None or str(found) == text.lstrip("0") or (found == 0 and set(text) == {"0"})


US = timedelta(microseconds=1)


@given(st.integers(-(2**62) // 1000, 2**62 // 1000))
def test_what_is_written_reads_back_the_same(micros: int) -> None:
    value = micros * US

    assert parse_duration(format_duration(value)) == value


PROXY = "http://proxy.test:3128"
BOTH = {"HTTP_PROXY": PROXY, "HTTPS_PROXY": PROXY}


@pytest.mark.parametrize(
    ("no_proxy", "hosts", "is_direct"),
    [
        ("", "cloud.test 192.0.2.1 [2001:db8::1]", False),
        ("*", "cloud.test 192.0.2.1 [2001:db8::1]", True),
        ("other.test, Cloud.Test", "cloud.test api.cloud.test CLOUD.TEST cloud.test.", True),
        ("cloud.test", "mycloud.test cloud.test.example", False),
        (".cloud.test", "api.cloud.test a.b.cloud.test", True),
        (".cloud.test", "cloud.test mycloud.test", False),
        ("*.cloud.test", "api.cloud.test", True),
        ("*.cloud.test", "cloud.test", False),
        ("192.0.2.0/24", "192.0.2.200", True),
        ("192.0.2.0/24", "192.0.3.1 192.0.2.cloud.test [2001:db8::1]", False),
        ("192.0.2.7", "192.0.2.7 [::ffff:192.0.2.7]", True),
        ("2001:db8::/32", "[2001:db8::1]", True),
        ("2001:db8::1 [2001:db8::2]", "[2001:db8::1] [2001:DB8:0::2]", True),
        ("cloud.test:443", "cloud.test cloud.test:443 api.cloud.test", True),
        ("cloud.test:443", "cloud.test:8443", False),
        ("192.0.2.7:8443,[2001:db8::1]:8443", "192.0.2.7:8443 [2001:db8::1]:8443", True),
        ("192.0.2.7:8443,[2001:db8::1]:8443", "192.0.2.7 [2001:db8::1]", False),
        ("/,,:,300.0.0.0/8", "cloud.test", False),
        (f"cloud.test:{'4' * 5000},cloud.test:²", "cloud.test", False),
    ],
)
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_hosts_that_are_reached_directly(
    name: str, no_proxy: str, hosts: str, is_direct: bool
) -> None:
    proxies = Proxies.of({**BOTH, name: no_proxy})
    for host in hosts.split():
        assert (proxies.proxy_for(f"https://{host}/x") == "") is is_direct, host


@pytest.mark.parametrize(
    "given", ["socks5://us:hunter4@proxy.test", "http://", "http://proxy.test:x", "http://p:0"]
)
def test_what_is_no_proxy_is_refused_by_name(given: str) -> None:
    proxies = Proxies.of({"HTTPS_PROXY": given})
    with pytest.raises(ValueError, match=r"HTTPS_PROXY.*is no HTTP proxy") as caught:
        proxies.proxy_for("https://cloud.test")

    assert "hunter4" not in str(caught.value)
    assert proxies.proxy_for("https://localhost") == ""


def test_a_password_of_a_proxy_that_is_longer_than_any_credential_is_refused() -> None:
    proxy = f"http://us:{'x' * 70_000}@proxy.test"

    with pytest.raises(ValueError, match=r"^HTTPS_PROXY: its password must .* has 70000$"):
        Proxies.of({"HTTPS_PROXY": proxy}).proxy_for("https://cloud.test")


POLICY = Exponential(base_s=0.005, factor=2.0, cap_s=1000.0)


@given(st.floats(0.001, 1e6), st.floats(-1.0, 3.0), st.integers())
def test_jitter_stretches_and_never_shortens(delay: float, fraction: float, seed: int) -> None:
    stretched = jittered(delay, fraction, random.Random(seed))

    assert delay <= stretched <= delay * (1 + max(0.0, fraction))


def test_a_streak_grows_until_it_is_reset() -> None:
    streak = Streak(policy=Exponential(base_s=1.0, cap_s=30.0))
    grown = [streak.next(now_s) for now_s in (0.0, 1.0, 3.0)]

    streak.reset()

    assert grown == [1.0, 2.0, 4.0]
    assert streak.next(100.0) == 1.0


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[(BOOL, word) for word in ("", "yes", "on", "tRUE", "2", " true")],
        *[
            (INT32, word)
            for word in ("", "x", "1.5", " 1", "1_0", "017", "0x1F", "2147483648", "٣")
        ],
        (LEVEL, "-1"),
        *[(FLOAT, word) for word in ("", "nan", "inf", "1_0", " 1", "1,5")],
        *[(DURATION, word) for word in ("", "5", "5 s", "1d", "9999999999999999h")],
        *[(STRINGS, word) for word in ('a"b', '"a', '"a,b",c', "a\nb")],
        *[(NUMBERS, word) for word in ("a", "1,", "1, 2")],
        *[(ADDRESS, word) for word in ("", "host", "1.2.3", "1.2.3.04", "fe80::1%eth0")],
        *[(GATES, word) for word in ("A", "=true", "A=maybe")],
        *[(LEVELS, word) for word in ("a", "a=", "a=0", "a=-1", "=2", "a=²", "a=٣")],
        *[(kind, f"a={'9' * 5000}") for kind in (LEVELS, QUANTITY)],
        (QUANTITY, "9" * 5000),
        *[(QUANTITY, word) for word in ("", "1KB", "1 Ki", "Ki", "1.5M", "2e3")],
        *[(CERTIFICATES, word) for word in ("", "a.crt", "a,b,c", "a,", "a,b:", "a,b:c,")],
        *[(VERSION, word) for word in ("v1", "1.2.3", "later")],
    ],
)
def test_refuses(kind: Kind[Any], text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the parser's own business
        kind.parse(text)


KNOWN = (
    Gate(name="Early", default=False, stage="ALPHA", help="Something new."),
    Gate(name="Tried", default=True, stage="BETA", help="Something tried."),
    Gate(name="Settled", default=True, stage="GA", help="Here to stay.", locked=True),
    Gate(name="Fixed", default=False, stage="ALPHA", help="Not ready.", locked=True),
)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="unrecognized feature gate: Nope") as raised:
        Gates(KNOWN, {"Nope": True, "Settled": False})

    assert "cannot set feature gate Settled to false, feature is locked to true" in str(
        raised.value
    )


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


def test_the_daemon_starts_without_the_machines_authorities() -> None:
    program = (
        "import ccm.__main__; from aiohttp import connector;"
        "context = connector._SSL_CONTEXT_VERIFIED;"
        "print(type(context).__name__, context.cert_store_stats()['x509_ca'])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert done.stdout == b"TrustOnUse 0\n"
    assert "set_default_verify_paths" not in vars(ssl.SSLContext), "others load as ever"


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
