"""Informers: one cache per kind for the whole process, with event handlers.

Handlers are plain functions that put a key into a work queue and return. After each change of the
store, they are called one by one, so each handler finds the new state in the store. An error of a
handler is logged and does not stop the other handlers. Counterpart in client-go:
SharedIndexInformer and SharedInformerFactory.

A reflector keeps the store equal to the API server. First it opens a watch that begins with the
existing objects (watch-list). If the server refuses or ignores watch-list, the reflector uses lists
in pages from then on, each followed by a watch. When a watch ends, the next watch starts at the
last resourceVersion of an event or bookmark. A new list follows only after an expired version
(410), a version that the server does not have yet, or several watches in a row without progress.
After a new list, handlers are called only for objects that are new, changed or deleted. Failed
lists and watches share one back-off; expired versions have another. An outage is logged at its
start, every few minutes, and at its end.
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
    """Cache of one kind: frozen objects by key. Only the informer writes to the store."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        """Return the object with this key; None = no such object."""
        return self._objects.get(key)

    def list(self) -> builtins.list[T]:
        """Return all objects, in no particular order; the list is a copy."""
        return list(self._objects.values())

    def keys(self) -> Collection[str]:
        """Return all keys as a live view; copy the view before an await."""
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
        """Remove and return an object; None = the store had no object with this key."""
        return self._objects.pop(key, None)


V = TypeVar("V")

_lists = metrics.counter(
    "ccm_kube_lists_total",
    "Lists of all objects of a resource, by watch-list or in pages.",
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
"""HTTP statuses with which a server refuses watch-list. 404 is not among them: it means that the
kind does not exist, for example because its CRD is yet to be created."""

_FRUITLESS_LIMIT = 3
"""Number of consecutive failed watches without progress after which the reflector lists again: some
servers close a watch from an expired version without an error.
"""


class ListWatch(Protocol[T]):
    """The methods of `Resource` that a reflector calls."""

    async def list_page(self, *, limit: int, continue_: str = "") -> Page[T]:
        """List one page of objects; the first page has the newest state."""

    def watch(
        self,
        *,
        resource_version: str = "",
        timeout_s: int,
        send_initial_events: bool = False,
        idle_timeout_s: float | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]:
        """Watch changes since a resourceVersion, or the existing objects and then changes."""


# The delays of client-go's reflector.
_BACKOFF = ExponentialBackoff(base_s=0.8, factor=2.0, cap_s=30.0, jitter=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorSettings:
    """Settings of a reflector; the defaults are client-go's where client-go has the setting.

    All times are in seconds.

    Attributes:
        watch_list: whether to try a watch that begins with the existing objects.
        watch_timeout_s: minimum and maximum duration of a watch; the reflector requests a random
            duration in between from the server.
        open_timeout_s: maximum time until the server begins to answer a watch.
        idle_timeout_s: maximum time without a byte before a watch is aborted; None = a little more
            than the requested duration of the watch.
        overtime_s: time by which a watch may exceed its requested duration. After that, the server
            ignores the duration, and the reflector ends the watch.
        initial_idle_timeout_s: maximum time between two of the initial events; a server that
            exceeds the time counts as a server without watch-list.
        initial_timeout_s: maximum time for all initial events; a server that exceeds the time
            counts as a server without watch-list.
        short_watch_s: minimum duration of a watch without progress; a shorter watch counts as a
            failure.
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
"""Objects handled before other tasks run: a few milliseconds of work."""


class _NoProgress(Exception):
    """A watch ended early without progress, or before its initial events were complete."""


class _WatchListIgnored(Exception):
    """The server did not complete the initial events of a watch-list in time."""


class Reflector(Generic[T]):
    """Lists and watches a resource, and keeps an informer equal to the API server.

    Args:
        source: resource to list and watch.
        sink: informer to keep up to date.
        resource: plural name of the resource, for logs and metrics.
        settings: settings of lists and watches.
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
        # Separate from `_streak`: a 410 comes from a healthy server, so the long delays of an
        # earlier outage must not apply.
        self._expiries = self._new_streak()
        self._watch_list = settings.watch_list
        self.version: str | None = None
        """Last resourceVersion received; None before the first list and after an expiry."""
        self.malformed_keys: set[str] = set()
        """Keys of objects whose newest state could not be decoded; "" = the name is unreadable."""
        self._unseen: set[str] | None = None
        """During a new list, the keys in the store that the list has not returned yet; else None.

        Keys that remain at the end of the list are removed from the store.
        """
        self._unreadable: set[str] = set()
        """Keys of the objects in the last list that could not be decoded."""
        self._fruitless_count = 0
        self._progress = False
        self.last_contact: float | None = None
        """Monotonic time of the last message of the server; None before the first message.

        A healthy watch without changes receives bookmarks, about one per minute.
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
        """Whether a new list is in progress."""
        return self._unseen is not None

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                # Each iteration is one list or one watch; after a success there is no delay.
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
            # An error after the initial events does not mean that the server refuses watch-list.
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
        # An object without a readable name may be any object that the list seems to lack. A deleted
        # object in the cache does less harm than the false report of a deletion.
        gone = () if "" in self._unreadable else tuple(self._unseen or ())
        for number, key in enumerate(gone, start=1):
            self._sink.remove(key)
            if number % _CHUNK == 0:
                await asyncio.sleep(0)
        # Drop the keys of earlier malformed objects. `_unreadable` also has keys of objects that a
        # later event made readable; these keys are not in `malformed_keys` any more.
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
        """Wait until the server begins to answer, for at most `open_timeout_s`.

        Raises:
            errors.Unreachable: the server did not begin to answer in time.
        """
        limit_s = self._settings.open_timeout_s
        try:
            return await tasks.with_timeout(limit_s, entering, name=f"open-watch-{self._resource}")
        except TimeoutError:
            raise errors.Unreachable(
                f"no response to a watch within {limit_s:g} s", kind="timeout"
            ) from None

    def _check_end(self, opened_at: float) -> None:
        """Raise `_NoProgress` if the end of a watch without an error counts as a failure."""
        if self._is_initial:
            raise _NoProgress("the watch ended before its initial events were complete")
        lasted = clock.monotonic() - opened_at
        if not self._progress and lasted < self._settings.short_watch_s:
            raise _NoProgress(f"the watch ended after {lasted:.1f} s without any event")
        self._fruitless_count = 0
        self.outage.record_success()

    async def _watchdog(self, timeout_s: float) -> None:
        """Return once the watch exceeds its requested duration by `overtime_s`.

        Raises:
            _WatchListIgnored: the initial events were not complete in time.
        """
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
        # A watch that lasts for `short_watch_s` shows that the outage has ended.
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
        # The key of a malformed object is sufficient for its deletion.
        is_gone = event.type == "DELETED" or (event.wire_type == "DELETED" and event.key != "")
        if event.type != "BOOKMARK":
            self._record_seen(event.key, readable=event.object is not None or is_gone)
        if is_gone:
            self._sink.remove(event.key, event.object)
        elif event.object is not None:
            self._sink.upsert(event.object)
        # Do not resume from a bookmark among the initial events: objects that were not sent yet
        # would be missing, and deleted objects would stay in the store.
        version = event.resource_version
        if self._unseen is None and version and version != self.version:
            self.version = version
            self._progress = True

    def _record_seen(self, key: str, *, readable: bool) -> None:
        """Record that an object occurred in a list or in a watch event.

        Args:
            key: key of the object; empty = its name is unreadable.
            readable: False if the object could not be decoded; always True for a deletion, which
                needs only the key.
        """
        if self._unseen is not None:
            self._unseen.discard(key)
            if not readable:
                self._unreadable.add(key)
        if self.malformed_keys or not readable:
            (self.malformed_keys.discard if readable else self.malformed_keys.add)(key)
            self._malformed.set(len(self.malformed_keys))

    async def _back_off(self, problem: Exception) -> None:
        """Count and log a failure, discard an unusable version, and wait."""
        self._failures.inc()
        self.outage.record_failure(error=str(problem))
        # Only failures whose cause may be the requested version count towards a new list.
        if not self._progress and not _is_independent_of_version(problem):
            self._fruitless_count += 1
        api_error = problem if isinstance(problem, errors.ApiError) else None
        is_too_large = api_error and api_error.has_cause(errors.REASON_RESOURCE_VERSION_TOO_LARGE)
        if self._fruitless_count >= _FRUITLESS_LIMIT or is_too_large:
            self._discard_unusable_version(str(problem))
        retry_after_s = api_error.retry_after if api_error else None
        await asyncio.sleep(max(self._streak.next_delay(clock.monotonic()), retry_after_s or 0.0))

    def _discard_unusable_version(self, why: str) -> None:
        """Discard the version, so that a new list follows; after a failed watch-list, use pages."""
        self._fruitless_count = 0
        if self.version is None and self._watch_list:
            self._fall_back(why)
        self.version = None

    def _record_contact(self) -> None:
        self.last_contact = clock.monotonic()


def _is_independent_of_version(problem: Exception) -> bool:
    """Return whether the requested resourceVersion cannot be the cause of a failure."""
    if isinstance(problem, errors.Unreachable):
        return problem.kind in ("refused", "timeout", "tls", "credentials")
    if isinstance(problem, errors.ServerError):
        return problem.status in (502, 503)
    return isinstance(problem, errors.TooManyRequests | errors.Unauthorized | errors.Forbidden)


_RESYNC_CHUNK = 500
"""Objects that a resync delivers before other tasks run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventHandler(Generic[T]):
    """Callbacks of one handler; see `Informer.add_handler`."""

    name: str
    on_add: Callable[[T, bool], object] | None = None
    on_update: Callable[[T, T], object] | None = None
    on_delete: Callable[[T, bool], object] | None = None


class Informer(Generic[T]):
    """Cache of one kind, with event handlers.

    Args:
        source: resource to list and watch.
        resource: plural name of the resource, for logs and metrics.
        resync_s: minimum seconds between two resyncs, multiplied by a random factor in [1, 2). A
            resync calls `on_update` for every object. 0 = no resyncs.
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
        """Cached objects; complete when `has_synced` is True."""
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
        """Return a synced, empty informer for a kind that is not watched; do not run it."""
        source = cast("ListWatch[T]", None)  # never called
        informer = cls(source, resource=kind.plural)
        informer.mark_synced()
        return informer

    @property
    def has_synced(self) -> bool:
        """Whether the handlers were called for all objects of the first list."""
        return self._synced.is_set()

    @property
    def last_contact(self) -> float | None:
        """Monotonic time of the last message of the server; None before the first message."""
        return self._reflector.last_contact

    @property
    def outage_since(self) -> float | None:
        """Monotonic start time of the current outage; None = no outage."""
        return self._reflector.outage_since

    @property
    def last_outage(self) -> tuple[float, float]:
        """Monotonic start and end of the last outage that ended; (0, 0) = no outage ended yet."""
        return self._reflector.outage.last_period

    @property
    def malformed_keys(self) -> Collection[str]:
        """Keys of existing objects whose newest state could not be decoded.

        The store has an earlier state of these objects, or lacks them; neither is a reason to
        delete anything. An empty key stands for objects whose name is unreadable.
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
        """Add callbacks for changes; call `on_add` at once for each cached object.

        Args:
            name: name of the handler in logs.
            on_add: called with the object, and whether it is an initial one: in the first list, or
                already cached when the handler is added.
            on_update: called with the old and the new object, which are the same in a resync. The
                UIDs differ if the object was recreated while no watch was open.
            on_delete: called with the last known state of a removed object, and whether its
                deletion was observed. True: an event reported the deletion, or the object was
                already being deleted. False: a new list merely lacks the object, or the event
                could not be decoded. At the time of the call the store no longer has the object.
        """
        handler = EventHandler(name=name, on_add=on_add, on_update=on_update, on_delete=on_delete)
        self._handlers.append(handler)
        for obj in self.store.list():
            self._call(handler, on_add, obj, True)
        return handler

    def remove_handler(self, handler: EventHandler[T]) -> None:
        """Remove the callbacks of a handler; without effect if they were removed already."""
        if handler in self._handlers:
            self._handlers.remove(handler)

    # --- called by the reflector -----------------------------------------------------------------

    def upsert(self, obj: T) -> None:
        """Store an object and call the handlers, unless its resourceVersion is unchanged."""
        old = self.store.get(obj.key)
        # A new list also has the objects that did not change.
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
        """Remove an object and call the handlers.

        Args:
            key: key of the object.
            last: state of the object in the deletion event; None = a new list lacks the object, or
                the event could not be decoded.
        """
        old = self.store.pop(key)
        if old is None:
            return
        seen = last is not None or old.is_deleting
        for handler in tuple(self._handlers):
            self._call(handler, handler.on_delete, last or old, seen)

    def mark_synced(self) -> None:
        """Mark the first list as complete."""
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
        """Wait until the first list is complete.

        Raises:
            TimeoutError: the wait took longer than `timeout_s` seconds.
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
    """Informers by kind and namespace, created on first use.

    Args:
        client: client that all informers share.
        resync_s: see `Informer`.
        settings: settings of the reflectors.
    """

    def __init__(
        self, client: Client, *, resync_s: float = 0.0, settings: ReflectorSettings = DEFAULTS
    ) -> None:
        self._client = client
        self._resync_s = resync_s
        self._settings = settings
        self._informers: dict[tuple[ResourceKind[Any], str], Informer[Any]] = {}
        self._group: tasks.NamedTaskGroup | None = None

    def informer_for(self, kind: ResourceKind[T], *, namespace: str = "") -> Informer[T]:
        """Return the shared informer of a kind, for one namespace or all (empty).

        A new informer starts at once if `run` is active.
        """
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
        """Whether all informers have synced."""
        return all(informer.has_synced for informer in self._informers.values())

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until all informers have synced, for at most `timeout_s` seconds.

        Raises:
            TimeoutError: the time limit was exceeded; the message names an informer that has not
                synced.
        """
        deadline = clock.monotonic() + timeout_s
        for informer in self.all:
            await informer.wait_synced(deadline - clock.monotonic())

    async def run(self) -> None:
        """Run all informers until cancelled, including informers that are created later."""
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
