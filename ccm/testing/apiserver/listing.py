r"""Lists and watches: options and selectors, and responses as objects or tables.

A watch reads the collection's history at its own pace, so that a slow reader delays no other. The
stream ends when the reader's revision has expired.

Label selectors are those of `ccm.model.selectors`. Field selectors: `path=value`, `path==value`,
`path!=value`, joined by commas; `\,`, `\=` and `\\` in a value stand for the plain characters.
"""

from __future__ import annotations

import asyncio
import base64
import bisect
import contextlib
import dataclasses
import random
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from ccm.model import names
from ccm.model.selectors import BadSelectorError, Requirement, parse_labels
from ccm.testing.apiserver import api, errors, kinds
from ccm.testing.apiserver import store as stores

BOOKMARK_INTERVAL_S = 60.0
"""Seconds between bookmarks, for watchers that request them (kube-apiserver)."""

_MIN_TIMEOUT_S = 1800.0
_CHUNK_FRAMES = 256
_META = "meta.k8s.io"

Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A namespace, and requirements on labels and fields; an empty selector matches everything."""

    namespace: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, entry: stores.StoredObject) -> bool:
        return (
            (not self.namespace or entry.key.startswith(f"{self.namespace}/"))
            and all(term.matches(entry.labels) for term in self.labels)
            and all(term.matches(entry.fields) for term in self.fields)
        )


class _Continue(msgspec.Struct, frozen=True, kw_only=True):
    """Decoded continue token: revision of the list, and lower bound of the next page's keys."""

    rv: int
    start: str


class ListOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Options of a list or watch.

    `limit` 0 means no limit; `timeout_s` None means that the server chooses.
    """

    selector: Selector = Selector()
    page: _Continue | None = None
    resource_version: Count | None = None
    limit: Count = 0
    allow_watch_bookmarks: bool = False
    send_initial_events: bool | None = None
    timeout_s: Count | None = msgspec.field(name="timeoutSeconds", default=None)


def list_options(kind: kinds.ServedKind, namespace: str, query: Mapping[str, str]) -> ListOptions:
    """Return the options of a list or watch; an empty namespace means all namespaces.

    Raises:
        StatusError: a parameter is malformed.
    """
    try:
        labels = parse_labels(query.get("labelSelector", ""))
        fields = _parse_fields(kind, query.get("fieldSelector", ""))
    except BadSelectorError as error:
        raise errors.bad_request(str(error)) from error
    page = None
    if token := query.get("continue"):
        try:
            page = msgspec.json.decode(base64.urlsafe_b64decode(token), type=_Continue)
        except (msgspec.DecodeError, ValueError) as error:
            raise errors.bad_request(f"invalid continue token: {error}") from error
    selector = Selector(namespace=namespace, labels=labels, fields=fields)
    return msgspec.structs.replace(
        api.parse_options(ListOptions, query), selector=selector, page=page
    )


def _parse_fields(kind: kinds.ServedKind, text: str) -> tuple[Requirement, ...]:
    known = {name for name, _, _ in kind.selectable} | {"metadata.name"}
    if kind.namespaced:
        known.add("metadata.namespace")
    terms = []
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        match = re.fullmatch(r"(.*?)(!=|==|=)(.*)", part, re.DOTALL)
        if match is None:
            raise BadSelectorError(f"invalid selector: '{text}'; can't understand '{part}'")
        key, operator, value = match.groups()
        if key not in known:
            raise BadSelectorError(f"field label not supported: {key}")
        plain = re.sub(r"\\([\\,=])", r"\1", value)
        terms.append(Requirement(key=key, values=frozenset((plain,)), wanted=operator != "!="))
    return tuple(terms)


class ListResponseMeta(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Metadata of a list or of one of its pages."""

    resource_version: str
    next_token: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


def page(
    store: stores.ObjectStore, kind: kinds.ServedKind, options: ListOptions
) -> tuple[list[stores.StoredObject], ListResponseMeta]:
    """Return the selected objects of a kind, or a page of them.

    A later page has current objects, but the revision of the first page: a client that afterwards
    watches from that revision gets every change.

    Raises:
        HistoryExpiredError: the revision of the first page has expired.
    """
    collection, revision = store.collection(kind), store.revision
    entries = list(collection)
    if options.page is not None:
        revision = options.page.rv
        collection.changes(revision)
        start = bisect.bisect_left(entries, options.page.start, key=lambda entry: entry.key)
        entries = entries[start:]
    entries = [candidate for candidate in entries if options.selector.matches(candidate)]
    limit = options.limit if options.resource_version != 0 else 0
    if not 0 < limit < len(entries):
        return entries, ListResponseMeta(str(revision))
    following = _Continue(rv=revision, start=entries[limit - 1].key + "\0")
    token = base64.urlsafe_b64encode(msgspec.json.encode(following)).decode()
    return entries[:limit], ListResponseMeta(str(revision), token, len(entries) - limit)


# --- renderers -----------------------------------------------------------------------------------


class ObjectRenderer:
    """Renders objects as stored; the items of a list lack `kind` and `apiVersion`."""

    def __init__(self, kind: kinds.ServedKind) -> None:
        head = f'"kind":"{kind.kind}List","apiVersion":"{kind.api_version}"'
        self._list_head = f'{{{head},"metadata":'.encode()
        self._skipped = len(f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}",')

    def render_object(self, entry: stores.StoredObject) -> bytes:
        """Return a single object."""
        return entry.raw

    def render_list(self, entries: Iterable[stores.StoredObject], meta: ListResponseMeta) -> bytes:
        """Return a list."""
        items = b",".join([b"{" + entry.raw[self._skipped :] for entry in entries])
        return b'%b%b,"items":[%b]}\n' % (self._list_head, msgspec.json.encode(meta), items)


class TableRenderer(ObjectRenderer):
    """Renders objects as rows of a table."""

    def __init__(self, kind: kinds.ServedKind, *, include: str) -> None:
        self._columns = kind.columns
        self._include = include

    def render_object(self, entry: stores.StoredObject) -> bytes:
        """Return a table of one row."""
        return self.render_list([entry], ListResponseMeta(str(entry.revision)))

    def render_list(self, entries: Iterable[stores.StoredObject], meta: ListResponseMeta) -> bytes:
        """Return a table of all rows."""
        table = {
            "kind": "Table",
            "apiVersion": f"{_META}/v1",
            "metadata": meta,
            "columnDefinitions": [column.definition() for column in self._columns],
            "rows": [self._row(entry.body()) for entry in entries],
        }
        return msgspec.json.encode(table)

    def _row(self, body: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {"cells": [column.value(body) for column in self._columns]}
        if self._include != "None":
            head = {"kind": "PartialObjectMetadata", "apiVersion": f"{_META}/v1"}
            partial = {**head, "metadata": body["metadata"]}
            row["object"] = body if self._include == "Object" else partial
        return row


def renderer(kind: kinds.ServedKind, accept: str = "", include: str = "") -> ObjectRenderer:
    """Return the renderer for the first supported media type of an Accept header.

    Raises:
        StatusError: 406, no media type is supported.
    """
    for part in (accept or "*/*").split(","):
        media, *rest = (piece.strip() for piece in part.split(";"))
        if media in (api.JSON, "application/*", "*/*"):
            if not any(piece.startswith("as=") for piece in rest):
                return ObjectRenderer(kind)
            if {"as=Table", "v=v1", f"g={_META}"} <= set(rest):
                return TableRenderer(kind, include=include)
    raise errors.StatusError(406, "NotAcceptable", f"only {api.JSON} is supported")


# --- watches -------------------------------------------------------------------------------------


async def stream(
    store: stores.ObjectStore,
    kind: kinds.ServedKind,
    options: ListOptions,
    renderer: ObjectRenderer,
) -> AsyncIterator[bytes]:
    """Yield chunks of newline-terminated JSON events.

    The stream ends at its time-out, when its revision has expired, or when the store is closed. A
    watch from a future revision yields nothing until the store has passed it.
    """
    loop = asyncio.get_running_loop()
    # Jitter, so that watches that began together do not end together.
    ends = loop.time() + (options.timeout_s or _MIN_TIMEOUT_S * (1 + random.random()))
    place = options.resource_version or 0
    if options.send_initial_events or not place:
        place = store.revision
        if options.send_initial_events is not False:
            frames = [
                _frame("ADDED", renderer.render_object(entry))
                for entry in store.collection(kind)
                if options.selector.matches(entry)
            ]
            if options.send_initial_events and options.allow_watch_bookmarks:
                frames.append(
                    _bookmark(kind, place, annotations={names.INITIAL_EVENTS_END: "true"})
                )
            for chunk in _chunks(frames):
                yield chunk
    collection = store.collection(kind)
    next_bookmark = loop.time() + BOOKMARK_INTERVAL_S
    while True:
        try:
            changes = collection.changes(place)
        except stores.HistoryExpiredError as error:
            yield _frame("ERROR", msgspec.json.encode(error.status()))
            return
        for chunk in _chunks(_frames(changes, options.selector, renderer)):
            yield chunk
        now = loop.time()
        if now >= ends or store.is_closed:
            return
        if changes:
            # Sending takes time: look for further changes before waiting.
            place = changes[-1].entry.revision
            continue
        if options.allow_watch_bookmarks and now >= next_bookmark:
            next_bookmark = now + BOOKMARK_INTERVAL_S
            # All changes of this kind up to the store's revision were sent.
            place = max(place, store.revision)
            yield _bookmark(kind, place)
            continue
        wait_s = min(ends, next_bookmark if options.allow_watch_bookmarks else ends) - now
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await collection.wait_for_change()


def _frames(
    changes: Sequence[stores.StoredChange], selector: Selector, renderer: ObjectRenderer
) -> list[bytes]:
    """Return the events of changes, as seen through the selector.

    An object that begins to match is ADDED. An object that no longer matches is DELETED, in its
    last matching state and at the revision of the change.
    """
    frames = []
    for change in changes:
        was = change.previous is not None and selector.matches(change.previous)
        is_in = selector.matches(change.entry)
        is_gone = change.type == "DELETED"
        if was and (is_gone or not is_in):
            last = change.entry if is_gone else _last_match(change)
            frames.append(_frame("DELETED", renderer.render_object(last)))
        elif is_in and not is_gone:
            name = "MODIFIED" if was else "ADDED"
            frames.append(_frame(name, renderer.render_object(change.entry)))
    return frames


def _last_match(change: stores.StoredChange) -> stores.StoredObject:
    assert change.previous is not None
    body = change.previous.body()
    body["metadata"]["resourceVersion"] = str(change.entry.revision)
    return dataclasses.replace(change.previous, raw=msgspec.json.encode(body))


def _frame(name: str, body: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (name.encode(), body)


def _bookmark(kind: kinds.ServedKind, revision: int, **metadata: Mapping[str, str]) -> bytes:
    body = kind.clean({"metadata": {"resourceVersion": str(revision), **metadata}})
    return _frame("BOOKMARK", msgspec.json.encode(body))


def _chunks(frames: list[bytes]) -> list[bytes]:
    """Join frames into chunks of `_CHUNK_FRAMES`."""
    places = range(0, len(frames), _CHUNK_FRAMES)
    return [b"".join(frames[place : place + _CHUNK_FRAMES]) for place in places]
