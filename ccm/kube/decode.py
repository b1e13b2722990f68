"""Decoding of the API server's bytes to typed objects; malformed objects are left out.

An object that cannot be decoded is counted, logged and left out, so that the rest of a page or
watch is used. Bytes that are neither a list nor a watch event count as a connection failure.

The API server stores objects with about 10,000 levels of nesting, but the decoder accepts about
1,000. A response with deeper nesting is split at its first level, so that only the deep objects are
left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from ccm.base.decoding import DECODE_ERRORS
from ccm.base.log import logger
from ccm.kube import errors, metrics
from ccm.kube.resources import (
    Bookmark,
    Envelope,
    ListMeta,
    NamedObject,
    NameMeta,
    RawList,
    ResourceKind,
)
from ccm.model import names
from ccm.model.meta import KubeObject, ObjectMeta

T = TypeVar("T", bound=KubeObject)

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "MALFORMED"]

_ENVELOPE = msgspec.json.Decoder(Envelope)
_BOOKMARK = msgspec.json.Decoder(Bookmark)
_NAMED = msgspec.json.Decoder(NamedObject)
_RAW_LIST = msgspec.json.Decoder(RawList)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Page of a list.

    Attributes:
        items: objects that could be decoded.
        resource_version: version of the list, from which a watch may start.
        continue_: token of the next page; empty = this is the last page.
        malformed_keys: keys of the items that could not be decoded; an empty key = the name is
            unreadable too.
    """

    items: Sequence[T]
    resource_version: str
    continue_: str = ""
    malformed_keys: Sequence[str] = ()


class WatchEvent(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Event of a watch.

    Attributes:
        type: type of the event. MALFORMED = the object could not be decoded; `decode_event` has
            counted and logged it, and the watch continues.
        object: the object; None for BOOKMARK and MALFORMED.
        resource_version: resourceVersion to resume from after this event; empty = unreadable.
        initial_events_end: whether this is the bookmark that ends the initial events.
        key: key of the object, also of a malformed object if its name is readable; empty for
            BOOKMARK.
        wire_type: type that the server sent; shows whether a MALFORMED event is a deletion.
    """

    type: EventType
    object: T | None
    resource_version: str
    initial_events_end: bool = False
    key: str = ""
    wire_type: str = ""


def decode_object(kind: ResourceKind[T], body: bytes) -> T:
    """Decode an object.

    Raises:
        errors.Unreachable: the bytes are no object of this kind.
    """
    try:
        return kind.decode(body)
    except DECODE_ERRORS as problem:
        raise _undecodable(kind, problem) from problem


def decode_page(kind: ResourceKind[T], body: bytes) -> Page[T]:
    """Decode a page; if that fails, decode the items one by one and leave malformed items out.

    Raises:
        errors.Unreachable: the bytes are no list.
    """
    try:
        page = kind.page_decoder.decode(body)
        # Conversion is recursive: after a RecursionError only the deep object must be left out.
        items = [kind.convert_document(document) for document in page.items or ()]
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return _decode_items(kind, body)
    except DECODE_ERRORS as problem:
        raise _undecodable(kind, problem) from problem
    return Page(
        items=items,
        resource_version=page.metadata.resource_version,
        continue_=page.metadata.continue_,
    )


def decode_event(kind: ResourceKind[T], line: bytes) -> WatchEvent[T]:
    """Decode a line of a watch.

    Raises:
        errors.ApiError: the line is an ERROR event; the error has the values of its Status.
        errors.Unreachable: the line is no event of a watch.
    """
    try:
        change = kind.change_decoder.decode(line)
        obj = kind.convert_document(change.object)
    except DECODE_ERRORS as problem:
        return _decode_special_event(kind, line, problem)
    return WatchEvent(
        type=change.type,
        object=obj,
        resource_version=obj.resource_version,
        key=obj.key,
        wire_type=change.type,
    )


def _decode_special_event(kind: ResourceKind[T], line: bytes, fault: Exception) -> WatchEvent[T]:
    """Decode a line that is an ERROR, a BOOKMARK, or has a malformed object.

    `fault` is the error of the attempt to decode the object.
    """
    try:
        envelope = _envelope(line)
        if envelope.type == "ERROR":
            raise errors.from_status(errors.STATUS.decode(envelope.object))
        if envelope.type == "BOOKMARK":
            return _bookmark(_BOOKMARK.decode(envelope.object).metadata)
    except DECODE_ERRORS as problem:
        raise _undecodable(kind, problem) from problem
    head = _note_malformed(kind, envelope.object, fault)
    return WatchEvent(
        type="MALFORMED",
        object=None,
        resource_version=head.resource_version,
        key=head.key,
        wire_type=envelope.type,
    )


def _decode_items(kind: ResourceKind[T], body: bytes) -> Page[T]:
    try:
        page = _raw_list(body)
    except DECODE_ERRORS as problem:
        raise _undecodable(kind, problem) from problem
    items: list[T] = []
    malformed_keys: list[str] = []
    for raw in page.items or ():
        try:
            items.append(kind.decode(raw))
        except DECODE_ERRORS as problem:
            malformed_keys.append(_note_malformed(kind, raw, problem).key)
    return Page(
        items=items,
        resource_version=page.metadata.resource_version,
        continue_=page.metadata.continue_,
        malformed_keys=malformed_keys,
    )


def _note_malformed(kind: ResourceKind[T], raw: msgspec.Raw, problem: Exception) -> NameMeta:
    """Count and log a malformed object; return its metadata, empty if unreadable."""
    try:
        head = _name(raw)
    except DECODE_ERRORS:
        head = NameMeta()
    metrics.malformed(kind.plural).inc()
    logger("kube").warning(
        "malformed object skipped", resource=kind.plural, key=head.key, error=str(problem)
    )
    return head


def _raw_list(body: bytes) -> RawList:
    try:
        return _RAW_LIST.decode(body)
    except RecursionError:
        fields = json_members(body)
        items = split_json(fields.get(b'"items"', b""))
        metadata = msgspec.json.decode(fields.get(b'"metadata"', b""), type=ListMeta)
        return RawList(metadata=metadata, items=[msgspec.Raw(item) for item in items])


def _envelope(line: bytes) -> Envelope:
    try:
        return _ENVELOPE.decode(line)
    except RecursionError:
        fields = json_members(line)
        kind = msgspec.json.decode(fields.get(b'"type"', b""), type=str)
        return Envelope(type=kind, object=msgspec.Raw(fields.get(b'"object"', b"")))


def _name(raw: msgspec.Raw) -> NameMeta:
    try:
        return _NAMED.decode(raw).metadata
    except RecursionError:
        metadata = json_members(bytes(raw)).get(b'"metadata"', b"")
        return msgspec.json.decode(metadata, type=NameMeta)


def _undecodable(kind: ResourceKind[T], problem: Exception) -> errors.Unreachable:
    return errors.Unreachable(
        f"the response for {kind.plural} cannot be decoded: {problem}", kind="garbage"
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


def split_json(text: bytes) -> list[bytes]:
    """Return the items of a JSON array, or the keys and values of a JSON object alternately.

    The parts are undecoded.
    """
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


def json_members(text: bytes) -> Mapping[bytes, bytes]:
    """Return the members of a JSON object, undecoded; the names keep their quotes."""
    parts = split_json(text)
    return dict(zip(parts[::2], parts[1::2], strict=False))
