"""Deletions that are held back are said once, and counted while they last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ccm.base.metrics import REGISTRY
from ccm.base.tasks import cancel_and_join, spawn
from ccm.model import ObjectReference
from ccm.runtime.deletions import DeletionRecord, HeldBack, held_back
from ccm.runtime.holds import Holds
from ccm.testing.clock import advance
from tests.support.configmap import Api

pytestmark = pytest.mark.virtual_time


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


def held(reason: str) -> float | None:
    return REGISTRY.get_sample_value("ccm_deletions_held", {"kind": "Thing", "reason": reason})


def test_an_event_tells_the_beginning_and_each_new_reason(holds: Holds, events: Events) -> None:
    holds.hold(thing("a"), "mass_denial", "4 of 9 are denied")
    holds.hold(thing("a"), "mass_denial", "5 of 9 are denied")
    holds.hold(thing("a"), "limit", "10 were deleted")

    assert events.told == [
        ("a", "Warning", "DeletionHeld", "4 of 9 are denied"),
        ("a", "Warning", "DeletionHeld", "10 were deleted"),
    ]
    assert (held("mass_denial"), held("limit"), len(holds)) == (0, 1, 1)


def test_another_object_of_that_name_is_news(holds: Holds, events: Events) -> None:
    holds.hold(thing("a"), "limit", "wait")
    holds.hold(thing("a", uid="2"), "limit", "wait")

    assert len(events.told) == 2
    assert held("limit") == 1


def test_what_is_released_counts_no_more(holds: Holds, events: Events) -> None:
    for name in "abc":
        holds.hold(thing(name), "limit", "wait")
    holds.release(thing("a"))
    holds.release(thing("a"))
    holds.release(thing("unknown"))
    assert (held("limit"), len(holds)) == (2, 2)

    holds.clear()

    assert (held("limit"), len(holds)) == (0, 0)
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
