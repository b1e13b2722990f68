"""Informers: handlers, order, resync, and one informer per kind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ccm.kube.informer import Informer, Informers
from ccm.kube.reflector import Settings
from ccm.kube.resources import NODES, Kind
from ccm.model import Node
from ccm.testing.clock import advance, elapsed_s
from tests.support.watches import (
    Server,
    added,
    api_error,
    bookmark,
    deleted,
    modified,
    node,
    page,
    running,
)

pytestmark = pytest.mark.virtual_time

PAGES = Settings(watch_list=False)


class Listener:
    """Writes down what it hears, and what the store says at that moment."""

    def __init__(self, informer: Informer[Node]) -> None:
        self.heard: list[str] = []
        self._store = informer.store

    def on_add(self, obj: Node, initial: bool) -> None:
        assert self._store.get(obj.key) is obj
        self.heard.append(f"add {obj.name}@{obj.resource_version}{' initial' * initial}")

    def on_update(self, old: Node, new: Node) -> None:
        assert self._store.get(new.key) is new
        self.heard.append(f"update {new.name}@{old.resource_version}->{new.resource_version}")

    def on_delete(self, obj: Node, seen: bool) -> None:
        assert obj.key not in self._store
        how = "delete" if seen else "miss"
        self.heard.append(f"{how} {obj.name}@{obj.resource_version}")


def listen(informer: Informer[Node], name: str = "test") -> Listener:
    listener = Listener(informer)
    informer.add_handler(
        name=name,
        on_add=listener.on_add,
        on_update=listener.on_update,
        on_delete=listener.on_delete,
    )
    return listener


def informer_of(server: Server, **options: Any) -> Informer[Node]:
    return Informer(server, resource="nodes", rng=random.Random(1), **options)


async def test_waiting_for_the_first_content_has_a_deadline() -> None:
    with pytest.raises(TimeoutError, match="nodes"):
        await informer_of(Server()).wait_synced(30)
    assert elapsed_s() == 30


async def test_handlers_hear_old_and_new_after_the_store_changed() -> None:
    server = Server(
        watches=[
            [
                added(node("a", 1)),
                bookmark(2, end=True),
                1.0,
                added(node("b", 3)),
                modified(node("a", 4)),
                deleted(node("b", 5)),
            ]
        ]
    )
    informer = informer_of(server)
    listener = listen(informer)
    before = informer.has_synced
    async with running(informer.run()):
        assert (before, informer.has_synced) == (False, True)
        assert listener.heard == ["add a@1 initial"]
        await advance(1)
        assert listener.heard[1:] == ["add b@3", "update a@1->4", "delete b@5"]
        assert informer.last_contact is not None
        assert informer.trouble_since is None


async def test_after_a_new_list_known_objects_are_updates_and_unchanged_ones_silent() -> None:
    server = Server(
        lists=[
            page([node("same", 1), node("changed", 2), node("gone", 3)], 10),
            page([node("same", 1), node("changed", 12), node("new", 13)], 20),
        ],
        watches=[api_error(410)],
    )
    informer = informer_of(server, settings=PAGES)
    listener = listen(informer)
    async with running(informer.run()):
        listener.heard.clear()
        await advance(5)
        assert listener.heard == ["update changed@2->12", "add new@13", "miss gone@3"]


async def test_a_failing_handler_stops_nobody() -> None:
    server = Server(lists=[page([node("a", 1), node("b", 2)], 10)])
    informer = informer_of(server, settings=PAGES)

    def broken(obj: Node, initial: bool) -> None:
        raise RuntimeError(obj.name)

    informer.add_handler(name="broken", on_add=broken)
    listener = listen(informer)
    async with running(informer.run()):
        assert listener.heard == ["add a@1 initial", "add b@2 initial"]


async def test_a_late_handler_gets_the_content_and_a_removed_one_nothing() -> None:
    server = Server(lists=[page([node("a", 1)], 10)], watches=[[5.0, modified(node("a", 11))]])
    informer = informer_of(server, settings=PAGES)
    async with running(informer.run()):
        late = listen(informer)
        assert late.heard == ["add a@1 initial"]
        deaf: list[Node] = []
        handler = informer.add_handler(name="deaf", on_update=lambda old, new: deaf.append(new))
        informer.remove_handler(handler)
        informer.remove_handler(handler)
        await advance(5)
        assert late.heard[1:] == ["update a@1->11"]
        assert deaf == []


async def test_a_resync_delivers_everything_again_from_the_store() -> None:
    server = Server(lists=[page([node(f"n{n}", n + 1) for n in range(1200)], 2000)])
    informer = informer_of(server, settings=PAGES, resync_s=600)
    listener = listen(informer)
    async with running(informer.run()):
        listener.heard.clear()
        await advance(599)
        assert listener.heard == []
        await advance(601)
        assert len(listener.heard) == 1200
        assert listener.heard[0] == "update n0@1->1"
        assert len(server.of("list")) == 1


class Client:
    """Hands out one scripted server per kind."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.asked: list[Kind[Any]] = []

    def resource(self, kind: Kind[Any]) -> Any:
        self.asked.append(kind)
        return self.server


async def test_one_informer_per_kind_also_when_asked_for_later() -> None:
    server = Server(lists=[page([node("a", 1)], 10), page([node("b", 1)], 10)])
    client = Client(server)
    informers = Informers(client, settings=PAGES)
    async with running(informers.run()):
        first = informers.of(NODES)
        assert informers.of(NODES) is first
        assert client.asked == [NODES]
        before = informers.has_synced
        await advance(0)
        assert (before, informers.has_synced) == (False, True)
        await informers.wait_synced(1)
        other = Kind(plural="others", kind="Other", namespaced=False, type=Node)
        second = informers.of(other)
        await advance(0)
        assert [obj.name for obj in second.store.list()] == ["b"]
        assert informers.all == (first, second)
    assert server.open_watches == 0
