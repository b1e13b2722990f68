"""The reflector: keeps a sink equal to what the API server has of one kind.

It opens a watch that begins with the present objects (watch-list). Where the server
refuses that, or does not understand it, it lists in pages instead and watches from
there, and remembers. A watch that ends is resumed at the last version seen, bookmarks
included; only an expired version (410), or a watch that gets nowhere several times in a
row, leads to a new list. After a new list the sink hears of what really differs:
objects that are gone, new ones, and changed ones as updates.

All failures go through one back-off. An outage is logged when it starts and when it
ends, and not in between. Counterpart in client-go: Reflector.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ccm.base import clock, metrics, tasks
from ccm.base.backoff import Exponential, Streak
from ccm.base.log import Outage, logger
from ccm.kube import errors
from ccm.kube.client import Page, WatchEvent
from ccm.model.meta import KubeObject

T = TypeVar("T", bound=KubeObject)
V = TypeVar("V")
T_contra = TypeVar("T_contra", bound=KubeObject, contravariant=True)

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


class Sink(Protocol[T_contra]):
    """Where a reflector writes."""

    def keys(self) -> Collection[str]:
        """Keys of what the sink holds."""

    def upsert(self, obj: T_contra) -> None:
        """This is the object's state now."""

    def remove(self, key: str, last: T_contra | None = None) -> None:
        """The object is gone; `last` is its final state where that is known."""

    def complete(self) -> None:
        """Everything there is has been delivered at least once."""


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


class _Unseen:
    """What the sink holds and a new list did not show yet: in the end, what is gone."""

    def __init__(self, keys: Collection[str]) -> None:
        self._keys = set(keys)
        self.undecodable: set[str] = set()

    def saw(self, key: str, *, readable: bool = True) -> None:
        """The list has this object; an empty key: one without a name."""
        self._keys.discard(key)
        if not readable:
            self.undecodable.add(key)

    @property
    def gone(self) -> Collection[str]:
        """What is gone.

        Nothing, if the list had an object without a readable name: rather keep one that
        is gone than report one gone that is not.
        """
        return () if "" in self.undecodable else self._keys


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
        sink: Sink[T],
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
        self._unseen: _Unseen | None = None
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
        """Whether a watch-list is under way; `_unseen` holds what it did not show yet."""
        return self._unseen is not None

    async def run(self) -> None:
        """List and watch for ever; ends only by cancellation."""
        while True:
            try:
                await self._round()
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

    async def _round(self) -> None:
        """One watch, or one list; returns when the next may follow without a pause."""
        if self.version is not None:
            await self._watch(self.version)
        elif self._watch_list:
            await self._watch_from_start()
        else:
            await self._list()

    async def _list(self) -> None:
        unseen = _Unseen(self._sink.keys())
        token = ""
        while True:
            page = await self._source.list_page(limit=self._settings.page_size, continue_=token)
            self._contact()
            await self._take_page(page, unseen)
            token = page.continue_
            if not token:
                break
        await self._finish_initial(unseen, page.resource_version)
        _lists.labels(self._resource, "pages").inc()

    async def _take_page(self, page: Page[T], unseen: _Unseen) -> None:
        for key in page.malformed_keys:
            unseen.saw(key, readable=False)
            self._mark(key, readable=False)
        for start in range(0, len(page.items), _CHUNK):
            for obj in page.items[start : start + _CHUNK]:
                unseen.saw(obj.key)
                self._mark(obj.key, readable=True)
                self._sink.upsert(obj)
            await asyncio.sleep(0)

    async def _finish_initial(self, unseen: _Unseen, version: str) -> None:
        for number, key in enumerate(unseen.gone, start=1):
            self._sink.remove(key)
            if number % _CHUNK == 0:
                await asyncio.sleep(0)
        # Those this list had, and which were not decoded since.
        self.undecodable &= unseen.undecodable
        self._undecodable.set(len(self.undecodable))
        self.version = version
        self._unseen = None
        self._fruitless = 0
        self._progress = True
        self._sink.complete()
        self.trouble.is_over()

    async def _watch_from_start(self) -> None:
        self._unseen = _Unseen(self._sink.keys())
        try:
            await self._watch("")
        except errors.ApiError as refusal:
            if not self._is_initial or refusal.status not in _REFUSALS:
                raise
            self._fall_back(str(refusal))
        except _Ignored as ignorance:
            self._fall_back(str(ignorance))
        finally:
            self._unseen = None

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
            if event.initial_events_end and self._unseen is not None:
                await self._finish_initial(self._unseen, event.resource_version)
                _lists.labels(self._resource, "watch-list").inc()
            count += 1
            if count % _CHUNK == 0:
                await asyncio.sleep(0)

    def _take_event(self, event: WatchEvent[T]) -> None:
        is_known = event.object is not None or (event.wire_type == "DELETED" and event.key != "")
        if is_known:
            self._mark(event.key, readable=True)
        if event.object is not None and event.type == "DELETED":
            self._sink.remove(event.object.key, event.object)
        elif event.object is not None:
            self._sink.upsert(event.object)
        elif is_known:
            self._sink.remove(event.key)
        elif event.type == "MALFORMED":
            self._mark(event.key, readable=False)
        if self._unseen is not None:
            # A bookmark in between is no place to go on from: what was not told yet would be
            # missing, and what is gone would stay.
            if event.type != "BOOKMARK":
                self._unseen.saw(event.key, readable=event.type != "MALFORMED")
        elif event.resource_version and event.resource_version != self.version:
            self.version = event.resource_version
            self._progress = True

    def _mark(self, key: str, *, readable: bool) -> None:
        if self.undecodable or not readable:
            (self.undecodable.discard if readable else self.undecodable.add)(key)
            self._undecodable.set(len(self.undecodable))

    async def _recover(self, problem: Exception) -> None:
        """Count and log a failure, decide where to go on, and pause."""
        self._failures.inc()
        self.trouble.goes_on(error=str(problem))
        if not self._progress and not _is_about_the_way(problem):
            self._fruitless += 1
        if self._fruitless >= _FRUITLESS_LIMIT or _is_version_too_large(problem):
            self._start_over(str(problem))
        asked = problem.retry_after if isinstance(problem, errors.ApiError) else None
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


def _is_version_too_large(problem: Exception) -> bool:
    return isinstance(problem, errors.ApiError) and problem.has_cause(
        errors.REASON_RESOURCE_VERSION_TOO_LARGE
    )
