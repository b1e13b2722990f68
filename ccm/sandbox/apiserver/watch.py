"""Watch streams: what a watcher is told, in which order, and when it ends.

`stream` yields chunks of newline-terminated JSON events. It reads the collection's
history at its own pace: a slow reader delays nobody. When a reader has fallen behind so far
that its place is forgotten, the stream ends as for any other too old revision.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator

import msgspec

from ccm.model import names
from ccm.sandbox.apiserver import decode, kinds, query, render
from ccm.sandbox.apiserver import store as stores

BOOKMARK_INTERVAL_S = 60.0
"""How often a watcher that wants bookmarks gets one; kube-apiserver's period."""

_MIN_TIMEOUT_S = 1800.0
_CHUNK_FRAMES = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One watcher's wishes; `namespace` is empty for all of them."""

    kind: kinds.Kind
    namespace: str
    options: query.ListOptions
    renderer: render.Whole
    bookmark_interval_s: float = BOOKMARK_INTERVAL_S


async def stream(store: stores.Store, watch: Watch) -> AsyncIterator[bytes]:
    """The chunks of a watch, until its time is over, its place is forgotten or the store
    is closed.

    A start in the future says nothing until the store has passed it.
    """
    loop = asyncio.get_running_loop()
    options = watch.options
    # Spread, so that watches that began together do not end together.
    ends = loop.time() + (options.timeout_s or _MIN_TIMEOUT_S * (1 + random.random()))
    place = options.revision or 0
    if options.initial_events or not place:
        place = store.revision
        if options.initial_events is not False:
            for chunk in _initial(store, watch):
                yield chunk
    collection = store.collection(watch.kind)
    next_bookmark = loop.time() + watch.bookmark_interval_s
    while True:
        try:
            changes = collection.changes(place)
        except stores.HistoryExpiredError as error:
            yield _frame("ERROR", msgspec.json.encode(error.status()))
            return
        for chunk in _chunks(_frames(watch, changes)):
            yield chunk
        now = loop.time()
        if now >= ends or store.is_closed:
            return
        if changes:
            # Sending may have taken time, in which more may have come.
            place = changes[-1].entry.revision
            continue
        if options.bookmarks and now >= next_bookmark:
            next_bookmark = now + watch.bookmark_interval_s
            # Everything up to the store's revision that concerns this kind was sent.
            place = max(place, store.revision)
            yield _bookmark(watch, place)
            continue
        wait_s = min(ends, next_bookmark if options.bookmarks else ends) - now
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await collection.changed()


def _initial(store: stores.Store, watch: Watch) -> list[bytes]:
    frames = [
        _frame("ADDED", watch.renderer.one(entry))
        for entry in store.collection(watch.kind)
        if _selects(watch, entry)
    ]
    if watch.options.initial_events and watch.options.bookmarks:
        frames.append(_bookmark(watch, store.revision, initial_end=True))
    return _chunks(frames)


def _frames(watch: Watch, changes: list[stores.Change]) -> list[bytes]:
    """The events of changes, as seen through the selector.

    An object that begins to match is added, one that ceases to match is deleted: in
    its last matching state, but at the revision of the change.
    """
    frames = []
    for change in changes:
        was = change.previous is not None and _selects(watch, change.previous)
        is_in = _selects(watch, change.entry)
        is_gone = change.type == "DELETED"
        if was and (is_gone or not is_in):
            last = change.entry if is_gone else _last_match(change)
            frames.append(_frame("DELETED", watch.renderer.one(last)))
        elif is_in and not is_gone:
            name = "MODIFIED" if was else "ADDED"
            frames.append(_frame(name, watch.renderer.one(change.entry)))
    return frames


def _selects(watch: Watch, entry: stores.Entry) -> bool:
    if watch.namespace and not entry.key.startswith(f"{watch.namespace}/"):
        return False
    selector = watch.options.selector
    return selector.is_empty or selector.matches(entry.labels, entry.fields)


def _last_match(change: stores.Change) -> stores.Entry:
    assert change.previous is not None
    body = change.previous.body()
    body["metadata"]["resourceVersion"] = str(change.entry.revision)
    return dataclasses.replace(change.previous, raw=msgspec.json.encode(body))


def _frame(name: str, body: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (name.encode(), body)


def _bookmark(watch: Watch, revision: int, *, initial_end: bool = False) -> bytes:
    metadata: dict[str, object] = {"resourceVersion": str(revision)}
    if initial_end:
        metadata["annotations"] = {names.INITIAL_EVENTS_END: "true"}
    body = decode.clean(watch.kind, {"metadata": metadata}, [])
    return _frame("BOOKMARK", msgspec.json.encode(body))


def _chunks(frames: list[bytes]) -> list[bytes]:
    """Frames joined into writes of a moderate size."""
    places = range(0, len(frames), _CHUNK_FRAMES)
    return [b"".join(frames[place : place + _CHUNK_FRAMES]) for place in places]
