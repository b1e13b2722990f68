"""Which requests go through a proxy."""

from __future__ import annotations

import pytest

from ccm.base import redact
from ccm.base.proxies import Proxies, shown

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
