"""The record of deletions and of blocked deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import pytest

from ccm.base.metrics import REGISTRY
from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube.errors import Conflict, KubeError, Unreachable
from ccm.model import ObjectReference, names, times
from ccm.runtime import deletions
from ccm.runtime.deletions import (
    MASS_HOLD_S,
    READ_INTERVAL_S,
    BlockedDeletion,
    DeletionBlocks,
    DeletionRecord,
    MalformedRecord,
    MassDeletionGuard,
    blocked_deletions,
)
from ccm.testing.clock import START, VirtualTimeLoop, advance, settle
from tests.support.configmap import KEY, Api, refused

pytestmark = pytest.mark.virtual_time


def record(api: Api, owner: str = "lease") -> DeletionRecord:
    return DeletionRecord(api, namespace="kube-system", owner=owner)


async def reserved(of: DeletionRecord, count: int, *, limit: int = 3, window_s: float = 600) -> int:
    """Reserve this many slots concurrently; return how many were granted."""
    asked = (of.reserve("Node", limit=limit, window_s=window_s) for _ in range(count))
    return sum(map(bool, await asyncio.gather(*asked)))


def at(*seconds: float) -> dict[str, str]:
    """Return a record of deletions, in seconds relative to the start of the clock."""
    moments = [times.format_micro_time(START + timedelta(seconds=each)) for each in seconds]
    return {KEY: msgspec.json.encode(moments).decode()}


async def test_refused_deletion_returns_its_slot() -> None:
    api = Api()
    ours = record(api)
    slot = await ours.reserve("Node", limit=3, window_s=600)
    await reserved(ours, 2)

    ours.release("Node", slot)
    ours.release("Node", slot)

    api.put(api.data)  # after a new read, the record still has it
    assert await reserved(ours, 2) == 1
    assert len(api.times) == 3
    api.put(api.data)
    assert await reserved(ours, 2) == 0


async def test_deletion_limit_is_recorded_and_holds_for_successors() -> None:
    api = Api()
    assert await reserved(record(api), 5) == 3
    assert (api.requests, len(api.times)) == (["get", "create"], 3)
    await advance(590)
    assert await reserved(record(api), 1) == 0
    assert await reserved(record(api, "lease.too"), 5) == 3, "its name starts with ours"
    assert await record(api).reserve("Route", limit=1, window_s=600)
    await advance(11)
    assert await reserved(record(api), 5) == 3


async def test_foreign_or_restored_record_frees_no_slots() -> None:
    api = Api()
    ours, other = record(api), record(api)
    await reserved(ours, 1)
    older = api.data
    await reserved(other, 1)
    assert await reserved(ours, 5, limit=3) == 1, (
        "after a conflict, deletions of the other process count"
    )
    api.put(older)
    assert await reserved(ours, 5, limit=3) == 0
    api.map = None
    assert await reserved(ours, 5, limit=4) == 1


@pytest.mark.parametrize(("when", "left"), [("error", 3), ("lost", 0)])
async def test_failed_record_write_grants_no_slot(when: str, left: int) -> None:
    """A write with a lost response may have succeeded: its slots count as taken."""
    api = Api({})
    ours = record(api)
    setattr(api, when, Unreachable("timeout", kind="timeout"))
    asked = [ours.reserve("Node", limit=3, window_s=600) for _ in range(3)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, KubeError) for each in answers)
    setattr(api, when, None)
    assert await reserved(ours, 3) == left

    api.lost = refused()
    with pytest.raises(Conflict):
        await reserved(record(api), 1, limit=100)


@pytest.mark.parametrize("text", ["{", '["yesterday"]', "[1]"])
async def test_malformed_record_is_named_and_grants_no_deletion(text: str) -> None:
    api = Api({KEY: text})
    ours = record(api)
    with pytest.raises(
        MalformedRecord, match=f"kube-system/{deletions.CONFIG_MAP_NAME}, key {KEY}"
    ):
        await reserved(ours, 1)
    assert api.data == {KEY: text}
    api.put({"other.Node.deletions": "{", "lease.too.Node.deletions": "{"})
    assert await reserved(ours, 1) == 1


@pytest.mark.parametrize(
    ("moments", "free"),
    [((3600, 3601), [1, 0, 3]), ((-601, -600.5, -10), [2, 1, 2])],
    ids=["the clock of a leader before was ahead", "before the window"],
)
async def test_recorded_deletions_count_within_the_window(
    moments: tuple[float, ...], free: list[int]
) -> None:
    ours = record(Api(at(*moments)))
    found = []
    for pause_s in (0, 595, 10):
        await advance(pause_s)
        found.append(await reserved(ours, 5))
    assert found == free


@pytest.mark.parametrize("seconds", [86400, -86400])
async def test_wall_clock_jump_neither_frees_nor_blocks_slots(seconds: float) -> None:
    api = Api()
    ours = record(api)
    await reserved(ours, 3)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.start += timedelta(seconds=seconds)
    api.put(api.data)
    assert await reserved(ours, 1) == 0
    await advance(601)
    assert await reserved(ours, 1) == 1


async def test_cancelled_reservation_takes_no_slot_of_the_others() -> None:
    api = Api()
    ours = record(api)
    asked = [spawn(ours.reserve("Node", limit=2, window_s=600), name=name) for name in "abc"]
    await settle()
    await cancel_and_join(*asked[:2])
    assert await asked[2]
    assert (len(api.times), await reserved(ours, 5, limit=2)) == (1, 1)


# --- blocked deletions ----------------------------------------------------------------------


def held(count: int) -> tuple[BlockedDeletion, ...]:
    return tuple(
        BlockedDeletion(name=str(each), reason="why", since="then") for each in range(count)
    )


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, str]] = []

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        self.told.append((reference.name, kind, reason, message))


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def holds(events: Events) -> Iterator[DeletionBlocks]:
    made = DeletionBlocks("Thing", events)
    yield made
    made.clear()


def thing(name: str, uid: str = "1") -> ObjectReference:
    return ObjectReference(kind="Thing", namespace="ns", name=name, uid=uid)


def barred(reason: str) -> float | None:
    return REGISTRY.get_sample_value("ccm_deletions_held", {"kind": "Thing", "reason": reason})


def test_event_is_written_when_blocked_and_for_each_new_reason(
    holds: DeletionBlocks, events: Events
) -> None:
    holds.block(thing("a"), "mass_denial", "4 of 9 are denied")
    holds.block(thing("a"), "mass_denial", "5 of 9 are denied")
    holds.block(thing("a"), "limit", "10 were deleted")

    assert events.told == [
        ("a", "Warning", "DeletionHeld", "4 of 9 are denied"),
        ("a", "Warning", "DeletionHeld", "10 were deleted"),
    ]
    assert (barred("mass_denial"), barred("limit"), len(holds)) == (0, 1, 1)


async def test_blocked_deletions_are_recorded_until_unblocked(events: Events) -> None:
    api = Api({"lease.Route.held": "{"})
    with pytest.raises(MalformedRecord, match=r"lease\.Route\.held"):
        blocked_deletions(api.map, "lease")
    ours = record(api)
    ours.register_blocked("Route", lambda: held(1000))
    holds = DeletionBlocks("Thing", events, ours)
    running = spawn(ours.run(), name="run")
    holds.block(thing("a"), "limit", "wait")
    holds.block(thing("a", uid="2"), "limit", "wait")
    await advance(30)
    found = blocked_deletions(api.map, "lease")
    (one,) = found["Thing"].objects
    assert (one.key, one.reason, one.since) == ("ns/a", "limit", "2026-01-01T00:00:00Z")
    assert (len(events.told), barred("limit")) == (2, 1)
    assert found["Route"].count == 1000
    assert len(found["Route"].objects) == deletions.MAX_LISTED

    holds.unblock(thing("a", uid="2"))
    await advance(30)
    assert set(blocked_deletions(api.map, "lease")) == {"Route"}
    await cancel_and_join(running)


async def test_allow_deletion_annotation_holds_only_for_current_blocks(events: Events) -> None:
    api = Api({})
    ours = record(api)
    holds = DeletionBlocks("Thing", events, ours)
    running = spawn(ours.run(), name="run")
    holds.block(thing("a"), "limit", "wait")
    await advance(10)
    api.annotate(names.ANNOTATION_ALLOW_DELETION, "true")
    await advance(2 * READ_INTERVAL_S)
    allowed = [ours.is_allowed]
    holds.unblock(thing("a"))
    await advance(3 * READ_INTERVAL_S)
    assert [*allowed, ours.is_allowed] == [True, False]
    await cancel_and_join(running)


def test_returned_owner_extends_the_hold_for_the_others() -> None:
    guard = MassDeletionGuard(lambda: False)
    assert guard.wait_s(9, 10, 0) == MASS_HOLD_S
    guard.owner_returned(60)
    assert guard.wait_s(1, 10, 60) == MASS_HOLD_S
    assert guard.wait_s(1, 10, 60 + MASS_HOLD_S) == 0
    guard.owner_returned(60 + MASS_HOLD_S)
    assert guard.wait_s(1, 10, 60 + MASS_HOLD_S) == 0
