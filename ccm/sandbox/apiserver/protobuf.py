"""Request bodies in Kubernetes' protobuf encoding, decoded by the schema tables.

Go's typed clients, parts of kubectl among them, send protobuf whether the server has
offered it or not, and take JSON in return. So this server reads it and never
writes it. A field that the tables do not know, or know as anything, is skipped.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from ccm.sandbox.apiserver import scalars, schema

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\0"
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}

Wire = int | bytes


class DamagedError(ValueError):
    """Bytes that are not what they claim to be."""


def decode(types: Mapping[str, schema.Type], body: bytes) -> dict[str, Any]:
    """The object in an enveloped body, with its kind and version.

    Raises:
        DamagedError: the body is not such an envelope, or its kind is unknown.
    """
    if not body.startswith(_MAGIC):
        raise DamagedError("the body does not begin with the protobuf marker")
    envelope = dict(_fields(body[len(_MAGIC) :]))
    names = dict(_fields(_bytes(envelope.get(1, b""))))
    version, kind = _text(names.get(1, b"")), _text(names.get(2, b""))
    try:
        shape = types[kind]
    except KeyError as error:
        raise DamagedError(f"unknown kind {kind!r}") from error
    found = _message(shape, _bytes(envelope.get(2, b"")))
    return {"kind": kind, "apiVersion": version, **found}


def _message(shape: schema.Type, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    by_number = {field.number: field for field in shape.fields.values()}
    for number, value in _fields(data):
        if number in by_number:
            _store(by_number[number], value, found)
    return found


def _store(field: schema.Field, value: Wire, found: dict[str, Any]) -> None:
    shape = field.shape
    if shape.kind == "list":
        assert shape.item is not None
        found.setdefault(field.name, []).append(_value(shape.item, value))
    elif shape.kind == "map":
        assert shape.item is not None
        pair = dict(_fields(_bytes(value)))
        key = _text(pair.get(1, b""))
        found.setdefault(field.name, {})[key] = _value(shape.item, pair.get(2, b""))
    else:
        found[field.name] = _value(shape, value)


def _value(shape: schema.Shape, value: Wire) -> Any:
    kind = shape.kind
    if shape.type is not None:
        return _message(shape.type, _bytes(value))
    if kind == "string":
        return _text(value)
    if kind == "bytes":
        return base64.b64encode(_bytes(value)).decode()
    if kind in ("int32", "int64"):
        return _signed(value)
    if kind == "boolean":
        return bool(_signed(value))
    if kind == "any":
        return None
    inner = dict(_fields(_bytes(value)))
    if kind in ("time", "micro"):
        return _time(inner, micro=kind == "micro")
    if kind == "quantity":
        return _text(inner.get(1, b"")) or "0"
    return _text(inner.get(3, b"")) if inner.get(1) else _signed(inner.get(2, 0))


def _time(inner: dict[int, Wire], *, micro: bool) -> str | None:
    seconds, nanos = _signed(inner.get(1, 0)), _signed(inner.get(2, 0))
    if not inner:
        return None
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(
        seconds=seconds, microseconds=nanos // 1000
    )
    return scalars.format_time(moment, micro=micro)


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
            raise DamagedError("a field is cut off, or of an unknown wire type")
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
    raise DamagedError("a number is cut off")


def _signed(value: Wire) -> int:
    if not isinstance(value, int):
        raise DamagedError("a number is expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(value: Wire) -> bytes:
    if not isinstance(value, bytes):
        raise DamagedError("bytes are expected")
    return value


def _text(value: Wire) -> str:
    return _bytes(value).decode(errors="replace")
