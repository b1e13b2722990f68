"""The journal in the daemon: the search for orphans, the endpoint, and the changes of users."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ccm.app import health, journal, options
from ccm.app.controllers import ControllerRunner
from ccm.app.health import DaemonState
from ccm.app.journal import DaemonJournal
from ccm.app.journalaccess import cluster_of
from ccm.app.journalchanges import JournalChanges
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Cloud, Service, Unavailable, default_load_balancer_name
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.helpers import load_balancer_name
from ccm.gardener import crds
from ccm.gardener.codec import CODEC
from ccm.kube.client import Client
from ccm.kube.informer import SharedInformers
from ccm.kubermatic.codec import CODEC as KUBERMATIC
from ccm.machines.flags import CONTROL
from ccm.model import names
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.errors import BackendUnavailable
from ccm.persistence.interface import new_machine_id
from ccm.persistence.journal import EntryState, Journal, JournalEntry, Owner, entry_name
from ccm.persistence.memory import MemoryStore
from ccm.runtime.journal_report import JournalChange, JournalResponse
from ccm.runtime.manifest import ClusterContext
from ccm.runtime.object_status import DaemonResponse
from ccm.testing.clock import advance, settle
from tests.support.journals import WatchedStore
from tests.support.services import FakeBalancers, FakeDigests
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time

SERVICES = "/api/v1/namespaces/default/services"
INSTANCE = "memory-0123456789abcdef"
ME = WriterIdentity(identity="a", epoch=1)
WEB = {
    "metadata": {"name": "web"},
    "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
}
PERIOD_S = 1800.0


class Transferable(FakeDigests):
    """The same, with a transfer to another Service."""

    async def transfer_load_balancer(
        self, cluster_name: str, former: Service, service: Service
    ) -> None:
        await self._call("transfer", former, ())
        held = self.held.pop(default_load_balancer_name(former))
        self.held[default_load_balancer_name(service)] = held


class World:
    """An API server, load balancers and a storage; daemons come and go."""

    def __init__(self, balancers: FakeBalancers) -> None:
        self.server = MemoryServer()
        self.balancers = balancers
        self.memory: Any = WatchedStore(MemoryStore())
        self.store = StoreProvider("memory", {INSTANCE: self.memory}, writer=lambda: ME)
        self.account = "one"
        self.events: list[tuple[str, str]] = []
        self.messages: list[str] = []
        self.vitals = DaemonState()
        self.journal: DaemonJournal

    @property
    def entries(self) -> Mapping[str, JournalEntry]:
        return self.journal.journal.entries

    def states(self) -> list[str]:
        return [entry.state.value for entry in self.entries.values()]

    def uid(self, name: str = "web") -> str:
        body = self.server.get(f"{SERVICES}/{name}")
        assert body is not None
        return str(body["metadata"]["uid"])

    def named(self, _name: str) -> Client:
        return self.server.client()

    def recorder(self, _name: str) -> World:
        return self

    def event(self, *_: object) -> None:
        """Events of controllers."""

    def record_event(self, kind: str, reason: str, message: str) -> None:
        self.events.append((kind, reason))
        self.messages.append(message)

    def apply_crds(self) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for definition in crds.DEFINITIONS:
            self.server.put(path, dict(definition.to_manifest()))

    @contextlib.asynccontextmanager
    async def daemon(self, *words: str, others: Sequence[Any] = ()) -> AsyncIterator[None]:
        """A daemon leads, and has loaded its journal."""
        given = options.parse(["--controllers=service", "--journal=report", *words])
        objects = SimpleNamespace(fault="")
        stores: Any = SimpleNamespace(
            writer=lambda: ME, when_unavailable="degrade", on_open=None, objects=objects
        )
        self.journal = self.vitals.journal = DaemonJournal(given, stores, self.record_event)
        cloud = Cloud(
            name="fake",
            load_balancer=self.balancers,
            service_annotations=("lb/",),
            account=self.account,
        )
        handle = CloudClient(cloud)
        await self.store.initialize(new_machine_id("cluster", "kubernetes"))
        runner = ControllerRunner(given, self, self, self.vitals, others=others)
        async with self.journal.running(handle):
            task = spawn(runner.run(handle, None, beside=self.journal.run), name="daemon")
            try:
                await stores.on_open(self.store, INSTANCE)
                await settle()
                yield
                assert not task.done(), task
            finally:
                await cancel_and_join(task)

    async def ask(self, method: str = "GET", body: bytes = b"") -> Any:
        async def read() -> bytes:
            return body

        request: Any = SimpleNamespace(method=method, read=read)
        return await health.journal_page(self.vitals)(request)

    async def change(self, action: str, **fields: Any) -> JournalResponse:
        change = JournalChange(action=action, **fields)
        task = spawn(self.ask("POST", msgspec.json.encode(change)), name="change")
        await advance(1)
        return msgspec.json.decode((await task).body, type=JournalResponse)


@pytest_asyncio.fixture(params=["lists", "cannot list"])
async def world(request: pytest.FixtureRequest) -> World:
    return World(FakeDigests() if request.param == "lists" else FakeBalancers())


@pytest.mark.row("journal-04")
async def test_service_lost_while_the_daemon_was_down_is_reported_by_the_first_search(
    world: World,
) -> None:
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(5)
        assert world.states() == ["Created"]
    world.server.unmake(f"{SERVICES}/web")

    async with world.daemon():
        await advance(journal.START_S + 1)
        assert world.events == [("Warning", names.REASON_ORPHANED_RESOURCE)]
        assert "Service default/web" in world.messages[0]
        (text,) = (await reading(world)).orphans.values()
        assert text == world.messages[0]
        await advance(3 * PERIOD_S)
        assert len(world.events) == 1, "each orphan is reported once"
    assert len(world.balancers.held) == 1


@pytest.mark.row("journal-04")
async def test_service_lost_while_the_daemon_runs_is_reported_by_the_next_search(
    world: World,
) -> None:
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(journal.START_S + 1)
        world.balancers.faults["delete"] = Unavailable("the cloud is down")
        world.server.unmake(f"{SERVICES}/web")
        await advance(1.2 * PERIOD_S)
        assert world.events == [("Warning", names.REASON_ORPHANED_RESOURCE)]

        del world.balancers.faults["delete"]
        await advance(1.2 * PERIOD_S)
        assert (world.states(), dict(world.balancers.held)) == (["Removed"], {})
        assert (await reading(world)).orphans == {}


async def reading(world: World) -> JournalResponse:
    return msgspec.json.decode((await world.ask()).body, type=JournalResponse)


@pytest.mark.row("journal-04")
async def test_mode_delete_deletes_a_lost_load_balancer_after_the_grace_period() -> None:
    world = World(FakeDigests())
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(5)
    world.server.unmake(f"{SERVICES}/web")
    flags = ("--journal=delete", "--journal-grace-period=50m", "--journal-check-period=10m")
    async with world.daemon(*flags):
        await advance(49 * 60)
        assert world.balancers.held
        await advance(25 * 60)
        assert (dict(world.balancers.held), world.states()) == ({}, ["Removed"])
    assert world.events[-1] == ("Normal", names.REASON_ORPHAN_DELETED)


async def test_deleted_orphan_is_no_orphan_before_the_next_search() -> None:
    world = World(FakeDigests())
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(5)
    world.server.unmake(f"{SERVICES}/web")
    async with world.daemon("--journal=delete", "--journal-grace-period=0s"):
        await advance(journal.START_S + 1)
        assert world.states() == ["Removed"]
        assert (await reading(world)).orphans == {}


class Keyed(FakeDigests):
    """Load balancers with names by namespace and name, as in OpenStack."""

    def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
        return f"{service.namespace}_{service.name}"


@pytest.mark.row("journal-06")
async def test_load_balancer_that_a_recreated_service_uses_is_no_orphan() -> None:
    world = World(Keyed())
    await lost(world)
    world.server.put(SERVICES, WEB)
    async with world.daemon("--journal=delete"):
        await advance(journal.START_S + 5 * PERIOD_S)
        assert (world.states(), list(world.balancers.held)) == (["Created"] * 2, ["default_web"])
        assert (await reading(world)).orphans == {}

        world.server.drop(f"{SERVICES}/web")
        await advance(1.2 * PERIOD_S)
        assert (world.states(), dict(world.balancers.held)) == (["Removed"] * 2, {})
        assert world.events == []


@pytest.mark.row("journal-06")
async def test_load_balancer_is_an_orphan_once_the_recreated_service_is_lost_too() -> None:
    world = World(Keyed())
    name = await lost(world)
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(journal.START_S + 1)
        assert world.events == []
    world.server.unmake(f"{SERVICES}/web")
    async with world.daemon():
        await advance(journal.START_S + 1)
        orphans = (await reading(world)).orphans
        assert (name in orphans, len(orphans)) == (True, 2)


@pytest.mark.row("journal-04")
async def test_living_services_cause_no_request_to_the_api_server() -> None:
    world = World(FakeDigests())
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(journal.START_S + 1)
        reads = world.server.reads("services")
        await advance(3 * PERIOD_S)
        assert world.server.reads("services") == reads
        assert world.events == []


@pytest.mark.row("journal-06")
async def test_resource_in_another_account_is_not_looked_up(world: World) -> None:
    """With the credentials of another project, it would seem to be gone."""
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(5)
    world.server.unmake(f"{SERVICES}/web")
    world.balancers.held.clear()
    world.account = "two"

    async with world.daemon("--journal=delete"):
        await advance(journal.START_S + 5 * PERIOD_S)
        assert world.states() == ["Created"]
        assert "it belongs to another account, one" in world.messages[0]
    world.account = "one"
    async with world.daemon():
        await advance(journal.START_S + 1)
        assert world.states() == ["Removed"]


def machine_entry(**owner: str) -> JournalEntry:
    api_version, kind = CODEC.machines.api_version, CODEC.machines.kind
    return JournalEntry(
        name=entry_name("server", "u"),
        resource="server",
        provider="fake",
        owner=Owner(
            api_version=api_version, kind=kind, namespace="default", name="m0", uid="u", **owner
        ),
        state=EntryState.CREATED,
    )


@pytest.mark.row("journal-06")
async def test_owner_in_a_cluster_that_is_not_configured_is_not_absent() -> None:
    """Such as a Machine of the control cluster, after --control-kubeconfig was removed."""
    world = World(FakeDigests())
    world.apply_crds()
    async with world.daemon():
        await world.journal.journal.put(machine_entry(cluster=CONTROL))
        await advance(journal.START_S + 2 * PERIOD_S)
        assert (world.events, world.states()) == ([], ["Created"])
        await world.journal.journal.put(machine_entry())
        await advance(2 * PERIOD_S)
        assert world.events == [("Warning", names.REASON_ORPHANED_RESOURCE)]


class LateInformers(SharedInformers):
    """Caches of a cluster that responds late."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.responds = asyncio.Event()

    async def wait_synced(self, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await self.responds.wait()


async def test_first_search_waits_for_the_caches_of_a_control_cluster() -> None:
    """Otherwise it would read each Machine from the API server."""
    world = World(FakeDigests())
    world.apply_crds()
    caches = LateInformers(world.server.client())
    context = ClusterContext(client=world.named, recorder=world.recorder, informers=caches)
    control = SimpleNamespace(roles=(CONTROL,), context=lambda _resync_s: context)
    async with world.daemon(others=[control]):
        await world.journal.journal.put(machine_entry(cluster=CONTROL))
        await advance(journal.START_S + 2 * PERIOD_S)
        assert world.events == []
        caches.responds.set()
        await advance(PERIOD_S)
        assert world.events == [("Warning", names.REASON_ORPHANED_RESOURCE)]


@pytest.mark.parametrize(
    ("api_version", "role"),
    [(CODEC.machines.api_version, CONTROL), (KUBERMATIC.machines.api_version, ""), ("v1", "")],
)
def test_only_gardeners_machines_may_be_in_a_control_cluster(api_version: str, role: str) -> None:
    assert cluster_of(api_version, [CONTROL]) == role
    assert cluster_of(api_version, []) == ""


@pytest.mark.row("journal-06")
async def test_owner_of_a_kind_that_is_not_served_is_not_absent() -> None:
    """After a restore without CRDs, every Machine would seem to be absent."""
    world = World(FakeDigests())
    entry = machine_entry()
    async with world.daemon():
        await world.journal.journal.put(entry)
        await advance(journal.START_S + 2 * PERIOD_S)
        assert (world.events, world.states()) == ([], ["Created"])
        world.apply_crds()
        await advance(2 * PERIOD_S)
        # The controllers of Machines do not run here, so the VM cannot be looked up.
        assert world.events == [("Warning", names.REASON_ORPHANED_RESOURCE)]


# --- the endpoint -------------------------------------------------------------------------------


@pytest.mark.row("journal-07")
async def test_endpoint_says_that_the_journal_cannot_be_written() -> None:
    world = World(FakeDigests())
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        world.memory.fail_with(BackendUnavailable("disk full"))
        await advance(5)
        answer = await reading(world)
        assert (answer.fault, len(answer.entries)) == ("", 1)
        assert answer.down.startswith("disk full; unavailable since 2026-01-01T00:00:0")
        world.memory.fail_with(None)
        await advance(60)
        assert (await reading(world)).down == ""


async def test_endpoint_of_a_daemon_without_a_journal_says_so() -> None:
    world = World(FakeDigests())
    answer = msgspec.json.decode((await world.ask()).body, type=DaemonResponse)
    assert "--journal" in answer.fault


async def test_endpoint_refuses_a_body_that_is_no_change() -> None:
    world = World(FakeDigests())
    async with world.daemon():
        for body in (b"", b"{}", b'{"action": 7}'):
            answer = await world.ask("POST", body)
            assert (answer.status, answer.body[:25]) == (400, b"the body is no change of ")
        assert "must be one of drop, adopt" in (await world.change("forget")).fault


async def test_changes_need_a_leader() -> None:
    world = World(FakeDigests())
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(5)
        (name,) = world.entries
    assert (await world.change("drop", name=name)).fault == journal.NOT_LOADED
    assert (await reading(world)).fault == journal.NOT_LOADED


async def test_explain_shows_the_resources_of_an_object_and_of_its_predecessors() -> None:
    world = World(FakeDigests())
    world.server.put(SERVICES, WEB)
    given = options.parse([])
    async with world.daemon():
        await advance(5)
        name = load_balancer_name(world.uid())
        answer = health.explain_object("service", "default/web", given, world.vitals)
        (found,) = answer.journal
        assert found.startswith(f"loadbalancer {name} ({name}): Created, created 20")
        assert found.endswith(" by a")
        for kind, key in (("service", "default/other"), ("machine", "default/web")):
            assert health.explain_object(kind, key, given, world.vitals).journal == []


# --- changes ------------------------------------------------------------------------------------


async def test_drop_deletes_an_entry_and_leaves_its_resource() -> None:
    world = World(FakeDigests())
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(5)
        (name,) = world.entries
        assert (await world.change("drop", name="other")).fault.startswith("there is no entry")
        assert (await world.change("drop", name=name, dry_run=True)).done
        assert list(world.entries) == [name]
        assert (await world.change("drop", name=name)).done[0].startswith(f"{name} dropped")
        assert (dict(world.entries), len(world.balancers.held)) == ({}, 1)


@pytest.mark.row("journal-12")
async def test_rebuild_adds_an_entry_for_each_listed_load_balancer_of_a_service() -> None:
    world = World(FakeDigests())
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(5)
        before = dict(world.entries)
        await world.journal.journal.put(drop=before)
        world.balancers.held["astray"] = ((), ())
        assert len((await world.change("rebuild", dry_run=True)).done) == 1
        assert not world.entries
        assert len((await world.change("rebuild")).done) == 1
        (entry,), (was,) = world.entries.values(), before.values()
        marks = {"created_at": was.created_at, "updated_at": was.updated_at}
        assert msgspec.structs.replace(entry, **marks) == was
        assert (await world.change("rebuild")).done == [
            "every listed resource has an entry already"
        ]


async def lost(world: World) -> str:
    """The Service was lost and created anew while no daemon ran; the name of its entry."""
    world.server.put(SERVICES, WEB)
    async with world.daemon():
        await advance(5)
        (name,) = world.entries
    world.server.unmake(f"{SERVICES}/web")
    return name


@pytest.mark.row("journal-06")
async def test_adopt_gives_a_load_balancer_to_a_service_that_was_created_anew() -> None:
    world = World(Transferable())
    name = await lost(world)
    async with world.daemon():
        await advance(1)
        world.balancers.faults["ensure"] = Unavailable("later")
        world.server.put(SERVICES, WEB)
        adoption = {"name": name, "owner": "default/web"}
        assert len((await world.change("adopt", **adoption, dry_run=True)).done) == 1
        assert name in world.entries
        assert len((await world.change("adopt", **adoption)).done) == 1
        (entry,) = world.entries.values()
        balancer = load_balancer_name(world.uid())
        assert entry.owner.uid == world.uid()
        assert (entry.state, entry.intended_name) == (EntryState.CREATED, balancer)
        assert list(world.balancers.held) == [balancer]


@pytest.mark.parametrize(
    ("balancers", "heir", "account", "fault"),
    [
        (Transferable, "other", "one", "Service default/other does not exist"),
        (FakeDigests, "web", "one", "provider fake, with its present account, cannot give load"),
        (Transferable, "web", "two", "provider fake, with its present account, cannot give load"),
    ],
    ids=["absent", "provider", "account"],
)
async def test_adopt_is_refused_with_a_reason(
    balancers: type[FakeBalancers], heir: str, account: str, fault: str
) -> None:
    world = World(balancers())
    name = await lost(world)
    world.account = account
    async with world.daemon():
        world.server.put(SERVICES, WEB)
        answer = await world.change("adopt", name=name, owner=f"default/{heir}")
        assert fault in answer.fault
        if heir == "web":  # such as a Service that uses the load balancer already
            assert "if no Service uses it, delete it" in answer.fault
        assert "transfer" not in world.balancers.calls


async def test_adopt_is_refused_while_the_owner_exists() -> None:
    world = World(Transferable())
    world.server.put(SERVICES, WEB)
    world.server.put(SERVICES, {"metadata": {"name": "other"}, "spec": {"ports": [{"port": 80}]}})
    async with world.daemon():
        await advance(5)
        (name,) = world.entries
        for heir in ("web", "other"):
            answer = await world.change("adopt", name=name, owner=f"default/{heir}")
            assert "still has its owner default/web" in answer.fault


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"type": "ClusterIP"}, "has type ClusterIP and no class; it must have"),
        (
            {"type": "LoadBalancer", "loadBalancerClass": "example.com/other"},
            "has type LoadBalancer and class example.com/other; it must",
        ),
        ({"type": "LoadBalancer", "loadBalancerClass": "example.com/ours"}, ""),
    ],
)
async def test_adopt_is_refused_for_a_service_that_gets_no_load_balancer(
    spec: dict[str, Any], text: str
) -> None:
    """Such a Service has no finalizer, so nothing would ever delete the load balancer."""
    world = World(Transferable())
    name = await lost(world)
    async with world.daemon("--load-balancer-classes=example.com/ours"):
        await advance(1)
        world.balancers.faults["ensure"] = Unavailable("later")
        body = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}], **spec}}
        world.server.put(SERVICES, body)
        answer = await world.change("adopt", name=name, owner="default/web")
        assert text in answer.fault
        assert bool(answer.done) is (not text)
        assert ("transfer" in world.balancers.calls) is (not text)
        assert (name in world.entries) is bool(text)


async def test_adopt_gives_no_vm_to_another_machine() -> None:
    """The VM keeps the UID of its former owner, so a deletion of the new one would not find it."""
    entry, given, api = machine_entry(), Journal(writer=lambda: ME), World(FakeDigests()).server
    given.put_later(entry)
    changes = JournalChanges(
        journal=given, api=api.client(), client=CloudClient(Cloud(name="fake"))
    )

    response = await changes.execute(
        JournalChange(action="adopt", name=entry.name, owner="default/m")
    )

    assert "is no load balancer" in response.fault
    assert set(given.entries) == {entry.name}
    await given.close()
