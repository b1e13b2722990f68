from __future__ import annotations

import pathlib
from typing import Any

import pytest

from ccm.sandbox.apiserver import journal, kinds, store


def open_store(path: pathlib.Path, **options: Any) -> store.Store:
    return store.Store(journal=journal.Journal(path / "log", **options))


def put(objects: store.Store, name: str, text: str = "") -> store.Entry:
    return objects.put(kinds.NODES, name, {"metadata": {"name": name}, "spec": {"x": text}})


def content(objects: store.Store) -> dict[str, bytes]:
    return {entry.key: entry.raw for entry in objects.collection(kinds.NODES)}


def test_a_new_store_continues_where_the_old_one_ended(tmp_path: pathlib.Path) -> None:
    old = open_store(tmp_path)
    put(old, "a")
    put(old, "b")
    put(old, "a", "changed")
    entry = old.get(kinds.NODES, "b")
    assert entry is not None
    old.remove(kinds.NODES, "b", entry.body())

    new = open_store(tmp_path)

    assert new.revision == old.revision
    assert content(new) == content(old)
    before, after = (each.collection(kinds.NODES).changes(1) for each in (old, new))
    assert [(c.type, c.entry.revision) for c in before] == [
        (c.type, c.entry.revision) for c in after
    ]


def test_a_torn_last_line_is_dropped(tmp_path: pathlib.Path) -> None:
    old = open_store(tmp_path)
    put(old, "a")
    put(old, "b")
    whole = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(whole[:-20])

    new = open_store(tmp_path)
    put(new, "c")

    assert list(content(open_store(tmp_path))) == ["a", "c"]


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: pathlib.Path) -> None:
    put(open_store(tmp_path), "a")
    (tmp_path / "log").write_bytes(b"{oops\n" + (tmp_path / "log").read_bytes())

    with pytest.raises(ValueError, match="line 1 is damaged"):
        open_store(tmp_path)


def test_a_full_journal_is_compacted_to_the_living_objects(tmp_path: pathlib.Path) -> None:
    old = open_store(tmp_path, compact_bytes=4000)
    for number in range(100):
        put(old, f"n{number % 3}", "x" * 50 + str(number))

    assert (tmp_path / "log").stat().st_size < 6000
    new = open_store(tmp_path)
    assert content(new) == content(old)
    assert new.revision == old.revision
    assert put(new, "n0").revision == old.revision + 1


def test_changes_before_a_compaction_have_expired_after_a_restart(tmp_path: pathlib.Path) -> None:
    old = open_store(tmp_path, compact_bytes=0)
    for name in ("c", "a", "b"):
        put(old, name)

    new = open_store(tmp_path)

    with pytest.raises(store.HistoryExpiredError):
        new.collection(kinds.NODES).changes(1)
    assert new.collection(kinds.NODES).changes(old.revision) == []
