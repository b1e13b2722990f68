"""Values from text of others: numbers, durations, credentials, files, proxies."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base import credentials, files, redact
from ccm.base.parsing import MOST, format_duration, parse_digits, parse_duration
from ccm.base.proxies import Proxies, shown


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
