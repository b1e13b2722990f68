"""Provider specs of machines as Structs: each field read by itself, so that every fault is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ccm.cloud.machines import Problem

MOST_DEPTH = 32
"""Levels of lists and mappings in a field; no cloud has more, and recursion has its limit."""


def without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is stated: null is the same as nothing."""
    return {name: value for name, value in given.items() if value is not None}


def converted(
    given: Mapping[str, Any], declared: type[msgspec.Struct], *, knows_all: bool = True
) -> tuple[dict[str, Any], list[Problem]]:
    """The values of the right type by the names that a spec has for them, and what is wrong.

    Args:
        given: the spec.
        declared: a Struct with the fields of one.
        knows_all: whether a field that it does not declare is a fault.
    """
    known = {field.encode_name: field for field in msgspec.structs.fields(declared)}
    stated = without_nulls(given)
    found = [
        Problem(field=name, message=f"no such field; there are {', '.join(known)}")
        for name in stated
        if knows_all and name not in known
    ]
    values: dict[str, Any] = {}
    for name in known.keys() & stated.keys():
        if message := _beyond_json(stated[name], MOST_DEPTH):
            found.append(Problem(field=name, message=message))
            continue
        try:
            values[name] = msgspec.convert(stated[name], known[name].type)
        except msgspec.ValidationError as error:
            found.append(Problem(field=name, message=str(error)))
    return values, found


def _beyond_json(value: Any, levels: int) -> str:
    """Return why a value can be neither sent nor shown; empty for one that can."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return "must hold no number of more than 64 bits"
    if not isinstance(value, Mapping | list | tuple):
        return ""
    if not levels:
        return f"must have at most {MOST_DEPTH} levels of lists and mappings"
    inner = value.values() if isinstance(value, Mapping) else value
    return next(filter(None, (_beyond_json(one, levels - 1) for one in inner)), "")
