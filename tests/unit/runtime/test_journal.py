"""Records of provider calls: what the journal knows at each moment, with the simulated cloud."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio
from msgspec import json, structs

from ccm import cloud
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import LoadBalancer, MachineDriver, errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.journal import MAX_PART_NAME_BYTES
from ccm.model.service import LoadBalancerIngress, LoadBalancerStatus, ServiceStatus
from ccm.persistence.errors import BackendUnavailable
from ccm.persistence.journal import (
    MAX_NAME_BYTES,
    PAGE_SIZE,
    PAGES,
    WAIT_S,
    EntryState,
    Journal,
    JournalEntry,
)
from ccm.persistence.kubestore import MAX_BYTES
from ccm.persistence.memory import MemoryStore
from ccm.runtime.journal import MAX_ANNOTATION_BYTES, CallJournal, balancer_entry
from ccm.testing.builders import node, service
from ccm.testing.clock import elapsed_s
from providers import sim
from providers.sim import server
from tests.support import journals
from tests.support.journals import WatchedStore, opened, states, stored
from tests.waiting import DEADLINE_S

SERVICE = service(annotations={"load-balancer.sim.cloud/size": "large", "other/x": "y"})
NODES = (node("node0", provider_id="sim://1"),)
OWNER = cloud.ObjectReference(
    api_version="machine.sapcloud.io/v1alpha1",
    kind="Machine",
    namespace="pools",
    name="m-1",
    uid="uid-m-1",
)
REQUEST = cloud.MachineRequest(
    identity=cloud.Identity(
        cluster="c1", namespace="pools", pool="workers", name="vm-1", uid="uid-m-1"
    ),
    provider_spec={},
    credentials=cloud.Credentials({"token": b"a-tokens-text"}),
    user_data=b"#!/bin/sh\njoin --with some-long-words-of-a-script\n",
    owner=OWNER,
)
ENSURE, REMOVE = LoadBalancer.ensure_load_balancer, LoadBalancer.ensure_load_balancer_deleted
CREATE, DELETE = MachineDriver.create_machine, MachineDriver.delete_machine
INTENT, CREATED, DELETING, REMOVED = EntryState

Hook = Callable[[], Awaitable[None]]


async def nothing() -> None:
    return


@dataclass
class Hooks:
    """Called around each method of the provider."""

    before: Hook = nothing
    after: Hook = nothing


class Hooked:
    """A provider's object with hooks around each method."""

    def __init__(self, inner: Any, hooks: Hooks) -> None:
        self.inner = inner
        self.hooks = hooks

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def hooked(*args: Any) -> Any:
            await self.hooks.before()
            answer = await method(*args)
            await self.hooks.after()
            return answer

        return hooked


@dataclass(kw_only=True)
class World:
    """A simulated cloud behind a client whose calls are recorded."""

    service: server.Service
    provider: cloud.Cloud
    store: WatchedStore
    journal: Journal
    hooks: Hooks

    def client(self, journal: Journal | None = None, **settings: Any) -> CloudClient:
        balancers: Any = Hooked(self.provider.load_balancer, self.hooks)
        machines: Any = Hooked(self.provider.machines, self.hooks)
        seen = replace(self.provider, load_balancer=balancers, machines=machines)
        client = CloudClient(seen, cluster_name="c1")
        client.set_recorder(CallJournal(journal or self.journal, **settings))
        return client

    def resources(self) -> list[str]:
        """Names of all load balancers and VMs in the cloud."""
        balancers = [one.name for one in self.service.worlds.balancers.list()]
        return sorted([*balancers, *(one.name for one in self.service.world.snapshot())])


@asynccontextmanager
async def world_of(store: Any) -> AsyncIterator[World]:
    service = server.Service(token="a-tokens-text", seed=1)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server.serve(service))
        context = cloud.Context(config=f"url: {url}\ntoken: a-tokens-text\ntimeout: 2m".encode())
        provider = await stack.enter_async_context(sim.open_cloud(context))
        store = WatchedStore(store)
        journal = await stack.enter_async_context(opened(store))
        yield World(
            service=service,
            provider=provider,
            store=store,
            journal=journal,
            hooks=Hooks(),
        )


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with world_of(MemoryStore()) as made:
        yield made


Call = Callable[[CloudClient], Coroutine[Any, Any, Any]]


async def until_done(client: CloudClient, method: Any, *args: Any) -> Any:
    """Call again as long as the cloud needs time."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await client.call(method, *args)
            except errors.RetryAfter as error:
                await asyncio.sleep(min(error.seconds, 0.05))


async def create_balancer(client: CloudClient) -> Any:
    return await until_done(client, ENSURE, "c1", SERVICE, ())


async def delete_balancer(client: CloudClient) -> Any:
    return await until_done(client, REMOVE, "c1", SERVICE)


async def create_vm(client: CloudClient) -> Any:
    return await until_done(client, CREATE, REQUEST)


async def delete_vm(client: CloudClient) -> Any:
    return await until_done(client, DELETE, REQUEST)


KINDS: dict[str, tuple[Call, Call]] = {
    "loadbalancer": (create_balancer, delete_balancer),
    "server": (create_vm, delete_vm),
}
kinds = pytest.mark.parametrize("kind", KINDS)


# --- the normal course --------------------------------------------------------------------------


@kinds
@pytest.mark.row("journal-01")
@pytest.mark.row("journal-03")
async def test_the_record_is_durable_before_the_call(world: World, kind: str) -> None:
    """With the opposite order, the store would not have the entry at that moment."""
    create, delete = KINDS[kind]
    seen: list[str] = []

    async def look() -> None:
        seen.append(",".join(one.state for one in (await stored(world.store)).values()))

    client = world.client()
    world.hooks.before = look
    await create(client)
    assert set(seen) == {"Intent"}
    await world.journal.close()

    async with opened(world.store) as journal:
        seen.clear()
        await delete(world.client(journal))
    assert set(seen) == {"Deleting"}
    (found,) = (await stored(world.store)).values()
    assert found.state is REMOVED
    assert world.resources() == []


@kinds
@pytest.mark.row("journal-11")
async def test_at_most_two_writes_for_a_creation_and_two_for_a_deletion(
    world: World, kind: str
) -> None:
    create, delete = KINDS[kind]
    client = world.client()

    await create(client)
    await world.journal.close()
    assert world.store.writes == 2

    async with opened(world.store) as journal:
        client = world.client(journal)
        await create(client)
        await create(client)
        await client.call(LoadBalancer.get_load_balancer, "c1", SERVICE)
        if kind == "loadbalancer":
            await until_done(client, LoadBalancer.update_load_balancer, "c1", SERVICE, NODES)
        else:
            await client.call(MachineDriver.get_machine_status, REQUEST)
    assert world.store.writes == 2

    async with opened(world.store) as journal:
        await delete(world.client(journal))
    assert world.store.writes == 4
    async with opened(world.store) as journal:
        await delete(world.client(journal))
    assert world.store.writes == 4


async def test_an_entry_names_the_resource_and_its_owner(world: World) -> None:
    client = world.client()
    await create_balancer(client)
    info = await create_vm(client)

    balancer, vm = sorted(world.journal.entries.values(), key=lambda one: one.resource)
    assert (balancer.resource, balancer.provider, balancer.state) == (
        "loadbalancer",
        "sim",
        CREATED,
    )
    assert balancer.intended_name == balancer.resource_id == world.resources()[0]
    assert balancer.annotations == {"load-balancer.sim.cloud/size": "large"}
    assert balancer.account == vm.account == world.provider.account != ""
    assert (balancer.owner.api_version, balancer.owner.kind) == ("v1", "Service")
    assert (balancer.owner.namespace, balancer.owner.name) == ("default", "web")
    assert balancer.owner.uid == SERVICE.uid
    assert (vm.resource, vm.machine_class, vm.intended_name) == ("server", "workers", "vm-1")
    assert vm.resource_id == info.provider_id
    assert (vm.owner.api_version, vm.owner.kind) == (OWNER.api_version, "Machine")
    assert (vm.owner.namespace, vm.owner.name, vm.owner.uid) == ("pools", "m-1", "uid-m-1")
    assert {one.attempts for one in (balancer, vm)} == {0}


async def test_a_resource_that_is_created_again_has_a_new_intent(world: World) -> None:
    client = world.client()
    first = await create_vm(client)
    await delete_vm(client)
    second = await create_vm(client)

    (found,) = world.journal.entries.values()
    assert first.provider_id != second.provider_id == found.resource_id
    assert found.state is CREATED


async def test_a_vm_without_a_machine_is_not_recorded(world: World) -> None:
    client = world.client()
    await until_done(client, CREATE, replace(REQUEST, owner=None))
    await delete_vm(client)

    assert world.journal.entries == {}


# --- killed processes ---------------------------------------------------------------------------


async def killed(world: World, call: Call, at: str) -> None:
    """Make a call in a process that ends at a point; the journal is as that process left it."""
    reached = asyncio.Event()

    async def stop() -> None:
        reached.set()
        await asyncio.get_running_loop().create_future()

    async def stop_writes() -> None:
        world.store.before = stop

    async with opened(world.store, is_killed=True) as journal:
        if at == "before the record":
            world.store.before = stop
        elif at == "before the call":
            world.hooks.before = stop
        elif at == "before the answer":
            world.hooks.after = stop
        elif at == "before the removal is recorded":
            world.hooks.after = stop_writes
        task = spawn(call(world.client(journal)), name="call")
        waiting = spawn(reached.wait(), name="reached")
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        # A killed process writes nothing more, whatever its tasks do when they are cancelled.
        await cancel_and_join(journal._committer, task, waiting)
    world.hooks.before = world.hooks.after = nothing
    world.store.fail_with(None)


@kinds
@pytest.mark.row("journal-01")
@pytest.mark.parametrize(
    ("point", "recorded", "exists"),
    [
        ("before the record", [], False),
        ("before the call", ["Intent"], False),
        ("before the answer", ["Intent"], True),
        ("before the ID is recorded", ["Intent"], True),
    ],
)
async def test_a_killed_creation_is_known_and_continued(
    world: World, kind: str, point: str, recorded: list[str], exists: bool
) -> None:
    create, delete = KINDS[kind]
    await killed(world, create, point)

    assert list(states(await stored(world.store)).values()) == recorded
    assert bool(world.resources()) is exists
    async with opened(world.store, epoch=2) as journal:
        await create(world.client(journal))
    (found,) = (await stored(world.store)).values()
    assert found.state is CREATED
    assert len(world.resources()) == 1
    async with opened(world.store, epoch=2) as journal:
        await delete(world.client(journal))
    assert (list(states(await stored(world.store)).values()), world.resources()) == (
        ["Removed"],
        [],
    )


@kinds
@pytest.mark.row("journal-03")
@pytest.mark.parametrize(
    ("point", "recorded"),
    [
        ("before the record", "Created"),
        ("before the call", "Deleting"),
        ("before the answer", "Deleting"),
        ("before the removal is recorded", "Deleting"),
        ("after the call", "Removed"),
    ],
)
async def test_a_killed_deletion_is_known_and_continued(
    world: World, kind: str, point: str, recorded: str
) -> None:
    """After the call the owner is released: then the removal is durable."""
    create, delete = KINDS[kind]
    async with opened(world.store) as journal:
        await create(world.client(journal))
    await killed(world, delete, point)

    assert list(states(await stored(world.store)).values()) == [recorded]
    async with opened(world.store, epoch=2) as journal:
        await delete(world.client(journal))
    assert (list(states(await stored(world.store)).values()), world.resources()) == (
        ["Removed"],
        [],
    )


# --- errors of the provider ---------------------------------------------------------------------


def raising(error: BaseException) -> Hook:
    async def act() -> None:
        raise error

    return act


async def attempt(call: Awaitable[Any], kind: type[errors.CloudError]) -> None:
    with pytest.raises(kind):
        await call


async def test_a_failed_creation_stays_an_intent_with_its_error(world: World) -> None:
    client = world.client()
    words = "join --with some-long-words-of-a-script"
    for number in (1, 2):
        world.hooks.before = raising(errors.ResourceExhausted(f"no quota for {words}"))
        await attempt(client.call(CREATE, REQUEST), errors.ResourceExhausted)

        (found,) = world.journal.entries.values()
        assert (found.state, found.attempts) == (INTENT, number)
        assert found.last_error.startswith("no quota for ")
        assert "long-words" not in found.last_error
    world.hooks.before = nothing
    await create_vm(client)
    (found,) = world.journal.entries.values()
    assert (found.state, found.attempts, found.last_error) == (CREATED, 0, "")


async def test_a_creation_whose_answer_is_lost_stays_an_intent(world: World) -> None:
    client = world.client()
    world.hooks.after = raising(TimeoutError("no answer"))
    await attempt(create_balancer(client), errors.DeadlineExceeded)

    (found,) = world.journal.entries.values()
    assert found.state is INTENT
    assert len(world.resources()) == 1


async def test_a_cancelled_creation_stays_an_intent(world: World) -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.get_running_loop().create_future()

    world.hooks.after = hang
    task = spawn(create_vm(world.client()), name="call")
    await reached.wait()
    await cancel_and_join(task)

    (found,) = world.journal.entries.values()
    assert (found.state, found.attempts) == (INTENT, 1)
    assert "cancelled" in found.last_error


@pytest.mark.row("journal-11")
async def test_a_call_that_is_repeated_later_writes_nothing_more(world: World) -> None:
    client = world.client()
    world.hooks.before = raising(errors.RetryAfter("busy", seconds=0))
    for _ in range(3):
        await attempt(client.call(CREATE, REQUEST), errors.RetryAfter)
    await world.journal.close()

    assert world.store.writes == 1
    (found,) = (await stored(world.store)).values()
    assert (found.state, found.attempts, found.last_error) == (INTENT, 0, "")


@pytest.mark.parametrize("kind", [errors.ImplementedElsewhere, errors.Unimplemented])
async def test_a_service_of_another_controller_leaves_no_entry(
    world: World, kind: type[errors.CloudError]
) -> None:
    world.hooks.before = raising(kind("not ours"))
    await attempt(create_balancer(world.client()), kind)
    await world.journal.close()

    assert await stored(world.store) == {}


async def test_an_update_that_fails_changes_no_entry(world: World) -> None:
    client = world.client()
    await create_balancer(client)
    before = dict(world.journal.entries)
    for error in (errors.Unavailable("down"), errors.ImplementedElsewhere("not ours")):
        world.hooks.before = raising(error)
        await attempt(create_balancer(client), type(error))

    assert world.journal.entries == before


@kinds
@pytest.mark.row("journal-03")
async def test_a_failed_deletion_stays_deleting(world: World, kind: str) -> None:
    create, delete = KINDS[kind]
    client = world.client()
    await create(client)
    world.hooks.before = raising(errors.Unavailable("down"))
    await attempt(delete(client), errors.Unavailable)

    (found,) = world.journal.entries.values()
    assert (found.state, found.attempts, found.last_error) == (DELETING, 1, "down")


@kinds
@pytest.mark.row("journal-03")
async def test_not_found_confirms_the_absence_of_a_machine_only(world: World, kind: str) -> None:
    """An error about a load balancer never proves its absence."""
    create, delete = KINDS[kind]
    client = world.client()
    await create(client)
    world.hooks.before = raising(errors.NotFound("no project"))
    await attempt(delete(client), errors.NotFound)

    (found,) = world.journal.entries.values()
    assert found.state is (REMOVED if kind == "server" else DELETING)


async def test_a_service_becomes_a_load_balancer_again(world: World) -> None:
    client = world.client()
    await create_balancer(client)
    world.hooks.before = raising(errors.Unavailable("down"))
    await attempt(delete_balancer(client), errors.Unavailable)
    world.hooks.before = nothing
    await create_balancer(client)

    (found,) = world.journal.entries.values()
    assert (found.state, found.attempts) == (CREATED, 0)


# --- the journal is unavailable -----------------------------------------------------------------


@kinds
@pytest.mark.row("journal-07")
async def test_degrade_proceeds_and_writes_the_entries_later(world: World, kind: str) -> None:
    create, _ = KINDS[kind]
    world.store.fail_with(BackendUnavailable("disk full"))
    client = world.client()
    await create(client)
    assert len(world.resources()) == 1
    world.store.fail_with(None)
    await world.journal.close()

    (found,) = (await stored(world.store)).values()
    assert found.state is CREATED


@kinds
@pytest.mark.row("journal-07")
async def test_block_refuses_creations_and_lets_deletions_proceed(world: World, kind: str) -> None:
    create, delete = KINDS[kind]
    client = world.client(blocks=True)
    await create(client)
    world.store.fail_with(BackendUnavailable("disk full"))
    await delete(client)
    assert world.resources() == []

    with pytest.raises(errors.Unavailable, match=f"{kind} .* was not created.*disk full") as raised:
        await create(client)
    assert "when_unavailable: degrade" in str(raised.value)
    assert world.resources() == []


def served(name: str) -> cloud.Service:
    """A Service whose load balancer was seen: its status has an address."""
    ingress = [LoadBalancerIngress(ip="192.0.2.1")]
    status = ServiceStatus(load_balancer=LoadBalancerStatus(ingress=ingress))
    return structs.replace(service(name), status=status)


@pytest.mark.virtual_time
@pytest.mark.row("journal-07")
async def test_block_refuses_no_load_balancer_that_exists_while_the_journal_is_unread() -> None:
    stub: Any = StubCloud()
    client = CloudClient(cloud.Cloud(name="stub", load_balancer=stub))
    client.set_recorder(CallJournal(Journal(writer=journals.writer()), blocks=True))

    for _ in range(2):
        stub.error = errors.Unavailable("down")
        await attempt(client.call(ENSURE, "c1", served("kept"), ()), errors.Unavailable)
        stub.error = None
        with pytest.raises(errors.Unavailable, match="was not created, because the journal"):
            await client.call(ENSURE, "c1", service("new"), ())
    await client.call(ENSURE, "c1", served("kept"), ())
    assert stub.names == {"kept"}


@pytest.mark.virtual_time
@pytest.mark.row("journal-07")
async def test_block_refuses_a_load_balancer_whose_deletion_was_started(
    store: WatchedStore,
) -> None:
    """The status of its Service still has the address."""
    stub: Any = StubCloud()
    client = CloudClient(cloud.Cloud(name="stub", load_balancer=stub))
    async with opened(store) as journal:
        client.set_recorder(CallJournal(journal, blocks=True))
        await client.call(ENSURE, "c1", served("web"), ())
        await client.call(REMOVE, "c1", served("web"))
        store.fail_with(BackendUnavailable("disk full"))
        with pytest.raises(errors.Unavailable, match="was not created"):
            await client.call(ENSURE, "c1", served("web"), ())
        store.fail_with(None)
    assert stub.names == set()


@kinds
@pytest.mark.row("journal-08")
async def test_a_former_leader_changes_nothing_in_the_cloud(world: World, kind: str) -> None:
    create, delete = KINDS[kind]
    client = world.client()
    await create(client)
    await world.journal.put(journals.entry(1))
    async with opened(world.store, epoch=2) as leader:
        await leader.put(journals.entry(2))

    before = world.resources()
    with pytest.raises(errors.Unavailable, match="nothing was changed"):
        await delete(client)
    other = service("other")
    for call in (
        client.call(ENSURE, "c1", other, ()),
        client.call(CREATE, replace(REQUEST, owner=replace_uid("uid-2"))),
    ):
        with pytest.raises(errors.Unavailable, match="nothing was changed"):
            await call
    assert world.resources() == before


def replace_uid(uid: str) -> cloud.ObjectReference:
    return cloud.ObjectReference(kind="Machine", name="m-2", uid=uid)


class StubCloud:
    """Load balancers that exist at once; in virtual time."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.error: errors.CloudError | None = None

    def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:
        return service.name

    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Any
    ) -> cloud.Status:
        if self.error is not None:
            raise self.error
        self.names.add(service.name)
        return cloud.Status()

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: Any) -> None:
        self.names.discard(service.name)


@pytest.mark.virtual_time
@pytest.mark.row("journal-07")
async def test_one_call_waits_two_seconds_and_the_next_one_not_at_all() -> None:
    stub: Any = StubCloud()
    journal = Journal(writer=journals.writer())  # still opening
    client = CloudClient(cloud.Cloud(name="stub", load_balancer=stub))
    client.set_recorder(CallJournal(journal))

    await client.call(ENSURE, "c1", service("one"), ())
    assert elapsed_s() == WAIT_S
    await client.call(ENSURE, "c1", service("two"), ())
    assert elapsed_s() == WAIT_S
    assert stub.names == {"one", "two"}

    async with journals.provider(store := MemoryStore()) as provider:
        await journal.open(provider, journals.NAME)
        await journal.close()
    assert states(await stored(store)) == {"one": "Created", "two": "Created"}


@pytest.mark.virtual_time
async def test_a_provider_without_the_interface_is_not_recorded() -> None:
    journal = Journal(writer=journals.writer())
    client = CloudClient(cloud.Cloud(name="stub"))
    client.set_recorder(CallJournal(journal))

    await attempt(client.call(ENSURE, "c1", SERVICE, ()), errors.Unimplemented)
    assert journal.entries == {}


# --- accounts and clusters ---------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_deletion_in_another_account_confirms_nothing(store: WatchedStore) -> None:
    """After a change of the credentials, the provider finds nothing to delete, and succeeds."""

    def project(account: str) -> cloud.Cloud:
        stub: Any = StubCloud()
        return cloud.Cloud(name="stub", load_balancer=stub, account=account)

    async with opened(store) as journal:
        client = CloudClient(project("one"))
        client.set_recorder(CallJournal(journal))
        await client.call(ENSURE, "c1", service("web"), ())
        client.swap(project("two"))
        await client.call(REMOVE, "c1", service("web"))
        (entry,) = journal.entries.values()
        assert (entry.account, entry.state) == ("one", CREATED)

        # Another load balancer, with an entry of its own.
        await client.call(ENSURE, "c1", service("web"), ())
        await client.call(REMOVE, "c1", service("web"))
        found = {entry.account: entry.state for entry in journal.entries.values()}
        assert found == {"one": CREATED, "two": REMOVED}


class StubMachines:
    """VMs that exist at once, in the account that the provider spec names."""

    def machine_account(self, req: cloud.MachineRequest) -> str:
        if "account" not in req.provider_spec:
            raise errors.InvalidArgument("account is missing")
        return str(req.provider_spec["account"])

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        return cloud.MachineInfo(provider_id=f"stub:///{req.identity.name}")

    async def delete_machine(self, req: cloud.MachineRequest) -> cloud.DeleteMachineResponse:
        return cloud.DeleteMachineResponse()


def machines_client(journal: Journal, stub: Any) -> CloudClient:
    client = CloudClient(cloud.Cloud(name="stub", machines=stub, account="of the cloud config"))
    client.set_recorder(CallJournal(journal))
    return client


@pytest.mark.virtual_time
async def test_account_of_a_vm_is_that_of_its_request(store: WatchedStore) -> None:
    one, two = (replace(REQUEST, provider_spec={"account": name}) for name in ("one", "two"))
    async with opened(store) as journal:
        client = machines_client(journal, StubMachines())
        await client.call(CREATE, one)
        for other in (two, REQUEST):
            await client.call(DELETE, other)
            (entry,) = journal.entries.values()
            assert (entry.account, entry.state) == ("one", CREATED)
        await client.call(DELETE, one)
        assert states(journal.entries) == {"vm-1": "Removed"}
        # A driver without this ability uses the account of the cloud.
        assert machines_client(journal, object()).account_of(one) == "of the cloud config"


@pytest.mark.virtual_time
async def test_entry_names_the_cluster_of_a_machine(store: WatchedStore) -> None:
    """An owner in the control cluster is not looked for in the cluster of the daemon."""
    balancers: Any = StubCloud()
    machines: Any = StubMachines()
    made = cloud.Cloud(name="stub", load_balancer=balancers, machines=machines)
    async with opened(store) as journal:
        client = CloudClient(made)
        client.set_recorder(CallJournal(journal, cluster_of=lambda version: f"of {version}"))
        await client.call(ENSURE, "c1", service("web"), ())
        await client.call(CREATE, REQUEST)
        clusters = {entry.resource: entry.owner.cluster for entry in journal.entries.values()}
        assert clusters == {"loadbalancer": "", "server": f"of {OWNER.api_version}"}


# --- parts --------------------------------------------------------------------------------------


class PartsCloud(StubCloud):
    """Load balancers that need a part each; `act` runs inside its block."""

    def __init__(self, *, ephemeral: bool = False) -> None:
        super().__init__()
        self.context = cloud.Context()
        self.ephemeral = ephemeral
        self.act: Callable[[cloud.JournalPart], Awaitable[None]]

    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Any
    ) -> cloud.Status:
        journal = self.context.journal
        async with journal.part(
            "floatingip", f"ip-{service.name}", ephemeral=self.ephemeral
        ) as part:
            await self.act(part)
        return await super().ensure_load_balancer(cluster_name, service, nodes)


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore(MemoryStore())


def client_of(stub: Any, journal: Journal) -> CloudClient:
    client = CloudClient(cloud.Cloud(name="stub", load_balancer=stub))
    client.set_recorder(CallJournal(journal))
    return client


@pytest.mark.virtual_time
@pytest.mark.row("journal-01")
async def test_a_part_is_recorded_before_its_block(store: WatchedStore) -> None:
    stub, seen = PartsCloud(), list[dict[str, str]]()

    async def act(part: cloud.JournalPart) -> None:
        seen.append(states(await stored(store)))
        part.created("ip-7")

    stub.act = act
    async with opened(store) as journal:
        client = client_of(stub, journal)
        await client.call(ENSURE, "c1", service("web"), ())
        await client.call(ENSURE, "c1", service("web"), ())
        assert seen[0] == {"web": "Intent", "ip-web": "Intent"}
        part = next(one for one in journal.entries.values() if one.resource == "floatingip")
        assert (part.resource_id, part.purpose, part.state) == ("ip-7", "ip-web", CREATED)
        assert (part.owner.uid, part.annotations) == (service("web").uid, {})
        await asyncio.sleep(2)
        writes = store.writes

        await client.call(REMOVE, "c1", service("web"))
        assert {one.state for one in journal.entries.values()} == {REMOVED}
    assert (writes, store.writes) == (3, 5)


@pytest.mark.virtual_time
async def test_the_entry_of_a_failed_part_is_kept(store: WatchedStore) -> None:
    stub = PartsCloud()

    async def act(part: cloud.JournalPart) -> None:
        raise errors.Unavailable("down")

    stub.act = act
    async with opened(store) as journal:
        await attempt(
            client_of(stub, journal).call(ENSURE, "c1", service("web"), ()), errors.Unavailable
        )

    assert states(await stored(store)) == {"web": "Intent", "ip-web": "Intent"}


@pytest.mark.virtual_time
async def test_a_part_that_is_not_created_leaves_no_entry(store: WatchedStore) -> None:
    stub = PartsCloud()

    async def act(part: cloud.JournalPart) -> None:
        return

    stub.act = act
    async with opened(store) as journal:
        await client_of(stub, journal).call(ENSURE, "c1", service("web"), ())

    assert states(await stored(store)) == {"web": "Created"}


@pytest.mark.virtual_time
async def test_an_ephemeral_part_is_gone_after_its_block(store: WatchedStore) -> None:
    stub, seen = PartsCloud(ephemeral=True), list[JournalEntry]()

    async def act(part: cloud.JournalPart) -> None:
        part.created("ip-7")
        await asyncio.sleep(5)
        seen.extend((await stored(store)).values())

    stub.act = act
    async with opened(store) as journal:
        await client_of(stub, journal).call(ENSURE, "c1", service("web"), ())

    (part,) = (one for one in seen if one.resource == "floatingip")
    assert (part.state, part.ephemeral) == (CREATED, True)
    assert states(await stored(store)) == {"web": "Created", "ip-web": "Removed"}


@pytest.mark.virtual_time
@pytest.mark.parametrize("wrong_id", [4711, None])
async def test_an_id_of_a_wrong_type_is_refused_and_not_stored(
    store: WatchedStore, wrong_id: Any
) -> None:
    """The whole page would be unreadable for the next leader."""
    stub = PartsCloud()

    async def act(part: cloud.JournalPart) -> None:
        part.created(wrong_id)

    stub.act = act
    async with opened(store) as journal:
        with pytest.raises(errors.CloudError, match=rf"floatingip ip-web is {wrong_id}; call"):
            await client_of(stub, journal).call(ENSURE, "c1", service("web"), ())

    async with opened(store, epoch=2):
        assert states(await stored(store)) == {"web": "Intent", "ip-web": "Intent"}


@pytest.mark.virtual_time
async def test_a_name_of_a_wrong_type_is_not_stored(store: WatchedStore) -> None:
    stub: Any = StubCloud()
    stub.get_load_balancer_name = lambda *_: 4711
    async with opened(store) as journal:
        await client_of(stub, journal).call(ENSURE, "c1", service("web"), ())

    async with opened(store, epoch=2) as journal:
        (found,) = journal.entries.values()
    assert (found.state, found.intended_name) == (CREATED, "")


async def test_parts_outside_of_a_recorded_call_are_not_recorded() -> None:
    async with cloud.PartJournal().part("sshkey", "x") as part:
        part.created("1")
    for kind in ("", "SSHKey", "ssh-key", "schlüssel"):
        with pytest.raises(ValueError, match="use lower-case letters"):
            async with cloud.PartJournal().part(kind, "x"):
                pass
    text = r"name of the sshkey 'xx.* has 1021 bytes; .* most 1020"
    with pytest.raises(errors.InvalidArgument, match=text):
        async with cloud.PartJournal().part("sshkey", "x" * (MAX_PART_NAME_BYTES + 1)):
            pass


@pytest.mark.virtual_time
async def test_not_found_of_a_load_balancer_confirms_nothing_about_its_parts(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = PartsCloud()

    async def act(part: cloud.JournalPart) -> None:
        part.created("ip-7")

    async def remove(*_: Any) -> None:
        raise errors.NotFound("no project")

    stub.act = act
    async with opened(store) as journal:
        client = client_of(stub, journal)
        await client.call(ENSURE, "c1", service("web"), ())
        monkeypatch.setattr(stub, REMOVE.__name__, remove)
        await attempt(client.call(REMOVE, "c1", service("web")), errors.NotFound)

    assert states(await stored(store)) == {"web": "Deleting", "ip-web": "Deleting"}


@kinds
async def test_an_entry_is_active_during_a_call_about_its_owner(world: World, kind: str) -> None:
    create, delete = KINDS[kind]
    client, seen = world.client(), list[bool]()
    calls = client._provider.recorder
    assert isinstance(calls, CallJournal)

    async def look() -> None:
        seen.extend(map(calls.is_active, world.journal.entries.values()))

    world.hooks.before = look
    await create(client)
    await delete(client)
    assert len(seen) >= 2
    assert all(seen)
    assert not any(map(calls.is_active, world.journal.entries.values()))


@pytest.mark.virtual_time
async def test_an_entry_has_the_annotations_by_which_its_load_balancer_is_found(
    store: WatchedStore,
) -> None:
    class Named(StubCloud):
        def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:
            return service.annotations["lb/name"]

    stub: Any = Named()
    async with opened(store) as journal:
        client = CloudClient(
            cloud.Cloud(name="stub", load_balancer=stub, service_annotations=("lb/",))
        )
        client.set_recorder(CallJournal(journal))
        for name in ("front", "back"):
            await client.call(ENSURE, "c1", service("web", annotations={"lb/name": name}), ())

        (found,) = journal.entries.values()
        assert found.annotations == {"lb/name": "back"}
        assert found.intended_name == found.resource_id == "back"


@pytest.mark.virtual_time
@pytest.mark.row("journal-01")
async def test_the_intent_of_a_repeated_creation_has_the_name_of_the_present_attempt(
    store: WatchedStore,
) -> None:
    """After a crash, only a lookup by this name finds the load balancer."""
    seen: list[JournalEntry] = []

    class Named(StubCloud):
        def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:
            return service.annotations["lb/name"]

        async def ensure_load_balancer(
            self, cluster_name: str, service: cloud.Service, nodes: Any
        ) -> cloud.Status:
            seen.extend((await stored(store)).values())
            raise errors.ResourceExhausted("no quota")

    stub: Any = Named()
    async with opened(store) as journal:
        client = CloudClient(
            cloud.Cloud(name="stub", load_balancer=stub, service_annotations=("lb/",))
        )
        client.set_recorder(CallJournal(journal))
        for name in ("front", "back"):
            wanted = service("web", annotations={"lb/name": name})
            await attempt(client.call(ENSURE, "c1", wanted, ()), errors.ResourceExhausted)
            await asyncio.sleep(60)

    assert [entry.intended_name for entry in seen] == ["front", "back"]
    assert seen[1].annotations == {"lb/name": "back"}
    assert (seen[1].created_at, seen[1].attempts) == (seen[0].created_at, 1)


@pytest.mark.virtual_time
async def test_a_page_of_the_largest_entries_fits_into_a_config_map(store: WatchedStore) -> None:
    """Users choose names and annotations, and the cloud its error texts."""
    sample = "\x01" * 1000
    annotations = {f"{'a' * 249}.io/{'b' * 60}{n:03}": sample[:256] for n in range(20)}
    annotations |= {f"{'c' * 249}.io/{'d' * 60}{n:03}": "e" * 254 for n in range(20)}
    wide = service("n" * 253, namespace="m" * 63, annotations=annotations)
    client = CloudClient(cloud.Cloud(name="stub", service_annotations=("",)), cluster_name="c1")
    longest = "i" * (MAX_NAME_BYTES - 2)
    entry = structs.replace(
        balancer_entry(client, wide),
        last_error=sample,
        account=longest,
        intended_name=longest,
        resource_id=longest,
    )
    async with opened(store) as journal:
        await journal.put(
            *(structs.replace(entry, name=f"{entry.name}{n:03}") for n in range(PAGE_SIZE))
        )

    sizes = [len(record.body) async for pages in store.scan(PAGES) for _, record in pages]
    assert len(sizes) == 1
    assert PAGE_SIZE * MAX_ANNOTATION_BYTES * 0.9 <= sizes[0] <= MAX_BYTES


@pytest.mark.virtual_time
async def test_long_names_of_a_few_services_do_not_stop_the_journal() -> None:
    """An annotation has up to 256 KiB, and a page is written as a whole."""

    class Named(StubCloud):
        def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:
            return service.annotations.get("lb/name", service.name)

        async def ensure_load_balancer(
            self, cluster_name: str, service: cloud.Service, nodes: Any
        ) -> cloud.Status:
            if "lb/name" in service.annotations:
                raise errors.InvalidArgument("the name is too long")
            return cloud.Status()

    memory = MemoryStore()
    memory.max_bytes = MAX_BYTES
    store = WatchedStore(memory)
    stub: Any = Named()
    async with opened(store) as journal:
        client = CloudClient(cloud.Cloud(name="stub", load_balancer=stub))
        client.set_recorder(CallJournal(journal, blocks=True))
        for name in ("bad-1", "bad-2", "bad-3"):
            bad = service(name, uid=f"uid-{name}", annotations={"lb/name": "x" * 200_000})
            await attempt(client.call(ENSURE, "c1", bad, ()), errors.InvalidArgument)
        await client.call(ENSURE, "c1", service("good"), ())
        assert not journal.fault

    found = {entry.owner.name: entry for entry in (await stored(store)).values()}
    assert {name: entry.state for name, entry in found.items()} == {
        "bad-1": INTENT,
        "bad-2": INTENT,
        "bad-3": INTENT,
        "good": CREATED,
    }
    # Omitted instead of cut: a partial name would belong to no resource, or to another one.
    assert (found["bad-1"].intended_name, found["good"].intended_name) == ("", "good")


def test_a_long_annotation_leaves_room_for_the_others() -> None:
    """Its text is cut as in the journal, or left out."""
    annotations = {"lb/a": "x" * 100_000, "lb/b": "small", "lb/c": "y" * 100_000, "other/x": "z"}
    client = CloudClient(cloud.Cloud(name="stub", service_annotations=("lb/",)))
    kept = balancer_entry(client, service("web", annotations=annotations)).annotations

    assert kept["lb/b"] == "small"
    assert "other/x" not in kept
    assert len(json.encode(kept)) <= MAX_ANNOTATION_BYTES
