"""Single tries for the Lease, and what they write."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta, timezone
from typing import Any

import pytest

from ccm.base import clock
from ccm.base.metrics import REGISTRY
from ccm.kube import errors
from ccm.kube.lock import LeaderElectionConfig, LeaseLock, new_identity
from ccm.model.times import format_micro_time
from ccm.testing.clock import START, advance, elapsed_s
from tests.unit.kube.leases import NAME, NAMESPACE, Server

pytestmark = pytest.mark.virtual_time


def config(**changes: float | str) -> LeaderElectionConfig:
    values = {"namespace": NAMESPACE, "name": NAME, "identity": "baz"} | changes
    return LeaderElectionConfig(**values)  # type: ignore[arg-type]


class Contested(Server):
    """A server and a lock of ours on its Lease."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = LeaseLock(self, config())


@pytest.fixture
def server() -> Contested:
    return Contested()


def case(row: str, *arranged: Any, held: bool, verb: str, transitions: int) -> Any:
    """Who writes the Lease, and how long we stand by after we saw that."""
    mark = pytest.mark.row(f"daemon-lease-{row}")
    return pytest.param(arranged, held, verb, transitions, marks=mark)


BRIEF = {"holder": "bing", "duration_s": 3}
BING = {"holder": "bing"}
RELEASED = {"holder": "", "transitions": 4}
FULL = {"holder": "", "transitions": 2**31 - 1}
OURS = {"holder": "baz", "transitions": 7}


@pytest.mark.parametrize(
    ("arranged", "held", "last_verb", "transitions"),
    [
        case("01", held=True, verb="create", transitions=0),
        case("02", {"holder": ""}, held=True, verb="update", transitions=1),
        case("03", BRIEF, 3, held=True, verb="update", transitions=1),
        case("04", BING, 3600, held=True, verb="update", transitions=1),
        case("05", BING, 0, RELEASED, held=True, verb="update", transitions=5),
        case("06", BING, held=False, verb="get", transitions=0),
        # One more would be too many for the API server, and no daemon could ever lead.
        case("05", FULL, held=True, verb="update", transitions=2**31 - 1),
        case("07", BRIEF, 2, BRIEF, 2, held=False, verb="get", transitions=0),
        case("08", OURS, held=True, verb="update", transitions=7),
        # The record says how long others wait.
        case("03", BING | {"duration_s": 60}, 60, held=True, verb="update", transitions=1),
        case("06", BING | {"duration_s": 60}, 59.9, held=False, verb="get", transitions=0),
    ],
)
async def test_one_try(
    server: Contested,
    arranged: Sequence[Any],
    held: bool,
    last_verb: str,
    transitions: int,
) -> None:
    for step in arranged:
        if isinstance(step, dict):
            server.hold(**step)
        else:
            assert not await server.lock.attempt()
            await advance(step)

    assert await server.lock.attempt() is held

    assert server.verbs[-1] == last_verb
    assert server.spec.holder_identity == ("baz" if held else "bing")
    assert server.spec.lease_transitions == transitions
    assert server.lock.is_ours is held


@pytest.mark.row("daemon-lease-10")
async def test_taking_and_two_renewals_read_once(server: Contested) -> None:
    for _ in range(3):
        assert await server.lock.attempt()
        await advance(2)
    assert server.verbs == ["get", "create", "update", "update"]


@pytest.mark.row("daemon-lease-11")
async def test_a_failed_renewal_reads_and_writes_again_and_is_counted(server: Contested) -> None:
    before = REGISTRY.get_sample_value("leader_election_slowpath_total", {"name": NAME}) or 0
    assert await server.lock.attempt()
    assert await server.lock.attempt()
    failures = iter([errors.from_response(500, {}, b"")])
    server.fault = lambda verb: next(failures, None) if verb == "update" else None
    assert await server.lock.attempt()
    assert await server.lock.attempt()
    assert server.verbs == ["get", "create", "update", "update", "get", "update", "update"]
    after = REGISTRY.get_sample_value("leader_election_slowpath_total", {"name": NAME})
    assert after == before + 1


@pytest.mark.row("daemon-lease-12")
async def test_a_renewal_keeps_the_start_of_the_term_and_writes_six_digits_in_utc(
    server: Contested,
) -> None:
    east = timezone(timedelta(hours=5))
    with clock.replaced(
        lambda: (START + timedelta(seconds=elapsed_s())).astimezone(east),
        asyncio.get_running_loop().time,
    ):
        assert await server.lock.attempt()
        acquired = server.spec.acquire_time
        assert acquired == "2026-01-01T00:00:00.000000Z"
        await advance(2.5)
        assert await server.lock.attempt()
    assert server.spec.acquire_time == acquired
    assert server.spec.renew_time == "2026-01-01T00:00:02.500000Z"
    assert server.spec.lease_duration_seconds == 15
    assert (server.spec.strategy, server.spec.preferred_holder) == (None, None)


@pytest.mark.parametrize(
    ("holder", "acquired", "continued"),
    [
        ("baz", "2025-12-31T23:00:00Z", "2025-12-31T23:00:00.000000Z"),
        ("bing", "yesterday", "2026-01-01T00:00:03.000000Z"),
    ],
    ids=["other digits", "no time at all"],
)
async def test_a_term_written_otherwise_is_understood(
    server: Contested, holder: str, acquired: str, continued: str
) -> None:
    server.hold(holder, duration_s=3, renewed=acquired)
    assert await server.lock.attempt() is (holder == "baz")
    await advance(3)
    assert await server.lock.attempt()
    assert server.spec.acquire_time == continued


@pytest.mark.row("daemon-lease-09")
async def test_each_renewal_counts_however_soon_it_comes(server: Contested) -> None:
    server.hold("bing", duration_s=3, renewed="2026-01-01T00:00:00.100000Z")
    assert not await server.lock.attempt()
    first = server.lock.observed_at
    await advance(1)
    assert not await server.lock.attempt()
    assert server.lock.observed_at == first
    server.hold("bing", duration_s=3, renewed="2026-01-01T00:00:00.100001Z")
    assert not await server.lock.attempt()
    assert server.lock.observed_at == first + 1


async def test_a_duration_is_rounded_up_to_whole_seconds(server: Contested) -> None:

    assert await LeaseLock(server, config(lease_duration_s=15.2)).attempt()

    assert server.spec.lease_duration_seconds == 16


async def test_losing_a_race_is_a_conflict(server: Contested) -> None:
    server.hold("")

    def overtaken(verb: str) -> None:
        if verb == "update":
            server.hold("bing")

    server.fault = overtaken
    with pytest.raises(errors.Conflict):
        await server.lock.attempt()
    assert not server.lock.in_doubt


@pytest.mark.row("daemon-lease-14")
async def test_release_empties_the_holder_and_keeps_the_transitions(server: Contested) -> None:
    server.hold("baz", transitions=3)
    assert await server.lock.attempt()
    await advance(1)
    assert await server.lock.release()
    now = format_micro_time(clock.now())
    assert server.spec.holder_identity == ""
    assert server.spec.lease_duration_seconds == 1
    assert (server.spec.acquire_time, server.spec.renew_time) == (now, now)
    assert server.spec.lease_transitions == 3
    assert not server.lock.is_ours


async def test_release_is_repeated_on_conflict_while_the_lease_is_ours(server: Contested) -> None:
    assert await server.lock.attempt()
    server.hold("baz", transitions=2)
    assert await server.lock.release()
    assert server.spec.holder_identity == ""
    assert server.spec.lease_transitions == 2


@pytest.mark.parametrize("deleted", [False, True])
async def test_release_touches_nobody_elses_lease(server: Contested, deleted: bool) -> None:
    assert await server.lock.attempt()
    if deleted:
        server.drop()
    else:
        server.hold("bing")
    assert not await server.lock.release()
    assert deleted or server.spec.holder_identity == "bing"


async def test_release_survives_a_short_outage(server: Contested) -> None:
    assert await server.lock.attempt()
    trouble = iter([errors.Unreachable("refused", kind="refused")] * 2)
    server.fault = lambda verb: next(trouble, None)
    assert await server.lock.release()
    assert server.spec.holder_identity == ""


async def test_a_lost_answer_leaves_the_lock_in_doubt_until_it_is_read(server: Contested) -> None:
    server.hold("")
    lost = errors.Unreachable("reset", kind="reset")
    server.fault = lambda verb: lost if verb == "update" else None
    with pytest.raises(errors.Unreachable):
        await server.lock.attempt()
    assert server.lock.in_doubt
    server.fault = lambda verb: None
    assert await server.lock.attempt()
    assert not server.lock.in_doubt


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
