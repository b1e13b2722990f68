"""Informers: one copy of a kind for the whole process, and who wants to hear of changes.

Handlers are plain functions that put a key into a queue and return; they run one after
the other, after the store changed, so a handler that looks into the store sees the new
state. A handler that fails is logged and stops nobody. Counterpart in client-go:
SharedIndexInformer and SharedInformerFactory.
"""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from ccm.base import clock, tasks
from ccm.base.log import Logger, logger
from ccm.kube import reflector
from ccm.kube.resources import Kind
from ccm.model.meta import KubeObject

T = TypeVar("T", bound=KubeObject)


class Store(Generic[T]):
    """Local copy of one kind: frozen objects by key. Only its informer writes to it."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        """The object with that key, if there is one."""
        return self._objects.get(key)

    def list(self) -> builtins.list[T]:
        """All objects, in no particular order; a copy the caller may keep."""
        return list(self._objects.values())

    def keys(self) -> Collection[str]:
        """All keys; a live view, so copy it before awaiting."""
        return self._objects.keys()

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def put(self, obj: T) -> None:
        """Add or replace an object."""
        self._objects[obj.key] = obj

    def pop(self, key: str) -> T | None:
        """Remove an object; returns it if it was there."""
        return self._objects.pop(key, None)


_RESYNC_CHUNK = 500


class Resource(reflector.Source[T], Protocol[T]):
    """What the factory needs of the calls about a kind."""

    def within(self, namespace: str) -> reflector.Source[T]:
        """The same of one namespace."""


class Client(Protocol):
    """What the factory needs of a client."""

    def resource(self, kind: Kind[T]) -> Resource[T]:
        """Calls about one kind."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler(Generic[T]):
    """What one listener wants to hear; see `Informer.add_handler`."""

    name: str
    on_add: Callable[[T, bool], object] | None = None
    on_update: Callable[[T, T], object] | None = None
    on_delete: Callable[[T, bool], object] | None = None


class _Content(Generic[T]):
    """What an informer holds: the store and its listeners; the reflector's sink."""

    def __init__(self, resource: str) -> None:
        self.store: Store[T] = Store()
        self.handlers: list[Handler[T]] = []
        self.synced = asyncio.Event()
        self._log: Logger = logger("informer", resource=resource)

    def keys(self) -> Collection[str]:
        return self.store.keys()

    def upsert(self, obj: T) -> None:
        old = self.store.get(obj.key)
        if old is not None and old.resource_version == obj.resource_version != "":
            return
        self.store.put(obj)
        if old is not None:
            self.updated(old, obj)
            return
        initial = not self.synced.is_set()
        for handler in tuple(self.handlers):
            self._call(handler, handler.on_add, obj, initial)

    def remove(self, key: str, last: T | None = None) -> None:
        old = self.store.pop(key)
        if old is None:
            return
        seen = last is not None or old.is_deleting
        for handler in tuple(self.handlers):
            self._call(handler, handler.on_delete, last or old, seen)

    def complete(self) -> None:
        if not self.synced.is_set():
            self.synced.set()
            self._log.debug("cache complete", count=len(self.store))

    def updated(self, old: T, new: T) -> None:
        for handler in tuple(self.handlers):
            self._call(handler, handler.on_update, old, new)

    def introduce(self, handler: Handler[T]) -> None:
        """Add a listener and tell it what is there already."""
        self.handlers.append(handler)
        for obj in self.store.list():
            self._call(handler, handler.on_add, obj, True)

    def _call(
        self, handler: Handler[T], function: Callable[..., object] | None, *facts: object
    ) -> None:
        if function is None:
            return
        try:
            function(*facts)
        except Exception:  # noqa: BLE001 - one listener's fault must not reach the others
            self._log.error("event handler failed", handler=handler.name, exc_info=True)


class Informer(Generic[T]):
    """The copy of one kind.

    Args:
        source: where to list and watch.
        resource: plural name, for logs and metrics.
        resync_s: shortest time after which everything is delivered again as an update
            of itself, stretched by a random factor in [1, 2); 0 = never.
        settings: of the reflector.
        rng: where jitter comes from.
    """

    def __init__(
        self,
        source: reflector.Source[T],
        *,
        resource: str,
        resync_s: float = 0.0,
        settings: reflector.Settings = reflector.DEFAULTS,
        rng: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self._content: _Content[T] = _Content(resource)
        self._resync_s = resync_s
        self._rng = rng or random.Random()
        self._reflector = reflector.Reflector(
            source, self._content, resource=resource, settings=settings, rng=self._rng
        )

    @classmethod
    def nowhere(cls, kind: Kind[T]) -> Informer[T]:
        """Of a kind that there is no server for: complete, and empty for ever; never run."""
        source = cast("reflector.Source[T]", None)  # which nobody asks
        found = cls(source, resource=kind.plural)
        found._content.complete()
        return found

    @property
    def store(self) -> Store[T]:
        """The objects; complete once `has_synced`."""
        return self._content.store

    @property
    def has_synced(self) -> bool:
        """Whether everything there was at the start has been delivered to the handlers."""
        return self._content.synced.is_set()

    @property
    def last_contact(self) -> float | None:
        """Monotonic time of the server's last sign of life; None before the first."""
        return self._reflector.last_contact

    @property
    def trouble_since(self) -> float | None:
        """Monotonic time since when the server cannot be followed; None: all is well."""
        return self._reflector.trouble_since

    @property
    def last_trouble(self) -> tuple[float, float]:
        """From when to when, monotonic, the server could not be followed last; (0, 0): never."""
        return self._reflector.trouble.last

    @property
    def undecodable(self) -> Collection[str]:
        """Keys of objects that are there and whose newest state could not be decoded.

        The store has them as they were before, or not at all: nothing may be deleted because
        of that. An empty key stands for objects whose name could not be read either.
        """
        return self._reflector.undecodable

    def add_handler(
        self,
        *,
        name: str,
        on_add: Callable[[T, bool], object] | None = None,
        on_update: Callable[[T, T], object] | None = None,
        on_delete: Callable[[T, bool], object] | None = None,
    ) -> Handler[T]:
        """Listen to changes; what is there already is delivered at once as added.

        Args:
            name: for logs.
            on_add: object, and whether it belongs to the initial content.
            on_update: old and new; the same object twice at a resync. The UIDs differ
                if an object was deleted and made anew while nobody was watching.
            on_delete: the last known state, and whether the object was seen to be deleted: an event
                said so, or its deletion had begun. Otherwise a new list merely lacks it. The
                store has it no more.
        """
        handler = Handler(name=name, on_add=on_add, on_update=on_update, on_delete=on_delete)
        self._content.introduce(handler)
        return handler

    def remove_handler(self, handler: Handler[T]) -> None:
        """Stop listening; safe to repeat."""
        if handler in self._content.handlers:
            self._content.handlers.remove(handler)

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until `has_synced`.

        Raises:
            TimeoutError: it took longer.
        """
        if not await tasks.wait_for(self._content.synced, timeout_s):
            raise TimeoutError(f"the cache of {self.resource} is not complete yet")

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with tasks.Group() as group:
            group.start(self._reflector.run(), name=f"reflector-{self.resource}")
            if self._resync_s > 0:
                group.start(self._resync(), name=f"resync-{self.resource}")

    async def _resync(self) -> None:
        objects = self._content.store
        while True:
            await asyncio.sleep(self._resync_s * (1 + self._rng.random()))
            for number, key in enumerate(list(objects.keys()), start=1):
                obj = objects.get(key)
                if obj is not None:
                    self._content.updated(obj, obj)
                if number % _RESYNC_CHUNK == 0:
                    await asyncio.sleep(0)


class Informers:
    """One informer per kind, made when first asked for.

    Args:
        client: the client that all informers share.
        resync_s: see `Informer`.
        settings: of the reflectors.
    """

    def __init__(
        self,
        client: Client,
        *,
        resync_s: float = 0.0,
        settings: reflector.Settings = reflector.DEFAULTS,
    ) -> None:
        self._client = client
        self._resync_s = resync_s
        self._settings = settings
        self._informers: dict[tuple[Kind[Any], str], Informer[Any]] = {}
        self._group: tasks.Group | None = None

    def of(self, kind: Kind[T], *, namespace: str = "") -> Informer[T]:
        """The informer of a kind, of one namespace or of all; started if the others run already."""
        known = self._informers.get((kind, namespace))
        if known is None:
            resource = self._client.resource(kind)
            known = Informer(
                resource.within(namespace) if namespace else resource,
                resource=kind.plural,
                resync_s=self._resync_s,
                settings=self._settings,
            )
            self._informers[kind, namespace] = known
            if self._group is not None:
                self._start(self._group, known)
        return cast("Informer[T]", known)

    @property
    def all(self) -> Collection[Informer[Any]]:
        """Every informer asked for so far."""
        return tuple(self._informers.values())

    @property
    def has_synced(self) -> bool:
        """Whether every informer is complete."""
        return all(informer.has_synced for informer in self._informers.values())

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until every informer is complete.

        Raises:
            TimeoutError: it took longer; the message names one that is not complete.
        """
        deadline = clock.monotonic() + timeout_s
        for informer in self.all:
            await informer.wait_synced(deadline - clock.monotonic())

    async def run(self) -> None:
        """Run all informers, those asked for later included, until cancelled."""
        async with tasks.Group() as group:
            self._group = group
            try:
                for informer in self.all:
                    self._start(group, informer)
                # Keeps the group open while there is no informer yet.
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None

    @staticmethod
    def _start(group: tasks.Group, informer: Informer[Any]) -> None:
        group.start(informer.run(), name=f"informer-{informer.resource}")
