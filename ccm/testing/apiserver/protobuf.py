"""Request bodies in Kubernetes' protobuf encoding, decoded by the schema tables.

Go's typed clients, parts of kubectl among them, send protobuf whether the server has
offered it or not, and take JSON in return. So this server reads it and never
writes it. A field that the tables do not know, or know as anything, is skipped.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ccm.model import times
from ccm.testing.apiserver import schema

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\0"
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}

Wire = int | bytes


def decode(types: Mapping[str, schema.Type], body: bytes) -> dict[str, Any]:
    """The object in an enveloped body, with its kind and version.

    Raises:
        ValueError: the body is not such an envelope, or its kind is unknown.
    """
    if not body.startswith(_MAGIC):
        raise ValueError("the body does not begin with the protobuf marker")
    envelope = dict(_fields(body[len(_MAGIC) :]))
    names = dict(_fields(_bytes(envelope.get(1, b""))))
    version, kind = _text(names.get(1, b"")), _text(names.get(2, b""))
    if kind not in types:
        raise ValueError(f"unknown kind {kind!r}")
    found = _message(types[kind], _bytes(envelope.get(2, b"")))
    return {"kind": kind, "apiVersion": version, **found}


def _message(shape: schema.Type, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    by_number = {field.number: field for field in shape.fields.values()}
    for number, value in _fields(data):
        field = by_number.get(number)
        if field is None:
            continue
        item = field.shape.item
        if item is None:
            found[field.name] = _value(field.shape, value)
        elif field.shape.kind == "list":
            found.setdefault(field.name, []).append(_value(item, value))
        else:
            pair = dict(_fields(_bytes(value)))
            key = _text(pair.get(1, b""))
            found.setdefault(field.name, {})[key] = _value(item, pair.get(2, b""))
    return found


def _value(shape: schema.Shape, value: Wire) -> Any:
    if shape.type is not None:
        return _message(shape.type, _bytes(value))
    plain = _PLAIN.get(shape.kind)
    return plain(value) if plain else _wrapped(shape.kind, dict(_fields(_bytes(value))))


def _wrapped(kind: str, inner: dict[int, Wire]) -> Any:
    """A scalar that is a message on the wire."""
    if kind == "quantity":
        return _text(inner.get(1, b"")) or "0"
    if kind == "int-or-string":
        return _text(inner.get(3, b"")) if inner.get(1) else _signed(inner.get(2, 0))
    if not inner:
        return None
    moment = datetime.datetime.fromtimestamp(_signed(inner.get(1, 0)), datetime.UTC)
    moment += datetime.timedelta(microseconds=_signed(inner.get(2, 0)) // 1000)
    return times.format_micro_time(moment) if kind == "micro" else times.format_time(moment)


def _fields(data: bytes) -> Iterator[tuple[int, Wire]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        size = _FIXED.get(tag & 7, 0)
        if not size:
            # Of a number it is the value, of bytes their length.
            size, position = _varint(data, position)
        if tag & 7 == _VARINT:
            yield tag >> 3, size
            continue
        value = data[position : position + size]
        position += size
        if len(value) < size or tag & 7 not in (_BYTES, *_FIXED):
            raise ValueError("a field is cut off, or of an unknown wire type")
        yield tag >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number is cut off")


def _signed(value: Wire) -> int:
    if not isinstance(value, int):
        raise ValueError("a number is expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(value: Wire) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("bytes are expected")
    return value


def _text(value: Wire) -> str:
    return _bytes(value).decode(errors="replace")


_PLAIN: dict[str, Callable[[Wire], Any]] = {
    "string": _text,
    "bytes": lambda value: base64.b64encode(_bytes(value)).decode(),
    "int32": _signed,
    "int64": _signed,
    "boolean": lambda value: bool(_signed(value)),
    "any": lambda _value: None,
}
