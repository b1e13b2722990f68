"""Informers: one cache per kind for the whole process, with event handlers.

Handlers are plain functions that put a key into a work queue and return. Handlers run one after
another after the store changed, so each sees the new state in the store. A handler that fails is
logged and does not stop the others. Counterpart in client-go: SharedIndexInformer and
SharedInformerFactory.

A reflector keeps the store equal to the API server. First it opens a watch that begins with the
existing objects (watch-list). If the server refuses or ignores that, the reflector remembers it,
lists in pages, and watches from there. A watch that ends is resumed at the last version seen,
bookmarks included. Only an expired version (410), or several watches in a row without progress,
lead to a new list. After a new list, handlers receive real differences: deleted objects, new ones,
and changed ones as updates. Failures share one back-off; expired versions have another. An outage
is logged at its start, every few minutes, and at its end.
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
from ccm.base.backoff import ExponentialBackoff, FailureStreak
from ccm.base.log import Outage, logger
from ccm.kube import errors
from ccm.kube.client import Client, Page, WatchEvent
from ccm.kube.resources import ResourceKind
from ccm.model.meta import KubeObject

T = TypeVar("T", bound=KubeObject)


class InformerStore(Generic[T]):
    """Cache of one kind: frozen objects by key. Only its informer writes to it."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        """Return the object with that key, or None."""
        return self._objects.get(key)

    def list(self) -> builtins.list[T]:
        """Return all objects, in no particular order; the list is a copy."""
        return list(self._objects.values())

    def keys(self) -> Collection[str]:
        """Return all keys as a live view; copy it before awaiting."""
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
        """Remove an object and return it; None = it did not exist."""
        return self._objects.pop(key, None)


V = TypeVar("V")

_lists = metrics.counter(
    "ccm_kube_lists_total",
    "Complete lists of a resource, by watch-list or in pages.",
    ("resource", "mode"),
)
_watches = metrics.counter("ccm_kube_watches_total", "Watches opened.", ("resource",))
_malformed = metrics.gauge(
    "ccm_kube_malformed_objects",
    "Objects whose newest state cannot be decoded. Deletions that could affect them are blocked.",
    ("resource",),
)
metrics.FormerName(_malformed, "ccm_kube_undecodable_objects")
_failures = metrics.counter(
    "ccm_kube_reflector_failures_total",
    "Failed lists and watches, each retried after a delay.",
    ("resource",),
)

_REFUSALS = frozenset({400, 405, 406, 415, 422, 501})
"""Statuses with which a server refuses watch-list. Not 404, which is the answer for a kind that
does not exist, for example because its CRD is yet to be created."""

_FRUITLESS_LIMIT = 3
"""Number of watches in a row without progress that leads to a new list: some servers close a watch
of an expired version without an error."""


class ListWatch(Protocol[T]):
    """Part of `Resource` that a reflector needs."""

    async def list_page(self, *, limit: int, continue_: str = "") -> Page[T]:
        """Return one page of the newest state."""

    def watch(
        self,
        *,
        resource_version: str = "",
        timeout_s: int,
        send_initial_events: bool = False,
        idle_timeout_s: float | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]:
        """Watch changes since a version, or first the existing objects and then changes."""


# As in client-go.
_BACKOFF = ExponentialBackoff(base_s=0.8, factor=2.0, cap_s=30.0, jitter=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorSettings:
    """Settings of a reflector; the defaults are client-go's where it has any.

    Attributes:
        watch_list: whether to try a watch that begins with the existing objects.
        watch_timeout_s: minimum and maximum duration of a watch; the server is asked to end it
            after a random time in between.
        open_timeout_s: maximum time until the server begins to answer a watch.
        idle_timeout_s: maximum time without a byte before a watch is aborted; None = a little more
            than the duration of the watch.
        overtime_s: maximum time that a server may keep a watch open beyond its duration, in
            case it ignores the duration.
        initial_idle_timeout_s: maximum time without an event until the initial events are complete;
            a server that exceeds it counts as one without watch-list.
        initial_timeout_s: maximum time for all initial events, with the same effect.
        short_watch_s: minimum duration of a watch without progress; a shorter one is a failure.
        page_size: objects per page.
        backoff: delays after failures.
        backoff_reset_s: time without failures after which the delays are short again.
    """

    watch_list: bool = True
    watch_timeout_s: tuple[int, int] = (300, 600)
    open_timeout_s: float = 60.0
    idle_timeout_s: float | None = None
    overtime_s: float = 30.0
    initial_idle_timeout_s: float = 10.0
    initial_timeout_s: float = 60.0
    short_watch_s: float = 1.0
    page_size: int = 500
    backoff: ExponentialBackoff = _BACKOFF
    backoff_reset_s: float = 120.0


DEFAULTS = ReflectorSettings()

_CHUNK = 100
"""Objects handled between two yields to the event loop; some milliseconds of work."""


class _NoProgress(Exception):
    """A watch was opened and ended without progress."""


class _WatchListIgnored(Exception):
    """The server treated a watch-list as a plain watch."""


class Reflector(Generic[T]):
    """Keeps a sink equal to the API server until cancelled.

    Args:
        source: resource to list and watch.
        sink: informer to keep up to date.
        resource: plural name, for logs and metrics.
        rng: source of jitter.
    """

    def __init__(
        self,
        source: ListWatch[T],
        sink: Informer[T],
        *,
        resource: str,
        settings: ReflectorSettings = DEFAULTS,
        rng: random.Random | None = None,
    ) -> None:
        self._source = source
        self._sink = sink
        self._resource = resource
        self._settings = settings
        self._rng = rng or random.Random()
        self._log = logger("reflector", resource=resource)
        self._streak = self._new_streak()
        # Separate, because a 410 comes from a healthy server: no long delay may remain from an
        # outage.
        self._expiries = self._new_streak()
        self._watch_list = settings.watch_list
        self.version: str | None = None
        """Last version seen; None before the first list and after an expiry."""
        self.malformed_keys: set[str] = set()
        """Keys of the objects whose newest state could not be decoded; "" = one without a name."""
        self._unseen: set[str] | None = None
        """Keys in the sink that a new list has not shown yet; those left at its end are deleted."""
        self._unreadable: set[str] = set()
        """Keys of objects in the new list that could not be decoded."""
        self._fruitless_count = 0
        self._progress = False
        self.last_contact: float | None = None
        """Monotonic time of the last message of the server; None before the first.

        A quiet but healthy watch receives at least bookmarks, about one per minute.
        """
        self.outage = Outage(
            logger("reflector", resource=resource),
            start_message="list or watch failed, retrying",
            end_message="list and watch recovered",
        )
        self._failures = _failures.labels(resource)
        self._watches = _watches.labels(resource)
        self._malformed = _malformed.labels(resource)

    @property
    def outage_since(self) -> float | None:
        """Monotonic start time of the current outage of lists or watches; None = no outage."""
        return self.outage.since

    @property
    def _is_initial(self) -> bool:
        """Whether a new list is incomplete."""
        return self._unseen is not None

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                # One watch or one list per round; after a success the next follows without a delay.
                if self.version is not None:
                    await self._watch(self.version)
                else:
                    await self._start()
            except errors.Gone:
                self.version = None
                self._log.debug("watched version expired, listing again")
                await asyncio.sleep(self._expiries.next_delay(clock.monotonic()))
            except (errors.KubeError, _NoProgress) as problem:
                await self._back_off(problem)

    def _new_streak(self) -> FailureStreak:
        return FailureStreak(
            policy=self._settings.backoff,
            reset_after_s=self._settings.backoff_reset_s,
            rng=self._rng,
        )

    async def _start(self) -> None:
        """Read all objects: by watch-list if the server supports it, else in pages."""
        self._unseen, self._unreadable = set(self._sink.store.keys()), set()
        try:
            await (self._watch("") if self._watch_list else self._list())
        except errors.ApiError as refusal:
            # After its initial events the watch is a plain one: an error then is no refusal of
            # watch-list.
            if not (self._watch_list and self._is_initial) or refusal.status not in _REFUSALS:
                raise
            self._fall_back(str(refusal))
        except _WatchListIgnored as ignorance:
            self._fall_back(str(ignorance))
        finally:
            self._unseen = None

    async def _list(self) -> None:
        token = ""
        while True:
            page = await self._source.list_page(limit=self._settings.page_size, continue_=token)
            self._record_contact()
            await self._take_page(page)
            token = page.continue_
            if not token:
                break
        await self._finish_initial(page.resource_version)
        _lists.labels(self._resource, "pages").inc()

    async def _take_page(self, page: Page[T]) -> None:
        for key in page.malformed_keys:
            self._record_seen(key, readable=False)
        for start in range(0, len(page.items), _CHUNK):
            for obj in page.items[start : start + _CHUNK]:
                self._record_seen(obj.key, readable=True)
                self._sink.upsert(obj)
            await asyncio.sleep(0)

    async def _finish_initial(self, version: str) -> None:
        # An object without a readable name may be any of those that seem deleted. A deleted object
        # in the cache does less harm than the false report of a deletion.
        gone = () if "" in self._unreadable else tuple(self._unseen or ())
        for number, key in enumerate(gone, start=1):
            self._sink.remove(key)
            if number % _CHUNK == 0:
                await asyncio.sleep(0)
        # Keep the keys that this list had and that were not decoded since.
        self.malformed_keys &= self._unreadable
        self._malformed.set(len(self.malformed_keys))
        self.version = version
        self._unseen = None
        self._fruitless_count = 0
        self._progress = True
        self._sink.mark_synced()
        self.outage.record_success()

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
            idle_timeout_s=self._settings.idle_timeout_s,
        )
        async with contextlib.AsyncExitStack() as stack:
            events = await self._open(stack.enter_async_context(request))
            self._watches.inc()
            self._record_contact()
            await tasks.first_of(
                self._follow(events), self._watchdog(timeout_s), name=f"watch-{self._resource}"
            )
        self._check_end(opened_at)

    async def _open(self, entering: Coroutine[Any, Any, V]) -> V:
        """Wait until the server begins to answer; only then a watch may be silent."""
        limit_s = self._settings.open_timeout_s
        try:
            return await tasks.with_timeout(limit_s, entering, name=f"open-watch-{self._resource}")
        except TimeoutError:
            raise errors.Unreachable(
                f"no response to a watch within {limit_s:g} s", kind="timeout"
            ) from None

    def _check_end(self, opened_at: float) -> None:
        """Decide whether the end of a watch without an error is a failure."""
        if self._is_initial:
            raise _NoProgress("the watch ended before its initial events were complete")
        lasted = clock.monotonic() - opened_at
        if not self._progress and lasted < self._settings.short_watch_s:
            raise _NoProgress(f"the watch ended after {lasted:.1f} s without any event")
        self._fruitless_count = 0
        self.outage.record_success()

    async def _watchdog(self, timeout_s: float) -> None:
        """End a watch whose initial events do not arrive, or that exceeds its duration."""
        opened_at = clock.monotonic()
        while self._is_initial:
            left = (
                min(
                    (self.last_contact or opened_at) + self._settings.initial_idle_timeout_s,
                    opened_at + self._settings.initial_timeout_s,
                )
                - clock.monotonic()
            )
            if left <= 0:
                raise _WatchListIgnored("the initial events of a watch were not completed in time")
            await asyncio.sleep(left)
        # A watch that lasts longer than a failing one proves that the outage has ended.
        await asyncio.sleep(self._settings.short_watch_s)
        self.outage.record_success()
        await asyncio.sleep(timeout_s + self._settings.overtime_s)

    async def _follow(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        count = 0
        async for event in events:
            self._record_contact()
            self._take_event(event)
            if event.initial_events_end and self._is_initial:
                await self._finish_initial(event.resource_version)
                _lists.labels(self._resource, "watch-list").inc()
            count += 1
            if count % _CHUNK == 0:
                await asyncio.sleep(0)

    def _take_event(self, event: WatchEvent[T]) -> None:
        # The deletion of a malformed object is known by its key.
        is_gone = event.type == "DELETED" or (event.wire_type == "DELETED" and event.key != "")
        if event.type != "BOOKMARK":
            self._record_seen(event.key, readable=event.object is not None or is_gone)
        if is_gone:
            self._sink.remove(event.key, event.object)
        elif event.object is not None:
            self._sink.upsert(event.object)
        # Do not resume from a bookmark among the initial events: objects that were not sent yet
        # would be missing, and deleted ones would stay.
        version = event.resource_version
        if self._unseen is None and version and version != self.version:
            self.version = version
            self._progress = True

    def _record_seen(self, key: str, *, readable: bool) -> None:
        """Record that the server has or had an object; an empty key = one without a name."""
        if self._unseen is not None:
            self._unseen.discard(key)
            if not readable:
                self._unreadable.add(key)
        if self.malformed_keys or not readable:
            (self.malformed_keys.discard if readable else self.malformed_keys.add)(key)
            self._malformed.set(len(self.malformed_keys))

    async def _back_off(self, problem: Exception) -> None:
        """Count and log a failure, decide where to resume, and wait."""
        self._failures.inc()
        self.outage.record_failure(error=str(problem))
        # Only failures that the requested version may have caused count towards a new list.
        if not self._progress and not _is_independent_of_version(problem):
            self._fruitless_count += 1
        api_error = problem if isinstance(problem, errors.ApiError) else None
        is_too_large = api_error and api_error.has_cause(errors.REASON_RESOURCE_VERSION_TOO_LARGE)
        if self._fruitless_count >= _FRUITLESS_LIMIT or is_too_large:
            self._discard_unusable_version(str(problem))
        retry_after_s = api_error.retry_after if api_error else None
        await asyncio.sleep(max(self._streak.next_delay(clock.monotonic()), retry_after_s or 0.0))

    def _discard_unusable_version(self, why: str) -> None:
        """Discard the version to list again; in pages, if the failed attempt was a watch-list."""
        self._fruitless_count = 0
        if self.version is None and self._watch_list:
            self._fall_back(why)
        self.version = None

    def _record_contact(self) -> None:
        self.last_contact = clock.monotonic()


def _is_independent_of_version(problem: Exception) -> bool:
    """Return whether a failure says nothing about the requested version."""
    if isinstance(problem, errors.Unreachable):
        return problem.kind in ("refused", "timeout", "tls", "credentials")
    if isinstance(problem, errors.ServerError):
        return problem.status in (502, 503)
    return isinstance(problem, errors.TooManyRequests | errors.Unauthorized | errors.Forbidden)


_RESYNC_CHUNK = 500
"""Objects that a resync handles before other tasks run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventHandler(Generic[T]):
    """Callbacks of one listener; see `Informer.add_handler`."""

    name: str
    on_add: Callable[[T, bool], object] | None = None
    on_update: Callable[[T, T], object] | None = None
    on_delete: Callable[[T, bool], object] | None = None


class Informer(Generic[T]):
    """Cache of one kind, with event handlers.

    Args:
        source: resource to list and watch.
        resource: plural name, for logs and metrics.
        resync_s: minimum time between resyncs, which deliver every object as an update of itself;
            stretched by a random factor in [1, 2). 0 = never.
        settings: settings of the reflector.
        rng: source of jitter.
    """

    def __init__(
        self,
        source: ListWatch[T],
        *,
        resource: str,
        resync_s: float = 0.0,
        settings: ReflectorSettings = DEFAULTS,
        rng: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self.store: InformerStore[T] = InformerStore()
        """Cached objects; complete once `has_synced`."""
        self._handlers: list[EventHandler[T]] = []
        self._synced = asyncio.Event()
        self._log = logger("informer", resource=resource)
        self._resync_s = resync_s
        self._rng = rng or random.Random()
        self._reflector = Reflector(
            source, self, resource=resource, settings=settings, rng=self._rng
        )

    @classmethod
    def empty(cls, kind: ResourceKind[T]) -> Informer[T]:
        """Return an informer for a kind without a server: synced and empty; never run."""
        source = cast("ListWatch[T]", None)  # never called
        informer = cls(source, resource=kind.plural)
        informer.mark_synced()
        return informer

    @property
    def has_synced(self) -> bool:
        """Whether all objects that existed at the start were delivered to the handlers."""
        return self._synced.is_set()

    @property
    def last_contact(self) -> float | None:
        """Monotonic time of the last message of the server; None before the first."""
        return self._reflector.last_contact

    @property
    def outage_since(self) -> float | None:
        """Monotonic start time of the current outage; None = no outage."""
        return self._reflector.outage_since

    @property
    def last_outage(self) -> tuple[float, float]:
        """Monotonic start and end of the last outage that ended; (0, 0) = none."""
        return self._reflector.outage.last_period

    @property
    def malformed_keys(self) -> Collection[str]:
        """Keys of existing objects whose newest state could not be decoded.

        The store has an earlier state of these objects, or none: nothing may be deleted because of
        that. An empty key stands for objects without a readable name.
        """
        return self._reflector.malformed_keys

    def add_handler(
        self,
        *,
        name: str,
        on_add: Callable[[T, bool], object] | None = None,
        on_update: Callable[[T, T], object] | None = None,
        on_delete: Callable[[T, bool], object] | None = None,
    ) -> EventHandler[T]:
        """Add callbacks for changes; cached objects are delivered at once as added.

        Args:
            name: name in logs.
            on_add: called with the object, and whether it belongs to the initial content.
            on_update: called with the old and the new object; both are the same in a resync. The
                UIDs differ if the object was recreated while no watch was open.
            on_delete: called with the last known state, and whether the deletion was observed: an
                event reported it, or it had begun. Otherwise a new list merely lacks the object.
                The store no longer has the object.
        """
        handler = EventHandler(name=name, on_add=on_add, on_update=on_update, on_delete=on_delete)
        self._handlers.append(handler)
        for obj in self.store.list():
            self._call(handler, on_add, obj, True)
        return handler

    def remove_handler(self, handler: EventHandler[T]) -> None:
        """Remove callbacks; idempotent."""
        if handler in self._handlers:
            self._handlers.remove(handler)

    # --- called by the reflector -----------------------------------------------------------------

    def upsert(self, obj: T) -> None:
        """Store an object of the server and call the handlers."""
        old = self.store.get(obj.key)
        # A new list repeats objects that did not change.
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
        """Remove a deleted object and call the handlers; `last` = its state in the event."""
        old = self.store.pop(key)
        if old is None:
            return
        seen = last is not None or old.is_deleting
        for handler in tuple(self._handlers):
            self._call(handler, handler.on_delete, last or old, seen)

    def mark_synced(self) -> None:
        """Mark the initial content as complete."""
        if not self.has_synced:
            self._synced.set()
            self._log.debug("cache synced", count=len(self.store))

    def _updated(self, old: T, new: T) -> None:
        for handler in tuple(self._handlers):
            self._call(handler, handler.on_update, old, new)

    def _call(
        self, handler: EventHandler[T], function: Callable[..., object] | None, *facts: object
    ) -> None:
        try:
            if function is not None:
                function(*facts)
        except Exception:  # noqa: BLE001 - a failing handler must not affect the others
            self._log.error("event handler failed", handler=handler.name, exc_info=True)

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until `has_synced`.

        Raises:
            TimeoutError: the time limit was exceeded.
        """
        if not await tasks.wait_for(self._synced, timeout_s):
            raise TimeoutError(f"the cache of {self.resource} has not synced")

    async def run(self) -> None:
        """Keep the cache up to date until cancelled."""
        async with tasks.NamedTaskGroup() as group:
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


class SharedInformers:
    """Informers by kind, created on first use.

    Args:
        client: client that all informers share.
        resync_s: see `Informer`.
        settings: settings of the reflectors.
    """

    def __init__(
        self,
        client: Client,
        *,
        resync_s: float = 0.0,
        settings: ReflectorSettings = DEFAULTS,
    ) -> None:
        self._client = client
        self._resync_s = resync_s
        self._settings = settings
        self._informers: dict[tuple[ResourceKind[Any], str], Informer[Any]] = {}
        self._group: tasks.NamedTaskGroup | None = None

    def informer_for(self, kind: ResourceKind[T], *, namespace: str = "") -> Informer[T]:
        """Return the informer of a kind, for one namespace or all; started if the others run."""
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
        """Informers that were created so far."""
        return tuple(self._informers.values())

    @property
    def has_synced(self) -> bool:
        """Whether every informer has synced."""
        return all(informer.has_synced for informer in self._informers.values())

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until every informer has synced.

        Raises:
            TimeoutError: the time limit was exceeded; the message names an informer that has not
                synced.
        """
        deadline = clock.monotonic() + timeout_s
        for informer in self.all:
            await informer.wait_synced(deadline - clock.monotonic())

    async def run(self) -> None:
        """Run all informers, later ones included, until cancelled."""
        async with tasks.NamedTaskGroup() as group:
            self._group = group
            try:
                for informer in self.all:
                    self._start(group, informer)
                # Keeps the group open while there is no informer yet.
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None

    @staticmethod
    def _start(group: tasks.NamedTaskGroup, informer: Informer[Any]) -> None:
        group.start(informer.run(), name=f"informer-{informer.resource}")
