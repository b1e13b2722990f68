"""Leader election of the daemon: lease guard, watchdog and events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from ccm.app import options
from ccm.app.clients import EventRecorders as ClusterEvents
from ccm.app.election import Election, load_migration
from ccm.app.health import DaemonState
from ccm.app.options import config, migration
from ccm.app.provider import Misconfigured
from ccm.app.shutdown import EXIT_LOST_LEASE
from ccm.base import clock, lease_guard
from ccm.base.lease_guard import LeaseExpired
from ccm.model import Event
from ccm.model.meta import ObjectReference
from ccm.model.names import NORMAL
from ccm.runtime.manifest import SharedLease
from ccm.testing.clock import advance, elapsed_s, jump, settle
from tests.unit.kube.leases import NAME, Server

pytestmark = pytest.mark.virtual_time


class Ends:
    """Fake `Watchdog`: records the deadline of each reason and never ends the process."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def arm(self, reason: str, seconds: float) -> None:
        self.at[reason] = round(elapsed_s() + seconds, 6)

    def cancel(self, *reasons: str) -> None:
        for reason in reasons or tuple(self.at):
            self.at.pop(reason, None)


class Events:
    """Recorders that discard every event."""

    abandoned = False

    def recorder(self, _component: str) -> Any:
        return SimpleNamespace(event=lambda *_: None)

    def abandon(self) -> None:
        self.abandoned = True

    async def flush(self, limit_s: float) -> None:
        """Return at once."""


def allowed() -> bool:
    """Return whether the lease guard allows new work."""
    try:
        lease_guard.check_current_guard()
    except LeaseExpired:
        return False
    return True


class Replica:
    """One process, whose work checks the lease guard on request."""

    def __init__(self, *flags: str) -> None:
        self.server = Server()
        self.ends = Ends()
        self.events = Events()
        self.abandoned_calls = 1
        self.abandoned_changes = 0
        vitals = DaemonState()
        vitals.handle = self  # type: ignore[assignment]
        argv = ["--cloud-provider=x", f"--leader-elect-resource-name={NAME}", *flags]
        clients: Any = SimpleNamespace(lease=lambda _: SimpleNamespace(resource=self._resource))
        given: Any = (self.events, vitals, self.ends)
        self.election = Election(config.with_config_file(options.parse(argv)), clients, *given)
        self.asked = asyncio.Event()
        self.may_begin: bool | None = None
        self.task = asyncio.create_task(self.election.run(self.lead))

    def _resource(self, _kind: object) -> Server:
        return self.server

    async def lead(self) -> None:
        try:
            while True:
                await self.asked.wait()
                self.asked.clear()
                self.may_begin = allowed()
        finally:
            self.may_begin_at_its_end = allowed()

    async def tries(self) -> bool | None:
        """Return whether the running work may start something now."""
        self.may_begin = None
        self.asked.set()
        for _ in range(5):
            await asyncio.sleep(0)  # no time passes
        return self.may_begin

    async def stop(self) -> None:
        self.task.cancel()
        await advance(10)
        assert self.task.done()


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[Replica]:
    made = Replica()
    await settle()
    yield made
    await made.stop()


async def test_lease_renewal_postpones_the_watchdog(replica: Replica) -> None:
    """The new deadline is 95 % of the lease duration after the start of the renewal."""
    assert replica.ends.at == {NAME: 14.25}
    replica.server.fault = lambda verb: 1.5
    await advance(3.4)
    assert replica.ends.at == {NAME: 14.25}
    await advance(0.2)
    assert replica.ends.at == {NAME: 16.25}
    await advance(60)
    assert await replica.tries() is True


@pytest.mark.parametrize(("stands_still_s", "may_begin"), [(14.2, True), (14.3, False)])
async def test_lease_guard_refuses_work_after_its_deadline(
    replica: Replica, stands_still_s: float, may_begin: bool
) -> None:
    jump(stands_still_s)

    assert await replica.tries() is may_begin


@pytest.mark.parametrize("how", ["unreachable", "taken"])
async def test_lost_lease_expires_the_guard_and_ends_the_process(how: str) -> None:
    replica = Replica()
    await settle()
    replica.abandoned_changes = 1
    if how == "taken":
        replica.server.hold("thief")
        await advance(2)
        ends = {"lost lease": 2 + 4.0}
    else:
        replica.server.fault = lambda verb: 60.0
        await advance(10)
        ends = {NAME: 14.25, "lost lease": 10 + 4}

    assert not replica.may_begin_at_its_end
    assert replica.events.abandoned
    assert replica.task.result() == EXIT_LOST_LEASE
    assert replica.ends.at == ends


async def test_next_epoch_is_given_only_to_the_holder_of_the_lease(replica: Replica) -> None:
    """The Lease is read from the API server: this process may not know yet that it was lost."""
    assert await replica.election.next_epoch(7) == 8

    replica.server.hold("thief")

    assert await replica.election.next_epoch(7) is None


async def test_next_epoch_needs_no_lease_without_leader_election() -> None:
    replica = Replica("--leader-elect=false")
    await settle()

    assert await replica.election.next_epoch(7) == 8
    assert replica.server.calls == []
    await replica.stop()


async def test_released_lease_disarms_the_watchdog() -> None:
    replica = Replica()
    await settle()

    await replica.stop()

    assert replica.may_begin_at_its_end
    assert replica.server.spec.holder_identity == ""
    assert replica.ends.at == {}


@pytest.mark.parametrize("why", ["changes", "server"])
async def test_watchdog_stays_armed_when_the_lease_is_not_released(why: str) -> None:
    """Either a cloud change is still running, or the API server does not answer."""
    replica = Replica()
    await advance(4)
    if why == "changes":
        replica.abandoned_changes = 1
    else:
        replica.server.fault = lambda verb: 60.0

    await replica.stop()

    assert replica.server.spec.holder_identity != ""
    assert replica.ends.at == {NAME: 4 + 14.25}


async def test_watchdog_is_not_armed_without_leader_election() -> None:
    replica = Replica("--leader-elect=false")
    await settle()

    jump(1e6)

    assert await replica.tries() is True
    assert replica.ends.at == {}
    assert replica.server.calls == []
    await replica.stop()


@pytest.mark.parametrize("lost", [True, False])
async def test_leader_that_lost_its_lease_writes_no_events(lost: bool) -> None:
    written: list[str] = []

    async def create(obj: Event, *, namespace: str) -> Event:
        written.append(f"{namespace}: {obj.message}")
        return obj

    client: Any = SimpleNamespace(resource=lambda _: SimpleNamespace(create=create))
    async with ClusterEvents(client) as events:
        about = ObjectReference(kind="Service", name="web", namespace="blue")
        events.recorder("test").event(about, NORMAL, "Ensured", "it has an address")
        if lost:
            events.abandon()
            await settle()

    assert written == ([] if lost else ["blue: it has an address"])


@pytest.mark.row("kubermatic-lease-04")
@pytest.mark.parametrize("component", ["*", "kube-controller-manager"])
def test_leader_migration_cannot_share_a_controller_that_has_a_shared_lease(
    component: str,
) -> None:
    """In another program it may run, without this daemon."""
    leader = migration.ControllerLeader(name="kubermaticmachine", component=component)
    plan = migration.LeaderMigration(leader_name="second", leaders=(leader,))
    argv = ["--controllers=*,kubermaticmachine", "--enable-leader-migration"]
    given = replace(options.parse(argv), leader_migration=plan)

    if component == "*":
        with pytest.raises(Misconfigured, match="kube-system/machine-controller already; remove"):
            load_migration(given)
    else:
        assert load_migration(given) == plan
    same = replace(given, leader_migration=replace(plan, leader_name="machine-controller"))
    with pytest.raises(Misconfigured, match="the Lease of kubermatic-machine-controller; give"):
        load_migration(same)


class Held:
    """Elector that holds its lease; the test renews it."""

    holder = former_holder = ""

    def __init__(self, *_: Any, on_renewed: Any, **_more: Any) -> None:
        self.renew: Callable[[], None] = lambda: on_renewed(clock.monotonic())

    async def run(self, lead: Any) -> None:
        self.renew()
        await lead()


def election_with(
    elector: type[Held], vitals: DaemonState, monkeypatch: pytest.MonkeyPatch
) -> Election:
    monkeypatch.setattr("ccm.app.election.LeaderElector", elector)
    flags = options.parse(["--cloud-provider=x", f"--leader-elect-resource-name={NAME}"])
    given: Any = (SimpleNamespace(lease=lambda _: Server()), Events(), vitals, Ends())
    monkeypatch.setattr(Server, "resource", lambda *_: None, raising=False)
    return Election(flags, *given)


@pytest.mark.row("kubermatic-lease-06")
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "migration"])
async def test_only_a_shared_lease_is_taken_from_the_former_leader_at_once(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may hold the daemon's Lease and that of a migration, without a watchdog."""
    ended = dict[str, str]()

    class Heir(Held):
        former_holder = "go-1_x"

        def __init__(self, _leases: Any, config: Any, **more: Any) -> None:
            super().__init__(**more)
            ended[config.name] = more["ended"]

    async def work() -> None:
        """Do nothing."""

    election = election_with(Heir, DaemonState(), monkeypatch)
    shared = SharedLease(namespace="b", name="second", advice="") if is_shared else None
    await election.run(lambda: election.run_lease("second", work, shared=shared))

    assert ended == {NAME: "", "second": "go-1_x" if is_shared else ""}


@pytest.mark.row("kubermatic-lease-03")
@pytest.mark.parametrize("renewed", [NAME, "b/shared"])
async def test_work_under_a_shared_lease_needs_the_own_lease_too(
    renewed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vitals, seen = DaemonState(), list[bool]()
    election = election_with(Held, vitals, monkeypatch)

    async def work() -> None:
        seen.append(allowed())
        await advance(14)
        elector: Any = vitals.electors[renewed]
        elector.renew()
        await advance(1)
        seen.append(allowed())

    shared = SharedLease(namespace="b", name="shared", advice="")
    await election.run(lambda: election.run_lease("", work, shared=shared))

    assert vitals.electors.keys() == {NAME, "b/shared"}
    assert seen == [True, False]
