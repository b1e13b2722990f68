"""The store: what an informer puts there, by key."""

from __future__ import annotations

from ccm.kube.store import Store
from ccm.model import Node, ObjectMeta


def node(name: str, namespace: str = "") -> Node:
    return Node(metadata=ObjectMeta(name=name, namespace=namespace))


def test_put_replaces_and_pop_returns_what_was_there() -> None:
    store: Store[Node] = Store()
    first, second = node("a"), node("a")
    store.put(first)
    store.put(second)
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


def test_namespaced_objects_are_kept_apart() -> None:
    store: Store[Node] = Store()
    store.put(node("a", "one"))
    store.put(node("a", "two"))
    assert sorted(store.keys()) == ["one/a", "two/a"]
