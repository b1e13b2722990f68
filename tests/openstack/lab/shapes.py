"""Shapes of responses: names and types of fields, by which the fake is compared with the lab.

The shape of a scalar is the name of its type, of a list the merged shape of its items, of an object
the shapes of its fields. Types that occur at one place are joined by `|`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ccm.testing.fake_api import Exchange

MAPPINGS = frozenset({"addresses", "extra_specs", "insert_headers", "metadata"})
"""Fields whose names are data; their values have one shape, that of `*`."""

Shape = Any


def shape_of(value: Any, field: str = "") -> Shape:
    if isinstance(value, dict):
        shapes = {name: shape_of(part, name) for name, part in sorted(value.items())}
        return {"*": merged(shapes.values())} if field in MAPPINGS else shapes
    if isinstance(value, list):
        return [merged(map(shape_of, value))]
    return "null" if value is None else type(value).__name__


def merged(shapes: Iterable[Shape]) -> Shape:
    """The shape of values of all these shapes; an empty text for none."""
    result: Shape = ""
    for shape in shapes:
        result = _both(result, shape)
    return result


def _both(one: Shape, other: Shape) -> Shape:
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted(one.keys() | other.keys())
        return {name: _both(one.get(name, ""), other.get(name, "")) for name in names}
    if isinstance(one, list) and isinstance(other, list):
        return [_both(one[0], other[0])]
    if isinstance(one, str) and isinstance(other, str):
        return "|".join(sorted({*one.split("|"), *other.split("|")} - {""}))
    # An object or a list that may be null has the shape of the object or of the list.
    return other if one in ("", "null") else one


def shapes_of(exchanges: Iterable[Exchange]) -> Mapping[str, Shape]:
    """Operation and status -> shape of the response."""
    found: dict[str, Shape] = {}
    for one in exchanges:
        key = f"{one.operation} {one.status}"
        answer = shape_of(msgspec.json.decode(one.answer)) if one.answer else "nothing"
        found[key] = merged([found.get(key, ""), answer])
    return dict(sorted(found.items()))


def misfits(fake: Shape, real: Shape, place: str = "") -> Iterator[str]:
    """Yield what a response of the fake has and the real one has not."""
    if "" in (fake, real) or real == "null" or fake == "null":
        return
    if isinstance(fake, dict) and isinstance(real, dict):
        for name in fake:
            if name not in real and fake[name] != "null":  # a service may leave out a null
                yield f"{place}.{name}: not in the response of the lab"
            elif name in real:
                yield from misfits(fake[name], real[name], f"{place}.{name}")
    elif isinstance(fake, list) and isinstance(real, list):
        yield from misfits(fake[0], real[0], f"{place}[]")
    elif not isinstance(fake, str) or not isinstance(real, str):
        yield f"{place}: {fake}, in the lab {real}"
    elif more := set(fake.split("|")) - set(real.split("|")) - {"null"}:
        yield f"{place}: {'|'.join(sorted(more))}, in the lab {real}"
