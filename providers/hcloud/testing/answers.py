"""Calls as their handlers see them, and listings: selectors, names, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ccm.model.selectors import BadSelectorError, parse_labels

from . import state
from .state import Cloud, Thing

MOST_PER_PAGE = 50
DEFAULT_PER_PAGE = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, read: the ID in its path, its query, its body."""

    id: int = 0
    query: Mapping[str, list[str]] = field(default_factory=dict)
    body: Thing = field(default_factory=dict)

    def one(self, name: str) -> str:
        """The last value of a parameter; empty without one."""
        return (self.query.get(name) or [""])[-1]


Answer = tuple[int, Thing | None]
Handler = Callable[[Cloud, Call], Answer]


def _number(call: Call, name: str, default: int) -> int:
    text = call.one(name)
    if not text:
        return default
    if not text.isdigit() or int(text) < 1:
        raise state.invalid(name, "must be a number above 0")
    return int(text)


def listing(cloud: Cloud, call: Call, key: str, things: Iterable[Thing]) -> Answer:
    """One page of what the query asks for."""
    found = list(things)
    if name := call.one("name"):
        found = [one for one in found if one["name"] == name]
    if selector := call.one("label_selector"):
        try:
            terms = parse_labels(selector.replace("==", "="))
        except BadSelectorError as error:
            raise state.invalid("label_selector", "label selector is malformed") from error
        found = [one for one in found if all(term.matches(one["labels"]) for term in terms)]
    page = _number(call, "page", 1)
    asked = min(_number(call, "per_page", DEFAULT_PER_PAGE), MOST_PER_PAGE)
    size = min(asked, cloud.settings.page_size)
    last = max(1, -(-len(found) // size))
    pagination = {
        "page": page,
        "per_page": size,
        "previous_page": page - 1 if page > 1 else None,
        "next_page": page + 1 if page < last else None,
        "last_page": last,
        "total_entries": len(found),
    }
    cut = found[(page - 1) * size : page * size]
    return 200, {key: cut, "meta": {"pagination": pagination}}


def text(body: Thing, name: str, *, required: bool = True) -> str:
    """A field that has to be text."""
    value = body.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value):
        raise state.invalid(name, "must be text")
    return value


def labels(body: Thing) -> dict[str, str]:
    """The labels of an order; keys and values are those of Kubernetes."""
    given: Any = body.get("labels") or {}
    for key, value in given.items():
        try:
            parse_labels(f"{key}={value}")
        except BadSelectorError as error:
            raise state.invalid("labels", f"{key}: {value!r} is no label") from error
        if not isinstance(value, str) or len(value) > 63 or len(key.rpartition("/")[2]) > 63:
            raise state.invalid("labels", f"{key}: is too long")
    return dict(given)
