"""The way of a request: who asks, whether they may, and then the page.

Members of `system:masters` may have all paths; some paths anybody may have; about the rest the API
server is asked, and its answers are remembered. Every answer says that it must not be cached.
Refusals are Status objects as the API server gives them. Paths are exact, except those that end
with a slash, which cover all below.
Counterparts: k8s.io/apiserver, authorization and the filters of a controller manager's server.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ccm.base import clock, log, metrics
from ccm.base.throttle import Bucket
from ccm.serving.authentication import (
    ANONYMOUS,
    ANONYMOUS_NAME,
    MASTERS,
    Authenticator,
    ReviewFailed,
    Unauthorized,
    User,
)
from ccm.serving.http import JSON, Handler, Request, Response, find_page, text
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


AccessReview = Callable[[Question], Awaitable[Decision]]
"""Asks whether a caller may; raises ReviewFailed where there is no answer."""


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
        review: asks; None: what needs it is forbidden.
        paths: what anybody may have.
        allowed_ttl_s: how long a permission is remembered.
        denied_ttl_s: how long a refusal is remembered.
        shelf: where answers are kept; None: one of its own.
    """

    def __init__(
        self,
        review: AccessReview | None,
        paths: Paths,
        *,
        allowed_ttl_s: float,
        denied_ttl_s: float,
        shelf: Shelf | None = None,
    ) -> None:
        self._review = review
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
        if (review := self._review) is None:
            return Decision(allowed=False)

        async def ask() -> Decision:
            if question.user != ANONYMOUS:
                return await review(question)
            async with self._anonymous:
                return await review(question)

        return await self._known.get(digest(question), ask)


_NEVER_CACHE = ("Cache-Control", "no-cache, private")


class HandlerChain:
    """Answers requests.

    Args:
        pages: path -> who answers; a path with a slash at the end covers those below it.
        authenticator: who asks.
        authorizer: whether they may.
    """

    def __init__(
        self,
        pages: Mapping[str, Handler],
        *,
        authenticator: Authenticator,
        authorizer: Authorizer,
    ) -> None:
        self._pages = dict(pages)
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._access = AccessLog()

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        answer = await self._answer(request)
        return replace(answer, headers=(*answer.headers, _NEVER_CACHE))

    async def close(self) -> None:
        """Ask nobody about callers any more."""
        await self._authenticator.close()
        await self._authorizer.close()

    async def _answer(self, request: Request) -> Response:
        try:
            user = await self._authenticator.identify(request)
        except Unauthorized as error:
            self._access.unauthorized(request, error)
            return status(401, "Unauthorized", "Unauthorized")
        request = replace(request, user=user.name)
        question = Question(user=user, verb=request.method.lower(), path=request.path)
        try:
            decision = await self._authorizer.decide(question)
        except ReviewFailed as error:
            self._access.unanswered(request, error)
            return text(f'Internal Server Error: "{request.path}": {error}\n', 500)
        if not decision.allowed:
            self._access.forbidden(request)
            return status(403, "Forbidden", forbidden(user, question, decision.reason))
        if user != ANONYMOUS:
            request.known()
        self._access.allowed(request)
        page = find_page(self._pages, request.path)
        return text("404 page not found\n", 404) if page is None else await page(request)


def forbidden(user: User, question: Question, reason: str) -> str:
    """What a caller is told that may not."""
    said = f'forbidden: User "{user.name}" cannot {question.verb} path "{question.path}"'
    return f"{said}: {reason}" if reason else said


def status(code: int, reason: str, message: str) -> Response:
    """A failure as the API server tells it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        **({"details": {}} if code == 403 else {}),
        "code": code,
    }
    return Response(
        status=code,
        body=json.dumps(body).encode() + b"\n",
        content_type=JSON,
        headers=(("X-Content-Type-Options", "nosniff"),) if code == 403 else (),
    )


LINES_PER_S, BURST = 1.0, 20
"""Rate of each kind of line."""

LONGEST = 256
"""Characters of a name or path that are shown."""

PRIVILEGED = ("/configz", "/explain")
"""Beginnings of what few may have; `/metrics` is asked for every few seconds, and is not here."""

_HARMLESS = ("GET", "HEAD")


class LineRates:
    """How often lines may be written that callers cause."""

    def __init__(self) -> None:
        self._buckets = defaultdict[str, Bucket](lambda: Bucket(qps=LINES_PER_S, burst=BURST))
        self._left_out = Counter[str]()

    def take(self, kind: str) -> dict[str, Any] | None:
        """What a line of this kind says beside its own facts; None: there are too many."""
        if not self._buckets[kind].take(clock.monotonic()):
            self._left_out[kind] += 1
            return None
        left_out = self._left_out.pop(kind, 0)
        return {"left_out": left_out} if left_out else {}


class AccessLog:
    """The lines about the callers of one server."""

    def __init__(self) -> None:
        self._log = log.logger("serving")
        self._rates = LineRates()

    def unauthorized(self, request: Request, error: Exception) -> None:
        """What the caller showed is wrong, and it got 401."""
        if facts := self._line("unauthorized", request):
            self._log.v(1).info("request is refused", status=401, **facts, error=str(error))

    def forbidden(self, request: Request) -> None:
        """The caller may not, and got 403."""
        kind = "anonymous" if request.user == ANONYMOUS_NAME else "forbidden"
        if facts := self._line(kind, request):
            self._log.v(1).info("request is refused", status=403, **facts)

    def unanswered(self, request: Request, error: Exception) -> None:
        """Nobody could tell whether the caller may, and it got 500; a warning."""
        if facts := self._line("unanswered", request):
            self._log.warning(
                "authorization check failed, answering 500", **facts, error=str(error)
            )

    def allowed(self, request: Request) -> None:
        """The caller may; only what few may is worth a line."""
        is_rare = request.method not in _HARMLESS or request.path.startswith(PRIVILEGED)
        if is_rare and (facts := self._line("privileged", request)):
            self._log.v(1).info("privileged request", **facts)

    def _line(self, kind: str, request: Request) -> dict[str, Any] | None:
        """The facts of a line; None where there are too many of its kind."""
        if (left_out := self._rates.take(kind)) is None:
            return None
        facts = {
            "user": request.user[:LONGEST],
            "verb": request.method.lower()[:LONGEST],
            "path": request.path[:LONGEST],
            "client": request.caller.address,
        }
        return {name: value for name, value in facts.items() if value} | left_out
