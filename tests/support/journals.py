"""Journals on stores that a test watches and disturbs."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from ccm.base.tasks import cancel_and_join
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import StoreEntry, WriterIdentity
from ccm.persistence.interface import CAS, Expected, Version
from ccm.persistence.journal import PAGES, EntryState, Journal, JournalEntry, Owner, entry_name
from ccm.persistence.kubestore import FIELD
from ccm.persistence.memory import MemoryStore
from ccm.persistence.objects import StoragePlace, instance_name
from ccm.persistence.sqlite import SqliteStore
from ccm.persistence.store import Store
from ccm.testing.persistence_harness import HERE

NAME = instance_name("test", {})

STORES: Mapping[str, Callable[[Path], Store]] = {
    "memory": lambda _folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "store" / "x.db"),
}


class WatchedStore:
    """Store that counts its writes, and does what the test wants before and after each.

    Attributes:
        writes: number of writes that were started, deletions included.
        before: called before each write.
        after: called after each write; an error means that the answer is lost.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.writes = 0
        self.before: Callable[[], Awaitable[None]] = _nothing
        self.after: Callable[[], Awaitable[None]] = _nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        self.writes += 1
        await self.before()
        version = await self._store.write(place, entry, expect)
        await self.after()
        return version

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        self.writes += 1
        await self.before()
        await self._store.remove(place, epoch)

    def fail_with(self, error: Exception | None) -> None:
        """Make all writes fail before they do anything; None = they work again."""
        self.before = _nothing if error is None else _raising(error)

    def lose_answers(self, error: Exception | None) -> None:
        """Make all writes fail after they took effect; None = they work again."""
        self.after = _nothing if error is None else _raising(error)


class UnfencedStore(MemoryStore):
    """Memory that lets former leaders write."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = frozenset({CAS})

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        self._epoch = 0
        return await super().write(place, entry, expect)


async def _nothing() -> None:
    return


def _raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        raise error

    return act


def writer(epoch: int = 1) -> Callable[[], WriterIdentity]:
    return lambda: WriterIdentity(identity=f"leader-{epoch}", epoch=epoch)


@asynccontextmanager
async def provider(store: Any, epoch: int = 1) -> AsyncIterator[StoreProvider]:
    """Yield an open provider whose store stays as it is."""
    made = StoreProvider("test", {NAME: store}, writer=writer(epoch), probe_s=1e6)
    await made.initialize(HERE)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def opened(
    store: Any, epoch: int = 1, *, is_killed: bool = False, **settings: Any
) -> AsyncIterator[Journal]:
    """Yield an open journal; `is_killed`: it ends as the process does that is killed."""
    journal = Journal(writer=writer(epoch), **settings)
    async with provider(store, epoch) as made:
        await journal.open(made, NAME)
        try:
            yield journal
        finally:
            if is_killed:
                await cancel_and_join(journal._committer)
            else:
                await journal.close()


async def stored(store: Any) -> dict[str, JournalEntry]:
    """Return all entries that the next process would find; fail if one is there twice."""
    entries: dict[str, JournalEntry] = {}
    async for page in store.scan(PAGES):
        for _, record in page:
            for name, fields in msgspec.json.decode(record.body)["object"]["entries"].items():
                assert name not in entries
                entries[name] = msgspec.convert(fields, JournalEntry)
    return entries


def entries_in(config_map: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the page in a ConfigMap; none for a ConfigMap without a page."""
    body = (config_map.get("binaryData") or {}).get(FIELD)
    envelope = json.loads(zlib.decompress(base64.b64decode(body))) if body else {}
    return list(envelope.get("object", {}).get("entries", {}).values())


def entry(number: int = 0, *, resource: str = "loadbalancer", **fields: Any) -> JournalEntry:
    uid = f"0b1c3f1e-8a1e-4c59-9d3d-{number:012d}"
    owner = Owner(
        api_version="v1", kind="Service", namespace="default", name=f"web-{number}", uid=uid
    )
    given = {"provider": "sim", "owner": owner, "state": EntryState.INTENT, **fields}
    return JournalEntry(name=entry_name(resource, uid), resource=resource, **given)


def states(entries: Mapping[str, JournalEntry]) -> dict[str, str]:
    """Return the state of each entry by the name that its resource has or will have."""
    return {one.intended_name or one.owner.name: one.state.value for one in entries.values()}


async def put_at_once(journal: Journal, *entries: JournalEntry) -> None:
    """Put entries as many callers at the same time do."""
    async with asyncio.TaskGroup() as group:
        for one in entries:
            group.create_task(journal.put(one))
