from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ccm.sandbox.apiserver import kinds, store


def put(objects: store.Store, name: str, **spec: Any) -> store.Entry:
    return objects.put(kinds.NODES, name, {"metadata": {"name": name}, "spec": spec})


def remove(objects: store.Store, name: str) -> store.Entry:
    entry = objects.get(kinds.NODES, name)
    assert entry is not None
    return objects.remove(kinds.NODES, name, entry.body())


def names(entries: list[store.Entry]) -> list[str]:
    return [entry.key for entry in entries]


def test_every_write_takes_the_next_revision() -> None:
    objects = store.Store()

    first, second = put(objects, "b"), put(objects, "a")

    assert second.revision == first.revision + 1 == objects.revision
    assert second.body()["metadata"]["resourceVersion"] == str(second.revision)


def test_objects_are_kept_sorted_by_key() -> None:
    objects = store.Store()
    for name in ("b", "c", "a"):
        put(objects, name)
    remove(objects, "b")

    assert names(list(objects.collection(kinds.NODES))) == ["a", "c"]


def test_changes_tell_what_was_before() -> None:
    objects = store.Store()
    start = objects.revision
    put(objects, "a")
    put(objects, "a", x=1)
    gone = remove(objects, "a")

    changes = objects.collection(kinds.NODES).changes(start)

    assert [change.type.value for change in changes] == ["ADDED", "MODIFIED", "DELETED"]
    assert changes[0].previous is None
    assert changes[2].previous is changes[1].entry
    assert changes[2].revision == gone.revision
    assert objects.collection(kinds.NODES).changes(gone.revision) == []


def test_a_list_at_an_earlier_revision_undoes_what_came_later() -> None:
    objects = store.Store()
    put(objects, "a")
    put(objects, "b", x=1)
    revision = objects.revision
    put(objects, "b", x=2)
    put(objects, "c")
    remove(objects, "a")

    entries = objects.collection(kinds.NODES).at(revision)

    assert names(entries) == ["a", "b"]
    assert entries[1].body()["spec"] == {"x": 1}


def test_only_the_latest_changes_are_kept() -> None:
    objects = store.Store(history=3)
    revisions = [put(objects, "a", x=number).revision for number in range(20)]
    collection = objects.collection(kinds.NODES)

    assert len(collection.changes(revisions[-4])) == 3
    with pytest.raises(store.HistoryExpiredError) as caught:
        collection.changes(revisions[-5])
    assert caught.value.oldest == revisions[-4]
    with pytest.raises(store.HistoryExpiredError):
        collection.at(revisions[0])


def test_changes_of_one_kind_do_not_push_out_those_of_another() -> None:
    objects = store.Store(history=2)
    first = put(objects, "a").revision
    for number in range(9):
        objects.put(kinds.CONFIG_MAPS, "n/c", {"metadata": {"name": "c"}, "data": {"n": number}})

    assert len(objects.collection(kinds.NODES).changes(first - 1)) == 1


async def test_a_waiter_that_gives_up_leaves_nothing_behind() -> None:
    objects = store.Store()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await objects.collection(kinds.NODES).changed()

    put(objects, "a")


async def test_waiters_learn_of_a_change() -> None:
    objects = store.Store()
    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        group.create_task(objects.collection(kinds.NODES).changed())
        await asyncio.sleep(0)
        put(objects, "a")
