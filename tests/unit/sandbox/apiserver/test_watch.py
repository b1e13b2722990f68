from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ccm.sandbox.apiserver import kinds, query, render, store, watch
from tests.unit.sandbox.apiserver import requests
from tests.unit.sandbox.apiserver.requests import at
from tests.waiting import DEADLINE_S


class World(requests.Requests):
    """Shorthands for writing nodes; each tells the revision."""

    def add(self, name: str, **labels: str) -> int:
        self.create(kinds.NODES, name, metadata={"labels": labels})
        return self.store.revision

    def label(self, name: str, **labels: str | None) -> int:
        return self.patch(at(kinds.NODES, name), {"metadata": {"labels": labels}}).entry.revision

    def remove(self, name: str) -> int:
        return self.delete(at(kinds.NODES, name)).entry.revision

    def chunks(self, interval_s: float = 60, /, **parameters: str) -> AsyncIterator[bytes]:
        wishes = watch.Watch(
            kind=kinds.NODES,
            namespace="",
            options=query.list_options(kinds.NODES, {"watch": "1", **parameters}),
            renderer=render.Whole("Node", "v1"),
            bookmark_interval_s=interval_s,
        )
        return watch.stream(self.store, wishes)

    def watch(self, *interval: float, **parameters: str) -> AsyncIterator[dict[str, Any]]:
        return _events(self.chunks(*interval, **parameters))


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    async for chunk in chunks:
        assert chunk.endswith(b"\n")
        for line in chunk.splitlines():
            yield json.loads(line)


def brief(event: dict[str, Any]) -> tuple[str, str, int]:
    metadata = event["object"]["metadata"]
    return event["type"], metadata.get("name", ""), int(metadata["resourceVersion"])


async def take(events: AsyncIterator[dict[str, Any]], count: int) -> list[tuple[str, str, int]]:
    async with asyncio.timeout(DEADLINE_S):
        return [brief(await anext(events)) for _ in range(count)]


async def test_a_watch_from_a_revision_tells_every_later_change() -> None:
    world = World()
    start = world.add("a")
    changed, gone = world.label("a", x="1"), world.remove("a")
    events = world.watch(resourceVersion=str(start))

    told = await take(events, 2)
    waiting = asyncio.create_task(take(events, 1))
    await asyncio.sleep(0)
    new = world.add("b")

    assert told == [("MODIFIED", "a", changed), ("DELETED", "a", gone)]
    assert await waiting == [("ADDED", "b", new)]


@pytest.mark.parametrize("revision", ["", "0"])
async def test_a_watch_from_anywhere_begins_with_what_there_is(revision: str) -> None:
    world = World()
    first, second = world.add("b"), world.add("a")

    events = world.watch(resourceVersion=revision)

    assert await take(events, 2) == [("ADDED", "a", second), ("ADDED", "b", first)]


async def test_a_watch_list_ends_its_beginning_with_a_marked_bookmark() -> None:
    world = World()
    revision = world.add("a")
    events = world.watch(
        sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="1"
    )

    added, bookmark = await anext(events), await anext(events)

    assert brief(added) == ("ADDED", "a", revision)
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["kind"] == "Node"
    assert bookmark["object"]["metadata"] == {
        "resourceVersion": str(revision),
        "annotations": {"k8s.io/initial-events-end": "true"},
    }


async def test_a_watch_list_may_do_without_the_beginning() -> None:
    world = World()
    world.add("a")
    events = world.watch(sendInitialEvents="false", resourceVersionMatch="NotOlderThan")
    waiting = asyncio.create_task(take(events, 1))
    await asyncio.sleep(0)

    revision = world.add("b")

    assert await waiting == [("ADDED", "b", revision)]


async def test_too_old_a_revision_is_an_error_event_and_the_end() -> None:
    world = World(store.Store(history=2))
    start = world.add("a")
    for number in range(4):
        world.label("a", x=str(number))
    events = world.watch(resourceVersion=str(start))

    event = await anext(events)

    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"].startswith(f"too old resource version: {start} (")
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_a_reader_that_falls_behind_is_cut_off_and_delays_nobody() -> None:
    world = World(store.Store(history=3))
    events = world.watch(resourceVersion=str(world.add("a")))
    world.label("a", x="0")
    assert (await take(events, 1))[0][0] == "MODIFIED"

    for number in range(1, 9):
        world.label("a", x=str(number))

    assert (await anext(events))["type"] == "ERROR"


async def test_bookmarks_come_regularly_and_carry_the_latest_revision() -> None:
    world = World()
    start = world.add("a")
    events = world.watch(0.02, resourceVersion=str(start), allowWatchBookmarks="true")

    first = await take(events, 1)
    world.create(kinds.NAMESPACES, "x")
    elsewhere = world.store.revision
    second = await take(events, 1)

    assert first == [("BOOKMARK", "", start)]
    assert second == [("BOOKMARK", "", elsewhere)]


async def test_a_watch_ends_after_its_time() -> None:
    world = World()
    revision = world.add("a")

    async with asyncio.timeout(DEADLINE_S):
        told = [brief(event) async for event in world.watch(timeoutSeconds="1")]

    assert told == [("ADDED", "a", revision)]


async def test_a_watch_ends_when_the_store_is_closed() -> None:
    world = World()
    events = world.watch(resourceVersion="1")
    waiting = asyncio.create_task(anext(events, None))
    await asyncio.sleep(0)

    world.store.close()

    async with asyncio.timeout(DEADLINE_S):
        assert await waiting is None


async def test_a_future_revision_says_nothing_until_it_has_passed() -> None:
    world = World()
    start = world.add("a")
    events = world.watch(resourceVersion=str(start + 1))
    waiting = asyncio.create_task(take(events, 1))
    await asyncio.sleep(0)

    world.add("b")
    await asyncio.sleep(0)
    third = world.add("c")

    assert await waiting == [("ADDED", "c", third)]


async def test_objects_enter_and_leave_a_selector() -> None:
    world = World()
    start = world.add("a", x="no")
    came = world.label("a", x="yes", y="1")
    changed = world.label("a", y="2")
    left = world.label("a", x="no", y="3")
    world.label("a", y="4")
    again = world.label("a", x="yes")
    gone = world.remove("a")
    events = world.watch(resourceVersion=str(start), labelSelector="x=yes")

    told = [await anext(events) for _ in range(5)]

    assert [brief(event) for event in told] == [
        ("ADDED", "a", came),
        ("MODIFIED", "a", changed),
        ("DELETED", "a", left),
        ("ADDED", "a", again),
        ("DELETED", "a", gone),
    ]
    # Who leaves is shown as it last matched, at the revision that made it leave.
    assert told[2]["object"]["metadata"]["labels"] == {"x": "yes", "y": "2"}


async def test_many_events_come_in_few_chunks() -> None:
    world = World()
    for number in range(300):
        world.add(f"n{number:03}")

    chunks = [chunk async for chunk in world.chunks(timeoutSeconds="1")]

    assert b"".join(chunks).count(b"\n") == 300
    assert len(chunks) < 4
