"""The HTTP client for providers, beyond the tests of the simulated cloud's client."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import connector

from ccm.base import clock, lazy_aiohttp, redact, tasks
from ccm.base.backoff import RETRY_AFTER_LIMIT_S
from ccm.base.lease_guard import LeaseGuard
from ccm.base.throttle import ConcurrencyLimiter
from ccm.cloud import ConfigError, errors, rest
from ccm.cloud.rest import QuotaLimiter, Refusal, RestClient
from tests import forwardproxy, pki
from tests.handclock import HandClock
from tests.unit.kube import proxy

CODES: dict[str, type[errors.CloudError]] = {
    "absent": errors.NotFound,
    "full": errors.ResourceExhausted,
    "busy": errors.RetryAfter,
    "no disk": errors.DiskNotFound,
}


class Item(msgspec.Struct):
    name: str


class Page(msgspec.Struct):
    names: list[str]
    next: str | None


def refusal(body: bytes) -> Refusal:
    return msgspec.json.decode(body, type=Refusal)


def after(page: Page) -> dict[str, str] | None:
    return None if page.next is None else {"cursor": page.next}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[proxy.Server]:
    async with proxy.serve() as server:
        yield server


@pytest_asyncio.fixture
async def client(server: proxy.Server) -> AsyncIterator[RestClient]:
    async with opened(server.url) as client:
        yield client


def opened(url: str, **settings: Any) -> Any:
    settings = {"authorization": "Bearer hunter2", **settings}
    return rest.open_client(f"{url}/api", refusal=refusal, codes=CODES, **settings)


async def test_error_keeps_a_limited_size_of_headers(
    server: proxy.Server, client: RestClient
) -> None:
    many = {f"X_{number}": "v" * 1000 for number in range(40)}
    server.will(proxy.says(["full", "why"], status=403, **many))

    with pytest.raises(errors.ResourceExhausted) as caught:
        await client.request("DELETE", "/items/a")

    assert isinstance(caught.value.refusal, Refusal)
    assert sum(map(len, caught.value.refusal.headers.values())) <= rest.REFUSAL_LIMIT


async def test_response_limit_of_the_provider_is_enforced_inclusively(
    server: proxy.Server,
) -> None:
    body = msgspec.json.encode(Item("a" * 100))
    packed = gzip.compress(body)
    for limit, is_read in ((len(body), True), (len(body) - 1, False)):
        async with opened(server.url, answer_limit=limit) as client:
            for answer in (proxy.sends(body), proxy.sends(packed, Content_Encoding="gzip")):
                server.will(answer)
                if is_read:
                    assert await client.get("/items", Item) == Item("a" * 100)
                else:
                    with pytest.raises(errors.Unknown):
                        await client.get("/items", Item)


@pytest.mark.parametrize(
    "token", ["x" * 300_000, "hunter2\nX-Admin: 1"], ids=lambda value: repr(value)[:24]
)
async def test_authorization_that_is_no_valid_header_value_is_refused(
    server: proxy.Server, token: str
) -> None:
    class Renewing:
        async def header(self) -> str:
            return f"Bearer {token}"

        def refused(self, header: str) -> bool:
            raise AssertionError(header)

    with pytest.raises(ConfigError, match=r"must be one line .* has \d+ bytes$") as refused:
        async with opened(server.url, authorization=f"Bearer {token}"):
            pass
    async with opened(server.url, authorization=Renewing()) as client:
        with pytest.raises(errors.Unauthenticated, match="must be one line") as caught:
            await client.request("GET", "/items")

    assert "hunter2" not in f"{refused.value} {caught.value}"
    assert server.seen == []


async def test_credentials_in_the_url_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="a user or a password; remove them") as caught:
        async with opened("http://u:hunter2@127.0.0.1:1"):
            raise AssertionError
    assert "hunter2" not in str(caught.value)


async def test_no_request_is_sent_without_a_valid_lease(
    server: proxy.Server, client: RestClient
) -> None:
    """One call may send several requests; each of them checks the Lease."""
    LeaseGuard().activate()

    with pytest.raises(errors.DeadlineExceeded):
        await client.request("DELETE", "/items/a")

    assert server.seen == []


@pytest.mark.virtual_time
async def test_quota_limiter_never_exceeds_its_quota_in_any_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncio_throttle.throttler.time", clock)
    quota = QuotaLimiter(calls=5, period_s=0.1)
    moments: list[float] = []

    async def call(number: int) -> None:
        await quota.acquire()
        moments.append(clock.monotonic())

    await tasks.run_bounded(range(12), call, limit=12, name="call")

    gaps = [later - earlier for earlier, later in zip(moments, moments[5:], strict=False)]
    assert min(gaps) >= 0.1


@pytest.mark.parametrize(("calls", "period_s"), [(0, 1.0), (1, 0.0)])
def test_quota_limiter_refuses_a_zero_quota_or_period(calls: int, period_s: float) -> None:
    with pytest.raises(ValueError, match="quota"):
        QuotaLimiter(calls=calls, period_s=period_s)


async def test_several_statuses_may_be_declared_as_success(server: proxy.Server) -> None:
    server.will(
        proxy.sends(b"{}"),
        proxy.sends(b"", status=204),
        proxy.sends(b""),
        proxy.says({}, status=202),
    )
    async with opened(server.url, success={"DELETE": (200, 204), "POST": (201, 202)}) as client:
        assert await client.request("DELETE", "/items") == b"{}"
        assert await client.request("DELETE", "/items") == b""
        with pytest.raises(errors.Unknown, match="without a body"):
            await client.request("DELETE", "/items")
        with pytest.raises(errors.Unknown, match="HTTP 202"):
            await client.request("DELETE", "/items")
        server.will(proxy.sends(b"", status=202))
        assert await client.request("POST", "/items") == b""


async def test_auth_header_and_authority_of_the_cloud_are_used(tmp_path: Path) -> None:
    authority = pki.Authority(tmp_path, "cloud")
    files = authority.server("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.chain, files.key)
    tls = pki.client_context(authority.file)
    settings: dict[str, Any] = {"authorization": "hunter2", "auth_header": "X-Auth-Token"}
    async with proxy.serve(context) as server:
        async with opened(server.url, tls=tls, **settings) as client:
            await client.request("GET", "/items")
        async with opened(server.url, **settings) as client:
            with pytest.raises(errors.Unavailable, match="certificate"):
                await client.request("GET", "/items")

    (seen,) = server.seen
    assert (seen.headers["X-Auth-Token"], "Authorization" in seen.headers) == ("hunter2", False)


@pytest_asyncio.fixture
async def forward(server: proxy.Server) -> AsyncIterator[forwardproxy.ForwardProxy]:
    async with forwardproxy.serving(server.port) as forward:
        yield forward


@pytest.mark.parametrize("given", ["Bearer hunter2", "an authorizer"])
async def test_https_proxy_tunnel_sees_no_credentials(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = pki.Authority(tmp_path, "machine")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    monkeypatch.setattr(connector, "_SSL_CONTEXT_VERIFIED", lazy_aiohttp._context())
    (tmp_path / ".netrc").write_text("machine cloud.test login from password netrc\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    tls = authority.server("cloud.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.chain, tls.key)
    async with proxy.serve(context) as server, forwardproxy.serving(server.port) as forward:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{forward.port}")
        server.will(proxy.says({"name": "a"}), proxy.says({"name": "b"}))
        authorization = Renewing("hunter2") if given == "an authorizer" else given
        async with opened("https://cloud.test", authorization=authorization) as client:
            assert await client.get("/items", Item) == Item("a")
            assert await client.get("/items", Item) == Item("b")

    assert forward.asked == ["CONNECT cloud.test:443"]
    assert "uthorization" not in forward.heads[0]
    assert [one.headers["Authorization"] for one in server.seen] == ["Bearer hunter2"] * 2


@pytest.mark.parametrize("gone", [False, True])
async def test_failing_proxy_is_named_in_the_error(
    forward: forwardproxy.ForwardProxy, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward.refusal = "407 Proxy Authentication Required"
    at = f"127.0.0.1:{1 if gone else forward.port}"
    monkeypatch.setenv("HTTPS_PROXY", f"http://us:hunter3@{at}")
    async with opened("https://cloud.test") as client:
        with pytest.raises(errors.Unavailable) as caught:
            await client.get("/items", Item)

    why = "Connection refused" if gone else "HTTP 407 Proxy Authentication Required"
    told = f"no response from https://cloud.test/api through the proxy http://{at}: {why}"
    assert str(caught.value) == f"GET /items: {told}"


async def test_unsupported_proxy_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://us:hunter3@proxy.test")
    with pytest.raises(
        ConfigError, match=r"^HTTPS_PROXY: 'socks5://proxy.test' is not an HTTP proxy"
    ):
        async with opened("https://cloud.test"):
            pass


class Renewing:
    """Authorizer that switches to its next secret after each rejection."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = list(secrets)
        self.refusals: list[str] = []

    async def header(self) -> str:
        return f"Bearer {self.secrets[0]}" if self.secrets[0] else ""

    def refused(self, header: str) -> bool:
        self.refusals.append(header)
        if len(self.secrets) > 1:
            del self.secrets[0]
            return True
        return False


async def test_rejected_request_is_repeated_once_with_renewed_credentials(
    server: proxy.Server,
) -> None:
    given = Renewing("first-one", "second-one", "third-one")
    no = proxy.says(["", "second-one is refused"], status=401)
    server.will(no, proxy.says({"name": "a"}), no, no, proxy.says({"name": "b"}))
    async with opened(server.url, authorization=given) as client:
        assert await client.send("PUT", "/items", Item("a"), Item) == Item("a")
        with pytest.raises(errors.Unauthenticated) as caught:  # one repetition is enough
            await client.get("/items", Item)
        assert await client.get("/items", Item) == Item("b")

    shown = [one.headers["Authorization"].removeprefix("Bearer ") for one in server.seen]
    assert shown == ["first-one", "second-one", "second-one", "third-one", "third-one"]
    assert [one.json for one in server.seen[:2]] == [{"name": "a"}] * 2
    assert len(given.refusals) == 2
    assert "third-one" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "", errors.InvalidArgument),
        (401, "", errors.Unauthenticated),
        (403, "", errors.PermissionDenied),
        (403, "full", errors.ResourceExhausted),
        (404, "", errors.Unknown),
        (404, "absent", errors.NotFound),
        (404, "no disk", errors.DiskNotFound),
        (503, "no disk", errors.Unavailable),
        (409, "", errors.Aborted),
        (409, "busy", errors.RetryAfter),
        (418, "odd", errors.Unknown),
        (429, "full", errors.RetryAfter),
        (500, "absent", errors.Unavailable),
        (503, "", errors.Unavailable),
        (504, "", errors.DeadlineExceeded),
        (200, "", errors.Unknown),
        (302, "absent", errors.Unknown),
    ],
)
async def test_http_status_and_error_code_select_the_error_class(
    server: proxy.Server, client: RestClient, status: int, code: str, kind: type[errors.CloudError]
) -> None:
    server.will(proxy.says([code, "why"], status=status))

    with pytest.raises(errors.CloudError) as caught:
        await client.request("DELETE", "/items/a")

    assert type(caught.value) is kind
    said = f" {code}: why" if code else ""
    assert str(caught.value) == f"DELETE /items/a: HTTP {status}{said}"


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("17", 17.0),
        ("86400", RETRY_AFTER_LIMIT_S),
        ("9" * 400, rest.RETRY_AFTER_S),
        (timedelta(minutes=3), 180.0),
        (timedelta(hours=1), RETRY_AFTER_LIMIT_S),
        (timedelta(hours=-1), 0.0),
        (f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT", rest.RETRY_AFTER_S),
        ("Mon, 01 Jan 2024 00:00:00", rest.RETRY_AFTER_S),
        ("soon", rest.RETRY_AFTER_S),
        ("", rest.RETRY_AFTER_S),
    ],
    ids=[
        *("seconds", "a day", "without end", "date", "far date", "past", "no year"),
        *("no zone", "odd", "none"),
    ],
)
async def test_retry_after_header_sets_the_delay_within_a_limit(
    server: proxy.Server, client: RestClient, told: str | timedelta, seconds: float
) -> None:
    text = told if isinstance(told, str) else format_datetime(clock.now() + told)
    server.will(proxy.says({}, status=429, Retry_After=text))

    with pytest.raises(errors.RetryAfter) as caught:
        await client.request("GET", "/items")

    assert caught.value.seconds == pytest.approx(seconds, abs=30)


async def test_error_text_of_the_cloud_is_masked(server: proxy.Server, client: RestClient) -> None:
    server.will(proxy.says(["bad", "'hunter2' and password=swordfish are refused"], status=401))

    with pytest.raises(errors.Unauthenticated) as caught:
        await client.request("GET", "/items")

    text = f"bad: '{redact.MASK}' and password={redact.MASK} are refused"
    assert str(caught.value) == f"GET /items: HTTP 401 {text}"


async def test_listing_with_repeating_page_tokens_is_refused(
    server: proxy.Server, client: RestClient
) -> None:
    server.will(*(proxy.says({"names": [], "next": one}) for one in ("2", "3", "2")))

    with pytest.raises(errors.Unknown, match="endless listing"):
        [page async for page in client.pages("/items", Page, {}, after=after)]


async def test_timeout_and_unreachable_cloud_raise_different_errors(server: proxy.Server) -> None:
    async def hang(_: object) -> Any:
        await asyncio.sleep(60)

    server.will(hang, *[proxy.cuts] * 4)
    async with opened(server.url, timeout_s=0.3) as client:
        with pytest.raises(errors.DeadlineExceeded, match="GET /items: request timed out"):
            await client.request("GET", "/items")
        with pytest.raises(
            errors.Unavailable, match=f"GET /items: no response from {server.url}/api: Ser"
        ):
            await client.request("GET", "/items")
        with pytest.raises(errors.Unavailable, match=f"^GET {server.url}/api: no response"):
            await client.request("GET", "")


async def test_requests_use_the_proxy_of_the_environment(
    server: proxy.Server, forward: forwardproxy.ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://us:hunter3@127.0.0.1:{forward.port}")
    server.will(proxy.says({"name": "a"}), proxy.says({"name": "b"}))
    async with opened("http://cloud.test:81") as client:
        assert await client.get("/items/a", Item) == Item("a")
        assert await client.get("/items/b", Item) == Item("b")
    async with opened(server.url) as client:  # loopback
        await client.request("GET", "/items")

    url = "GET http://cloud.test:81/api/items"
    assert forward.asked == [f"{url}/a", f"{url}/b"]
    assert "Proxy-Authorization: Basic dXM6aHVudGVyMw==" in forward.heads[0]
    assert server.seen[0].headers["Authorization"] == "Bearer hunter2"
    assert len(server.seen) == 3


class Listener:
    """Limiter that admits every request, and records the responses."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, str]] = []

    async def acquire(self) -> None:
        return

    def hear(self, status: int, headers: Mapping[str, str]) -> None:
        self.heard.append((status, headers.get("RateLimit-Remaining", "")))


async def test_quota_limiter_sees_the_headers_of_every_response(server: proxy.Server) -> None:
    server.will(
        proxy.says({}, RateLimit_Remaining="7"),
        proxy.says({}, status=429, RateLimit_Remaining="0"),
    )
    quota = Listener()
    async with opened(server.url, quota=quota) as client:
        await client.request("GET", "/items")
        with pytest.raises(errors.RetryAfter):
            await client.request("GET", "/items")

    assert quota.heard == [(200, "7"), (429, "0")]


async def ask(client: RestClient, method: str) -> bool:
    """Whether the cloud accepts a request."""
    try:
        await client.request(method, "/items")
    except errors.RetryAfter:
        return False
    return True


@pytest.mark.parametrize(("refused", "other"), [("GET", "PUT"), ("PUT", "GET")])
async def test_refusal_pauses_reads_or_changes_but_not_both(
    hand: HandClock, server: proxy.Server, client: RestClient, refused: str, other: str
) -> None:
    server.will(proxy.says({}, status=429, Retry_After="3"))

    assert [await ask(client, method) for method in (refused, other)] == [False, True]
    assert hand.naps == []
    assert await ask(client, refused)
    assert hand.naps == [3.0]


async def test_request_is_not_sent_in_a_long_pause(
    hand: HandClock, server: proxy.Server, client: RestClient
) -> None:
    """It raises `RetryAfter` with the rest of the pause, so that its worker serves others."""
    server.will(proxy.says({}, status=429, Retry_After="60"))
    assert not await ask(client, "GET")
    hand.advance(20.0)

    with pytest.raises(errors.RetryAfter, match="not sent") as caught:
        await client.request("GET", "/items")

    assert (caught.value.seconds, len(server.seen)) == (40.0, 1)
    hand.advance(40.0)
    assert await ask(client, "GET")


async def test_refusal_for_another_reason_pauses_nothing(
    hand: HandClock, server: proxy.Server, client: RestClient
) -> None:
    """A busy object is no reason to delay requests about other objects."""
    server.will(proxy.says(["busy", "locked"], status=423, Retry_After="60"))

    assert [await ask(client, "GET") for _ in range(2)] == [False, True]
    assert hand.naps == []


class Cloud:
    """A cloud in virtual time, whose requests take longer when there are more than `room`."""

    def __init__(self, seconds: float, room: int) -> None:
        self.limiter = ConcurrencyLimiter(32, lowest=8, highest=50)
        self.seconds, self.room = seconds, room
        self.in_flight = self.most = self.served = 0

    async def request(self) -> None:
        async with self.limiter:
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            seconds = self.seconds * max(1.0, self.in_flight / self.room)
            await asyncio.sleep(seconds)
            self.in_flight -= 1
            self.served += 1
            self.limiter.observe("GET", seconds)

    async def ask(self) -> None:
        while clock.monotonic() < self.end:
            await self.request()

    async def run(self, *, callers: int, seconds: float) -> None:
        self.most, self.end = 0, clock.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self.ask())


@pytest.mark.virtual_time
async def test_concurrency_rises_while_the_cloud_stays_quick() -> None:
    cloud = Cloud(0.5, room=1000)
    await cloud.run(callers=100, seconds=60)
    assert cloud.most == 50, "the maximum"


@pytest.mark.virtual_time
async def test_concurrency_falls_when_requests_take_longer() -> None:
    cloud = Cloud(0.5, room=1000)
    await cloud.run(callers=8, seconds=10)
    cloud.room = 12

    # The first requests are sent before their durations are known.
    asyncio.get_running_loop().call_later(60, setattr, cloud, "most", 0)
    await cloud.run(callers=100, seconds=600)

    # From twice the usual duration on the limit falls, but not so far that the cloud would be idle.
    assert 2 * cloud.room <= cloud.most < 2 * cloud.room + 4
    assert cloud.served > 0.99 * 600 * cloud.room / cloud.seconds


@pytest.mark.virtual_time
async def test_concurrency_recovers_although_the_cloud_stays_slower() -> None:
    """Few requests take as long as many, so the cloud is not slow because they are many."""
    cloud = Cloud(0.1, room=1000)
    await cloud.run(callers=8, seconds=10)
    cloud.seconds = 0.5
    asyncio.get_running_loop().call_later(60, setattr, cloud, "most", 0)

    await cloud.run(callers=100, seconds=120)

    assert cloud.most == 50


@pytest.mark.virtual_time
async def test_one_slow_response_does_not_reduce_concurrency() -> None:
    cloud = Cloud(0.5, room=1000)
    loop = asyncio.get_running_loop()
    loop.call_later(20, cloud.limiter.observe, "GET", 300.0)
    loop.call_later(22, setattr, cloud, "most", 0)
    await cloud.run(callers=100, seconds=30)
    assert cloud.most == 50


@pytest.mark.virtual_time
async def test_hanging_requests_do_not_occupy_all_slots_of_a_slow_cloud() -> None:
    limiter = ConcurrencyLimiter(8, lowest=8, highest=50)

    async def request(seconds: float) -> None:
        async with limiter:
            await asyncio.sleep(seconds)
            limiter.observe("GET", seconds)

    await request(0.5)
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(request(5.0))
    assert limiter._is_slow
    hanging = [tasks.spawn(request(3600.0), name="hanging") for _ in range(20)]
    await asyncio.sleep(0)

    async with asyncio.timeout(20):
        await request(0.5)
    await tasks.cancel_and_join(*hanging)


@pytest.mark.virtual_time
async def test_durations_of_different_requests_are_not_compared() -> None:
    limiter = ConcurrencyLimiter(32, lowest=8)
    for kind, seconds in [("GET", 0.01), ("POST", 2.0)] * 50:
        limiter.observe(kind, seconds)
        await asyncio.sleep(1)
    assert limiter._limit == 32


async def test_redirect_is_not_followed(server: proxy.Server, client: RestClient) -> None:
    server.will(proxy.says({}, status=307, Location=f"{server.url}/elsewhere"))
    with pytest.raises(errors.Unknown, match="HTTP 307"):
        await client.request("GET", "/items")
    assert len(server.seen) == 1, "the credentials are not sent to another host"


class Minted(rest.RenewedToken):
    """Tokens that are numbered, and live for 100 s."""

    def __init__(self) -> None:
        super().__init__("Bearer")
        self.issued = 0
        self.is_broken = False

    async def request_token(self) -> tuple[str, float]:
        await asyncio.sleep(0)
        if self.is_broken:
            raise errors.Unavailable("no tokens today")
        self.issued += 1
        return f"token-{self.issued}", 100.0


@pytest.mark.virtual_time
async def test_token_is_renewed_once_shortly_before_it_expires() -> None:
    tokens = Minted()
    seen: list[str] = []

    async def use(_: int) -> None:
        seen.append(await tokens.header())

    await tasks.run_bounded(range(5), use, limit=5, name="use")
    await asyncio.sleep(49)
    await use(0)
    await asyncio.sleep(1)
    await tasks.run_bounded(range(5), use, limit=5, name="use")

    assert seen == ["Bearer token-1"] * 6 + ["Bearer token-2"] * 5


@pytest.mark.virtual_time
async def test_failed_renewal_counts_only_once_the_token_has_expired() -> None:
    tokens = Minted()
    await tokens.header()
    tokens.is_broken = True
    await asyncio.sleep(98)
    assert await tokens.header() == "Bearer token-1"
    await asyncio.sleep(1.5)

    with pytest.raises(errors.Unavailable, match="no tokens today"):
        await tokens.header()


@pytest.mark.virtual_time
async def test_refused_token_is_renewed_unless_it_is_new() -> None:
    tokens = Minted()
    first = await tokens.header()
    assert not tokens.refused(first)
    await asyncio.sleep(rest.MIN_RENEW_AGE_S)
    assert tokens.refused(first)

    assert await tokens.header() == "Bearer token-2"
    assert tokens.refused(first), "another call has renewed it"
    assert tokens.issued == 2
