"""Single tries for the Lease, and what they write."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta, timezone

import pytest

from ccm.base import clock
from ccm.base.metrics import REGISTRY
from ccm.kube import errors
from ccm.kube.lock import LeaderElectionConfig, LeaseLock, new_identity
from ccm.model.times import format_micro_time
from ccm.testing.clock import START, advance, elapsed_s
from tests.unit.kube.leases import NAME, NAMESPACE, Server

pytestmark = pytest.mark.virtual_time

SIX_DIGITS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def config(**changes: float | str) -> LeaderElectionConfig:
    values = {"namespace": NAMESPACE, "name": NAME, "identity": "baz"} | changes
    return LeaderElectionConfig(**values)  # type: ignore[arg-type]


def lock_on(server: Server) -> LeaseLock:
    return LeaseLock(server, config())


async def nothing(server: Server, lock: LeaseLock) -> None:
    """There is no Lease."""


async def without_holder(server: Server, lock: LeaseLock) -> None:
    server.hold("")


async def bing_runs_out(server: Server, lock: LeaseLock) -> None:
    server.hold("bing", duration_s=3)
    assert not await lock.attempt()
    await advance(3)


async def bing_seen_long_ago(server: Server, lock: LeaseLock) -> None:
    server.hold("bing", duration_s=15)
    assert not await lock.attempt()
    await advance(3600)


async def released_just_now(server: Server, lock: LeaseLock) -> None:
    server.hold("bing")
    assert not await lock.attempt()
    server.hold("", duration_s=15, transitions=4)


async def bing_is_fresh(server: Server, lock: LeaseLock) -> None:
    server.hold("bing")


async def bing_renewed(server: Server, lock: LeaseLock) -> None:
    server.hold("bing", duration_s=3)
    assert not await lock.attempt()
    await advance(2)
    server.hold("bing", duration_s=3)
    assert not await lock.attempt()
    await advance(2)


async def ours_from_before(server: Server, lock: LeaseLock) -> None:
    server.hold("baz", transitions=7)


@pytest.mark.parametrize(
    ("arrange", "held", "last_verb", "transitions"),
    [
        pytest.param(nothing, True, "create", 0, marks=pytest.mark.row("daemon-lease-01")),
        pytest.param(without_holder, True, "update", 1, marks=pytest.mark.row("daemon-lease-02")),
        pytest.param(bing_runs_out, True, "update", 1, marks=pytest.mark.row("daemon-lease-03")),
        pytest.param(
            bing_seen_long_ago, True, "update", 1, marks=pytest.mark.row("daemon-lease-04")
        ),
        pytest.param(
            released_just_now, True, "update", 5, marks=pytest.mark.row("daemon-lease-05")
        ),
        pytest.param(bing_is_fresh, False, "get", 0, marks=pytest.mark.row("daemon-lease-06")),
        pytest.param(bing_renewed, False, "get", 0, marks=pytest.mark.row("daemon-lease-07")),
        pytest.param(ours_from_before, True, "update", 7, marks=pytest.mark.row("daemon-lease-08")),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
async def test_one_try(
    arrange: Callable[..., object], held: bool, last_verb: str, transitions: int
) -> None:
    server = Server()
    lock = lock_on(server)
    await arrange(server, lock)  # type: ignore[misc]

    assert await lock.attempt() is held

    assert server.verbs[-1] == last_verb
    assert server.spec.holder_identity == ("baz" if held else "bing")
    assert server.spec.lease_transitions == transitions
    assert lock.is_ours is held


@pytest.mark.row("daemon-lease-10")
async def test_taking_and_two_renewals_read_once() -> None:
    server = Server()
    lock = lock_on(server)
    for _ in range(3):
        assert await lock.attempt()
        await advance(2)
    assert server.verbs == ["get", "create", "update", "update"]


@pytest.mark.row("daemon-lease-11")
async def test_a_failed_renewal_reads_and_writes_again_and_is_counted() -> None:
    server = Server()
    lock = lock_on(server)
    before = REGISTRY.get_sample_value("leader_election_slowpath_total", {"name": NAME}) or 0
    assert await lock.attempt()
    assert await lock.attempt()
    failures = iter([errors.from_response(500, {}, b"")])
    server.weather = lambda verb: next(failures, None) if verb == "update" else None
    assert await lock.attempt()
    assert await lock.attempt()
    assert server.verbs == ["get", "create", "update", "update", "get", "update", "update"]
    after = REGISTRY.get_sample_value("leader_election_slowpath_total", {"name": NAME})
    assert after == before + 1


@pytest.mark.row("daemon-lease-12")
async def test_a_renewal_keeps_the_start_of_the_term_and_writes_six_digits_in_utc() -> None:
    east = timezone(timedelta(hours=5))
    server = Server()
    lock = lock_on(server)
    with clock.replaced(
        lambda: (START + timedelta(seconds=elapsed_s())).astimezone(east),
        asyncio.get_running_loop().time,
    ):
        assert await lock.attempt()
        acquired = server.spec.acquire_time
        assert acquired == "2026-01-01T00:00:00.000000Z"
        await advance(2.5)
        assert await lock.attempt()
    assert server.spec.acquire_time == acquired
    assert server.spec.renew_time == "2026-01-01T00:00:02.500000Z"
    assert server.spec.lease_duration_seconds == 15
    assert (server.spec.strategy, server.spec.preferred_holder) == (None, None)


async def test_a_term_written_with_other_digits_is_continued() -> None:
    server = Server()
    server.hold("baz", renewed="2025-12-31T23:00:00Z")
    assert await lock_on(server).attempt()
    assert server.spec.acquire_time == "2025-12-31T23:00:00.000000Z"


@pytest.mark.row("daemon-lease-09")
async def test_each_renewal_counts_however_soon_it_comes() -> None:
    server = Server()
    lock = lock_on(server)
    server.hold("bing", duration_s=3, renewed="2026-01-01T00:00:00.100000Z")
    assert not await lock.attempt()
    first = lock.observed_at
    await advance(1)
    assert not await lock.attempt()
    assert lock.observed_at == first
    server.hold("bing", duration_s=3, renewed="2026-01-01T00:00:00.100001Z")
    assert not await lock.attempt()
    assert lock.observed_at == first + 1


async def test_times_nobody_can_read_still_count_as_a_record() -> None:
    server = Server()
    lock = lock_on(server)
    server.hold("bing", duration_s=3, renewed="yesterday")
    assert not await lock.attempt()
    await advance(3)
    assert await lock.attempt()
    assert SIX_DIGITS.fullmatch(server.spec.acquire_time or "")


async def test_the_record_decides_how_long_others_wait() -> None:
    server = Server()
    lock = lock_on(server)
    server.hold("bing", duration_s=60)
    assert not await lock.attempt()
    await advance(59.9)
    assert not await lock.attempt()
    await advance(0.1)
    assert await lock.attempt()


async def test_a_duration_is_rounded_up_to_whole_seconds() -> None:
    server = Server()

    assert await LeaseLock(server, config(lease_duration_s=15.2)).attempt()

    assert server.spec.lease_duration_seconds == 16


async def test_losing_a_race_is_a_conflict() -> None:
    server = Server()
    lock = lock_on(server)
    server.hold("")

    def overtaken(verb: str) -> None:
        if verb == "update":
            server.hold("bing")

    server.weather = overtaken
    with pytest.raises(errors.Conflict):
        await lock.attempt()
    assert not lock.in_doubt


@pytest.mark.row("daemon-lease-14")
async def test_release_empties_the_holder_and_keeps_the_transitions() -> None:
    server = Server()
    server.hold("baz", transitions=3)
    lock = lock_on(server)
    assert await lock.attempt()
    await advance(1)
    assert await lock.release()
    now = format_micro_time(clock.now())
    assert server.spec.holder_identity == ""
    assert server.spec.lease_duration_seconds == 1
    assert (server.spec.acquire_time, server.spec.renew_time) == (now, now)
    assert server.spec.lease_transitions == 3
    assert not lock.is_ours


async def test_release_is_repeated_on_conflict_while_the_lease_is_ours() -> None:
    server = Server()
    lock = lock_on(server)
    assert await lock.attempt()
    server.hold("baz", transitions=2)
    assert await lock.release()
    assert server.spec.holder_identity == ""
    assert server.spec.lease_transitions == 2


async def test_release_touches_nobody_elses_lease() -> None:
    server = Server()
    lock = lock_on(server)
    assert await lock.attempt()
    server.hold("bing")
    assert not await lock.release()
    assert server.spec.holder_identity == "bing"


async def test_release_of_a_deleted_lease_is_none() -> None:
    server = Server()
    lock = lock_on(server)
    assert await lock.attempt()
    server.drop()
    assert not await lock.release()


async def test_release_survives_a_short_outage() -> None:
    server = Server()
    lock = lock_on(server)
    assert await lock.attempt()
    trouble = iter([errors.Unreachable("refused", kind="refused")] * 2)
    server.weather = lambda verb: next(trouble, None)
    assert await lock.release()
    assert server.spec.holder_identity == ""


async def test_a_lost_answer_leaves_the_lock_in_doubt_until_it_is_read() -> None:
    server = Server()
    lock = lock_on(server)
    server.hold("")
    lost = errors.Unreachable("reset", kind="reset")
    server.weather = lambda verb: lost if verb == "update" else None
    with pytest.raises(errors.Unreachable):
        await lock.attempt()
    assert lock.in_doubt
    server.weather = lambda verb: None
    assert await lock.attempt()
    assert not lock.in_doubt


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lease_duration_s": 10}, "lease duration (10s) must exceed the renew deadline (10s)"),
        ({"renew_deadline_s": 2.4}, "must exceed 1.2 times the retry period (2s)"),
        ({"retry_period_s": 0}, "the retry period must be above 0s"),
        ({"lease_duration_s": 0.5}, "the lease duration must be at least 1s, not 0.5s"),
        ({"identity": ""}, "the identity must not be empty"),
        ({"name": ""}, "the Lease needs a namespace and a name"),
    ],
)
def test_contradicting_terms_are_refused(changes: dict[str, float | str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**changes)


def test_all_faults_of_the_terms_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"identity.*lease duration"):
        config(identity="", lease_duration_s=5)


@pytest.mark.parametrize(("deadline_s", "timeout_s"), [(10, 5), (1.5, 1)])
def test_requests_about_the_lease_get_half_the_deadline(
    deadline_s: float, timeout_s: float
) -> None:
    assert config(renew_deadline_s=deadline_s, retry_period_s=0.5).request_timeout_s == timeout_s


def test_identities_differ_between_processes_of_one_host() -> None:
    first, second = new_identity("host-1"), new_identity("host-1")
    assert first != second
    assert re.fullmatch(r"host-1_[0-9a-f-]{36}", first)
