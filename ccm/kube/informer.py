"""Informers: one copy of a kind for the whole process, and who wants to hear of changes.

Handlers are plain functions that put a key into a queue and return; they run one after
the other, after the store changed, so a handler that looks into the store sees the new
state. A handler that fails is logged and stops nobody. Counterpart in client-go:
SharedIndexInformer and SharedInformerFactory.

A reflector keeps the content equal to what the API server has. It opens a watch that begins with
the present objects (watch-list). Where the server refuses that, or does not understand it, it lists
in pages instead and watches from there, and remembers. A watch that ends is resumed at the last
version seen, bookmarks included; only an expired version (410), or a watch that gets nowhere
several times in a row, leads to a new list. After a new list handlers hear of real differences:
objects that are gone, new ones, and changed ones as updates. All failures go through one back-off.
An outage is logged when it starts and when it ends, and not in between.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from ccm.base import clock, metrics, tasks
from ccm.base.backoff import Exponential, Streak
from ccm.base.log import Outage, logger
from ccm.kube import errors
from ccm.kube.client import Client, Page, WatchEvent
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


V = TypeVar("V")

_lists = metrics.counter(
    "ccm_kube_lists_total",
    "Complete reads of a kind, by watch-list or in pages.",
    ("resource", "mode"),
)
_watches = metrics.counter("ccm_kube_watches_total", "Watches opened.", ("resource",))
_undecodable = metrics.gauge(
    "ccm_kube_undecodable_objects",
    "Objects whose newest state cannot be decoded; nothing is deleted that could be theirs.",
    ("resource",),
)
_failures = metrics.counter(
    "ccm_kube_reflector_failures_total",
    "Lists and watches that failed and were repeated after a pause.",
    ("resource",),
)

_REFUSALS = frozenset({400, 405, 406, 415, 422, 501})
"""Statuses by which a server says that it does not know watch-list. Not 404: that is said of
a kind that is not there, such as one whose definition is still to come."""

_FRUITLESS_LIMIT = 3
"""So many watches in a row that brought nothing lead to a new list: some servers close
a watch of an expired version without saying so."""


class Source(Protocol[T]):
    """What a reflector needs of a `Resource`."""

    async def list_page(self, *, limit: int, continue_: str = "") -> Page[T]:
        """One page of the newest state."""

    def watch(
        self,
        *,
        resource_version: str = "",
        timeout_s: int,
        send_initial_events: bool = False,
        idle_timeout_s: float | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]:
        """Changes since a version, or the present state and then changes."""


_BACKOFF = Exponential(base_s=0.8, factor=2.0, cap_s=30.0, jitter=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a reflector behaves; the defaults are client-go's where it has any.

    Attributes:
        watch_list: try a watch that begins with the present objects.
        watch_timeout_s: shortest and longest time after which a watch is renewed; the
            server is asked to end it after a random time in between.
        open_limit_s: longest time until the server begins to answer a watch.
        silence_s: longest time without a byte before a watch is given up; None: a little
            more than the watch's own time.
        overtime_s: how much longer than it was asked to a server may keep a watch open.
        initial_silence_s: a watch-list that says nothing for so long before its initial
            events are complete is taken for a server that does not know it.
        initial_limit_s: the same for initial events that take so long altogether.
        short_watch_s: a watch that ends sooner, and without progress, is a failure.
        page_size: objects per page, and per step between two yields to the event loop.
        backoff: pauses after failures.
        backoff_reset_s: a quiet time after which pauses are short again.
    """

    watch_list: bool = True
    watch_timeout_s: tuple[int, int] = (300, 600)
    open_limit_s: float = 60.0
    silence_s: float | None = None
    overtime_s: float = 30.0
    initial_silence_s: float = 10.0
    initial_limit_s: float = 60.0
    short_watch_s: float = 1.0
    page_size: int = 500
    backoff: Exponential = _BACKOFF
    backoff_reset_s: float = 120.0


DEFAULTS = Settings()

_CHUNK = 100
"""Objects handled between two yields; some milliseconds of work."""


class _Fruitless(Exception):
    """A watch was opened and ended without any progress."""


class _Ignored(Exception):
    """The server took a watch-list for a plain watch."""


class Reflector(Generic[T]):
    """Feeds a sink from the API server until cancelled.

    Args:
        source: where to list and watch.
        sink: what to keep up to date.
        resource: plural name, for logs and metrics.
        settings: see `Settings`.
        rng: where jitter comes from.
    """

    def __init__(
        self,
        source: Source[T],
        sink: Informer[T],
        *,
        resource: str,
        settings: Settings = DEFAULTS,
        rng: random.Random | None = None,
    ) -> None:
        self._source = source
        self._sink = sink
        self._resource = resource
        self._settings = settings
        self._rng = rng or random.Random()
        self._log = logger("reflector", resource=resource)
        self._streak = self._new_streak()
        # A server that says 410 is well: no long pause is left over from an outage.
        self._expiries = self._new_streak()
        self._watch_list = settings.watch_list
        self.version: str | None = None
        """The last version seen; None before the first list and after an expiry."""
        self.undecodable: set[str] = set()
        """Keys of the objects whose newest state could not be decoded; "": one without a name."""
        self._unseen: set[str] | None = None
        """What the sink holds and a new list did not show yet: in the end, what is gone."""
        self._unreadable: set[str] = set()
        """Keys of objects that the new list has and that could not be decoded."""
        self._fruitless = 0
        self._progress = False
        self.last_contact: float | None = None
        """Monotonic time of the last sign of life of the server; None before the first.

        A quiet but healthy watch gives one at least with each bookmark (about a minute).
        """
        self.trouble = Outage(
            logger("reflector", resource=resource),
            begins="list or watch failed, retrying",
            ends="list and watch work again",
        )
        self._failures = _failures.labels(resource)
        self._watches = _watches.labels(resource)
        self._undecodable = _undecodable.labels(resource)

    @property
    def trouble_since(self) -> float | None:
        """Monotonic time since when lists or watches fail; None while all is well."""
        return self.trouble.since

    @property
    def _is_initial(self) -> bool:
        """Whether not all of a new list came yet."""
        return self._unseen is not None

    async def run(self) -> None:
        """List and watch for ever; ends only by cancellation."""
        while True:
            try:
                # One watch or one list; the next may follow without a pause.
                if self.version is not None:
                    await self._watch(self.version)
                else:
                    await self._start()
            except errors.Gone:
                self.version = None
                self._log.debug("watched version expired, listing again")
                await asyncio.sleep(self._expiries.next(clock.monotonic()))
            except (errors.KubeError, _Fruitless) as problem:
                await self._recover(problem)

    def _new_streak(self) -> Streak:
        return Streak(
            policy=self._settings.backoff,
            reset_after_s=self._settings.backoff_reset_s,
            rng=self._rng,
        )

    async def _start(self) -> None:
        """Read everything: by a watch-list where the server knows it, else in pages."""
        self._unseen, self._unreadable = set(self._sink.store.keys()), set()
        try:
            await (self._watch("") if self._watch_list else self._list())
        except errors.ApiError as refusal:
            if not (self._watch_list and self._is_initial) or refusal.status not in _REFUSALS:
                raise
            self._fall_back(str(refusal))
        except _Ignored as ignorance:
            self._fall_back(str(ignorance))
        finally:
            self._unseen = None

    async def _list(self) -> None:
        token = ""
        while True:
            page = await self._source.list_page(limit=self._settings.page_size, continue_=token)
            self._contact()
            await self._take_page(page)
            token = page.continue_
            if not token:
                break
        await self._finish_initial(page.resource_version)
        _lists.labels(self._resource, "pages").inc()

    async def _take_page(self, page: Page[T]) -> None:
        for key in page.malformed_keys:
            self._saw(key, readable=False)
        for start in range(0, len(page.items), _CHUNK):
            for obj in page.items[start : start + _CHUNK]:
                self._saw(obj.key, readable=True)
                self._sink.upsert(obj)
            await asyncio.sleep(0)

    async def _finish_initial(self, version: str) -> None:
        # Of objects without a readable name each may be one that seems to be gone: rather keep one
        # that is gone than report one gone that is not.
        gone = () if "" in self._unreadable else tuple(self._unseen or ())
        for number, key in enumerate(gone, start=1):
            self._sink.remove(key)
            if number % _CHUNK == 0:
                await asyncio.sleep(0)
        # Those this list had, and which were not decoded since.
        self.undecodable &= self._unreadable
        self._undecodable.set(len(self.undecodable))
        self.version = version
        self._unseen = None
        self._fruitless = 0
        self._progress = True
        self._sink.complete()
        self.trouble.is_over()

    def _fall_back(self, why: str) -> None:
        self._watch_list = False
        self._log.info("server does not support watch-list, using paged lists", error=why)

    async def _watch(self, version: str) -> None:
        shortest, longest = self._settings.watch_timeout_s
        timeout_s = self._rng.randint(shortest, longest)
        opened_at = clock.monotonic()
        self._progress = False
        request = self._source.watch(
            resource_version=version,
            timeout_s=timeout_s,
            send_initial_events=self._is_initial,
            idle_timeout_s=self._settings.silence_s,
        )
        async with contextlib.AsyncExitStack() as stack:
            events = await self._open(stack.enter_async_context(request))
            self._watches.inc()
            self._contact()
            await tasks.first_of(
                self._follow(events), self._watchdog(timeout_s), name=f"watch-{self._resource}"
            )
        self._judge(opened_at)

    async def _open(self, entering: Coroutine[Any, Any, V]) -> V:
        """Wait until the server begins to answer; a watch may be silent only after that."""
        limit_s = self._settings.open_limit_s
        try:
            return await tasks.within(limit_s, entering, name=f"open-watch-{self._resource}")
        except TimeoutError:
            raise errors.Unreachable(
                f"a watch was not answered within {limit_s:g} s", kind="timeout"
            ) from None

    def _judge(self, opened_at: float) -> None:
        """Decide what the end of a watch without an error means."""
        if self._is_initial:
            raise _Fruitless("the watch ended before its initial events were complete")
        lasted = clock.monotonic() - opened_at
        if not self._progress and lasted < self._settings.short_watch_s:
            raise _Fruitless(f"the watch ended after {lasted:.1f} s without any event")
        self._fruitless = 0
        self.trouble.is_over()

    async def _watchdog(self, timeout_s: float) -> None:
        """End the watch when its initial events do not come, or when it overstays."""
        opened_at = clock.monotonic()
        while self._is_initial:
            left = (
                min(
                    (self.last_contact or opened_at) + self._settings.initial_silence_s,
                    opened_at + self._settings.initial_limit_s,
                )
                - clock.monotonic()
            )
            if left <= 0:
                raise _Ignored("the initial events of a watch were not completed in time")
            await asyncio.sleep(left)
        await asyncio.sleep(self._settings.short_watch_s)
        self.trouble.is_over()
        await asyncio.sleep(timeout_s + self._settings.overtime_s)

    async def _follow(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        count = 0
        async for event in events:
            self._contact()
            self._take_event(event)
            if event.initial_events_end and self._is_initial:
                await self._finish_initial(event.resource_version)
                _lists.labels(self._resource, "watch-list").inc()
            count += 1
            if count % _CHUNK == 0:
                await asyncio.sleep(0)

    def _take_event(self, event: WatchEvent[T]) -> None:
        is_gone = event.type == "DELETED" or (event.wire_type == "DELETED" and event.key != "")
        if event.type != "BOOKMARK":
            self._saw(event.key, readable=event.object is not None or is_gone)
        if is_gone:
            self._sink.remove(event.key, event.object)
        elif event.object is not None:
            self._sink.upsert(event.object)
        # A bookmark among the initial events is no place to go on from: what was not told yet would
        # be missing, and what is gone would stay.
        version = event.resource_version
        if self._unseen is None and version and version != self.version:
            self.version = version
            self._progress = True

    def _saw(self, key: str, *, readable: bool) -> None:
        """Note that the server has or had this object; an empty key: one without a name."""
        if self._unseen is not None:
            self._unseen.discard(key)
            if not readable:
                self._unreadable.add(key)
        if self.undecodable or not readable:
            (self.undecodable.discard if readable else self.undecodable.add)(key)
            self._undecodable.set(len(self.undecodable))

    async def _recover(self, problem: Exception) -> None:
        """Count and log a failure, decide where to go on, and pause."""
        self._failures.inc()
        self.trouble.goes_on(error=str(problem))
        if not self._progress and not _is_about_the_way(problem):
            self._fruitless += 1
        answer = problem if isinstance(problem, errors.ApiError) else None
        is_too_large = answer and answer.has_cause(errors.REASON_RESOURCE_VERSION_TOO_LARGE)
        if self._fruitless >= _FRUITLESS_LIMIT or is_too_large:
            self._start_over(str(problem))
        asked = answer.retry_after if answer else None
        await asyncio.sleep(max(self._streak.next(clock.monotonic()), asked or 0.0))

    def _start_over(self, why: str) -> None:
        """Getting nowhere: list anew; if that is what got nowhere, list in pages."""
        self._fruitless = 0
        if self.version is None and self._watch_list:
            self._fall_back(why)
        self.version = None

    def _contact(self) -> None:
        self.last_contact = clock.monotonic()


def _is_about_the_way(problem: Exception) -> bool:
    """Whether the failure says nothing about the version we asked for."""
    if isinstance(problem, errors.Unreachable):
        return problem.kind in ("refused", "timeout", "tls", "credentials")
    if isinstance(problem, errors.ServerError):
        return problem.status in (502, 503)
    return isinstance(problem, errors.TooManyRequests | errors.Unauthorized | errors.Forbidden)


_RESYNC_CHUNK = 500


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler(Generic[T]):
    """What one listener wants to hear; see `Informer.add_handler`."""

    name: str
    on_add: Callable[[T, bool], object] | None = None
    on_update: Callable[[T, T], object] | None = None
    on_delete: Callable[[T, bool], object] | None = None


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
        source: Source[T],
        *,
        resource: str,
        resync_s: float = 0.0,
        settings: Settings = DEFAULTS,
        rng: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self.store: Store[T] = Store()
        """The objects; complete once `has_synced`."""
        self._handlers: list[Handler[T]] = []
        self._synced = asyncio.Event()
        self._log = logger("informer", resource=resource)
        self._resync_s = resync_s
        self._rng = rng or random.Random()
        self._reflector = Reflector(
            source, self, resource=resource, settings=settings, rng=self._rng
        )

    @classmethod
    def nowhere(cls, kind: Kind[T]) -> Informer[T]:
        """Of a kind that there is no server for: complete, and empty for ever; never run."""
        source = cast("Source[T]", None)  # which nobody asks
        found = cls(source, resource=kind.plural)
        found.complete()
        return found

    @property
    def has_synced(self) -> bool:
        """Whether everything there was at the start has been delivered to the handlers."""
        return self._synced.is_set()

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
        self._handlers.append(handler)
        for obj in self.store.list():
            self._call(handler, on_add, obj, True)
        return handler

    def remove_handler(self, handler: Handler[T]) -> None:
        """Stop listening; safe to repeat."""
        if handler in self._handlers:
            self._handlers.remove(handler)

    # --- what the reflector tells ---------------------------------------------------------------

    def upsert(self, obj: T) -> None:
        """The server has this object."""
        old = self.store.get(obj.key)
        if old is not None and old.resource_version == obj.resource_version != "":
            return
        self.store.put(obj)
        if old is not None:
            self._updated(old, obj)
            return
        initial = not self.has_synced
        for handler in tuple(self._handlers):
            self._call(handler, handler.on_add, obj, initial)

    def remove(self, key: str, last: T | None = None) -> None:
        """The object is gone; `last`: as it was when an event said so."""
        old = self.store.pop(key)
        if old is None:
            return
        seen = last is not None or old.is_deleting
        for handler in tuple(self._handlers):
            self._call(handler, handler.on_delete, last or old, seen)

    def complete(self) -> None:
        """Everything that was there at the start was told."""
        if not self.has_synced:
            self._synced.set()
            self._log.debug("cache complete", count=len(self.store))

    def _updated(self, old: T, new: T) -> None:
        for handler in tuple(self._handlers):
            self._call(handler, handler.on_update, old, new)

    def _call(
        self, handler: Handler[T], function: Callable[..., object] | None, *facts: object
    ) -> None:
        try:
            if function is not None:
                function(*facts)
        except Exception:  # noqa: BLE001 - one listener's fault must not reach the others
            self._log.error("event handler failed", handler=handler.name, exc_info=True)

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until `has_synced`.

        Raises:
            TimeoutError: it took longer.
        """
        if not await tasks.wait_for(self._synced, timeout_s):
            raise TimeoutError(f"the cache of {self.resource} is not complete yet")

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with tasks.Group() as group:
            group.start(self._reflector.run(), name=f"reflector-{self.resource}")
            if self._resync_s > 0:
                group.start(self._resync(), name=f"resync-{self.resource}")

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._resync_s * (1 + self._rng.random()))
            for number, key in enumerate(list(self.store.keys()), start=1):
                obj = self.store.get(key)
                if obj is not None:
                    self._updated(obj, obj)
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
        settings: Settings = DEFAULTS,
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
