"""Provider specs of machines as Structs: each field read by itself, so that every fault is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ccm.cloud.machines import Problem


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
        try:
            values[name] = msgspec.convert(stated[name], known[name].type)
        except msgspec.ValidationError as error:
            found.append(Problem(field=name, message=str(error)))
    return values, found
