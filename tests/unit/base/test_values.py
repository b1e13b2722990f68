"""Values from text of others: numbers, durations, flags, gates, credentials, files, proxies."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

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
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ccm.base import clock, credentials, files, redact, wire
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
    NamedCertificate,
)
from ccm.base.log import Outage, logger
from ccm.base.parsing import MOST, format_duration, parse_digits, parse_duration
from ccm.base.proxies import Proxies, shown
from ccm.base.recent import Recent
from tests import pki
from tests.handclock import HandClock


@pytest.mark.parametrize("number", [0, 1, 65535, MOST])
def test_a_number_is_read(number: int) -> None:
    assert parse_digits(str(number)) == number


@pytest.mark.parametrize(
    "text",
    [
        *["", " 1", "1 ", "+1", "-1", "1_0", "1.0", "0x1", "1e3", "²", "٣", "１", "\0", "1\n"],
        *[str(MOST + 1), "9" * 5000, "0" * 5000],
    ],
)
def test_other_text_is_none(text: str) -> None:
    assert parse_digits(text) is None


@given(st.text())
def test_what_is_read_is_what_is_written(text: str) -> None:
    found = parse_digits(text)

    assert found is None or str(found) == text.lstrip("0") or (found == 0 and set(text) == {"0"})


US = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", timedelta(0)),
        ("-0", timedelta(0)),
        ("5s", timedelta(seconds=5)),
        ("-5s", timedelta(seconds=-5)),
        ("+5s", timedelta(seconds=5)),
        ("5.s", timedelta(seconds=5)),
        (".5s", timedelta(seconds=0.5)),
        ("1.004s", timedelta(milliseconds=1004)),
        ("12µs", 12 * US),
        ("12μs", 12 * US),
        ("10ns", timedelta(0)),
        ("1999ns", US),
        ("-1999ns", -US),
        ("3h30m", timedelta(hours=3, minutes=30)),
        ("10.5s4m", timedelta(minutes=4, seconds=10.5)),
        ("-2m3.4s", -timedelta(minutes=2, seconds=3.4)),
        ("1h2m3s4ms5us6ns", timedelta(hours=1, minutes=2, seconds=3, microseconds=4005)),
        ("0.3333333333333333333h", timedelta(minutes=19, seconds=59, microseconds=999999)),
        ("2562047h", timedelta(hours=2562047)),
    ],
)
def test_go_text_is_read(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *["", "3", "-", "s", ".", "-.", ".s", "+.s", "1d", "5 s", " 5s", "5s ", "1h2", "٣s"],
        *["²s", "2562048h", "9" * 5000 + "s", f"0.{'9' * 5000}s"],
    ],
)
def test_other_text_is_refused_with_the_text_shown(text: str) -> None:
    with pytest.raises(ValueError, match="duration") as raised:
        parse_duration(text)

    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(0), "0s"),
        (US, "1µs"),
        (1100 * US, "1.1ms"),
        (timedelta(milliseconds=300), "300ms"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(minutes=5), "5m0s"),
        (timedelta(minutes=4, milliseconds=5), "4m0.005s"),
        (timedelta(hours=1), "1h0m0s"),
        (timedelta(hours=5, minutes=6, milliseconds=7001), "5h6m7.001s"),
        (timedelta(hours=48), "48h0m0s"),
        (-timedelta(seconds=90), "-1m30s"),
    ],
)
def test_durations_are_written_as_go_writes_them(value: timedelta, expected: str) -> None:
    assert format_duration(value) == expected


@given(st.integers(-(2**62) // 1000, 2**62 // 1000))
def test_what_is_written_reads_back_the_same(micros: int) -> None:
    value = micros * US

    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    "text", ["", "t", "a b", "x" * credentials.HEADER_BYTES], ids=lambda value: repr(value)[:24]
)
def test_what_a_header_can_carry_is_taken(text: str) -> None:
    assert credentials.header_value(text) == text


@pytest.mark.parametrize(
    "text",
    ["a\nb", "a\r\nX-Admin: 1", "a\0", "a\x7f", "pä", "\udcff", "x" * 300_000],
    ids=lambda value: repr(value)[:24],
)
def test_what_no_header_can_carry_is_refused_with_its_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be one line .* and has \d+$") as caught:
        credentials.header_value(text)

    assert text not in str(caught.value)


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b" \n" + b"x" * (credentials.MOST_BYTES - 3) + b"\n")
    assert credentials.read(file) == "x" * (credentials.MOST_BYTES - 3)

    file.write_bytes(b"x" * (credentials.MOST_BYTES + 1))
    with pytest.raises(ValueError, match=f"more than {credentials.MOST_BYTES} bytes"):
        credentials.read(file)


def test_nobody_else_reads_it_though_everybody_read_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("something longer than what follows")
    path.chmod(0o644)

    files.write_private(path, "kept")

    assert path.read_text() == "kept"
    assert path.stat().st_mode & 0o777 == 0o600


PROXY = "http://proxy.test:3128"
BOTH = {"HTTP_PROXY": PROXY, "HTTPS_PROXY": PROXY}


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({}, "https://cloud.test", ""),
        ({"HTTPS_PROXY": PROXY}, "https://cloud.test", PROXY),
        ({"https_proxy": PROXY}, "https://cloud.test", PROXY),
        (
            {"HTTPS_PROXY": "http://upper", "https_proxy": "http://lower"},
            "https://c",
            "http://upper",
        ),
        ({"HTTPS_PROXY": "", "https_proxy": PROXY}, "https://cloud.test", PROXY),
        ({"HTTPS_PROXY": PROXY}, "http://cloud.test", ""),
        ({"HTTP_PROXY": PROXY}, "http://cloud.test", PROXY),
        ({"HTTP_PROXY": PROXY}, "https://cloud.test", ""),
        ({"ALL_PROXY": PROXY}, "https://cloud.test", ""),
        ({"HTTPS_PROXY": "proxy.test:3128"}, "https://cloud.test", PROXY),
        ({"HTTPS_PROXY": f" {PROXY} "}, "https://cloud.test", PROXY),
        ({"HTTPS_PROXY": "https://proxy.test"}, "https://cloud.test", "https://proxy.test"),
    ],
)
def test_the_variables(environ: dict[str, str], url: str, proxy: str) -> None:
    assert Proxies.of(environ).proxy_for(url) == proxy


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
    "host",
    [
        "169.254.169.254",
        "169.254.170.23",
        "[::ffff:169.254.169.254]",
        "[fe80::a9fe:a9fe]",
        "[fd00:ec2::254]",
        "127.0.0.1",
        "127.8.8.8:8080",
        "[::1]",
        "localhost:8080",
        "LOCALHOST",
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_metadata_services_and_this_machine_are_never_asked_through_a_proxy(
    scheme: str, host: str
) -> None:
    assert Proxies.of(BOTH).proxy_for(f"{scheme}://{host}/latest") == ""


@pytest.mark.parametrize(
    "given", ["socks5://us:hunter4@proxy.test", "http://", "http://proxy.test:x", "http://p:0"]
)
def test_what_is_no_proxy_is_refused_by_name(given: str) -> None:
    proxies = Proxies.of({"HTTPS_PROXY": given})
    with pytest.raises(ValueError, match=r"HTTPS_PROXY.*is no HTTP proxy") as caught:
        proxies.proxy_for("https://cloud.test")

    assert "hunter4" not in str(caught.value)
    assert proxies.proxy_for("https://localhost") == ""


def test_the_password_of_a_proxy_is_a_secret() -> None:
    proxy = "http://us:pass%40word-of-proxy@proxy.test"
    assert Proxies.of({"HTTPS_PROXY": proxy}).proxy_for("https://cloud.test") == proxy

    assert redact.words("it was pass@word-of-proxy") == "it was [redacted]"
    assert shown(proxy) == "http://proxy.test"


def test_a_password_of_a_proxy_that_is_longer_than_any_credential_is_refused() -> None:
    proxy = f"http://us:{'x' * 70_000}@proxy.test"

    with pytest.raises(ValueError, match=r"^HTTPS_PROXY: its password must .* has 70000$"):
        Proxies.of({"HTTPS_PROXY": proxy}).proxy_for("https://cloud.test")


RNG = random.Random(7)
POLICY = Exponential(base_s=0.005, factor=2.0, cap_s=1000.0)


def test_delays_double_up_to_the_cap() -> None:
    delays = [POLICY.delay(failures, RNG) for failures in (0, 1, 2, 10, 17, 18, 1000, 10**9)]

    assert delays == [0.005, 0.01, 0.02, 5.12, 655.36, 1000.0, 1000.0, 1000.0]


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


def test_a_quiet_time_starts_a_streak_anew() -> None:
    streak = Streak(policy=Exponential(base_s=1.0, cap_s=30.0), reset_after_s=120.0)
    streak.next(0.0)
    streak.next(1.0)

    at_the_border = streak.next(121.0)
    past_it = streak.next(241.5)

    assert (at_the_border, past_it) == (4.0, 1.0)


def test_whoever_owns_time_replaces_both_clocks_for_a_while() -> None:
    with clock.replaced(lambda: datetime(2030, 1, 1, tzinfo=UTC), lambda: 12345.5):
        told = clock.now().year, clock.monotonic()

    assert told == (2030, 12345.5)
    assert clock.monotonic() <= time.monotonic()


def test_or_replaces_them_in_this_thread_alone() -> None:
    told: list[float] = []
    other = threading.Thread(target=lambda: told.append(clock.monotonic()))

    with clock.replaced(lambda: datetime(2030, 1, 1, tzinfo=UTC), lambda: -1.0, here=True):
        assert clock.monotonic() == -1.0
        other.start()
        other.join()

    assert told[0] >= 0


def test_a_trouble_is_said_when_it_begins_and_when_it_is_over(hand: HandClock) -> None:
    outage = Outage(logger("test"), begins="lost", ends="found")
    with capture_logs() as lines:
        outage.is_over()
        outage.goes_on(error="one")
        began = outage.since
        hand.advance(2.5)
        outage.goes_on(error="two")
        assert outage
        assert (outage.since, outage.last) == (began, (0.0, 0.0))
        outage.is_over()
        outage.is_over()

    assert not outage
    assert began is not None
    assert outage.last == (began, began + 2.5)
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "lost"),
        ("info", "found"),
    ]
    assert lines[-1]["after_s"] == 2.5


def test_a_trouble_that_lasts_is_a_warning_every_few_minutes(hand: HandClock) -> None:
    outage = Outage(logger("test"), begins="lost", ends="found")
    with capture_logs() as lines:
        for minute in range(12):
            outage.goes_on(minute=minute)
            hand.advance(60.0)

    warned = [line["minute"] for line in lines if line["log_level"] == "warning"]
    assert warned == [0, 5, 10]


def test_what_was_noted_longest_ago_makes_room() -> None:
    dropped: list[int] = []
    recent: Recent[str, int] = Recent(2, dropped=dropped.append)

    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        recent.note(key, value)

    assert (recent.of("a"), recent.of("b"), recent.of("c")) == (3, None, 4)
    assert dropped == [2]
    assert len(recent) == 2


def test_nothing_is_left_to_drop() -> None:
    recent: Recent[str, int] = Recent()
    recent.note("a", 1)

    assert recent.drop_oldest()
    assert not recent.drop_oldest()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *[(BOOL, word, True) for word in ("1", "t", "T", "true", "TRUE", "True")],
        *[(BOOL, word, False) for word in ("0", "f", "F", "false", "FALSE", "False")],
        (INT32, "-2147483648", -(2**31)),
        (INT32, "2147483647", 2**31 - 1),
        (INT32, "+5", 5),
        (LEVEL, "4", 4),
        (FLOAT, "20", 20.0),
        (FLOAT, "-.5e1", -5.0),
        (DURATION, "1h2m3.5s", timedelta(hours=1, minutes=2, seconds=3.5)),
        (STRINGS, "", ()),
        (STRINGS, "a,b", ("a", "b")),
        (STRINGS, "a,,b,", ("a", "", "b", "")),
        (STRINGS, " a, b", (" a", " b")),
        (NUMBERS, "", ()),
        (NUMBERS, "29,23", (29, 23)),
        (GATES, "A=true, B=false,,C=1", {"A": True, "B": False, "C": True}),
        (GATES, "", {}),
        (LEVELS, "node*=4,kube=2", (("node*", 4), ("kube", 2))),
        (QUANTITY, "0", 0),
        (QUANTITY, "64Ki", 65536),
        (
            CERTIFICATES,
            "a.crt,a.key",
            (NamedCertificate(cert_file="a.crt", key_file="a.key"),),
        ),
        (
            CERTIFICATES,
            "a.crt,a.key:*.a.example, b.example",
            (
                NamedCertificate(
                    cert_file="a.crt", key_file="a.key", names=("*.a.example", "b.example")
                ),
            ),
        ),
        *[(VERSION, text, text) for text in ("true", "false", "raw", "v1.36.3", "v1.2.3-rc.1")],
        (VERSION, "1", "true"),
    ],
)
def test_reads(kind: Kind[Any], text: str, value: object) -> None:
    assert kind.parse(text) == value


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


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (BOOL, False, "false"),
        (FLOAT, 20.0, "20"),
        (FLOAT, 0.5, "0.5"),
        (DURATION, timedelta(hours=12), "12h0m0s"),
        (STRINGS, (), "[]"),
        (NUMBERS, (29, 23), "[29,23]"),
        (GATES, {"B": True, "A": False}, "A=false,B=true"),
        (LEVELS, (("node*", 4),), "node*=4"),
        (ADDRESS, ADDRESS.parse("::"), "::"),
        (CERTIFICATES, CERTIFICATES.parse("a,b:c,d"), "[a,b:c,d]"),
        (CERTIFICATES, CERTIFICATES.parse("a,b"), "[a,b]"),
    ],
)
def test_writes(kind: Kind[Any], value: object, text: str) -> None:
    assert kind.write(value) == text


KNOWN = (
    Gate(name="Early", default=False, stage="ALPHA", help="Something new."),
    Gate(name="Tried", default=True, stage="BETA", help="Something tried."),
    Gate(name="Settled", default=True, stage="GA", help="Here to stay.", locked=True),
    Gate(name="Fixed", default=False, stage="ALPHA", help="Not ready.", locked=True),
)


@pytest.mark.parametrize(
    ("settings", "enabled"),
    [
        pytest.param({}, {"Tried", "Settled"}, id="defaults"),
        pytest.param(
            {"AllAlpha": True, "AllBeta": False}, {"Early", "Settled"}, id="a group spares locked"
        ),
        pytest.param(
            {"Early": False, "AllAlpha": True}, {"Tried", "Settled"}, id="its own wins over a group"
        ),
        pytest.param({"Settled": True}, {"Tried", "Settled"}, id="locked to what it is"),
    ],
)
def test_settings_change_gates(settings: dict[str, bool], enabled: set[str]) -> None:
    gates = Gates(KNOWN, settings)

    assert {gate.name for gate in KNOWN if gates.enabled(gate.name)} == enabled


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="unrecognized feature gate: Nope") as raised:
        Gates(KNOWN, {"Nope": True, "Settled": False})

    assert "cannot set feature gate Settled to false, feature is locked to true" in str(
        raised.value
    )


def test_asking_for_an_unknown_gate_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        Gates(KNOWN).enabled("Nope")


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
