"""Values from text: numbers, durations, flags, gates, credentials, files, proxies."""

from __future__ import annotations

import random
import re
import socket
import ssl
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ServerDisconnectedError,
)
from aiohttp.client_reqrep import ConnectionKey
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ccm.base import credentials, files, lazy_aiohttp, redact
from ccm.base.backoff import ExponentialBackoff, FailureStreak, jittered
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
    FeatureGate,
    FlagKind,
    NamedCertificate,
    gate_values,
)
from ccm.base.log import Outage, logger
from ccm.base.parsing import MAX_INT64, format_duration, parse_digits, parse_duration
from ccm.base.proxies import ProxySettings, without_credentials
from tests.handclock import HandClock


@pytest.mark.parametrize("text", ["+1", "1_0", "²", "٣", "1\n", str(MAX_INT64 + 1), "0" * 5000])
def test_parse_digits_returns_none_for_other_text(text: str) -> None:
    assert parse_digits(text) is None
    assert parse_digits(str(MAX_INT64)) == MAX_INT64


@given(st.text())
def test_parsed_digits_equal_the_text(text: str) -> None:
    found = parse_digits(text)

    assert found is None or str(found) == text.lstrip("0") or (found == 0 and set(text) == {"0"})


US = timedelta(microseconds=1)


@given(st.integers(-(2**62) // 1000, 2**62 // 1000))
def test_formatted_duration_parses_to_the_same_value(micros: int) -> None:
    value = micros * US

    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("-0", timedelta(0), "0s"),
        ("5.s", timedelta(seconds=5), "5s"),
        ("12μs", 12 * US, "12µs"),
        ("-1999ns", -US, "-1µs"),
        ("10.5s4m", timedelta(minutes=4, seconds=10.5), "4m10.5s"),
        ("1h2m3s4ms5us6ns", timedelta(hours=1, minutes=2, seconds=3, microseconds=4005), None),
        ("0.3333333333333333333h", timedelta(minutes=19, seconds=59, microseconds=999999), None),
        ("48h", timedelta(hours=48), "48h0m0s"),
        ("-90s", -timedelta(seconds=90), "-1m30s"),
        ("2562047h", timedelta(hours=2562047), None),
    ],
)
def test_durations_parse_and_format_as_in_go(
    text: str, value: timedelta, written: str | None
) -> None:
    assert parse_duration(text) == value
    assert written in (None, format_duration(value))


@pytest.mark.parametrize("text", ["", "3", "s", ".s", "1d", "5 s", " 5s", "1h2", "٣s", "2562048h"])
def test_invalid_duration_error_shows_the_text(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        *(("", True), ("a b", True), ("x" * credentials.MAX_HEADER_BYTES, True)),
        *((f"hunter{text}", False) for text in ("\nb", "\r\nX-Admin: 1", "\0", "\x7f", "ä")),
        ("hunter" * 50_000, False),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_credential_for_a_header_must_be_one_ascii_line(text: str, is_taken: bool) -> None:
    if is_taken:
        assert credentials.check_header_value(text) == text
        return
    with pytest.raises(ValueError, match=r"must be one line .* it has \d+ bytes$") as caught:
        credentials.check_header_value(text)
    assert "hunter" not in str(caught.value)


def test_credential_file_size_is_limited_and_private_files_have_mode_0600(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b" \n" + b"x" * (credentials.MAX_BYTES - 3) + b"\n")
    assert credentials.read(file) == "x" * (credentials.MAX_BYTES - 3)
    file.write_bytes(b"x" * (credentials.MAX_BYTES + 1))
    with pytest.raises(ValueError, match=f"more than {credentials.MAX_BYTES} bytes"):
        credentials.read(file)

    file.chmod(0o644)
    files.write_private(file, "kept")

    assert file.read_text() == "kept"
    assert file.stat().st_mode & 0o777 == 0o600


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
def test_no_proxy_selects_hosts_without_a_proxy(
    name: str, no_proxy: str, hosts: str, is_direct: bool
) -> None:
    proxies = ProxySettings.from_environ({**BOTH, name: no_proxy})
    for host in hosts.split():
        assert (proxies.proxy_for(f"https://{host}/x") == "") is is_direct, host


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({"https_proxy": PROXY}, "https://cloud.test", PROXY),
        ({"HTTPS_PROXY": "http://upper", "https_proxy": PROXY}, "https://c", "http://upper"),
        ({"HTTPS_PROXY": "", "https_proxy": PROXY}, "https://cloud.test", PROXY),
        ({"HTTPS_PROXY": PROXY}, "http://cloud.test", ""),
        ({"HTTP_PROXY": PROXY}, "http://cloud.test", PROXY),
        ({"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, "https://cloud.test", ""),
        ({"HTTPS_PROXY": " proxy.test:3128 "}, "https://cloud.test", PROXY),
        # Metadata services and localhost are never reached through a proxy.
        *((BOTH, f"http://{host}/latest", "") for host in ("169.254.170.23", "[fd00:ec2::254]")),
        *(
            (BOTH, f"https://{host}", "")
            for host in ("[::ffff:169.254.169.254]", "[fe80::a9fe:a9fe]")
        ),
        *((BOTH, f"http://{host}", "") for host in ("127.8.8.8:8080", "[::1]", "LOCALHOST")),
    ],
)
def test_proxy_is_selected_by_environment_variables(
    environ: dict[str, str], url: str, proxy: str
) -> None:
    assert ProxySettings.from_environ(environ).proxy_for(url) == proxy


def test_proxy_password_is_masked() -> None:
    proxy = "http://us:pass%40word-of-proxy@proxy.test"
    assert (
        ProxySettings.from_environ({"HTTPS_PROXY": proxy}).proxy_for("https://cloud.test") == proxy
    )

    assert redact.mask_text("it was pass@word-of-proxy") == "it was [redacted]"
    assert without_credentials(proxy) == "http://proxy.test"


@pytest.mark.parametrize(
    "given", ["socks5://us:hunter4@proxy.test", "http://", "http://proxy.test:x", "http://p:0"]
)
def test_invalid_proxy_error_names_the_variable(given: str) -> None:
    proxies = ProxySettings.from_environ({"HTTPS_PROXY": given})
    with pytest.raises(ValueError, match=r"HTTPS_PROXY.*is not an HTTP proxy") as caught:
        proxies.proxy_for("https://cloud.test")

    assert "hunter4" not in str(caught.value)
    assert proxies.proxy_for("https://localhost") == ""


def test_too_long_proxy_password_is_refused() -> None:
    proxy = f"http://us:{'x' * 70_000}@proxy.test"

    with pytest.raises(ValueError, match=r"^HTTPS_PROXY: its password must .* has 70000$"):
        ProxySettings.from_environ({"HTTPS_PROXY": proxy}).proxy_for("https://cloud.test")


def test_exponential_backoff_doubles_up_to_the_cap() -> None:
    policy = ExponentialBackoff(base_s=0.005, factor=2.0, cap_s=1000.0)
    delays = [policy.delay(failures, random.Random(7)) for failures in (0, 1, 17, 18, 10**9)]

    assert delays == [0.005, 0.01, 655.36, 1000.0, 1000.0]


@given(st.floats(0.001, 1e6), st.floats(-1.0, 3.0), st.integers())
def test_jitter_lengthens_delays_and_never_shortens_them(
    delay: float, fraction: float, seed: int
) -> None:
    stretched = jittered(delay, fraction, random.Random(seed))

    assert delay <= stretched <= delay * (1 + max(0.0, fraction))


def test_failure_streak_grows_until_reset_or_a_quiet_period() -> None:
    streak = FailureStreak(policy=ExponentialBackoff(base_s=1.0, cap_s=30.0), reset_after_s=120.0)
    grown = [streak.next_delay(now_s) for now_s in (0.0, 1.0, 121.0, 241.5, 242.0)]

    streak.reset()

    assert grown == [1.0, 2.0, 4.0, 1.0, 2.0]
    assert streak.next_delay(243.0) == 1.0


def test_outage_is_logged_at_its_start_periodically_and_at_its_end(hand: HandClock) -> None:
    outage = Outage(logger("test"), start_message="lost", end_message="found")
    with capture_logs() as lines:
        outage.record_success()
        for minute in range(12):
            outage.record_failure(minute=minute)
            hand.advance(60.0)
        outage.record_success()
        outage.record_success()

    warned = [line["minute"] for line in lines if line["log_level"] == "warning"]
    assert warned == [0, 5, 10]
    assert [line["after_s"] for line in lines if line["event"] == "found"] == [720.0]


CERTIFICATE = NamedCertificate(cert_file="a", key_file="b", names=("*.c", "d"))


@pytest.mark.parametrize(
    ("kind", "text", "value", "written"),
    [
        *[(BOOL, word, True, "true") for word in ("1", "t", "T", "true", "TRUE", "True")],
        *[(BOOL, word, False, "false") for word in ("0", "f", "F", "false", "FALSE", "False")],
        (INT32, "-2147483648", -(2**31), "-2147483648"),
        (INT32, "+5", 5, "5"),
        (FLOAT, "-.5e1", -5.0, "-5"),
        (DURATION, "12h", timedelta(hours=12), "12h0m0s"),
        (STRINGS, "", (), "[]"),
        (STRINGS, " a,,b,", (" a", "", "b", ""), "[ a,,b,]"),
        (NUMBERS, "29,23", (29, 23), "[29,23]"),
        (
            GATES,
            "B=true, A=false,,C=1",
            {"A": False, "B": True, "C": True},
            "A=false,B=true,C=true",
        ),
        (LEVELS, "node*=4,kube=2", (("node*", 4), ("kube", 2)), "node*=4,kube=2"),
        (QUANTITY, "64Ki", 65536, None),
        (CERTIFICATES, "a,b:*.c, d", (CERTIFICATE,), "[a,b:*.c,d]"),
        (VERSION, "1", "true", "true"),
        (VERSION, "v1.2.3-rc.1", "v1.2.3-rc.1", "v1.2.3-rc.1"),
    ],
)
def test_flag_kinds_parse_and_format_values(
    kind: FlagKind[Any], text: str, value: object, written: str | None
) -> None:
    assert kind.parse(text) == value
    assert written in (None, kind.write(kind.parse(text)))


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
def test_flag_kinds_refuse_invalid_text(kind: FlagKind[Any], text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the parser's own business
        kind.parse(text)


KNOWN = (
    FeatureGate(name="Early", default=False, stage="ALPHA", help="Something new."),
    FeatureGate(name="Tried", default=True, stage="BETA", help="Something tried."),
    FeatureGate(name="Settled", default=True, stage="GA", help="Here to stay."),
)


@pytest.mark.parametrize(
    ("settings", "enabled"),
    [
        ({}, {"Tried", "Settled"}),
        ({"AllAlpha": True, "AllBeta": False}, {"Early", "Settled"}),
        ({"Early": False, "AllAlpha": True, "Settled": True}, {"Tried", "Settled"}),
    ],
    ids=["defaults", "a-group", "its-own-wins-over-a-group"],
)
def test_feature_gates_follow_settings_and_group_settings(
    settings: dict[str, bool], enabled: set[str]
) -> None:
    assert {name for name, on in gate_values(KNOWN, settings).items() if on} == enabled


def test_all_unknown_feature_gates_are_reported_at_once() -> None:
    with pytest.raises(ValueError, match="gate: Nope; unrecognized feature gate: No"):
        gate_values(KNOWN, {"Nope": True, "No": False, "Settled": False})


def test_lazy_tls_context_is_as_strict_as_the_default_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    ours, pythons = lazy_aiohttp._context(), ssl.create_default_context()
    for name in ("verify_flags", "verify_mode", "check_hostname", "options", "minimum_version"):
        assert getattr(ours, name) == getattr(pythons, name), name


def test_daemon_start_does_not_load_the_system_cas() -> None:
    program = (
        "import ccm.__main__; from aiohttp import connector;"
        "context = connector._SSL_CONTEXT_VERIFIED;"
        "print(type(context).__name__, context.cert_store_stats()['x509_ca'])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert done.stdout == b"LazyTrustContext 0\n"
    assert "set_default_verify_paths" not in vars(ssl.SSLContext), "others load as ever"


def key(host: str = "127.0.0.1") -> ConnectionKey:
    return ConnectionKey(host, 1, False, True, None, None, None)


def plain_http() -> ssl.SSLError:
    """Return the error of the TLS library for an answer in plain HTTP."""
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
            "the server does not speak TLS",
        ),
        (ServerDisconnectedError(), "Server disconnected"),
        (TimeoutError(), "TimeoutError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_connection_errors_are_described_without_error_numbers(error: Exception, said: str) -> None:
    assert lazy_aiohttp.describe_error(error) == said
