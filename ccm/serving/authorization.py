"""Decides whether a caller may have a path.

Members of `system:masters` may have all; some paths anybody may have; about the rest the API
server is asked, and its answers are remembered. Counterpart: k8s.io/apiserver,
authorization and its delegating options.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ccm.base import clock, metrics
from ccm.serving.authentication import ANONYMOUS, MASTERS, User
from ccm.serving.ttl_cache import Shelf, TTLCache, digest

_attempts = metrics.counter(
    "authorization_attempts_total",
    "[ALPHA] Counter of authorization attempts broken down by result.",
    ["result"],
)
_duration = metrics.histogram(
    "authorization_duration_seconds",
    "[ALPHA] Authorization duration in seconds broken out by result.",
    ["result"],
    buckets=metrics.exponential_buckets(0.001, 2, 15),
)

ANONYMOUS_AT_ONCE = 32
"""Questions about callers who are nobody that are under way at one time: a crowd of those must
not keep those who are somebody waiting for the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """May this user do this to that path?

    Attributes:
        user: who.
        verb: the HTTP method in lower case.
        path: without the query.
    """

    user: User
    verb: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer; `reason` is for people and may be empty."""

    allowed: bool
    reason: str = ""


class AccessReviewer(Protocol):
    """Who knows what callers may do: the API server."""

    async def review_access(self, question: Question) -> Decision:
        """Its decision.

        Raises:
            ReviewFailed: there is no answer.
        """
        ...


class Paths:
    """Paths that anybody may have.

    Args:
        patterns: paths; a `*` at the end means all that begin so. The first slash is
            optional; one path does not cover those below it.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        bare = [pattern.removeprefix("/") for pattern in patterns]
        self._exact = frozenset(each for each in bare if not each.endswith("*"))
        self._prefixes = tuple(each.removesuffix("*") for each in bare if each.endswith("*"))

    def __contains__(self, path: str) -> bool:
        bare = path.removeprefix("/")
        return bare in self._exact or bare.startswith(self._prefixes)


class Authorizer:
    """Decides.

    Args:
        reviewer: is asked; None: what needs it is forbidden.
        paths: what anybody may have.
        allowed_ttl_s: how long a permission is remembered.
        denied_ttl_s: how long a refusal is remembered.
        shelf: where answers are kept; None: one of its own.
    """

    def __init__(
        self,
        reviewer: AccessReviewer | None,
        paths: Paths,
        *,
        allowed_ttl_s: float,
        denied_ttl_s: float,
        shelf: Shelf | None = None,
    ) -> None:
        self._reviewer = reviewer
        self._paths = paths
        self._anonymous = asyncio.Semaphore(ANONYMOUS_AT_ONCE)
        self._known: TTLCache[bytes, Decision] = TTLCache(
            lambda found: allowed_ttl_s if found.allowed else denied_ttl_s,
            name="authorization",
            shelf=shelf,
        )

    async def decide(self, question: Question) -> Decision:
        """Whether it may be.

        Raises:
            ReviewFailed: nobody could tell.
        """
        started = clock.monotonic()
        result = "error"
        try:
            decision = await self._decide(question)
            result = "allowed" if decision.allowed else "no-opinion"
            return decision
        finally:
            _attempts.labels(result).inc()
            _duration.labels(result).observe(clock.monotonic() - started)

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._known.close()

    async def _decide(self, question: Question) -> Decision:
        if MASTERS in question.user.groups or question.path in self._paths:
            return Decision(allowed=True)
        if self._reviewer is None:
            return Decision(allowed=False)
        return await self._known.get(digest(question), lambda: self._ask(question))

    async def _ask(self, question: Question) -> Decision:
        assert self._reviewer is not None
        if question.user != ANONYMOUS:
            return await self._reviewer.review_access(question)
        async with self._anonymous:
            return await self._reviewer.review_access(question)
