"""The record of deletions, and of those that are blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import pytest

from ccm.base.metrics import REGISTRY
from ccm.model import ObjectReference, times
from ccm.runtime.deletions import DeletionRecord, Held, Holds
from ccm.testing.clock import START
from tests.support.configmap import KEY, Api

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


# --- what is held back ----------------------------------------------------------------------


def held(*names: str) -> tuple[Held, ...]:
    return tuple(Held(name=name, reason="why", since="then") for name in names)


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
