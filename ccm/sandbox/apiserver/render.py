"""How objects are sent: whole, as metadata only, or as rows of a table.

The `Accept` header chooses. Whole objects are sent as the bytes they are stored in; a
list's items leave out kind and version, as kube-apiserver's do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ccm.sandbox.apiserver import errors, kinds
from ccm.sandbox.apiserver import store as stores

JSON = "application/json"
_META = "meta.k8s.io"


class ListMeta(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The metadata of a list or a page of one."""

    resource_version: str
    next_token: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class Whole:
    """Objects as they are stored."""

    def __init__(self, kind: str, api_version: str) -> None:
        self._list_head = b'{"kind":"%bList","apiVersion":"%b","metadata":' % (
            kind.encode(),
            api_version.encode(),
        )
        self._skipped = len(f'{{"kind":"{kind}","apiVersion":"{api_version}",')

    def one(self, entry: stores.Entry) -> bytes:
        """A single object."""
        return entry.raw

    def event(self, entry: stores.Entry) -> bytes:
        """The object of a watch event."""
        return self.one(entry)

    def many(self, entries: Iterable[stores.Entry], meta: ListMeta) -> bytes:
        """A list."""
        items = b",".join([b"{" + self.one(entry)[self._skipped :] for entry in entries])
        return b'%b%b,"items":[%b]}\n' % (self._list_head, msgspec.json.encode(meta), items)


class Metadata(Whole):
    """Only the metadata of objects."""

    def __init__(self) -> None:
        super().__init__("PartialObjectMetadata", f"{_META}/v1")
        self._skipped = 1

    def one(self, entry: stores.Entry) -> bytes:
        """A PartialObjectMetadata."""
        return msgspec.json.encode(_partial(entry.body()))


class Table(Whole):
    """Rows of cells; a watch repeats the column definitions in its first event only."""

    def __init__(self, kind: kinds.Kind, *, version: str, include: str) -> None:
        self._columns = kind.columns
        self._version = version
        self._include = include
        self._told_columns = False

    def one(self, entry: stores.Entry) -> bytes:
        """A table of one row."""
        return self.many([entry], ListMeta(str(entry.revision)))

    def many(self, entries: Iterable[stores.Entry], meta: ListMeta) -> bytes:
        """A table of all rows."""
        return self._table(entries, meta, [column.definition() for column in self._columns])

    def event(self, entry: stores.Entry) -> bytes:
        """A table of one row."""
        if not self._told_columns:
            self._told_columns = True
            return self.one(entry)
        return self._table([entry], ListMeta(str(entry.revision)), None)

    def _table(self, entries: Iterable[stores.Entry], meta: ListMeta, columns: Any) -> bytes:
        table = {
            "kind": "Table",
            "apiVersion": f"{_META}/{self._version}",
            "metadata": meta,
            "columnDefinitions": columns,
            "rows": [self._row(entry.body()) for entry in entries],
        }
        return msgspec.json.encode(table)

    def _row(self, body: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {"cells": [column.value(body) for column in self._columns]}
        if self._include != "None":
            row["object"] = body if self._include == "Object" else _partial(body)
        return row


def choose(kind: kinds.Kind, accept: str, query: Mapping[str, str]) -> Whole:
    """The renderer for the first acceptable alternative of an Accept header.

    Raises:
        ApiError: 406, none of them can be sent.
    """
    for media, parameters in _alternatives(accept):
        form = parameters.get("as", "")
        if media not in (JSON, "application/*", "*/*") or (form and parameters.get("g") != _META):
            continue
        if not form:
            return Whole(kind.kind, kind.api_version)
        if form == "Table" and parameters.get("v") in ("v1", "v1beta1"):
            include = query.get("includeObject", "")
            return Table(kind, version=parameters["v"], include=include)
        if form in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return Metadata()
    text = f"406: Not Acceptable\n\nAvailable representations: {JSON}"
    raise errors.ApiError(406, "NotAcceptable", text)


def _alternatives(accept: str) -> Iterator[tuple[str, dict[str, str]]]:
    for part in (accept or "*/*").split(","):
        media, *rest = (piece.strip() for piece in part.split(";"))
        pairs = (piece.partition("=") for piece in rest)
        yield media, {key: value for key, _, value in pairs}


def _partial(body: dict[str, Any]) -> dict[str, Any]:
    head = {"kind": "PartialObjectMetadata", "apiVersion": f"{_META}/v1"}
    return {**head, "metadata": body["metadata"]}
