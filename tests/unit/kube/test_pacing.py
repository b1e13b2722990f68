"""Pace of requests: limits of rate and concurrency, and refusals by the server, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ccm.app.clients import ClientFactory
from ccm.base.tasks import spawn
from ccm.base.throttle import INITIAL_CONCURRENCY, ConcurrencyLimiter
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Credential, StaticCredentials, TlsSettings
from ccm.kube.transport import MAX_PAUSE_S, Transport
from ccm.testing.clock import elapsed_s, settle


class Traffic:
    """Requests of a given duration, and their highest concurrency."""

    def __init__(self) -> None:
        self.limiter = ConcurrencyLimiter()
        self.now = self.most = 0
        self.order: list[int] = []

    async def request(self, number: int, seconds: float) -> None:
        async with self.limiter:
            self.order.append(number)
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(seconds)
            self.now -= 1

    async def send(self, count: int, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self.request(number, seconds))


FAIR = {"X-Kubernetes-PF-FlowSchema-UID": "1"}


class PacingServer(Transport):
    """API server in virtual time, which refuses requests beyond its seats, or to given paths."""

    def __init__(
        self, *, seats: int = 1000, headers: Mapping[str, str] = FAIR, retry_after: str = "1"
    ) -> None:
        super().__init__(
            ClusterConfig(
                server="http://api.test", credentials=StaticCredentials(), tls=TlsSettings()
            )
        )
        self.seats, self.headers = seats, headers
        self.refusal = {**headers, "Retry-After": retry_after}
        self.refused_paths: set[str] = set()
        self.most = self.in_flight = self.refusals = 0
        self.moments: list[tuple[float, str]] = []

    async def _exchange(self, call: Any, _: Credential, *, is_retry: bool) -> Any:
        self.moments.append((elapsed_s(), call.path))
        if self.in_flight >= self.seats or call.path in self.refused_paths:
            self.refusals += 1
            return SimpleNamespace(status=429, headers=self.refusal), b"", 0
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.1)
        self.in_flight -= 1
        return SimpleNamespace(status=200, headers=self.headers), b"{}", 0

    async def send(self, client: Client, count: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(client.raw("PATCH", f"/{number}"))


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("headers", "is_default", "seconds"),
    [
        (FAIR, True, 2.4),  # the concurrency limiter alone
        (FAIR, False, 18.5),
        ({}, True, 18.5),
    ],
    ids=["default", "set", "no fairness"],
)
async def test_default_rate_limit_ends_if_the_server_has_fairness(
    headers: Mapping[str, str], is_default: bool, seconds: float
) -> None:
    """Of 400 requests, 30 are a burst, and the others wait for tokens until the first response."""
    server = PacingServer(headers=headers)
    clients = ClientFactory(server, (20, 30), is_default=is_default)

    await server.send(clients.named("a"), 400)

    assert elapsed_s() == pytest.approx(seconds, rel=0.1)


@pytest.mark.virtual_time
async def test_refusals_pause_and_slow_all_requests_of_the_client_only() -> None:
    """The server has seats for four of the eight requests that the client would send at once."""
    server = PacingServer(seats=4)

    await server.send(Client(server), 200)

    assert server.most == 4
    # The first four are refused together, which halves the limit to four. It rises by one each
    # second, so one more request is refused from time to time.
    assert server.refusals <= 4 + elapsed_s() / 2
    assert elapsed_s() < 2.5 * (200 * 0.1 / 4)
    assert not [at for at, _ in server.moments if 0.0 < at < 1.0], "sent during the pause"


@pytest.mark.virtual_time
async def test_request_is_not_paused_by_refusals_of_another_client() -> None:
    server = PacingServer()
    server.refused_paths = {"/0"}
    refused = spawn(server.send(Client(server), 1), name="refused")
    await settle()
    assert server.refusals == 1

    await Client(server).raw("PATCH", "/other")

    assert elapsed_s() == pytest.approx(0.1)
    server.refused_paths = set()
    await refused


@pytest.mark.virtual_time
@pytest.mark.parametrize(("retry", "seconds"), [(True, 1.1), (False, 0.1)])
async def test_refused_request_pauses_others_only_if_it_is_retried(
    retry: bool, seconds: float
) -> None:
    """An eviction is not retried: a disruption budget refused it, not the load of the server."""
    server = PacingServer()
    client = Client(server)
    server.refused_paths = {"/evict"}
    eviction = spawn(client.raw("POST", "/evict", retry=retry), name="evict")
    await settle()
    server.refused_paths = set()

    await client.raw("PATCH", "/other")

    assert elapsed_s() == pytest.approx(seconds)
    await asyncio.wait({eviction})
    assert (eviction.exception() is None) == retry


@pytest.mark.virtual_time
async def test_long_retry_after_delays_its_own_request_only_for_long() -> None:
    """A proxy may ask for 5 minutes, perhaps because of this one request."""
    server = PacingServer(retry_after="300")
    client = Client(server)
    server.refused_paths = {"/refused"}
    refused = spawn(client.raw("PATCH", "/refused"), name="refused")
    await settle()
    server.refused_paths = set()

    await client.raw("PATCH", "/other")

    assert elapsed_s() == pytest.approx(MAX_PAUSE_S + 0.1)
    await refused
    assert elapsed_s() == pytest.approx(300.1)


@pytest.mark.virtual_time
async def test_watch_starts_after_the_pause() -> None:
    server, limiter = PacingServer(), ConcurrencyLimiter()
    limiter.back_off(3.0)

    with contextlib.suppress(AttributeError):  # this server has no streams
        async with server.stream("/watch", concurrency=limiter, idle_timeout_s=1):
            pass

    ((at, path),) = server.moments
    assert (round(at, 3), path) == (3.0, "/watch")


@pytest.mark.virtual_time
async def test_concurrency_is_halved_once_in_a_pause_and_rises_slowly() -> None:
    traffic = Traffic()
    traffic.limiter.back_off(1.0)
    traffic.limiter.back_off(2.0)
    traffic.limiter.back_off(0.5)
    assert traffic.limiter.pause_s == 2.0
    await traffic.limiter.wait_while_paused()
    sending = spawn(traffic.send(1000, 0.05), name="sending")
    most = []
    for _ in range(6):
        await asyncio.sleep(0.9)
        most.append(traffic.most)
        await asyncio.sleep(0.1)
    await sending

    half = INITIAL_CONCURRENCY // 2
    assert elapsed_s() - 2.0 < 1000 * 0.05 / half
    assert most == [half, half + 1, half + 2, half + 3, half + 4, half + 5]


@pytest.mark.virtual_time
async def test_concurrency_limit_grows_while_requests_wait_for_a_slow_server() -> None:
    traffic = Traffic()
    await traffic.send(1000, 1.0)
    assert traffic.most > 10 * INITIAL_CONCURRENCY
    # With the initial limit it would take 125 s.
    assert elapsed_s() < 20.0
    assert traffic.order == list(range(1000))


@pytest.mark.virtual_time
async def test_concurrency_limit_stays_while_the_server_responds_quickly() -> None:
    traffic = Traffic()
    await traffic.send(1000, 0.03)
    assert traffic.most == INITIAL_CONCURRENCY


@pytest.mark.virtual_time
async def test_slot_granted_to_a_cancelled_waiter_is_passed_on() -> None:
    traffic = Traffic()
    first = [spawn(traffic.request(n, 0.001), name="first") for n in range(INITIAL_CONCURRENCY)]
    late = [spawn(traffic.request(100 + n, 0.001), name="late") for n in range(INITIAL_CONCURRENCY)]
    await settle()
    for task in first:
        task.add_done_callback(lambda _: [each.cancel() for each in late])
    await asyncio.wait({*first, *late})
    await asyncio.wait_for(traffic.send(INITIAL_CONCURRENCY, 0.001), 0.01)
    assert traffic.limiter._in_flight == 0
