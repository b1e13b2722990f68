"""Reflector and informer, in virtual time."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from ccm.kube import errors
from ccm.kube.informer import Informer, InformerStore, Reflector, ReflectorSettings, SharedInformers
from ccm.kube.resources import NODES, ResourceKind
from ccm.model import Node, Service
from ccm.testing.builders import service
from ccm.testing.clock import advance
from tests.support.watches import (
    LISTED,
    STEADY,
    Recorder,
    Server,
    Step,
    added,
    api_error,
    bookmark,
    deleted,
    malformed,
    modified,
    node,
    page,
    refused,
    running,
)

pytestmark = pytest.mark.virtual_time


FOREVER = 1e9
PAGES = ReflectorSettings(watch_list=False, backoff=STEADY)


@contextlib.asynccontextmanager
async def following(
    server: Server, settings: ReflectorSettings
) -> AsyncIterator[tuple[Reflector[Node], Recorder]]:
    sink = Recorder()
    reflector = Reflector(server, sink, resource="nodes", settings=settings, rng=random.Random(1))  # type: ignore[arg-type]
    async with running(reflector.run()):
        yield reflector, sink
    assert server.open_watches == 0


def initial(*objects: Node, version: int) -> list[Step]:
    return [*(added(obj) for obj in objects), bookmark(version, end=True)]


async def test_too_large_resource_version_leads_to_a_relist() -> None:
    """This happens after a restore of etcd."""
    server = Server(lists=[page([], 10), page([], 4)])
    cause = b'{"causes":[{"reason":"ResourceVersionTooLarge"}]}'
    body = b'{"kind":"Status","code":504,"details":%b}' % cause
    server.watches = [errors.from_response(504, {}, body), [FOREVER]]
    async with following(server, PAGES):
        await advance(5)
        assert server.versions == ["10", "4"]


PAGED = ReflectorSettings(watch_list=False)


class Listener:
    """Handler that records its calls, and the state of the store at that moment."""

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


async def test_handlers_get_old_and_new_objects_after_the_store_changed() -> None:
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
        assert informer.outage_since is None


async def test_late_handler_gets_the_store_and_a_removed_one_no_events() -> None:
    server = Server(lists=[page([node("a", 1)], 10)], watches=[[5.0, modified(node("a", 11))]])
    informer = informer_of(server, settings=PAGED)
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


async def test_resync_delivers_the_store_again() -> None:
    server = Server(lists=[page([node("a", 1), node("b", 2)], 10)])
    informer = informer_of(server, settings=PAGED, resync_s=600)
    listener = listen(informer)
    async with running(informer.run()):
        listener.heard.clear()
        await advance(599)
        assert listener.heard == []
        await advance(601)
        assert listener.heard == ["update a@1->1", "update b@2->2"]
        assert len(server.of("list")) == 1


class Client:
    """Client with one scripted server for all kinds."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.asked: list[ResourceKind[Any]] = []

    def resource(self, kind: ResourceKind[Any]) -> Any:
        self.asked.append(kind)
        return self.server


async def test_shared_informers_start_one_informer_per_kind() -> None:
    server = Server(lists=[page([node("a", 1)], 10), page([node("b", 1)], 10)])
    client = Client(server)
    informers = SharedInformers(client, settings=PAGED)  # type: ignore[arg-type]
    async with running(informers.run()):
        first = informers.informer_for(NODES)
        assert informers.informer_for(NODES) is first
        assert client.asked == [NODES]
        before = informers.has_synced
        await advance(0)
        assert (before, informers.has_synced) == (False, True)
        await informers.wait_synced(1)
        other = ResourceKind(plural="others", kind="Other", namespaced=False, type=Node)
        second = informers.informer_for(other)
        await advance(0)
        assert [obj.name for obj in second.store.list()] == ["b"]
        assert informers.all == (first, second)
    assert server.open_watches == 0


def test_store_keeps_the_newest_object_per_key_and_lists_copies() -> None:
    store: InformerStore[Service] = InformerStore()
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


async def test_interrupted_watch_list_restarts_and_deletes_only_at_its_end() -> None:
    server = Server()
    cut = errors.Unreachable("reset", kind="reset")
    server.watches = [
        [*initial(node("a", 1), node("b", 2), version=3), api_error(410)],
        [added(node("a", 1)), cut],
        initial(node("a", 1), node("c", 5), version=6),
    ]
    async with following(server, LISTED) as (_, sink):
        await advance(1)
        assert sink.removed == []
        await advance(5)
        assert sink.removed == [("b", None)]
        assert set(sink.objects) == {"a", "c"}


async def test_malformed_objects_are_not_treated_as_deleted() -> None:
    server = Server(
        watches=[
            [
                *initial(node("a", 1), node("b", 2), version=3),
                malformed("a", 8),
                2.0,
                api_error(410),
            ],
            [
                malformed("a", 8, "ADDED"),
                *initial(node("c", 9), version=10),
                malformed("c", 11, "DELETED"),
                2.0,
            ],
        ]
    )
    async with following(server, LISTED) as (reflector, sink):
        assert reflector.version == "8"
        await advance(4)
        assert sink.removed == [("b", None), ("c", None)]
        assert set(sink.objects) == {"a"}
        assert reflector.version == "11"


@pytest.mark.parametrize("settings", [PAGES, LISTED], ids=["pages", "watch-list"])
async def test_list_with_a_nameless_item_deletes_nothing(settings: ReflectorSettings) -> None:
    server = Server()
    both = [node("a", 1), node("b", 1)]
    if settings is PAGES:
        server.lists = [page(both, 10), page([node("a", 1)], 20, malformed=[""])]
        server.watches = [api_error(410)]
    else:
        server.watches = [
            [*initial(*both, version=10), api_error(410)],
            [malformed("", 0, "ADDED"), *initial(node("a", 1), version=20), 1e9],
        ]
    async with following(server, settings) as (reflector, sink):
        await advance(2)
        assert reflector.version == "20"
        assert set(sink.objects) == {"a", "b"}
        assert sink.removed == []


CHATTER: list[Step] = [step for n in range(100) for step in (modified(node("a", n)), 1.0)]


def gaps(server: Server) -> list[float]:
    """Return the seconds between consecutive watches."""
    at = [call.at for call in server.of("watch")]
    return [later - earlier for earlier, later in itertools.pairwise(at)]


@pytest.mark.parametrize("status", [400, 422])
async def test_refused_watch_list_falls_back_to_paged_lists(status: int) -> None:
    server = Server(
        watches=[api_error(status), [2.0, api_error(410)], [FOREVER]],
        lists=[
            replace(page([node("a", 1)], 5), continue_="more"),
            page([node("b", 2)], 5),
            page([node("a", 1)], 9),
        ],
    )
    async with following(server, LISTED) as (_, sink):
        assert sink.completed == [0]
        await advance(60)
        assert [(call.token, call.limit) for call in server.of("list")] == [
            ("", 500),
            ("more", 500),
            ("", 500),
        ]
        assert server.versions == ["", "5", "9"]
        assert [call.initial for call in server.of("watch")] == [True, False, False]
        assert sink.removed == [("b", None)]


@pytest.mark.parametrize(
    ("watch", "listed_at"),
    [([added(node("a", 1)), FOREVER], 10), (CHATTER, 60)],
    ids=["and falls silent", "and chatters"],
)
async def test_ignored_watch_list_falls_back_to_a_list(watch: list[Step], listed_at: float) -> None:
    server = Server(watches=[watch], lists=[page([node("a", 200)], 200)])
    async with following(server, LISTED) as (_, sink):
        await advance(listed_at - 0.1)
        assert sink.completed == []
        await advance(0.2)
        assert sink.completed == [listed_at]
        assert [call.verb for call in server.calls] == ["watch", "list", "watch"]


@pytest.mark.parametrize(
    ("watches", "pauses"),
    [
        ([refused()] * 10, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30, 30]),
        ([*[refused()] * 3, [130.0, bookmark(11), refused()]], [0.8, 1.6, 3.2, 130.8]),
    ],
    ids=["without end", "short again after two quiet minutes"],
)
async def test_watch_failures_back_off_and_resume_at_the_last_version(
    watches: list[Any], pauses: list[float]
) -> None:
    server = Server(lists=[page([], 10)], watches=[*watches])
    async with following(server, PAGES):
        await advance(200)
        assert gaps(server) == pytest.approx(pauses)
        assert set(server.versions[:-1]) == {"10"}


async def test_three_watches_without_events_lead_to_a_relist() -> None:
    server = Server(lists=[page([node("a", 1)], 10), page([], 90)], watches=[[], [], [], [FOREVER]])
    async with following(server, PAGES) as (_, sink):
        await advance(30)
        assert server.versions == ["10", "10", "10", "90"]
        assert sink.removed == [("a", None)]


async def test_malformed_keys_are_kept_until_decodable_or_deleted() -> None:
    server = Server(
        watches=[
            [
                *initial(node("a", 1), node("b", 2), version=5),
                *(malformed(key, 6) for key in ("a", "b", "c")),
                1.0,
                modified(node("a", 7)),
                malformed("b", 8, "DELETED"),
                1.0,
                api_error(410),
            ],
            [malformed("d", 9, "ADDED"), *initial(node("a", 7), version=9), FOREVER],
        ]
    )
    async with following(server, LISTED) as (reflector, sink):
        assert reflector.malformed_keys == {"a", "b", "c"}
        assert set(sink.objects) == {"a", "b"}
        await advance(1)
        assert reflector.malformed_keys == {"c"}
        await advance(10)
        assert reflector.malformed_keys == {"d"}


async def test_relist_reports_changes_as_updates_and_skips_unchanged_objects() -> None:
    server = Server(
        lists=[
            page([node("same", 1), node("changed", 2), node("gone", 3)], 10),
            page([node("same", 1), node("changed", 12), node("new", 13)], 20),
        ],
        watches=[api_error(410)],
    )
    informer = informer_of(server, settings=PAGED)
    listener = listen(informer)
    async with running(informer.run()):
        listener.heard.clear()
        await advance(5)
        assert listener.heard == ["update changed@2->12", "add new@13", "miss gone@3"]


async def test_failing_handler_does_not_stop_other_handlers() -> None:
    server = Server(lists=[page([node("a", 1), node("b", 2)], 10)])
    informer = informer_of(server, settings=PAGED)

    def broken(obj: Node, initial: bool) -> None:
        raise RuntimeError(obj.name)

    informer.add_handler(name="broken", on_add=broken)
    listener = listen(informer)
    async with running(informer.run()):
        assert listener.heard == ["add a@1 initial", "add b@2 initial"]


async def test_ended_watch_resumes_at_the_last_version_or_bookmark() -> None:
    server = Server(
        lists=[page([], 10)],
        watches=[
            [added(node("a", 11)), 5.0],
            [5.0, bookmark(20)],
            [5.0, errors.Unreachable("reset", kind="reset")],
            [FOREVER],
        ],
    )
    async with following(server, PAGES) as (_, sink):
        await advance(60)
        assert server.versions == ["10", "11", "20", "20"]
        assert [call.at for call in server.of("watch")] == pytest.approx([0, 5, 10, 15.8])
        assert len(server.of("list")) == 1
        assert sink.upserts == ["a@11"]
