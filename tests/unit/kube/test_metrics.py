"""Metrics and the store."""

from __future__ import annotations

from ccm.kube.informer import Store
from ccm.model import Service
from ccm.testing.builders import service


def test_a_store_keeps_the_newest_of_each_key_and_hands_out_copies() -> None:
    store: Store[Service] = Store()
    first, second, other = service("a"), service("a"), service("a", namespace="other")
    for obj in (first, second, other):
        store.put(obj)
    listed = store.list()
    assert store.get("default/a") is second
    assert store.pop("default/a") is second
    assert store.pop("default/a") is None
    assert (len(store), list(store), list(store.keys())) == (1, [other], ["other/a"])
    assert "default/a" not in store
    assert listed == [second, other]
