"""The store: content, indexes, whole replacement."""

from __future__ import annotations

import pytest

from ccm.kube.store import Store
from ccm.model import Node, NodeSpec, ObjectMeta


def node(name: str, *, zone: str = "", provider_id: str = "") -> Node:
    labels = {"zone": zone} if zone else None
    return Node(
        metadata=ObjectMeta(name=name, labels=labels), spec=NodeSpec(provider_id=provider_id)
    )


def by_zone(obj: Node) -> list[str]:
    return [obj.labels["zone"]] if "zone" in obj.labels else []


def test_put_returns_what_was_there_and_pop_removes() -> None:
    store: Store[Node] = Store()
    first, second = node("a", zone="x"), node("a", zone="y")
    assert store.put(first) is None
    assert store.put(second) is first
    assert store.get("a") is second
    assert "a" in store
    assert store.pop("a") is second
    assert store.pop("a") is None
    assert len(store) == 0
    assert "a" not in store


def test_list_is_a_copy() -> None:
    store: Store[Node] = Store()
    store.put(node("a"))
    listed = store.list()
    store.put(node("b"))
    assert [obj.name for obj in listed] == ["a"]
    assert sorted(store.keys()) == ["a", "b"]
    assert sorted(obj.name for obj in store) == ["a", "b"]


def test_an_index_follows_additions_changes_and_removals() -> None:
    store: Store[Node] = Store({"zone": by_zone})
    store.put(node("a", zone="x"))
    store.put(node("b", zone="x"))
    store.put(node("c"))
    assert [obj.name for obj in store.by_index("zone", "x")] == ["a", "b"]
    store.put(node("a", zone="y"))
    assert [obj.name for obj in store.by_index("zone", "x")] == ["b"]
    assert [obj.name for obj in store.by_index("zone", "y")] == ["a"]
    store.pop("b")
    assert store.by_index("zone", "x") == []


def test_an_index_added_late_covers_what_is_there() -> None:
    store: Store[Node] = Store()
    store.put(node("a", provider_id="sim://1"))
    store.add_index("provider", lambda obj: [obj.provider_id])
    assert [obj.name for obj in store.by_index("provider", "sim://1")] == ["a"]
    with pytest.raises(ValueError, match="provider"):
        store.add_index("provider", lambda obj: [obj.name])
    with pytest.raises(KeyError):
        store.by_index("unknown", "x")


def test_replace_makes_the_items_the_whole_content() -> None:
    store: Store[Node] = Store({"zone": by_zone})
    store.put(node("a", zone="x"))
    store.put(node("b", zone="x"))
    store.replace([node("b", zone="y"), node("c", zone="x")])
    assert sorted(store.keys()) == ["b", "c"]
    assert [obj.name for obj in store.by_index("zone", "x")] == ["c"]


def test_namespaced_objects_are_kept_apart() -> None:
    store: Store[Node] = Store()
    store.put(Node(metadata=ObjectMeta(name="a", namespace="one")))
    store.put(Node(metadata=ObjectMeta(name="a", namespace="two")))
    assert sorted(store.keys()) == ["one/a", "two/a"]
