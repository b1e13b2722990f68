"""One request and what became of it, and the question "is it this kind?"."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_STREAM_KEYS = ("watch", "follow")


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request as it arrived, and its answer as far as it has come.

    Attributes:
        method: upper case.
        path: percent-decoded, without the query.
        query: the last value of each key.
        query_string: as it arrived.
        headers: keys in lower case.
        body: all of it, also of writes that are then cut.
        started_s: event-loop time of arrival.
        upstream_status: what the server said; None if it was not asked or has
            not answered.
        status: what the client was told; None while there is no answer.
        lines: lines of a stream sent to the client so far.
        ended_s: event-loop time when the proxy was done with it; None before.
        trouble: why the server could not be asked, or why its answer broke off.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    query_string: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    started_s: float = 0.0
    upstream_status: int | None = None
    status: int | None = None
    lines: int = 0
    ended_s: float | None = None
    trouble: str | None = None

    @property
    def is_write(self) -> bool:
        """Whether the method may change anything."""
        return self.method not in _READS

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes line by line (a watch, a followed log)."""
        return any(self.query.get(key, "").lower() in {"1", "true"} for key in _STREAM_KEYS)

    def json(self) -> Any:
        """The request's body, decoded."""
        return json.loads(self.body)

    def __str__(self) -> str:
        query = f"?{self.query_string}" if self.query_string else ""
        return f"{self.method} {self.path}{query} -> {self.trouble or self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which requests are meant; a field left out means any.

    Attributes:
        method: pattern for the whole method, as "PUT|PATCH".
        path: pattern searched in the decoded path.
        query: pattern searched in the query string as it arrived.
        stream: only watches and the like (True), or only the others (False).
        write: only writes (True), or only reads (False).
        where: any further condition.
    """

    method: str | None = None
    path: str | None = None
    query: str | None = None
    stream: bool | None = None
    write: bool | None = None
    where: Callable[[Exchange], bool] | None = None

    def covers(self, exchange: Exchange) -> bool:
        """Whether the request is one of those."""
        return (
            (self.method is None or re.fullmatch(self.method, exchange.method) is not None)
            and (self.path is None or re.search(self.path, exchange.path) is not None)
            and (self.query is None or re.search(self.query, exchange.query_string) is not None)
            and (self.stream is None or self.stream is exchange.is_stream)
            and (self.write is None or self.write is exchange.is_write)
            and (self.where is None or self.where(exchange))
        )
