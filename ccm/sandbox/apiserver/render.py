"""How objects are sent: whole, as metadata only, or as rows of a table.

The `Accept` header chooses. Whole objects are sent as the bytes they are stored in; a
list's items leave out kind and version, as kube-apiserver's do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from ccm.sandbox.apiserver import errors, kinds, tables
from ccm.sandbox.apiserver import store as stores

JSON = "application/json"
_META = "meta.k8s.io"
_OFFERED = (JSON,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListMeta:
    """The metadata of a list or a page of one."""

    revision: int
    next_token: str = ""
    remaining: int | None = None

    def encode(self) -> bytes:
        """The JSON object."""
        found: dict[str, Any] = {"resourceVersion": str(self.revision)}
        if self.next_token:
            found["continue"] = self.next_token
        if self.remaining is not None:
            found["remainingItemCount"] = self.remaining
        return msgspec.json.encode(found)


class Renderer(Protocol):
    """One way to send objects of a kind."""

    def one(self, entry: stores.Entry) -> bytes:
        """A single object."""
        ...

    def many(self, entries: Iterable[stores.Entry], meta: ListMeta) -> bytes:
        """A list."""
        ...

    def event(self, entry: stores.Entry) -> bytes:
        """The object of a watch event."""
        ...


class Whole:
    """Objects as they are stored."""

    def __init__(self, kind: kinds.Kind) -> None:
        self._kind = kind
        self._head = len(b'{"kind":"%b","apiVersion":"%b",' % _names(kind.kind, kind.api_version))

    def one(self, entry: stores.Entry) -> bytes:
        """The stored bytes."""
        return entry.raw

    event = one

    def many(self, entries: Iterable[stores.Entry], meta: ListMeta) -> bytes:
        """The stored bytes of each, without their kind and version."""
        head = self._head
        items = b",".join([b"{" + entry.raw[head:] for entry in entries])
        names = _names(self._kind.list_kind, self._kind.api_version)
        return b'{"kind":"%b","apiVersion":"%b","metadata":%b,"items":[%b]}\n' % (
            *names,
            meta.encode(),
            items,
        )


class Metadata:
    """Only the metadata of objects."""

    def one(self, entry: stores.Entry) -> bytes:
        """A PartialObjectMetadata."""
        return msgspec.json.encode(_partial(entry.body()))

    event = one

    def many(self, entries: Iterable[stores.Entry], meta: ListMeta) -> bytes:
        """A PartialObjectMetadataList."""
        items = b",".join([self.one(entry) for entry in entries])
        return (
            b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",'
            b'"metadata":%b,"items":[%b]}\n' % (meta.encode(), items)
        )


class Table:
    """Rows of cells; a watch repeats the column definitions in its first event only."""

    def __init__(self, kind: kinds.Kind, *, version: str, include: str) -> None:
        self._layout = tables.layout(kind.kind)
        self._version = version
        self._include = include
        self._told_columns = False

    def one(self, entry: stores.Entry) -> bytes:
        """A table of one row."""
        return self._table([entry], ListMeta(revision=entry.revision), columns=True)

    def many(self, entries: Iterable[stores.Entry], meta: ListMeta) -> bytes:
        """A table of all rows."""
        return self._table(entries, meta, columns=True)

    def event(self, entry: stores.Entry) -> bytes:
        """A table of one row, with columns the first time."""
        first, self._told_columns = not self._told_columns, True
        return self._table([entry], ListMeta(revision=entry.revision), columns=first)

    def _table(self, entries: Iterable[stores.Entry], meta: ListMeta, *, columns: bool) -> bytes:
        table = {
            "kind": "Table",
            "apiVersion": f"{_META}/{self._version}",
            "metadata": msgspec.Raw(meta.encode()),
            "columnDefinitions": [column.definition() for column in self._layout.columns]
            if columns
            else None,
            "rows": [self._row(entry.body()) for entry in entries],
        }
        return msgspec.json.encode(table)

    def _row(self, body: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {"cells": self._layout.cells(body)}
        if self._include == "Object":
            row["object"] = body
        elif self._include != "None":
            row["object"] = _partial(body)
        return row


def choose(kind: kinds.Kind, accept: str, query: Mapping[str, str]) -> Renderer:
    """The renderer for the first acceptable alternative of an Accept header.

    Raises:
        ApiError: 406, none of them can be sent.
    """
    for media, parameters in alternatives(accept):
        if media not in (JSON, "application/*", "*/*"):
            continue
        form = parameters.get("as", "")
        if not form:
            return Whole(kind)
        if parameters.get("g") != _META:
            continue
        if form == "Table" and parameters.get("v") in ("v1", "v1beta1"):
            include = query.get("includeObject", "")
            return Table(kind, version=parameters["v"], include=include)
        if form in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return Metadata()
    raise errors.not_acceptable(_OFFERED)


def alternatives(accept: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The media types of an Accept header with their parameters, in its order."""
    for part in (accept or "*/*").split(","):
        media, *rest = (piece.strip() for piece in part.split(";"))
        pairs = (piece.partition("=") for piece in rest)
        yield media, {key: value for key, _, value in pairs}


def _partial(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"{_META}/v1",
        "metadata": body["metadata"],
    }


def _names(kind: str, version: str) -> tuple[bytes, bytes]:
    return kind.encode(), version.encode()
