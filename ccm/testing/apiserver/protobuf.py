"""Decoder of request bodies in Kubernetes' protobuf encoding, based on the types of `schema`.

Go's typed clients, parts of kubectl among them, send protobuf even if the server does not offer
it, and accept JSON. This server therefore reads protobuf and never writes it. A field that the
type lacks is skipped; a field of type `any` becomes null.
"""

from __future__ import annotations

import base64
import datetime
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ccm.model import times
from ccm.testing.apiserver import schema

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\0"
_VARINT = 0
_FIXED = {1: 8, 5: 4}


def decode(types: Mapping[str, schema.Type], body: bytes) -> dict[str, Any]:
    """Decode a body with its envelope; return the object with `kind` and `apiVersion`.

    Raises:
        ValueError: the body is malformed, or its kind is unknown.
    """
    if not body.startswith(_MAGIC):
        raise ValueError("the body does not begin with the protobuf marker")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        names = dict(_fields(envelope[1]))
        version, kind = _text(names[1]), _text(names[2])
        return {"kind": kind, "apiVersion": version, **_message(types[kind], envelope.get(2, b""))}
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"unknown kind or malformed field: {error}") from error


def _message(shape: schema.Type, data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    by_number = {field.number: field for field in shape.fields.values()}
    for number, value in _fields(data):
        field = by_number.get(number)
        if field is None:
            continue
        item = field.shape.item
        if item is None:
            fields[field.name] = _value(field.shape, value)
        elif field.shape.kind == "list":
            fields.setdefault(field.name, []).append(_value(item, value))
        else:
            pair = dict(_fields(value))
            fields.setdefault(field.name, {})[_text(pair[1])] = _value(item, pair.get(2, b""))
    return fields


def _value(shape: schema.ValueType, value: Any) -> Any:
    return _message(shape.type, value) if shape.type else _SCALARS[shape.kind](value)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    stream = io.BytesIO(data)
    while (tag := _varint(stream)) is not None:
        # The value of a number, or the length of a field of bytes.
        size: Any = _FIXED.get(tag & 7) or _varint(stream)
        value = size if tag & 7 == _VARINT else stream.read(size)
        if tag & 7 != _VARINT and len(value) < size:
            raise ValueError("truncated field")
        yield tag >> 3, value


def _varint(stream: io.BytesIO) -> int | None:
    value = shift = 0
    while byte := stream.read(1):
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
    return None


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _int_or_string(value: bytes) -> int | str:
    inner = dict(_fields(value))
    return _text(inner.get(3, b"")) if inner.get(1) else _signed(inner.get(2, 0))


def _moment(value: bytes, form: Callable[[datetime.datetime], str]) -> str | None:
    inner = dict(_fields(value))
    moment = datetime.datetime.fromtimestamp(_signed(inner.get(1, 0)), datetime.UTC)
    moment += datetime.timedelta(microseconds=_signed(inner.get(2, 0)) // 1000)
    return form(moment) if inner else None


_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "string": _text,
    "bytes": lambda value: base64.b64encode(value).decode(),
    "int32": _signed,
    "int64": _signed,
    "boolean": bool,
    "any": lambda _value: None,
    "quantity": lambda value: _text(dict(_fields(value)).get(1, b"")) or "0",
    "int-or-string": _int_or_string,
    "time": lambda value: _moment(value, times.format_time),
    "micro": lambda value: _moment(value, times.format_micro_time),
}
