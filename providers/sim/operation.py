"""What a row of the API table is, and what its handler gets. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from . import simulation, traffic, world

T = TypeVar("T")


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operation takes no query parameters."""


class Request(msgspec.Struct, frozen=True):
    """A call, read and checked: the ID in its path, its query and its body."""

    id: str
    query: Any
    body: Any


Handler = Callable[[simulation.Simulation, Request], object]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the API and what it does; `body` and `answer` None mean there is none.

    `route` is method and path; `created` makes the status of success 201.
    """

    name: str
    route: str
    summary: str
    handler: Handler
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    created: bool = False

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path, with `{id}` where one stands."""
        return self.route.partition(" ")[2]

    @property
    def status(self) -> int:
        """The status of success."""
        return 204 if self.answer is None else 201 if self.created else 200

    @property
    def is_cloud_call(self) -> bool:
        """Whether a customer makes this call, so that settings and faults apply."""
        return self.path.startswith("/v1/")


def behind_the_scenes(row: Operation) -> Operation:
    """The administrator's twin of a cloud call: never counted, delayed or broken."""
    return msgspec.structs.replace(
        row,
        name=f"admin_{row.name}",
        route=row.route.replace("/v1/", "/admin/", 1),
        summary=f"As {row.name}, behind the scenes",
    )


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most `limit` items behind `cursor`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=traffic.MAX_PAGE)] = traffic.MAX_PAGE
    cursor: str | None = None


def format_cursor(after: int | None) -> str | None:
    """The cursor of a position; None ends the listing."""
    return None if after is None else f"after-{after:x}"


def parse_cursor(text: str | None) -> int:
    """The position of a cursor.

    Raises:
        WorldError: `invalid`.
    """
    if text is None:
        return 0
    prefix, _, number = text.partition("-")
    try:
        if prefix != "after":
            raise ValueError(text)
        return int(number, 16)
    except ValueError as error:
        raise world.WorldError("invalid", f"cursor: {text!r} is not one of ours") from error


def parse_label(text: str | None) -> tuple[str, str] | None:
    """Key and value of `key=value`; None for none."""
    key, _, value = (text or "").partition("=")
    return (key, value) if key else None


def cut(items: Sequence[T], query: PageQuery, most: int) -> tuple[tuple[T, ...], str | None]:
    """One page of a complete listing, and the cursor of the next."""
    start = parse_cursor(query.cursor)
    end = start + min(query.limit, most)
    return tuple(items[start:end]), format_cursor(end if end < len(items) else None)
