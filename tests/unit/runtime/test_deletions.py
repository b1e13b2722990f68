"""The record of deletions, and of those that are blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import pytest
from structlog.testing import capture_logs

from ccm.base.metrics import REGISTRY
from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube.errors import Conflict, KubeError, Unreachable
from ccm.model import ObjectReference, times
from ccm.runtime import deletions
from ccm.runtime.deletions import DeletionRecord, GarbledRecord, Held, HeldBack, Holds, held_back
from ccm.testing.clock import START, VirtualTimeLoop, advance, settle
from tests.support.configmap import KEY, Api, refused

pytestmark = pytest.mark.virtual_time


def record(api: Api, owner: str = "lease") -> DeletionRecord:
    return DeletionRecord(api, namespace="kube-system", owner=owner)


async def reserved(of: DeletionRecord, count: int, *, limit: int = 3, window_s: float = 600) -> int:
    """How many of so many who ask at once get a slot."""
    asked = (of.reserve("Node", limit=limit, window_s=window_s) for _ in range(count))
    return sum(map(bool, await asyncio.gather(*asked)))


def at(*seconds: float) -> dict[str, str]:
    """A record of deletions at some seconds before or after the clock's start."""
    moments = [times.format_micro_time(START + timedelta(seconds=each)) for each in seconds]
    return {KEY: msgspec.json.encode(moments).decode()}


def jump_of_the_wall(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.start += timedelta(seconds=seconds)


async def test_a_slot_is_on_record_before_it_is_given() -> None:
    api = Api()

    assert await reserved(record(api), 1) == 1

    assert api.requests == ["get", "create"]
    assert len(api.times) == 1


async def test_the_limit_holds_within_the_window_and_no_longer() -> None:
    api = Api()
    ours = record(api)

    assert await reserved(ours, 5) == 3
    await advance(590)
    assert await reserved(ours, 1) == 0
    await advance(11)

    assert await reserved(ours, 1) == 1
    assert len(api.times) == 1


async def test_who_asks_meanwhile_shares_the_next_write() -> None:
    api = Api({})
    ours = record(api)

    assert await reserved(ours, 50, limit=100) == 50

    assert api.requests == ["get", "patch"]
    assert len(set(api.times)) == 50


async def test_where_no_slot_is_left_nothing_is_written() -> None:
    api = Api()
    ours = record(api)
    await reserved(ours, 3)
    api.requests.clear()

    assert await reserved(ours, 1000) == 0

    assert api.requests == []


async def test_a_successor_reads_what_was_deleted() -> None:
    api = Api()
    await reserved(record(api), 2)

    assert await reserved(record(api), 5) == 1


async def test_each_kind_and_each_daemon_has_its_own() -> None:
    api = Api()
    await reserved(record(api, "lease"), 3)
    before = api.data[KEY]

    # The name of the second begins like that of the first.
    assert await reserved(record(api, "lease.too"), 5) == 3
    assert await reserved(record(api, "lease"), 5) == 0
    assert await record(api).reserve("Route", limit=1, window_s=600)

    assert api.data[KEY] == before


async def test_a_refused_deletion_gives_its_slot_back() -> None:
    api = Api()
    ours = record(api)
    slot = await ours.reserve("Node", limit=3, window_s=600)
    await reserved(ours, 2)

    ours.give_back("Node", slot)
    ours.give_back("Node", slot)

    assert await reserved(ours, 2) == 1
    assert len(api.times) == 3
    api.put(api.data)
    assert await reserved(ours, 2) == 0


async def test_what_was_given_back_is_off_the_record_soon() -> None:
    api = Api()
    ours = record(api)
    running = spawn(ours.run(), name="run")
    slot = await ours.reserve("Node", limit=3, window_s=600)

    ours.give_back("Node", slot)
    await advance(2 * deletions.PAUSE_S)

    assert api.times == []
    await cancel_and_join(running)


async def test_after_a_conflict_what_the_other_wrote_counts() -> None:
    api = Api()
    ours, other = record(api), record(api)
    await reserved(ours, 1)
    await reserved(other, 1)

    assert await reserved(ours, 5) == 1

    assert len(api.times) == 3


async def test_conflicts_without_end_delete_nothing() -> None:
    api = Api({})
    api.lost = refused()

    with pytest.raises(Conflict):
        await reserved(record(api), 1, limit=100)


async def test_a_deleted_record_is_made_anew_and_keeps_what_this_process_knows() -> None:
    api = Api()
    ours = record(api)
    await reserved(ours, 2)
    api.map = None

    assert await reserved(ours, 5) == 1

    assert len(api.times) == 3


async def test_a_record_from_an_older_backup_frees_nothing() -> None:
    api = Api()
    ours = record(api)
    await reserved(ours, 1)
    older = api.data
    await reserved(ours, 2)
    api.put(older)

    assert await reserved(ours, 5, limit=4) == 1
    await advance(601)
    assert await reserved(ours, 5) == 3


@pytest.mark.parametrize("data", [{KEY: "{"}, {KEY: '["yesterday"]'}, {KEY: "[1]"}])
async def test_a_garbled_record_names_itself_and_deletes_nothing(data: dict[str, str]) -> None:
    api = Api(data)
    ours = record(api)

    with pytest.raises(GarbledRecord, match=f"kube-system/{deletions.NAME}, key {KEY}"):
        await reserved(ours, 1)

    assert api.data == data
    api.put({})
    assert await reserved(ours, 1) == 1


async def test_what_is_no_list_of_ours_may_say_anything() -> None:
    api = Api({"other.Node.deletions": "{", "lease.Node": "{"})

    assert await reserved(record(api), 1) == 1


async def test_times_in_the_future_count_as_now() -> None:
    """The clock of the leader before us was an hour ahead, or ours was set back."""
    api = Api(at(3600, 3601))
    ours = record(api)

    assert await reserved(ours, 3) == 1
    await advance(595)
    assert await reserved(ours, 3) == 0
    await advance(10)

    assert await reserved(ours, 3) == 3


async def test_times_before_the_window_do_not_count() -> None:
    api = Api(at(-601, -600.5, -10))

    assert await reserved(record(api), 5) == 2
    assert len(api.times) == 3


@pytest.mark.parametrize("seconds", [86400, -86400])
async def test_a_wall_clock_that_jumps_frees_nothing_and_blocks_nothing(seconds: float) -> None:
    api = Api()
    ours = record(api)
    await reserved(ours, 3)
    jump_of_the_wall(seconds)

    assert await reserved(ours, 1) == 0
    api.put(api.data)
    assert await reserved(ours, 1) == 0
    await advance(601)

    assert await reserved(ours, 1) == 1


@pytest.mark.parametrize("when", ["error", "lost"])
async def test_without_an_answer_nobody_gets_a_slot(when: str) -> None:
    """Whether the write was carried out is unknown: the slots count as taken."""
    api = Api({})
    ours = record(api)
    setattr(api, when, Unreachable("timeout", kind="timeout"))

    asked = [ours.reserve("Node", limit=3, window_s=600) for _ in range(3)]
    answers = await asyncio.gather(*asked, return_exceptions=True)

    assert all(isinstance(each, KubeError) for each in answers)
    assert len(api.requests) == (1 if when == "error" else 2)
    setattr(api, when, None)
    assert await reserved(ours, 3) == (3 if when == "error" else 0)


async def test_one_who_goes_away_takes_no_slot_and_leaves_the_others_theirs() -> None:
    api = Api()
    ours = record(api)
    first = spawn(ours.reserve("Node", limit=2, window_s=600), name="first")
    second = spawn(ours.reserve("Node", limit=2, window_s=600), name="second")
    third = spawn(ours.reserve("Node", limit=2, window_s=600), name="third")
    await settle()

    await cancel_and_join(first, second)

    assert await third
    assert len(api.times) == 1
    assert await reserved(ours, 5, limit=2) == 1


# --- what is held back ----------------------------------------------------------------------


def held(*names: str) -> tuple[Held, ...]:
    return tuple(Held(name=name, reason="why", since="then") for name in names)


async def test_what_is_held_back_is_shown_in_batches() -> None:
    api = Api()
    ours = record(api)
    running = spawn(ours.run(), name="run")
    now: list[Held] = []
    ours.show("Node", lambda: now)
    await advance(60)
    assert api.requests == ["get"]

    for name in "abc":
        now += held(name)
        ours.changed()
    await advance(60)
    assert held_back(api.map, "lease")["Node"].objects == [*held("a", "b", "c")]
    now.clear()
    ours.changed()
    await advance(60)

    assert held_back(api.map, "lease") == {}
    assert api.requests == ["get", "create", "patch"]
    await cancel_and_join(running)


async def test_of_many_some_are_named_and_all_are_counted() -> None:
    api = Api()
    ours = record(api)
    ours.show("Node", lambda: held(*map(str, range(1000))))
    running = spawn(ours.run(), name="run")
    await advance(1)

    found = held_back(api.map, "lease")["Node"]
    assert (found.count, len(found.objects)) == (1000, deletions.MOST_NAMED)
    await cancel_and_join(running)


async def test_a_successor_takes_down_what_is_held_no_more() -> None:
    api = Api()
    before = record(api)
    before.show("Node", lambda: held("a"))
    before.show("Route", lambda: held("r"))
    await before.reserve("Node", limit=1, window_s=600)

    after = record(api)
    after.show("Node", lambda: ())
    running = spawn(after.run(), name="run")
    await advance(1)

    # Another process may look after the other kind.
    assert set(held_back(api.map, "lease")) == {"Route"}
    assert len(api.times) == 1
    await cancel_and_join(running)


async def test_an_outage_is_said_once_and_waited_out() -> None:
    api = Api()
    ours = record(api)
    ours.show("Node", lambda: held("a"))
    api.error = Unreachable("down", kind="refused")

    with capture_logs() as lines:
        running = spawn(ours.run(), name="run")
        await advance(60)
        api.error = None
        await advance(60)

    said = [line["log_level"] for line in lines if line["log_level"] != "debug"]
    assert said == ["warning", "info"]
    assert held_back(api.map, "lease")["Node"].count == 1
    await cancel_and_join(running)


async def test_a_garbled_list_of_what_is_held_is_written_anew() -> None:
    api = Api({"lease.Node.held": "{"})
    with pytest.raises(GarbledRecord, match=r"lease\.Node\.held"):
        held_back(api.map, "lease")
    ours = record(api)
    ours.show("Node", lambda: ())
    running = spawn(ours.run(), name="run")
    await advance(1)

    assert held_back(api.map, "lease") == {}
    await cancel_and_join(running)


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, str]] = []

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        self.told.append((reference.name, kind, reason, message))


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def holds(events: Events) -> Iterator[Holds]:
    made = Holds("Thing", events)
    yield made
    made.clear()


def thing(name: str, uid: str = "1") -> ObjectReference:
    return ObjectReference(kind="Thing", namespace="ns", name=name, uid=uid)


def barred(reason: str) -> float | None:
    return REGISTRY.get_sample_value("ccm_deletions_held", {"kind": "Thing", "reason": reason})


def test_an_event_tells_the_beginning_and_each_new_reason(holds: Holds, events: Events) -> None:
    holds.hold(thing("a"), "mass_denial", "4 of 9 are denied")
    holds.hold(thing("a"), "mass_denial", "5 of 9 are denied")
    holds.hold(thing("a"), "limit", "10 were deleted")

    assert events.told == [
        ("a", "Warning", "DeletionHeld", "4 of 9 are denied"),
        ("a", "Warning", "DeletionHeld", "10 were deleted"),
    ]
    assert (barred("mass_denial"), barred("limit"), len(holds)) == (0, 1, 1)


def test_another_object_of_that_name_is_news(holds: Holds, events: Events) -> None:
    holds.hold(thing("a"), "limit", "wait")
    holds.hold(thing("a", uid="2"), "limit", "wait")

    assert len(events.told) == 2
    assert barred("limit") == 1


def test_what_is_released_counts_no_more(holds: Holds, events: Events) -> None:
    for name in "abc":
        holds.hold(thing(name), "limit", "wait")
    holds.release(thing("a"))
    holds.release(thing("a"))
    holds.release(thing("unknown"))
    assert (barred("limit"), len(holds)) == (2, 2)

    holds.clear()

    assert (barred("limit"), len(holds)) == (0, 0)
    holds.hold(thing("a"), "limit", "wait")
    assert len(events.told) == 4


async def test_what_is_held_back_is_on_record(events: Events) -> None:
    api = Api()
    record = DeletionRecord(api, namespace="kube-system", owner="lease")
    running = spawn(record.run(), name="run")
    holds = Holds("Thing", events, record)

    async def shown() -> HeldBack | None:
        await advance(30)
        return held_back(api.map, "lease").get("Thing")

    holds.hold(thing("a"), "limit", "wait")
    found = await shown()
    assert found is not None
    (one,) = found.objects
    assert (found.count, one.key, one.reason, one.since) == (
        1,
        "ns/a",
        "limit",
        "2026-01-01T00:00:00Z",
    )
    holds.release(thing("a"))
    assert await shown() is None
    holds.hold(thing("a"), "limit", "wait")
    assert await shown() is not None
    holds.clear()
    assert await shown() is None
    await cancel_and_join(running)
