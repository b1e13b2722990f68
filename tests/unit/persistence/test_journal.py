"""The journal: batches, pages, conflicts, outages, secrets and size. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ccm.base import clock, drain, redact
from ccm.persistence import errors, objects
from ccm.persistence import journal as journal_module
from ccm.persistence.journal import (
    BATCH_S,
    FLUSH_S,
    MAX_ERROR,
    MAX_NAME_BYTES,
    MAX_PENDING,
    PAGE_SIZE,
    PAGES,
    WAIT_S,
    EntryState,
    Journal,
)
from ccm.persistence.memory import MemoryStore
from ccm.testing.clock import elapsed_s, settle
from tests.support import journals
from tests.support.journals import (
    NAME,
    STORES,
    UnfencedStore,
    WatchedStore,
    entry,
    opened,
    put_at_once,
    stored,
)

pytestmark = pytest.mark.virtual_time

CREATED, REMOVED = EntryState.CREATED, EntryState.REMOVED
DOWN = errors.BackendUnavailable("disk full")


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a function that opens the same storage again, as the next process does."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: WatchedStore(store)
    return lambda: WatchedStore(STORES[request.param](tmp_path))


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore(MemoryStore())


# --- batches and pages --------------------------------------------------------------------------


async def test_a_hundred_entries_at_once_are_one_write(make: Any) -> None:
    store = make()
    async with opened(store) as journal:
        await put_at_once(journal, *(entry(number) for number in range(100)))

        assert store.writes == 1
        assert len(await stored(store)) == 100


async def test_large_batches_are_not_delayed_and_share_no_pages(store: WatchedStore) -> None:
    """Otherwise, most batches would change three pages."""
    async with opened(store) as journal:
        began = elapsed_s()
        for first in range(0, 1600, 160):
            await journal.put(*(entry(first + number) for number in range(160)))
        assert elapsed_s() == began
        assert store.writes == 20

        # Their pages have room for small batches.
        await journal.put(*(entry(1600 + number) for number in range(40)))
        assert len(journal._pages) == 20


async def test_entries_of_the_same_milliseconds_are_one_write(store: WatchedStore) -> None:
    async with opened(store) as journal, asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(journal.put(entry(number)))
            await asyncio.sleep(BATCH_S / 5)

    assert store.writes == 1


async def test_changes_that_may_wait_are_one_write(store: WatchedStore) -> None:
    async with opened(store) as journal:
        await put_at_once(journal, entry(0), entry(1))
        writes, began = store.writes, clock.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                removed = structs.replace(entry(number), state=REMOVED)
                group.create_task(journal.put(removed, delay_s=0.2))
                await asyncio.sleep(0.1)
        assert store.writes == writes + 1
        assert clock.monotonic() - began < 0.25
        assert {one.state for one in (await stored(store)).values()} == {REMOVED}


async def test_entries_of_one_page_are_one_write(make: Any) -> None:
    store = make()
    async with opened(store) as journal:
        await journal.put(*(entry(number) for number in range(PAGE_SIZE)))

        assert store.writes == 1


async def test_a_resource_is_one_record_that_is_updated_in_place(make: Any) -> None:
    store, one = make(), entry()
    async with opened(store) as journal:
        for state in EntryState:
            await journal.put(structs.replace(journal.entries.get(one.name, one), state=state))
            await asyncio.sleep(10)

        (found,) = (await stored(store)).values()
    assert found.state is REMOVED
    assert (found.created_at, found.updated_at) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:30Z")
    assert (found.epoch, found.writer) == (1, "leader-1")


async def test_the_next_process_reads_all_entries(make: Any) -> None:
    entries = [entry(number) for number in range(100)]
    async with opened(make()) as journal:
        await journal.put(*entries)
        before = dict(journal.entries)

    async with opened(make(), epoch=2) as journal:
        assert journal.entries == before
        assert [one.name for one in journal.by_owner(entry(7).owner.uid)] == [entry(7).name]
        assert journal.by_owner("unknown") == []
        assert len(journal.by_state(EntryState.INTENT, CREATED)) == 100
        assert journal.by_state(CREATED) == []


async def test_an_unchanged_entry_is_not_written(store: WatchedStore) -> None:
    async with opened(store) as journal:
        await journal.put(entry())
        await asyncio.sleep(100)
        await journal.put(entry())
        journal.put_later(entry())
        await asyncio.sleep(2 * FLUSH_S)

    assert store.writes == 1


async def test_later_entries_are_written_within_a_second(store: WatchedStore) -> None:
    async with opened(store) as journal:
        for number in range(10):
            journal.put_later(entry(number))
        await asyncio.sleep(FLUSH_S / 2)
        assert store.writes == 0
        await asyncio.sleep(FLUSH_S / 2 + 2 * BATCH_S)

        assert store.writes == 1
        assert len(await stored(store)) == 10


async def test_later_entries_are_written_with_their_page(store: WatchedStore) -> None:
    async with opened(store) as journal:
        await journal.put(*(entry(number) for number in range(PAGE_SIZE + 1)))
        full, last = (min(page.names) for page in journal._pages)
        for name in (full, last):
            journal.put_later(structs.replace(journal.entries[name], state=CREATED))
        await journal.put(entry(PAGE_SIZE + 1))

        # Only the last page has room for the new entry.
        found = await stored(store)
        assert [found[name].state for name in (full, last)] == [EntryState.INTENT, CREATED]
    assert (await stored(store))[full].state is CREATED


async def test_a_change_during_a_write_is_written_afterwards(store: WatchedStore) -> None:
    async with opened(store) as journal:

        async def change() -> None:
            store.fail_with(None)
            journal.put_later(entry(state=CREATED))

        store.before = change
        await journal.put(entry())

    assert (await stored(store))[entry().name].state is CREATED
    assert store.writes == 2


async def test_dropped_entries_are_gone_and_no_page_is_deleted(make: Any) -> None:
    store = make()
    async with opened(store) as journal:
        await journal.put(*(entry(number) for number in range(PAGE_SIZE + 1)))
        await journal.put(drop=[entry(number).name for number in range(1, PAGE_SIZE + 1)])
        assert list(await stored(store)) == [entry(0).name]
        assert len([page async for pages in store.scan(PAGES) for page in pages]) == 2

        journal.put_later(drop=[entry(0).name])
        assert journal.by_owner(entry(0).owner.uid) == []
        await asyncio.sleep(FLUSH_S + 2 * BATCH_S)
        assert await stored(store) == {}

        await journal.put(entry(0))
        await journal.put(drop=["unknown"])
        assert list(await stored(store)) == [entry(0).name]

        await journal.put(entry(1), drop=[entry(0).name])
        assert list(await stored(store)) == [entry(1).name]


async def test_an_entry_dropped_while_it_is_written_does_not_return(store: WatchedStore) -> None:
    async with opened(store) as journal:

        async def forget() -> None:
            store.fail_with(None)
            journal.put_later(drop=[entry(1).name])

        store.before = forget
        await put_at_once(journal, entry(0), entry(1))

    assert list(await stored(store)) == [entry(0).name]


async def test_pages_with_room_are_used_again(store: WatchedStore) -> None:
    async with opened(store) as journal:
        for round_ in range(20):
            batch = [entry(round_ * 50 + number) for number in range(50)]
            await journal.put(*batch)
            await journal.put(drop=[one.name for one in batch])

        assert len(journal._pages) == 1


async def test_removed_entries_stay_seven_days_and_are_a_thousand_at_most(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_REMOVED", 100)
    async with opened(store) as journal:
        await journal.put(*(entry(number, state=REMOVED) for number in range(10)))
        await asyncio.sleep(60)
        await journal.put(*(entry(number, state=REMOVED) for number in range(10, 120)))
        await journal.put(entry(500), entry(501, state=CREATED))
        now = clock.now()

        assert journal.prune(now) == 20
        assert min(one.owner.name for one in journal.by_state(REMOVED)) == "web-100"
        assert entry(19).name not in journal.entries
        assert entry(20).name in journal.entries
        assert journal.prune(now + timedelta(days=6.9)) == 0
        assert journal.prune(now + timedelta(days=7, minutes=1)) == 100
    assert set(await stored(store)) == {entry(500).name, entry(501).name}


# --- other writers ------------------------------------------------------------------------------


async def test_a_conflict_keeps_the_entries_of_both_writers(make: Any) -> None:
    store = make()
    async with opened(store) as ours:
        await ours.put(entry(0))
        async with opened(make()) as theirs:
            await theirs.put(entry(1), entry(0, state=CREATED))
        await ours.put(entry(2), entry(0, resource_id="x"))

        found = await stored(store)
        assert set(found) == {entry(number).name for number in range(3)}
        assert found[entry(0).name].resource_id == "x"
        assert entry(1).name in ours.entries


@pytest.mark.row("journal-08")
@pytest.mark.parametrize("kind", [MemoryStore, UnfencedStore])
async def test_a_former_leader_writes_nothing_more(kind: Any) -> None:
    """Whether the store fences it, or only the epochs of the entries show the new leader."""
    inner, changes = kind(), []
    store = WatchedStore(inner)
    async with opened(store, epoch=1, on_change=lambda *change: changes.append(change)) as former:
        await former.put(entry(0))
        async with opened(inner, epoch=2) as leader:
            await leader.put(entry(0, state=CREATED))

        former.put_later(entry(0, resource_id="stale"))
        with pytest.raises(errors.Fenced, match="leader of epoch 2 has written"):
            await former.put(entry(1))
        attempts = store.writes
        for _ in range(2):
            with pytest.raises(errors.Fenced):
                await former.put(entry(2))
        former.put_later(entry(3))
        former.put_later(drop=[entry(0).name])
        await asyncio.sleep(600)

    assert store.writes == attempts
    assert [is_up for is_up, _ in changes] == [False]
    (found,) = (await stored(store)).values()
    assert (found.state, found.writer, found.resource_id) == (CREATED, "leader-2", "")


@pytest.mark.row("journal-08")
async def test_each_write_carries_the_epoch_of_the_leader(store: WatchedStore) -> None:
    async with opened(store, epoch=4) as journal:
        await journal.put(entry(0), entry(1))
    async with opened(store, epoch=5) as journal:
        await journal.put(entry(1, state=CREATED))

    found = await stored(store)
    assert [found[entry(number).name].epoch for number in range(2)] == [4, 5]


async def test_a_leader_continues_although_the_count_of_the_lease_went_back() -> None:
    store = UnfencedStore()
    async with opened(store, epoch=9) as journal:
        await journal.put(entry(0), entry(1))

    watched = WatchedStore(store)
    async with opened(watched, epoch=1) as journal:
        watched.lose_answers(errors.BackendUnavailable("lost"))
        with pytest.raises(errors.BackendUnavailable):
            await journal.put(entry(0, state=CREATED))
        watched.lose_answers(None)
        await asyncio.sleep(5)
        await journal.put(entry(1, state=CREATED))

    assert {one.state for one in (await stored(store)).values()} == {CREATED}


async def test_a_write_whose_answer_was_lost_is_no_conflict(make: Any) -> None:
    store = make()
    async with opened(store) as journal:
        await journal.put(entry(0))
        store.lose_answers(errors.BackendUnavailable("lost"))
        with pytest.raises(errors.BackendUnavailable, match="lost"):
            await journal.put(entry(1))
        store.lose_answers(None)
        await asyncio.sleep(5)

        await journal.put(entry(2))
        assert set(await stored(store)) == {entry(number).name for number in range(3)}


async def test_a_damaged_page_is_replaced(store: WatchedStore) -> None:
    async with opened(store) as journal:
        await journal.put(entry(0), entry(1))
        ((place, body),) = store.held.items()
        store.held[place] = body.replace(b"web-0", b"web-9")

        await journal.put(entry(2))

    async with opened(store) as journal:
        assert set(journal.entries) == {entry(number).name for number in range(3)}


# --- outages ------------------------------------------------------------------------------------


async def test_entries_of_an_outage_are_written_after_it(make: Any) -> None:
    store, changes = make(), []
    async with opened(store, on_change=lambda *change: changes.append(change)) as journal:
        store.fail_with(DOWN)
        for number in range(3):
            with pytest.raises(errors.BackendUnavailable, match="disk full"):
                await journal.put(entry(number))
        journal.put_later(entry(3))
        await asyncio.sleep(60)
        assert await stored(store) == {}
        assert changes == [(False, "disk full")]

        store.fail_with(None)
        await asyncio.sleep(60)
        assert set(await stored(store)) == {entry(number).name for number in range(4)}
        assert changes == [(False, "disk full"), (True, "")]
        await journal.put(entry(4))


async def test_a_slow_store_delays_one_call_and_no_further_one(store: WatchedStore) -> None:
    async def wait() -> None:
        await asyncio.sleep(10)

    async with opened(store) as journal:
        store.before = wait
        began = elapsed_s()
        with pytest.raises(errors.BackendUnavailable, match="within 2 s"):
            await journal.put(entry(0))
        assert elapsed_s() - began == pytest.approx(WAIT_S, abs=0.1)
        with pytest.raises(errors.BackendUnavailable):
            await journal.put(entry(1))
        assert elapsed_s() - began == pytest.approx(WAIT_S, abs=0.1)

        store.fail_with(None)
        await asyncio.sleep(30)
        await journal.put(entry(2))
    assert len(await stored(store)) == 3


async def test_an_unavailable_journal_has_its_error_and_start_time(store: WatchedStore) -> None:
    async with opened(store) as journal:
        assert journal.fault == ""
        store.fail_with(DOWN)
        with pytest.raises(errors.BackendUnavailable):
            await journal.put(entry(0))
        await asyncio.sleep(600)
        assert journal.fault == "disk full; unavailable since 2026-01-01T00:00:00Z"
        with pytest.raises(errors.BackendUnavailable, match="since 2026-01-01T00:00:00Z"):
            await journal.put(entry(1))

        store.fail_with(None)
        await asyncio.sleep(60)
        assert journal.fault == ""


async def test_a_defect_of_the_store_does_not_end_the_writes(store: WatchedStore) -> None:
    async with opened(store) as journal:
        for defect in (RuntimeError("a defect"), KeyError("x")):
            store.fail_with(defect)
            with pytest.raises(errors.BackendUnavailable, match=type(defect).__name__):
                await journal.put(entry(0))
            store.fail_with(None)
            await asyncio.sleep(60)
            assert journal.fault == ""
            await journal.put(drop=[entry(0).name])


async def test_retries_of_an_outage_become_rare(store: WatchedStore) -> None:
    async with opened(store) as journal:
        store.fail_with(DOWN)
        journal.put_later(entry(0))
        for number in range(600):
            journal.put_later(entry(number % PAGE_SIZE, attempts=number))
            await asyncio.sleep(1)

        assert 20 < store.writes < 40
        store.fail_with(None)


async def test_entries_wait_for_a_journal_that_opens_later(store: WatchedStore) -> None:
    changes: list[bool] = []
    journal = Journal(writer=journals.writer(), on_change=lambda is_up, _: changes.append(is_up))
    with pytest.raises(errors.BackendUnavailable):
        await journal.put(entry(0))
    assert elapsed_s() == WAIT_S
    with pytest.raises(errors.BackendUnavailable):
        await journal.put(entry(1))
    assert elapsed_s() == WAIT_S

    async with journals.provider(store) as provider:
        await journal.open(provider, NAME)
        assert journal.is_open
        await journal.put(entry(2))
        await journal.open(provider, NAME)  # again: no effect
        await journal.close()
    assert changes == [False, True]
    assert len(await stored(store)) == 3


async def test_an_entry_waits_while_the_journal_opens(store: WatchedStore) -> None:
    journal = Journal(writer=journals.writer())
    async with journals.provider(store) as provider:

        async def later() -> None:
            await asyncio.sleep(WAIT_S / 2)
            await journal.open(provider, NAME)

        async with asyncio.TaskGroup() as group:
            group.create_task(later())
            await journal.put(entry(0))
        assert len(await stored(store)) == 1
        await journal.close()


async def test_an_intent_before_the_opening_replaces_no_known_resource(
    store: WatchedStore,
) -> None:
    """Before the stored entries are known, an update looks like a creation."""
    async with opened(store) as journal:
        await journal.put(entry(0, state=CREATED, resource_id="lb"), entry(1, state=REMOVED))

    journal = Journal(writer=journals.writer(2))
    for number in range(2):
        journal.put_later(entry(number))
    async with journals.provider(store, 2) as provider:
        await journal.open(provider, NAME)
        await journal.close()

    found = await stored(store)
    assert (found[entry(0).name].state, found[entry(0).name].resource_id) == (CREATED, "lb")
    assert (found[entry(1).name].state, found[entry(1).name].epoch) == (EntryState.INTENT, 2)


async def test_a_failed_opening_can_be_repeated(store: WatchedStore) -> None:
    async with opened(store) as journal:
        await journal.put(entry(0))
    journal = Journal(writer=journals.writer())
    async with journals.provider(store) as provider:
        with pytest.raises(errors.UnknownInstance):
            await journal.open(provider, "other-0000000000000000")
        assert not journal.is_open

        await journal.open(provider, NAME)
        assert list(journal.entries) == [entry(0).name]
        await journal.close()


async def test_a_page_of_a_newer_version_is_not_overwritten(store: WatchedStore) -> None:
    async with journals.provider(store) as provider:
        fields = {"name": "x", "state": "Frozen"}
        page = {"apiVersion": "journal.ccm/v1", "kind": "JournalPage", "entries": {"x": fields}}
        await provider.put_object(NAME, {**page, "metadata": {"name": "page-1"}})
        journal = Journal(writer=journals.writer())

        with pytest.raises(errors.CorruptObject, match=r"page-1: .*a newer version"):
            await journal.open(provider, NAME)


async def test_the_number_of_waiting_entries_is_bounded() -> None:
    journal = Journal(writer=journals.writer())
    for number in range(MAX_PENDING + 5):
        journal.put_later(entry(number))

    assert len(journal.entries) == MAX_PENDING
    journal.put_later(entry(0, state=CREATED))
    assert journal.entries[entry(0).name].state is CREATED
    with pytest.raises(errors.BackendUnavailable, match="10000 journal entries wait"):
        await journal.put(entry(MAX_PENDING))


# --- the end ------------------------------------------------------------------------------------


async def test_closing_writes_the_waiting_entries(make: Any) -> None:
    store = make()
    async with opened(store) as journal:
        await journal.put(entry(0))
        journal.put_later(entry(0, state=CREATED))
        journal.put_later(entry(1))

    found = {name: one.state for name, one in (await opened_entries(make())).items()}
    assert found == {entry(0).name: CREATED, entry(1).name: EntryState.INTENT}
    with pytest.raises(errors.Closed):
        await journal.put(entry(2))
    await journal.close()


async def opened_entries(store: Any) -> dict[str, Any]:
    async with opened(store) as journal:
        return dict(journal.entries)


async def test_a_kill_between_batches_loses_only_unconfirmed_entries(make: Any) -> None:
    async with opened(make(), is_killed=True) as journal:
        await put_at_once(journal, *(entry(number) for number in range(70)))
        journal.put_later(entry(0, state=CREATED))
        journal.put_later(entry(100))

    found = await opened_entries(make())
    assert set(found) == {entry(number).name for number in range(70)}
    assert {one.state for one in found.values()} == {EntryState.INTENT}


async def test_entries_are_written_while_the_daemon_stops(store: WatchedStore) -> None:
    """A write to the cluster would otherwise wait for the end of the drain."""
    stopping = drain.Drain()

    async def as_a_client() -> None:
        async with drain.change():
            pass

    async def work() -> None:
        stopping.activate()
        async with opened(store) as journal:
            store.before = as_a_client
            await journal.put(entry(0))
            assert await stopping.drain(1)
            await journal.put(entry(1))
            journal.put_later(entry(2))

    async with asyncio.timeout(10):
        await asyncio.create_task(work())
    assert len(await stored(store)) == 3


async def test_a_hanging_store_does_not_delay_the_end(store: WatchedStore) -> None:
    async def hang() -> None:
        await asyncio.sleep(1e6)

    async with opened(store) as journal:
        store.before = hang
        journal.put_later(entry(0))
    assert elapsed_s() < 10


# --- secrets ------------------------------------------------------------------------------------


async def test_secrets_are_redacted_and_the_record_is_stored(make: Any) -> None:
    store = make()
    redact.register("hunter2hunter2")
    one = entry(
        annotations={
            "load-balancer.sim.cloud/api-token": "geheim-1",
            "load-balancer.sim.cloud/size": "large",
            "load-balancer.sim.cloud/note": "see hunter2hunter2",
        },
        last_error="GET https://me:geheim-2@host/ failed: password=geheim-3 " + "x" * 1000,
        intended_name="web-hunter2hunter2",
    )
    async with opened(store) as journal:
        await journal.put(one, entry(1))
        found = (await stored(store))[one.name]

    assert found.annotations == {
        "load-balancer.sim.cloud/api-token": redact.MASK,
        "load-balancer.sim.cloud/size": "large",
        "load-balancer.sim.cloud/note": f"see {redact.MASK}",
    }
    assert "geheim" not in str(found)
    assert redact.MASK in found.last_error
    assert len(found.last_error) == MAX_ERROR
    # With a masked name, the resource could not be found.
    assert found.intended_name == "web-hunter2hunter2"


@pytest.mark.parametrize(
    "fields",
    [
        {"last_error": "password=geheim-1"},
        {"annotations": {"a/note": "see hunter2hunter2", "b/note": "x"}, "last_error": "x"},
        {"annotations": {"a/note": "x", "b/note": "https://me:geheim-2@host/"}},
        {"annotations": {"a/api-token": "geheim-3"}},
    ],
)
async def test_one_secret_among_other_texts_is_redacted(fields: dict[str, Any]) -> None:
    redact.register("hunter2hunter2")
    redacted = journal_module.redact_entry(entry(**fields))

    assert redact.MASK in str(redacted)
    assert "geheim" not in str(redacted)
    assert "hunter2" not in str(redacted)


@pytest.mark.parametrize("field", ["account", "machine_class", "intended_name", "resource_id"])
@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("x" * (MAX_NAME_BYTES - 2), True),
        ("x" * (MAX_NAME_BYTES - 1), False),
        ("\x01" * (MAX_NAME_BYTES // 6), True),
        ("\x01" * (MAX_NAME_BYTES // 6 + 1), False),
    ],
)
async def test_names_and_ids_beyond_the_limit_are_omitted(
    field: str, text: str, is_kept: bool
) -> None:
    given: dict[str, Any] = {field: text}
    limited = journal_module.redact_entry(entry(**given))

    assert getattr(limited, field) == (text if is_kept else "")


async def test_bytes_of_a_page_are_canonical() -> None:
    """Its checksum is verified with the canonical bytes of what was read."""
    texts = {chr(code): f"a{chr(code)}/b" for code in (1, 10, 34, 92, 127, 0x2028, 0xE000, 0x1F600)}
    entries = {f"e-{n}": entry(n, annotations=texts, attempts=n) for n in range(3)}
    page = journal_module._encode("page-1", entries)

    assert objects.validate(page) == objects.to_canonical_json(page)


@pytest.fixture(autouse=True)
async def _settled() -> AsyncIterator[None]:
    """No task is left."""
    yield
    await settle()


@pytest.mark.row("journal-08")
async def test_caller_whose_wait_ends_later_does_not_hide_a_newer_leader(
    store: WatchedStore,
) -> None:
    async with opened(store) as journal:
        store.fail_with(errors.Fenced("a leader of epoch 2 has written"))
        with pytest.raises(errors.Fenced):
            await journal.put(entry(0))
        journal._mark_down(errors.BackendUnavailable("the store did not confirm a write"))
        with pytest.raises(errors.Fenced):
            await journal.put(entry(1))
