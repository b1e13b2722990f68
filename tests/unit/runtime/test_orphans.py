"""The search for orphans: which resources it finds, which it deletes, and which never."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs

from ccm.base import tasks
from ccm.cloud.errors import FailedPrecondition, RetryAfter, Unavailable
from ccm.kube.errors import Unreachable
from ccm.model.names import NORMAL, WARNING
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.interface import new_machine_id
from ccm.persistence.journal import EntryState, Journal, JournalEntry, Owner, entry_name
from ccm.persistence.memory import MemoryStore
from ccm.runtime.orphans import (
    EPHEMERAL_GRACE_S,
    GRACE_S,
    MIN_DELETIONS_PER_SEARCH,
    SETTLE_S,
    CloudLook,
    Finding,
    Orphan,
    OrphanSearch,
    OwnerState,
    ResourceAccess,
    SearchSettings,
    failed_conditions,
    report_text,
)
from ccm.testing.clock import advance

pytestmark = pytest.mark.virtual_time

INSTANCE = "memory-0123456789abcdef"


@dataclass
class Cloud:
    """A cloud with resources by name.

    Attributes:
        volumes: names of resources with a volume, which only a call after the disappearance of the
            resource can delete.
        deleted: names of the resources whose deletion has succeeded.
    """

    resources: dict[str, Finding] = field(default_factory=dict)
    volumes: set[str] = field(default_factory=set)
    deleted: list[str] = field(default_factory=list)
    fails: bool = False
    refuses: bool = False

    async def look(self, entry: JournalEntry) -> CloudLook:
        if self.fails:
            raise Unavailable("the cloud is down")
        finding = self.resources.get(entry.intended_name, Finding.ABSENT)
        return CloudLook(finding=finding, resource_id=f"id-{entry.intended_name}")

    async def delete(self, entry: JournalEntry) -> None:
        if self.refuses:
            raise Unavailable("the cloud is down")
        exists = self.resources.pop(entry.intended_name, None) is not None
        if exists and entry.intended_name in self.volumes:
            raise RetryAfter("it is being deleted", seconds=1)
        self.volumes.discard(entry.intended_name)
        self.deleted.append(entry.intended_name)


@dataclass
class World:
    """Journal, cloud and API server of one search."""

    deletes: bool = True
    cloud: Cloud = field(default_factory=Cloud)
    uids: dict[str, str] = field(default_factory=dict)
    cached: set[str] = field(default_factory=set)
    events: list[tuple[str, str]] = field(default_factory=list)
    owner_reads: list[str] = field(default_factory=list)
    api_fails: bool = False

    def __post_init__(self) -> None:
        self.provider = StoreProvider("memory", {INSTANCE: MemoryStore()})
        self.start()

    def start(self) -> None:
        """A process starts with an empty memory."""
        self.journal = Journal(writer=lambda: WriterIdentity(identity="a", epoch=1))
        self.search = OrphanSearch(
            journal=self.journal,
            settings=SearchSettings(deletes=self.deletes),
            read_owner=self._read_owner,
            is_owned=lambda entry: entry.owner.uid in self.cached,
            access=self.access,
            record_event=lambda kind, reason, _message: self.events.append((kind, reason)),
        )

    async def open(self) -> None:
        await self.provider.initialize(new_machine_id("cluster", "kubernetes"))
        await self.journal.open(self.provider, INSTANCE)

    async def add(self, name: str, state: EntryState = EntryState.CREATED, **fields: object) -> str:
        """Add a resource with its entry; its owner is `name`, with the UID `uid-NAME`."""
        uid = f"uid-{name}"
        entry = JournalEntry(
            name=entry_name("loadbalancer", uid),
            resource="loadbalancer",
            provider="sim",
            owner=Owner(api_version="v1", kind="Service", namespace="default", name=name, uid=uid),
            state=state,
            intended_name=name,
            resource_id=f"id-{name}",
        )
        entry = structs.replace(entry, **fields)
        self.cloud.resources.setdefault(name, Finding.MARKED)
        await self.journal.put(entry)
        return entry.name

    def state(self, name: str) -> EntryState | None:
        entry = self.journal.entries.get(name)
        return None if entry is None else entry.state

    def access(self, entry: JournalEntry) -> ResourceAccess:
        if entry.resource == "floatingip":
            raise FailedPrecondition("this provider cannot look up a floatingip")
        return self.cloud

    async def _read_owner(self, owner: Owner) -> str | None:
        self.owner_reads.append(owner.name)
        if self.api_fails:
            raise Unreachable("the API server is down", kind="refused")
        return self.uids.get(owner.name)


@pytest.fixture
async def world() -> World:
    made = World()
    await made.open()
    return made


async def run(world: World, *, hours: float = 0.0) -> None:
    await advance(hours * 3600)
    await world.search.run()


@pytest.mark.row("journal-04")
async def test_orphan_is_deleted_after_the_grace_period_only(world: World) -> None:
    name = await world.add("web")
    await run(world)
    await run(world, hours=0.9)
    assert world.cloud.deleted == []
    await run(world, hours=0.2)
    assert (world.cloud.deleted, world.state(name)) == (["web"], EntryState.REMOVED)
    assert world.events == [(WARNING, "OrphanedResource"), (NORMAL, "OrphanDeleted")]
    await run(world, hours=1)
    assert world.cloud.deleted == ["web"]


ORPHAN = Orphan(
    entry=JournalEntry(
        name="loadbalancer-1",
        resource="loadbalancer",
        provider="sim",
        owner=Owner(api_version="v1", kind="Service", namespace="default", name="web", uid="u"),
        state=EntryState.CREATED,
        resource_id="7",
    ),
    owner=OwnerState.ABSENT,
    look=CloudLook(finding=Finding.MARKED, resource_id="7"),
    age_s=GRACE_S,
)
EPHEMERAL = replace(
    ORPHAN,
    entry=structs.replace(ORPHAN.entry, resource="sshkey", ephemeral=True),
    owner=OwnerState.ALIVE,
    look=CloudLook(finding=Finding.UNMARKED, resource_id="7"),
    age_s=EPHEMERAL_GRACE_S,
)
UNFINISHED = replace(ORPHAN, look=CloudLook(finding=Finding.UNFINISHED))
DELETES = SearchSettings(deletes=True)


@pytest.mark.row("journal-04")
@pytest.mark.parametrize(
    ("missing", "orphan", "settings"),
    [
        ("the mode is delete", ORPHAN, SearchSettings()),
        (
            "the cloud shows the resource",
            replace(EPHEMERAL, look=CloudLook(finding=Finding.UNKNOWN, resource_id="7")),
            DELETES,
        ),
        (
            "the resource is proven ours",
            replace(ORPHAN, look=CloudLook(finding=Finding.UNMARKED, resource_id="7")),
            DELETES,
        ),
        (
            "the resource is proven ours",
            replace(EPHEMERAL, look=CloudLook(finding=Finding.UNMARKED, resource_id="8")),
            DELETES,
        ),
        (
            "the resource is proven ours",
            replace(
                EPHEMERAL,
                entry=structs.replace(EPHEMERAL.entry, resource_id=""),
                look=CloudLook(finding=Finding.UNMARKED, resource_id=""),
            ),
            DELETES,
        ),
        ("the mode is delete", UNFINISHED, SearchSettings()),
        ("the owner is absent", replace(UNFINISHED, owner=OwnerState.CHANGED), DELETES),
        ("the grace period is over", replace(UNFINISHED, age_s=GRACE_S - 1), DELETES),
        ("the owner is absent", replace(ORPHAN, owner=OwnerState.ALIVE), DELETES),
        ("the owner is absent", replace(ORPHAN, owner=OwnerState.CHANGED), DELETES),
        ("the owner is absent", replace(ORPHAN, owner=OwnerState.UNKNOWN), DELETES),
        ("the grace period is over", replace(ORPHAN, age_s=GRACE_S - 1), DELETES),
        ("the grace period is over", replace(EPHEMERAL, age_s=EPHEMERAL_GRACE_S - 1), DELETES),
    ],
)
def test_each_missing_condition_prevents_the_deletion(
    missing: str, orphan: Orphan, settings: SearchSettings
) -> None:
    assert failed_conditions(orphan, settings) == [missing]


@pytest.mark.row("journal-04")
def test_orphan_that_meets_every_condition_may_be_deleted() -> None:
    for orphan in (ORPHAN, EPHEMERAL, UNFINISHED):
        assert failed_conditions(orphan, DELETES) == []


@pytest.mark.row("journal-04")
async def test_mode_report_deletes_nothing() -> None:
    world = World(deletes=False)
    await world.open()
    name = await world.add("web")
    for _ in range(5):
        await run(world, hours=1)
    assert (world.cloud.deleted, world.state(name)) == ([], EntryState.CREATED)
    assert world.events == [(WARNING, "OrphanedResource")]


@pytest.mark.row("journal-04")
async def test_owner_that_returns_before_the_deletion_keeps_its_resource(world: World) -> None:
    await world.add("web")
    await run(world)
    await advance(2 * GRACE_S)
    reads = world._read_owner

    async def first_absent_then_back(owner: Owner) -> str | None:
        answer = await reads(owner)
        world.uids["web"] = "uid-web"
        return answer

    world.search.read_owner = first_absent_then_back
    await run(world)
    assert world.cloud.deleted == []


@pytest.mark.row("journal-05")
async def test_many_orphans_are_reported_and_none_is_deleted(world: World) -> None:
    for number in range(MIN_DELETIONS_PER_SEARCH + 1):
        await world.add(f"web-{number}")
    await run(world)
    await run(world, hours=2)
    assert world.cloud.deleted == []
    # The owner of one of them is back: the others are few enough.
    world.uids["web-0"] = "uid-web-0"
    await run(world)
    assert len(world.cloud.deleted) == MIN_DELETIONS_PER_SEARCH
    assert "web-0" in world.cloud.resources


@pytest.mark.row("journal-05")
async def test_limit_grows_with_the_number_of_entries(world: World) -> None:
    for number in range(100):
        await world.add(f"web-{number}")
        if number >= 10:
            world.cached.add(f"uid-web-{number}")
    await run(world)
    await run(world, hours=2)
    assert len(world.cloud.deleted) == 10


@pytest.mark.row("journal-06")
async def test_owner_of_the_same_name_with_another_uid_is_reported(world: World) -> None:
    name = await world.add("web")
    world.uids["web"] = "uid-new"
    for _ in range(5):
        await run(world, hours=1)
    assert (world.cloud.deleted, world.state(name)) == ([], EntryState.CREATED)
    assert world.search.orphans[name].owner is OwnerState.CHANGED
    assert world.events == [(WARNING, "OrphanedResource")]


@pytest.mark.row("journal-02")
@pytest.mark.parametrize("exists", [True, False])
async def test_intent_without_owner_is_resolved_by_a_read_from_the_cloud(
    world: World, exists: bool
) -> None:
    name = await world.add("web", EntryState.INTENT, resource_id="")
    if not exists:
        del world.cloud.resources["web"]
    await advance(SETTLE_S - 1)
    await run(world)
    assert world.owner_reads == [], "the creation may still run"
    await advance(1)
    await run(world)
    assert (name in world.search.orphans) is exists
    assert world.state(name) is (EntryState.INTENT if exists else None)


@pytest.mark.row("journal-02")
async def test_intent_of_an_existing_owner_is_left_to_its_controller(world: World) -> None:
    name = await world.add("web", EntryState.INTENT)
    world.uids["web"] = "uid-web"
    del world.cloud.resources["web"]
    await run(world, hours=1)
    assert (world.search.orphans, world.state(name)) == ({}, EntryState.INTENT)


@pytest.mark.row("journal-02")
@pytest.mark.parametrize("finding", [Finding.MARKED, Finding.UNMARKED])
@pytest.mark.parametrize("is_cached", [True, False])
async def test_intent_of_an_existing_owner_is_completed_if_its_resource_exists(
    world: World, is_cached: bool, finding: Finding
) -> None:
    """The controller finds the resource, and makes no creating call that would record it."""
    failed = {"resource_id": "", "attempts": 2, "last_error": "the cloud is down"}
    name = await world.add("web", EntryState.INTENT, **failed)
    world.cloud.resources["web"] = finding
    world.uids["web"] = "uid-web"
    if is_cached:
        world.cached.add("uid-web")
    await run(world, hours=0 if is_cached else 1)
    entry = world.journal.entries[name]
    assert (entry.state, entry.resource_id) == (EntryState.CREATED, "id-web")
    assert (entry.attempts, entry.last_error) == (0, "")
    await run(world, hours=1)
    assert world.journal.entries[name] is entry, "a settled resource costs no write"


@pytest.mark.row("journal-02")
async def test_owner_that_could_not_be_read_completes_no_intent(world: World) -> None:
    name = await world.add("web", EntryState.INTENT)
    world.api_fails = True
    await run(world, hours=1)
    assert world.state(name) is EntryState.INTENT


async def test_resource_that_the_cloud_does_not_have_is_recorded_as_removed(
    world: World,
) -> None:
    name = await world.add("web")
    del world.cloud.resources["web"]
    await run(world)
    assert world.state(name) is EntryState.CREATED, "a lookup may lag behind the creation"
    await run(world, hours=1)
    assert (world.state(name), world.events) == (EntryState.REMOVED, [])


@pytest.mark.row("journal-03")
async def test_deletion_is_repeated_until_the_call_succeeds(world: World) -> None:
    """The resource disappears after the first call, and only the second one deletes its volume."""
    name = await world.add("web")
    world.cloud.volumes.add("web")
    await run(world)
    await run(world, hours=1)
    assert (world.state(name), world.cloud.deleted) == (EntryState.DELETING, [])
    assert (world.cloud.resources, world.cloud.volumes) == ({}, {"web"})

    await run(world, hours=0.5)
    assert (world.state(name), world.cloud.deleted) == (EntryState.REMOVED, ["web"])
    assert world.cloud.volumes == set()
    reported = [reason for kind, reason in world.events if kind == WARNING]
    assert reported == ["OrphanedResource"] * 2, "its text changed"


@pytest.mark.row("journal-03")
async def test_interrupted_deletion_of_a_controller_is_continued(world: World) -> None:
    """The daemon was killed during the deletion, and the owner lost its finalizer."""
    name = await world.add("web", EntryState.DELETING)
    world.cloud.volumes.add("web")
    del world.cloud.resources["web"]
    world.uids["web"] = "uid-web"
    await run(world, hours=1)
    assert (world.search.orphans, world.cloud.deleted) == ({}, []), "its controller continues"

    del world.uids["web"]
    await run(world)
    assert world.cloud.deleted == []
    await run(world, hours=1)
    assert (world.state(name), world.cloud.volumes) == (EntryState.REMOVED, set())


@pytest.mark.row("journal-03")
@pytest.mark.parametrize("reason", ["mode", "owner", "cloud"])
async def test_deletion_that_may_not_be_continued_is_reported(reason: str) -> None:
    world = World(deletes=reason != "mode")
    await world.open()
    name = await world.add("web", EntryState.DELETING)
    del world.cloud.resources["web"]
    world.cloud.refuses = reason == "cloud"
    if reason == "owner":
        world.uids["web"] = "uid-new"
    for _ in range(3):
        await run(world, hours=1)
    assert (world.cloud.deleted, world.state(name)) == ([], EntryState.DELETING)
    assert world.events == [(WARNING, "OrphanedResource")]
    text = report_text(world.search.orphans[name])
    assert "may be left in the cloud" in text
    assert f"kube-ccm journal drop {name}" in text


@pytest.mark.row("journal-05")
async def test_many_unfinished_deletions_are_not_continued(world: World) -> None:
    for number in range(MIN_DELETIONS_PER_SEARCH + 1):
        await world.add(f"web-{number}", EntryState.DELETING)
    world.cloud.resources.clear()
    await run(world)
    await run(world, hours=2)
    assert world.cloud.deleted == []


@pytest.mark.row("journal-03")
async def test_absent_part_is_removed_without_a_further_call(world: World) -> None:
    name = await world.add("key", EntryState.DELETING, resource="sshkey", purpose="key")
    del world.cloud.resources["key"]
    await run(world, hours=1)
    assert (world.state(name), world.cloud.deleted) == (EntryState.REMOVED, [])


async def test_cached_owners_cause_no_request(world: World) -> None:
    await world.add("web")
    world.cached.add("uid-web")
    await run(world, hours=1)
    assert world.owner_reads == []


async def test_other_tasks_run_while_a_search_finds_thousands_of_cached_owners(
    world: World,
) -> None:
    name = await world.add("web")
    entry = world.journal.entries[name]
    entries = [structs.replace(entry, name=f"{name}-{number}") for number in range(4 * tasks.SLICE)]
    await world.journal.put(*entries)
    world.cached.add("uid-web")
    examined, progress = 0, set[int]()
    is_owned = world.search.is_owned

    def count(entry: JournalEntry) -> bool:
        nonlocal examined
        examined += 1
        return is_owned(entry)

    async def watch() -> None:
        while True:
            progress.add(examined)
            await asyncio.sleep(0)

    world.search.is_owned = count
    watcher = tasks.spawn(watch(), name="watcher")
    await world.search.run()
    await tasks.cancel_and_join(watcher)
    assert len(progress - {0, examined}) >= 3


@pytest.mark.parametrize("failure", ["api", "cloud"])
async def test_failed_read_proves_nothing(world: World, failure: str) -> None:
    name = await world.add("web")
    world.api_fails, world.cloud.fails = failure == "api", failure == "cloud"
    for _ in range(5):
        await run(world, hours=1)
    assert (world.cloud.deleted, world.state(name)) == ([], EntryState.CREATED)
    world.api_fails = world.cloud.fails = False
    world.uids["web"] = "uid-web"
    await run(world)
    assert world.search.orphans == {}


@pytest.mark.parametrize("place", ["owner", "look", "access"])
async def test_unexpected_exception_ends_the_check_of_one_entry_only(
    world: World, place: str
) -> None:
    """Such as a defect of a provider, or an answer of the API server that cannot be decoded."""
    names = [await world.add(name) for name in ("defective", "web")]
    read, look, access = world.search.read_owner, world.cloud.look, world.search.access

    def fail(name: str) -> None:
        if name == "defective":
            raise KeyError("a defect")

    async def read_owner(owner: Owner) -> str | None:
        fail(owner.name)
        return await read(owner)

    async def look_up(entry: JournalEntry) -> CloudLook:
        fail(entry.intended_name)
        return await look(entry)

    def access_to(entry: JournalEntry) -> ResourceAccess:
        fail(entry.intended_name)
        return access(entry)

    if place == "owner":
        world.search.read_owner = read_owner
    elif place == "look":
        world.cloud.look = look_up  # type: ignore[method-assign]
    else:
        world.search.access = access_to
    await run(world)
    if place == "owner":
        assert list(world.search.orphans) == [names[1]]
    else:
        findings = [world.search.orphans[name].look.finding for name in names]
        assert findings == [Finding.UNKNOWN, Finding.MARKED]
        assert "unexpected KeyError" in world.search.orphans[names[0]].look.text
    await run(world, hours=2)
    assert world.cloud.deleted == ["web"]
    assert world.state(names[0]) is EntryState.CREATED


async def test_unexpected_exception_ends_the_deletion_of_one_orphan_only(world: World) -> None:
    names = [await world.add(name) for name in ("defective", "web")]
    delete = world.cloud.delete

    async def defective(entry: JournalEntry) -> None:
        if entry.intended_name == "defective":
            raise KeyError("a defect")
        await delete(entry)

    world.cloud.delete = defective  # type: ignore[method-assign]
    await run(world)
    await run(world, hours=2)
    assert world.cloud.deleted == ["web"]
    assert world.state(names[0]) is EntryState.DELETING


@pytest.mark.row("journal-09")
async def test_ephemeral_resource_is_cleaned_without_its_owner(world: World) -> None:
    world.uids["web"] = "uid-web"
    world.cached.add("uid-web")
    name = await world.add("web", resource="sshkey", ephemeral=True)
    world.cloud.resources["web"] = Finding.UNMARKED
    await run(world, hours=0.1)
    assert world.cloud.deleted == []
    await run(world, hours=0.1)
    assert (world.cloud.deleted, world.state(name)) == (["web"], EntryState.REMOVED)


@pytest.mark.row("journal-10")
async def test_search_can_be_interrupted_at_any_point(world: World) -> None:
    await world.add("web")
    await run(world)
    world.cloud.refuses = True
    await run(world, hours=2)
    (entry,) = world.journal.entries.values()
    assert (entry.state, world.cloud.deleted) == (EntryState.DELETING, [])
    await world.journal.close()

    world.cloud.refuses = False
    world.start()
    await world.journal.open(world.provider, INSTANCE)
    await run(world)
    assert world.cloud.deleted == [], "a new process waits for the grace period again"
    await run(world, hours=2)
    (entry,) = world.journal.entries.values()
    assert (entry.state, world.cloud.deleted) == (EntryState.REMOVED, ["web"])


@pytest.mark.row("journal-04")
async def test_grace_period_starts_again_after_a_search_that_confirmed_nothing(
    world: World,
) -> None:
    await world.add("web")
    await run(world)
    world.cloud.fails = True
    await run(world, hours=2)
    world.cloud.fails = False
    await run(world, hours=0.1)
    assert world.cloud.deleted == []
    await run(world, hours=1)
    assert world.cloud.deleted == ["web"]


async def test_entry_with_a_call_in_progress_is_left_alone(world: World) -> None:
    name = await world.add("web")
    world.search.is_active = lambda entry: entry.name == name
    await run(world, hours=2)
    assert (world.owner_reads, world.search.orphans) == ([], {})


async def test_resource_without_access_is_reported_only(world: World) -> None:
    name = await world.add("web", resource="floatingip")
    for _ in range(3):
        await run(world, hours=1)
    assert world.search.orphans[name].look.finding is Finding.UNKNOWN
    assert (world.cloud.deleted, world.events) == ([], [(WARNING, "OrphanedResource")])


@pytest.mark.row("journal-04")
async def test_entry_that_changed_during_the_search_is_left_alone(world: World) -> None:
    """Such as an entry that a user gave to another owner after its resource was looked up."""
    names = [await world.add(name) for name in ("web", "api")]
    await run(world)
    look = world.cloud.look

    async def dropped_meanwhile(entry: JournalEntry) -> CloudLook:
        result = await look(entry)
        if entry.intended_name == "web":
            await world.journal.put(drop=[entry.name])
        return result

    async def read_owner(owner: Owner) -> str | None:
        if world.owner_reads.count("api") == 2:  # immediately before the deletion
            await world.journal.put(drop=[names[1]])
        return await world._read_owner(owner)

    world.cloud.look = dropped_meanwhile  # type: ignore[method-assign]
    world.search.read_owner = read_owner
    await run(world, hours=2)
    await run(world, hours=2)
    assert (world.cloud.deleted, world.journal.entries) == ([], {})


@pytest.mark.row("journal-05")
async def test_ephemeral_resources_of_living_owners_count_as_orphans(world: World) -> None:
    for number in range(MIN_DELETIONS_PER_SEARCH + 1):
        await world.add(f"key-{number}", resource="sshkey", ephemeral=True)
        world.uids[f"key-{number}"] = f"uid-key-{number}"
    await run(world, hours=1)
    assert world.cloud.deleted == []


async def test_report_has_no_secret_of_the_cloud_error(world: World) -> None:
    async def look(entry: JournalEntry) -> CloudLook:
        raise Unavailable("GET failed: password=geheim-1")

    name = await world.add("web")
    world.cloud.look = look  # type: ignore[method-assign]
    await run(world)
    assert "geheim" not in world.search.orphans[name].look.text


async def test_intents_of_absent_parts_are_dropped_although_their_owner_exists(
    world: World,
) -> None:
    """A creation that fails for days intends another part at each attempt."""
    names = []
    for number in range(2):
        key = f"group-{number}"
        part = {"resource": "placementgroup", "purpose": key}
        names.append(await world.add(key, EntryState.INTENT, **part))
        world.uids[key] = f"uid-{key}"
        world.cached.add(f"uid-{key}")
    del world.cloud.resources["group-0"]
    await run(world)
    states = [world.state(name) for name in names]
    assert states == [EntryState.INTENT, EntryState.CREATED]  # the creation may still run
    await run(world, hours=1)
    assert list(world.journal.entries) == names[1:]
    assert (world.search.orphans, world.cloud.deleted, world.events) == ({}, [], [])


@pytest.mark.row("journal-06")
@pytest.mark.parametrize("can_transfer", [True, False])
def test_adoption_by_the_new_object_is_offered_only_if_the_provider_can(can_transfer: bool) -> None:
    look = replace(ORPHAN.look, can_transfer=can_transfer)
    text = report_text(replace(ORPHAN, look=look, owner=OwnerState.CHANGED))
    assert ("journal adopt loadbalancer-1 service default/web" in text) is can_transfer
    assert "journal drop loadbalancer-1" in text


@pytest.mark.row("journal-06")
@pytest.mark.parametrize("state", [EntryState.INTENT, EntryState.CREATED, EntryState.DELETING])
async def test_entry_of_a_resource_that_was_taken_over_stays_until_its_absence_is_confirmed(
    world: World, state: EntryState
) -> None:
    name = await world.add("web", state)
    world.cloud.resources["web"] = Finding.TAKEN_OVER
    world.uids["web"] = "uid-new"
    for _ in range(3):
        await run(world, hours=1)
    assert (world.search.orphans, world.events, world.state(name)) == ({}, [], state)

    # The present owner is lost, too.
    del world.uids["web"]
    world.cloud.resources["web"] = Finding.MARKED
    await run(world)
    await run(world, hours=0.9)
    assert (world.cloud.deleted, list(world.search.orphans)) == ([], [name])
    await run(world, hours=0.2)
    assert world.cloud.deleted == ["web"]


async def test_intent_of_an_owner_whose_resource_was_taken_over_is_not_completed(
    world: World,
) -> None:
    """The cache may still show another object with the name of the owner."""
    name = await world.add("web", EntryState.INTENT)
    world.cloud.resources["web"] = Finding.TAKEN_OVER
    world.uids["web"] = "uid-web"
    await run(world, hours=1)
    assert (world.search.orphans, world.state(name)) == ({}, EntryState.INTENT)
