"""Leader election and its Lease, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta, timezone
from typing import Any

import pytest
import pytest_asyncio

from ccm.base import clock
from ccm.base.metrics import REGISTRY
from ccm.kube import errors
from ccm.kube.leader import LeaderElectionConfig, LeaderElector, LeaseLock, LostLease
from ccm.model.meta import ObjectReference
from ccm.model.times import format_micro_time
from ccm.testing.clock import START, START_S, advance, elapsed_s, settle
from tests.unit.kube.leases import NAME, NAMESPACE, Server

pytestmark = pytest.mark.virtual_time


class Work:
    """The work of a leader: runs until it is ended, and records when it ran."""

    def __init__(self, *, tidy_up_s: float = 0) -> None:
        self.tidy_up_s = tidy_up_s
        self.began: float | None = None
        self.ended: float | None = None
        self.outcome: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        self.began = elapsed_s()
        self.outcome = asyncio.get_running_loop().create_future()
        try:
            await self.outcome
        finally:
            if self.tidy_up_s:
                await asyncio.sleep(self.tidy_up_s)
            self.ended = elapsed_s()


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []

    def event(self, reference: ObjectReference, type_: str, reason: str, message: str) -> None:
        self.events.append((reference.kind, type_, reason, message))


class Replica:
    """One process of several."""

    def __init__(
        self, server: Server, identity: str = "baz", *, tidy_up_s: float = 0, ended: str = ""
    ) -> None:
        self.work = Work(tidy_up_s=tidy_up_s)
        self.recorder = Recorder()
        self.lost: list[float] = []
        self.renewed: list[float] = []
        self.rivals: list[str] = []
        self.may_release = True
        self.parting_s = 0.0
        self.parting: list[tuple[float, str | None, int]] = []
        self.elector = LeaderElector(
            server,  # type: ignore[arg-type]
            LeaderElectionConfig(namespace=NAMESPACE, name=NAME, identity=identity),
            recorder=self.recorder,  # type: ignore[arg-type]
            on_renewed=lambda began: self.renewed.append(began - START_S),
            on_lost=lambda: self.lost.append(elapsed_s()),
            before_release=lambda: self.part(server),
            on_rival=self.rivals.append,
            ended=ended,
            rng=random.Random(identity),
        )
        self.task = asyncio.create_task(self.elector.run(self.work))

    async def part(self, server: Server) -> bool:
        """Record the state before the lease is released."""
        await asyncio.sleep(self.parting_s)
        assert self.work.ended is not None
        told = len(self.recorder.events)
        self.parting.append((self.work.ended, server.spec.holder_identity, told))
        return self.may_release

    @property
    def leads(self) -> bool:
        return self.elector.is_leader

    async def result(self) -> BaseException | None:
        await settle()
        assert self.task.done()
        return None if self.task.cancelled() else self.task.exception()


class Cluster(Server):
    """A server and its replicas, which end with the test."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas: list[Replica] = []

    def start(self, identity: str = "baz", **options: Any) -> Replica:
        self.replicas.append(Replica(self, identity, **options))
        return self.replicas[-1]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await ended(*cluster.replicas)


async def ended(*replicas: Replica) -> None:
    for replica in replicas:
        replica.task.cancel()
    await advance(60)
    await asyncio.gather(*(replica.task for replica in replicas), return_exceptions=True)


def status() -> float | None:
    return REGISTRY.get_sample_value("leader_election_master_status", {"name": NAME})


@pytest.mark.parametrize("fault", [None, KeyError("broken")], ids=["returns", "fails"])
async def test_lease_is_released_when_the_work_ends(
    fault: Exception | None, server: Cluster
) -> None:
    replica = server.start()
    await advance(5)
    assert replica.work.outcome is not None
    if fault is None:
        replica.work.outcome.set_result(None)
    else:
        replica.work.outcome.set_exception(fault)

    assert await replica.result() is fault
    assert server.spec.holder_identity == ""
    assert not replica.leads


async def test_hanging_release_times_out(server: Cluster) -> None:
    replica = server.start()
    await advance(1)
    server.fault = lambda verb: 3600.0
    replica.task.cancel()
    await advance(5)
    assert replica.task.cancelled()
    assert replica.work.ended == 1


async def test_standby_with_a_watch_sends_no_reads_while_the_holder_renews(server: Cluster) -> None:
    leader = server.start("first")
    await advance(1)
    standby = server.start("second")
    await advance(1)
    server.calls.clear()
    await advance(120)
    assert "get" not in server.verbs
    assert leader.leads
    assert not standby.leads


async def test_only_a_leader_past_its_lease_is_unhealthy(server: Cluster) -> None:
    replica = server.start()
    now = clock.monotonic()
    assert replica.elector.check() is None
    await settle()
    assert replica.elector.check(now + 35) is None
    problem = replica.elector.check(now + 35.1)
    assert problem is not None
    assert NAME in problem
    await ended(replica)
    assert replica.elector.check(now + 3600) is None


def config(**changes: float | str) -> LeaderElectionConfig:
    values = {"namespace": NAMESPACE, "name": NAME, "identity": "baz"} | changes
    return LeaderElectionConfig(**values)  # type: ignore[arg-type]


class Contested(Server):
    """A Lease that another replica changes, and the lock under test."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = LeaseLock(self, config())  # type: ignore[arg-type]


@pytest.fixture
def rival() -> Contested:
    return Contested()


def case(row: str, *arranged: Any, held: bool, verb: str, transitions: int) -> Any:
    """Return a case: Leases that other replicas write, and seconds until the next attempt."""
    mark = pytest.mark.row(f"daemon-lease-{row}")
    return pytest.param(arranged, held, verb, transitions, marks=mark)


FULL = {"holder": "", "transitions": 2**31 - 1}
OURS = {"holder": "baz", "transitions": 7}


@pytest.mark.row("daemon-lease-10")
async def test_acquiring_and_two_renewals_read_the_lease_once(rival: Contested) -> None:
    for _ in range(3):
        assert await rival.lock.attempt()
        await advance(2)
    assert rival.verbs == ["get", "create", "update", "update"]


@pytest.mark.row("daemon-lease-11")
async def test_failed_renewal_takes_the_slow_path_and_is_counted(rival: Contested) -> None:
    before = REGISTRY.get_sample_value("leader_election_slowpath_total", {"name": NAME}) or 0
    assert await rival.lock.attempt()
    assert await rival.lock.attempt()
    failures = iter([errors.from_response(500, {}, b"")])
    rival.fault = lambda verb: next(failures, None) if verb == "update" else None
    assert await rival.lock.attempt()
    assert await rival.lock.attempt()
    assert rival.verbs == ["get", "create", "update", "update", "get", "update", "update"]
    after = REGISTRY.get_sample_value("leader_election_slowpath_total", {"name": NAME})
    assert after == before + 1


@pytest.mark.row("daemon-lease-12")
async def test_renewal_keeps_the_acquire_time(rival: Contested) -> None:
    east = timezone(timedelta(hours=5))
    with clock.replaced(
        lambda: (START + timedelta(seconds=elapsed_s())).astimezone(east),
        asyncio.get_running_loop().time,
    ):
        assert await rival.lock.attempt()
        acquired = rival.spec.acquire_time
        assert acquired == "2026-01-01T00:00:00.000000Z"
        await advance(2.5)
        assert await rival.lock.attempt()
    assert rival.spec.acquire_time == acquired
    assert rival.spec.renew_time == "2026-01-01T00:00:02.500000Z"
    assert rival.spec.lease_duration_seconds == 15
    assert (rival.spec.strategy, rival.spec.preferred_holder) == (None, None)


@pytest.mark.row("daemon-lease-09")
async def test_every_observed_renewal_restarts_the_expiry(rival: Contested) -> None:
    rival.hold("bing", duration_s=3, renewed="2026-01-01T00:00:00.100000Z")
    assert not await rival.lock.attempt()
    first = rival.lock.observed_at
    await advance(1)
    assert not await rival.lock.attempt()
    assert rival.lock.observed_at == first
    rival.hold("bing", duration_s=3, renewed="2026-01-01T00:00:00.100001Z")
    assert not await rival.lock.attempt()
    assert rival.lock.observed_at == first + 1


@pytest.mark.row("daemon-lease-14")
async def test_release_clears_the_holder_and_keeps_the_transitions(rival: Contested) -> None:
    rival.hold("baz", transitions=3)
    assert await rival.lock.attempt()
    await advance(1)
    assert await rival.lock.release()
    now = format_micro_time(clock.now())
    assert rival.spec.holder_identity == ""
    assert rival.spec.lease_duration_seconds == 1
    assert (rival.spec.acquire_time, rival.spec.renew_time) == (now, now)
    assert rival.spec.lease_transitions == 3
    assert not rival.lock.is_ours


@pytest.mark.parametrize("deleted", [False, True])
async def test_release_does_not_change_a_lease_of_another_holder(
    rival: Contested, deleted: bool
) -> None:
    assert await rival.lock.attempt()
    if deleted:
        rival.drop()
    else:
        rival.hold("bing")
    assert not await rival.lock.release()
    assert deleted or rival.spec.holder_identity == "bing"


async def test_release_is_retried_during_a_short_outage(rival: Contested) -> None:
    assert await rival.lock.attempt()
    trouble = iter([errors.Unreachable("refused", kind="refused")] * 2)
    rival.fault = lambda verb: next(trouble, None)
    assert await rival.lock.release()
    assert rival.spec.holder_identity == ""
    assert elapsed_s() == 0.5, "a pause of 0.25 s after each try"


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
def test_contradicting_lease_durations_are_refused(
    changes: dict[str, float | str], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**changes)


BRIEF = {"holder": "bing", "duration_s": 3}


BING = {"holder": "bing"}


RELEASED = {"holder": "", "transitions": 4}


@pytest.mark.parametrize(
    ("arranged", "held", "last_verb", "transitions"),
    [
        case("01", held=True, verb="create", transitions=0),
        case("02", {"holder": ""}, held=True, verb="update", transitions=1),
        case("03", BRIEF, 3, held=True, verb="update", transitions=1),
        case("04", BING, 3600, held=True, verb="update", transitions=1),
        case("05", BING, 0, RELEASED, held=True, verb="update", transitions=5),
        case("06", BING, held=False, verb="get", transitions=0),
        # A further transition would overflow the field, and no daemon could ever acquire the Lease.
        case("05", FULL, held=True, verb="update", transitions=2**31 - 1),
        case("07", BRIEF, 2, BRIEF, 2, held=False, verb="get", transitions=0),
        case("08", OURS, held=True, verb="update", transitions=7),
        # The duration in the Lease counts, not the own setting.
        case("03", BING | {"duration_s": 60}, 60, held=True, verb="update", transitions=1),
        case("06", BING | {"duration_s": 60}, 59.9, held=False, verb="get", transitions=0),
    ],
)
async def test_lease_attempt_acquires_renews_or_waits(
    rival: Contested,
    arranged: Sequence[Any],
    held: bool,
    last_verb: str,
    transitions: int,
) -> None:
    for step in arranged:
        if isinstance(step, dict):
            rival.hold(**step)
        else:
            assert not await rival.lock.attempt()
            await advance(step)

    assert await rival.lock.attempt() is held

    assert rival.verbs[-1] == last_verb
    assert rival.spec.holder_identity == ("baz" if held else "bing")
    assert rival.spec.lease_transitions == transitions
    assert rival.lock.is_ours is held


async def test_never_two_leaders_under_random_faults(server: Cluster) -> None:
    rng = random.Random(7)

    def fault(verb: str) -> Exception | float | None:
        return rng.choice([None, None, None, 1.0, 6.0, errors.Unreachable("reset", kind="reset")])

    server.fault = fault
    terms = 0
    replicas = [server.start(f"replica-{number}") for number in range(3)]
    for second in range(600):
        await advance(1)
        working = [r for r in replicas if r.work.began is not None and r.work.ended is None]
        assert len(working) <= 1
        for number, replica in enumerate(replicas):
            if replica.task.done():
                terms += 1
                replicas[number] = server.start(f"replica-{number}-{second}")
        if second % 50 == 49:
            rng.choice(replicas).task.cancel()
    assert terms > 3


@pytest.mark.parametrize(
    "fault",
    [
        errors.Unreachable("connection refused", kind="refused"),
        errors.from_response(500, {}, b"<html>"),
        3600.0,
    ],
    ids=["refused", "500", "hanging"],
)
async def test_leading_ends_at_the_renew_deadline(
    fault: Exception | float, server: Cluster
) -> None:
    replica = server.start()
    await advance(4.5)
    written = server.lease
    server.fault = lambda verb: fault
    await advance(9.4)
    assert replica.leads
    await advance(0.2)
    assert isinstance(await replica.result(), LostLease)
    assert replica.work.ended == pytest.approx(14.0)
    assert replica.parting == []
    assert server.lease is written
    assert status() == 0


async def test_leader_stops_at_once_when_another_replica_holds_the_lease(server: Cluster) -> None:
    replica = server.start(tidy_up_s=5)
    await advance(3)
    server.hold("bing")
    await advance(1.1)
    assert replica.lost == [4]
    await advance(5)
    fault = await replica.result()
    assert isinstance(fault, LostLease)
    assert "held by bing" in str(fault)
    assert replica.work.ended == 9
    assert replica.lost == [4]
    assert server.spec.holder_identity == "bing"
    assert replica.elector.holder == "bing"


async def test_cancelled_work_is_joined_before_the_lease_is_released(server: Cluster) -> None:
    replica = server.start(tidy_up_s=30)
    replica.parting_s = 1.0
    await advance(5)
    replica.task.cancel()
    await advance(29)
    assert server.spec.holder_identity == "baz"
    assert replica.leads
    await advance(2)
    assert replica.task.cancelled()
    assert replica.work.ended == 35
    assert not replica.lost
    # Called before a successor can lead: after the work and the last event.
    assert replica.parting == [(35, "baz", 2)]
    assert server.spec.holder_identity == ""
    renewals = [at for at, verb in server.calls if verb == "update"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(renewals)]
    assert max(gaps) <= 2


async def test_lost_answer_leaves_the_outcome_of_the_write_unknown(rival: Contested) -> None:
    rival.hold("")
    lost = errors.Unreachable("reset", kind="reset")
    rival.fault = lambda verb: lost if verb == "update" else None
    with pytest.raises(errors.Unreachable):
        await rival.lock.attempt()
    assert rival.lock.outcome_unknown
    rival.fault = lambda verb: None
    assert await rival.lock.attempt()
    assert not rival.lock.outcome_unknown


async def test_lease_expires_instead_of_release_while_a_change_is_running(server: Cluster) -> None:
    replica = server.start()
    standby = server.start("standby")
    await advance(10)
    replica.may_release = False
    replica.task.cancel()
    await advance(14.9)
    assert replica.task.cancelled()
    assert server.spec.holder_identity == "baz"
    assert server.verbs.count("update") == 5
    assert not standby.leads
    await advance(0.2)
    assert standby.leads


@pytest.mark.parametrize("watch", [True, False])
async def test_standby_cancelled_while_acquiring_releases_the_lease(
    server: Cluster, watch: bool
) -> None:
    server.watch_works = watch
    server.hold("")
    replica = server.start()

    def carried_out_without_an_answer(verb: str) -> float | None:
        if verb != "update":
            return None
        server.hold("baz")
        server.fault = lambda verb: None
        return 3600.0

    server.fault = carried_out_without_an_answer
    await settle()
    replica.task.cancel()
    await settle()
    assert replica.task.cancelled()
    assert server.spec.holder_identity == ""
    assert replica.work.began is None


async def test_cancelled_standby_does_not_change_the_lease(server: Cluster) -> None:
    server.hold("bing")
    replica = server.start()
    await advance(3)
    written = server.lease
    replica.task.cancel()
    await settle()
    assert replica.task.cancelled()
    assert server.lease is written
    assert replica.recorder.events == []


async def test_standby_leads_as_soon_as_the_lease_is_released(server: Cluster) -> None:
    first = server.start("first")
    await advance(1)
    second, third = server.start("second"), server.start("third")
    await advance(30)
    first.task.cancel()
    await settle()
    assert first.task.cancelled()
    assert [second.leads, third.leads].count(True) == 1
    assert elapsed_s() == 31
    assert server.spec.lease_transitions == 1


async def test_lease_is_polled_with_jitter_without_a_watch(server: Cluster) -> None:
    server.watch_works = False
    leader = server.start("first")
    await advance(1)
    standby = server.start("second")
    await advance(100)
    reads = [at for at, verb in server.calls if verb == "get"][1:]
    gaps = [later - earlier for earlier, later in itertools.pairwise(reads)]
    assert min(gaps) >= 2.0
    assert max(gaps) < 4.4
    assert max(gaps) - min(gaps) > 0.5
    leader.task.cancel()
    await advance(4.4)
    assert standby.leads


async def test_renew_deadline_counts_from_the_start_of_the_request(
    server: Cluster,
) -> None:
    server.fault = lambda verb: 1.0 if verb == "update" else None
    replica = server.start()
    await advance(4)
    assert replica.renewed[-1] == 2
    server.fault = lambda verb: errors.Unreachable("refused", kind="refused")
    await advance(20)
    assert replica.work.ended == pytest.approx(12.0)


async def test_own_renewal_extends_the_lease_even_with_an_unchanged_timestamp(
    rival: Contested,
) -> None:
    with clock.replaced(lambda: START, asyncio.get_running_loop().time):
        assert await rival.lock.attempt()
        await advance(2)
        assert await rival.lock.attempt()
    assert rival.lock.observed_at == START_S + 2


async def test_standby_leads_at_the_expiry_of_a_silent_holder(server: Cluster) -> None:
    server.hold("bing", duration_s=15)
    replica = server.start()
    await advance(7)
    server.hold("bing", duration_s=15)
    await advance(60)
    assert replica.work.began == pytest.approx(22, abs=0.01)
    assert replica.elector.holder == "baz"


async def test_another_holder_is_reported_once_when_it_renews(server: Cluster) -> None:
    """A Lease that is held, but not renewed, may have been left by a killed process."""
    server.hold("go")
    replica = server.start()
    await advance(2)
    assert replica.rivals == []
    for _ in range(3):
        server.hold("go")
        await advance(2)
    server.hold("other")
    await advance(2)
    assert replica.rivals == ["go"]
    server.hold("other")
    await advance(2)

    assert replica.rivals == ["go", "other"]
    await advance(16)
    assert replica.leads
    assert replica.elector.former_holder == "other"
    await advance(60)
    assert (replica.rivals, replica.elector.former_holder) == (["go", "other"], "other")


@pytest.mark.parametrize(("ended", "leads"), [("go", True), ("other", False), ("", False)])
async def test_lease_of_a_process_that_has_ended_is_taken_at_once(
    ended: str, leads: bool, server: Cluster
) -> None:
    server.hold("go")
    replica = server.start(ended=ended)
    await settle()

    assert replica.leads is leads


async def test_failed_takeover_leaves_no_former_holder(server: Cluster) -> None:
    """The holder renewed the Lease at the last moment; later, the Lease was deleted."""
    server.hold("go")
    server.fault = lambda verb: server.hold("go") if verb == "update" else None
    replica = server.start()
    await advance(16)
    led_before = replica.leads

    server.drop()
    await advance(1)

    assert (led_before, replica.leads) == (False, True)
    assert "update" in server.verbs
    assert replica.elector.former_holder == ""


async def test_released_lease_has_no_former_holder(server: Cluster) -> None:
    server.hold("")
    replica = server.start()
    await settle()

    assert replica.leads
    assert replica.elector.former_holder == ""
