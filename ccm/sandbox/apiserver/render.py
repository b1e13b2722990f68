"""How objects are sent: whole, or as rows of a table.

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
        self._list_head = f'{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":'.encode()
        self._skipped = len(f'{{"kind":"{kind}","apiVersion":"{api_version}",')

    def one(self, entry: stores.Entry) -> bytes:
        """A single object."""
        return entry.raw

    def many(self, entries: Iterable[stores.Entry], meta: ListMeta) -> bytes:
        """A list."""
        items = b",".join([b"{" + self.one(entry)[self._skipped :] for entry in entries])
        return b'%b%b,"items":[%b]}\n' % (self._list_head, msgspec.json.encode(meta), items)


class Table(Whole):
    """Rows of cells."""

    def __init__(self, kind: kinds.Kind, *, include: str) -> None:
        self._columns = kind.columns
        self._include = include

    def one(self, entry: stores.Entry) -> bytes:
        """A table of one row."""
        return self.many([entry], ListMeta(str(entry.revision)))

    def many(self, entries: Iterable[stores.Entry], meta: ListMeta) -> bytes:
        """A table of all rows."""
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
        if form == "Table" and parameters.get("v") == "v1":
            return Table(kind, include=query.get("includeObject", ""))
    text = f"406: Not Acceptable\n\nAvailable representations: {JSON}"
    raise errors.ApiError(406, "NotAcceptable", text)


def _alternatives(accept: str) -> Iterator[tuple[str, dict[str, str]]]:
    for part in (accept or "*/*").split(","):
        media, *rest = (piece.strip() for piece in part.split(";"))
        pairs = (piece.partition("=") for piece in rest)
        yield media, {key: value for key, _, value in pairs}
