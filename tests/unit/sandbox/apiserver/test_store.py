from __future__ import annotations

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


def test_changes_tell_what_was_before() -> None:
    objects = store.Store()
    start = objects.revision
    put(objects, "a")
    put(objects, "a", x=1)
    gone = remove(objects, "a")

    changes = objects.collection(kinds.NODES).changes(start)

    assert [change.type for change in changes] == ["ADDED", "MODIFIED", "DELETED"]
    assert changes[0].previous is None
    assert changes[2].previous is changes[1].entry
    assert changes[2].entry.revision == gone.revision
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
    with pytest.raises(store.HistoryExpiredError, match=rf"\({revisions[-4]}\)"):
        collection.changes(revisions[-5])
    with pytest.raises(store.HistoryExpiredError):
        collection.at(revisions[0])


def test_changes_of_one_kind_do_not_push_out_those_of_another() -> None:
    objects = store.Store(history=2)
    first = put(objects, "a").revision
    for number in range(9):
        objects.put(kinds.CONFIG_MAPS, "n/c", {"metadata": {"name": "c"}, "data": {"n": number}})

    assert len(objects.collection(kinds.NODES).changes(first - 1)) == 1
