"""From the server's bytes to typed objects, one malformed object at a time.

A page or a watch must not be lost because one object in it cannot be decoded: such an
object is counted, logged and left out. Bytes that are no list and no event at all are
trouble with the connection.

The API server stores objects of some 10,000 levels, the decoder takes about 1,000: deeper ones are
taken apart at their first level, so that the rest of a list or watch is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from ccm.base.decoding import UNDECODABLE
from ccm.base.log import logger
from ccm.kube import errors, metrics
from ccm.kube.resources import Bookmark, Envelope, Kind, ListMeta, Named, NameMeta, RawList
from ccm.model import names
from ccm.model.meta import KubeObject, ObjectMeta

T = TypeVar("T", bound=KubeObject)

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "MALFORMED"]

_ENVELOPE = msgspec.json.Decoder(Envelope)
_BOOKMARK = msgspec.json.Decoder(Bookmark)
_NAMED = msgspec.json.Decoder(Named)
_RAW_LIST = msgspec.json.Decoder(RawList)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page of a list.

    Attributes:
        items: the objects that could be decoded.
        resource_version: the version the list shows; where a watch may start.
        continue_: token of the next page; empty on the last one.
        malformed_keys: of each item that was left out because it could not be decoded,
            the key; an empty one where not even the name could be read.
    """

    items: Sequence[T]
    resource_version: str
    continue_: str = ""
    malformed_keys: Sequence[str] = ()


class WatchEvent(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One event of a watch.

    Attributes:
        type: MALFORMED stands for an object that could not be decoded; it was counted
            and logged already. It must not stop the watch.
        object: the object; None for BOOKMARK and MALFORMED.
        resource_version: where to resume after this event; empty when unreadable.
        initial_events_end: True for the bookmark that ends the initial events.
        key: the object's key; readable for most malformed objects too.
        wire_type: the type the server sent; tells a malformed deletion from the rest.
    """

    type: EventType
    object: T | None
    resource_version: str
    initial_events_end: bool = False
    key: str = ""
    wire_type: str = ""


def decode_object(kind: Kind[T], body: bytes) -> T:
    """One object.

    Raises:
        errors.Unreachable: the bytes are no such object; nothing useful was answered.
    """
    try:
        return kind.decode(body)
    except UNDECODABLE as problem:
        raise _garbage(kind, problem) from problem


def decode_page(kind: Kind[T], body: bytes) -> Page[T]:
    """A page, strictly first; if that fails item by item, leaving the bad ones out.

    Raises:
        errors.Unreachable: the bytes are no list.
    """
    try:
        page = kind.page.decode(body)
        # Conversion walks what an object holds: one that is nested too deeply is left out alone.
        items = [kind.converted(one) for one in page.items or ()]
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return _decode_items(kind, body)
    except UNDECODABLE as problem:
        raise _garbage(kind, problem) from problem
    return Page(
        items=items,
        resource_version=page.metadata.resource_version,
        continue_=page.metadata.continue_,
    )


def decode_event(kind: Kind[T], line: bytes) -> WatchEvent[T]:
    """One line of a watch.

    Raises:
        errors.ApiError: the line is an ERROR event; built from its Status.
        errors.Unreachable: the line is no event.
    """
    try:
        change = kind.change.decode(line)
        obj = kind.converted(change.object)
    except UNDECODABLE as problem:
        return _decode_rarity(kind, line, problem)
    return WatchEvent(
        type=change.type,
        object=obj,
        resource_version=obj.resource_version,
        key=obj.key,
        wire_type=change.type,
    )


def _decode_rarity(kind: Kind[T], line: bytes, fault: Exception) -> WatchEvent[T]:
    """A line that is no change of a well-formed object; `fault` says why."""
    try:
        envelope = _envelope(line)
        if envelope.type == "ERROR":
            raise errors.from_status(errors.STATUS.decode(envelope.object))
        if envelope.type == "BOOKMARK":
            return _bookmark(_BOOKMARK.decode(envelope.object).metadata)
    except UNDECODABLE as problem:
        raise _garbage(kind, problem) from problem
    head = _note_malformed(kind, envelope.object, fault)
    return WatchEvent(
        type="MALFORMED",
        object=None,
        resource_version=head.resource_version,
        key=head.key,
        wire_type=envelope.type,
    )


def _decode_items(kind: Kind[T], body: bytes) -> Page[T]:
    try:
        page = _raw_list(body)
    except UNDECODABLE as problem:
        raise _garbage(kind, problem) from problem
    items: list[T] = []
    malformed_keys: list[str] = []
    for raw in page.items or ():
        try:
            items.append(kind.decode(raw))
        except UNDECODABLE as problem:
            malformed_keys.append(_note_malformed(kind, raw, problem).key)
    return Page(
        items=items,
        resource_version=page.metadata.resource_version,
        continue_=page.metadata.continue_,
        malformed_keys=malformed_keys,
    )


def _note_malformed(kind: Kind[T], raw: msgspec.Raw, problem: Exception) -> NameMeta:
    """Count and log an object we cannot decode; its name as far as readable."""
    try:
        head = _name(raw)
    except UNDECODABLE:
        head = NameMeta()
    metrics.malformed(kind.plural).inc()
    logger("kube").warning(
        "object from the API server cannot be decoded and is left out",
        resource=kind.plural,
        key=head.key,
        error=str(problem),
    )
    return head


def _raw_list(body: bytes) -> RawList:
    try:
        return _RAW_LIST.decode(body)
    except RecursionError:
        found = members(body)
        items = split(found.get(b'"items"', b""))
        metadata = msgspec.json.decode(found.get(b'"metadata"', b""), type=ListMeta)
        return RawList(metadata=metadata, items=[msgspec.Raw(one) for one in items])


def _envelope(line: bytes) -> Envelope:
    try:
        return _ENVELOPE.decode(line)
    except RecursionError:
        found = members(line)
        kind = msgspec.json.decode(found.get(b'"type"', b""), type=str)
        return Envelope(type=kind, object=msgspec.Raw(found.get(b'"object"', b"")))


def _name(raw: msgspec.Raw) -> NameMeta:
    try:
        return _NAMED.decode(raw).metadata
    except RecursionError:
        metadata = members(bytes(raw)).get(b'"metadata"', b"")
        return msgspec.json.decode(metadata, type=NameMeta)


def _garbage(kind: Kind[T], problem: Exception) -> errors.Unreachable:
    return errors.Unreachable(
        f"the answer about {kind.plural} makes no sense: {problem}", kind="garbage"
    )


def _bookmark(metadata: ObjectMeta) -> WatchEvent[Any]:
    marks = metadata.annotations or {}
    return WatchEvent(
        type="BOOKMARK",
        object=None,
        resource_version=metadata.resource_version,
        initial_events_end=marks.get(names.INITIAL_EVENTS_END) == "true",
        wire_type="BOOKMARK",
    )


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},:]', re.DOTALL)


def split(text: bytes) -> list[bytes]:
    """Return the items of an array, or the keys and values of an object in turn, undecoded."""
    parts, depth, start = list[bytes](), 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                start = token.end() if depth == 1 else start
            case b"," | b":" if depth == 1:
                parts.append(text[start : token.start()].strip())
                start = token.end()
            case b"]" | b"}":
                depth -= 1
                if depth == 0:
                    last = text[start : token.start()].strip()
                    return [*parts, last] if last else parts
    return parts


def members(text: bytes) -> Mapping[bytes, bytes]:
    """Return the members of an object, undecoded; the names have their quotes."""
    parts = split(text)
    return dict(zip(parts[::2], parts[1::2], strict=False))
