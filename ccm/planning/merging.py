"""Patches as an API server applies them, as far as the daemon writes any. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MERGE_KEYS = {"conditions": "type", "addresses": "type"}
"""Lists of objects that are merged by a key; all others are replaced (Kubernetes, core/v1)."""

_PRIMITIVES = frozenset({"finalizers"})
"""Lists of texts that are merged."""

_DELETE, _ORDER, _DIRECTIVE = "$deleteFromPrimitiveList/", "$setElementOrder/", "$patch"


def merge(value: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """JSON merge patch (RFC 7386)."""
    found = dict(value)
    for key, wanted in patch.items():
        if wanted is None:
            found.pop(key, None)
        elif isinstance(wanted, Mapping):
            found[key] = merge(_mapping(found.get(key)), wanted)
        else:
            found[key] = wanted
    return found


def strategic(value: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Strategic merge patch."""
    found = dict(value)
    for key, wanted in patch.items():
        if key.startswith(_DELETE):
            field = key.removeprefix(_DELETE)
            found[field] = [one for one in found.get(field) or () if one not in wanted]
        elif key.startswith(_ORDER):
            continue  # those that we write name the order that there is
        elif wanted is None:
            found.pop(key, None)
        elif isinstance(wanted, Mapping):
            found[key] = strategic(_mapping(found.get(key)), wanted)
        elif key in _PRIMITIVES:
            found[key] = list(dict.fromkeys((*(found.get(key) or ()), *wanted)))
        elif key in _MERGE_KEYS:
            found[key] = _merged(found.get(key) or (), wanted, _MERGE_KEYS[key])
        else:
            found[key] = wanted
    return found


def _merged(
    present: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]], by: str
) -> list[dict[str, Any]]:
    entries = [one for one in wanted if _DIRECTIVE not in one]
    if len(entries) < len(wanted):  # we write `replace`, and no other directive
        return [dict(one) for one in entries]
    found = [dict(one) for one in present]
    for entry in entries:
        for place, one in enumerate(found):
            if one.get(by) == entry.get(by):
                found[place] = strategic(one, entry)
                break
        else:
            found.append(dict(entry))
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
