"""Handler chain of a request: authentication, authorization, then the handler of the path.

Members of `system:masters` may access all paths, and some paths are open to all callers. Otherwise
a SubjectAccessReview decides, whose result is cached. Every response forbids caching. The body of a
401 or 403 is a Status object, as from the API server. Counterparts: k8s.io/apiserver,
authorization, and the filters of a controller manager's server.
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
    InvalidCredentials,
    ReviewFailed,
    UserInfo,
)
from ccm.serving.http import JSON, Handler, Request, Response, find_page, text
from ccm.serving.ttl_cache import LRUStore, TTLCache, digest

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

MAX_ANONYMOUS_REVIEWS = 32
"""Maximum concurrent SubjectAccessReviews for anonymous callers.

Many anonymous requests must not delay the reviews for authenticated callers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessAttributes:
    """The request to authorize: a user, a verb and a path.

    Attributes:
        user: the caller.
        verb: HTTP method in lower case.
        path: path without the query.
    """

    user: UserInfo
    verb: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessDecision:
    """Result of an authorization.

    Attributes:
        allowed: whether the user may access the path.
        reason: explanation for the caller; may be empty.
    """

    allowed: bool
    reason: str = ""


AccessReview = Callable[[AccessAttributes], Awaitable[AccessDecision]]
"""Function that sends a SubjectAccessReview; raises ReviewFailed if the review failed."""


class PathSet:
    """Paths that are open to all callers.

    Args:
        patterns: paths that match exactly, or prefixes that end with `*`. The leading slash is
            optional.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        bare = [pattern.removeprefix("/") for pattern in patterns]
        self._exact = frozenset(path for path in bare if not path.endswith("*"))
        self._prefixes = tuple(path.removesuffix("*") for path in bare if path.endswith("*"))

    def __contains__(self, path: str) -> bool:
        bare = path.removeprefix("/")
        return bare in self._exact or bare.startswith(self._prefixes)


class DelegatingAuthorizer:
    """Authorizer that sends SubjectAccessReviews and caches their results.

    Args:
        review: sends a SubjectAccessReview; None means that requests which need a review are
            forbidden.
        paths: paths that are open to all callers.
        allowed_ttl_s: seconds for which a positive result is cached.
        denied_ttl_s: seconds for which a negative result is cached.
        store: storage of the results; None means a store of its own.
    """

    def __init__(
        self,
        review: AccessReview | None,
        paths: PathSet,
        *,
        allowed_ttl_s: float,
        denied_ttl_s: float,
        store: LRUStore | None = None,
    ) -> None:
        self._review = review
        self._paths = paths
        self._anonymous = asyncio.Semaphore(MAX_ANONYMOUS_REVIEWS)
        self._decisions: TTLCache[bytes, AccessDecision] = TTLCache(
            lambda decision: allowed_ttl_s if decision.allowed else denied_ttl_s,
            name="authorization",
            store=store,
        )

    async def decide(self, question: AccessAttributes) -> AccessDecision:
        """Return the decision, from the cache if possible.

        Raises:
            ReviewFailed: the SubjectAccessReview failed.
        """
        started = clock.monotonic()
        result = "error"
        try:
            decision = await self._allow_or_review(question)
            result = "allowed" if decision.allowed else "no-opinion"
            return decision
        finally:
            _attempts.labels(result).inc()
            _duration.labels(result).observe(clock.monotonic() - started)

    async def close(self) -> None:
        """Cancel running SubjectAccessReviews."""
        await self._decisions.close()

    async def _allow_or_review(self, question: AccessAttributes) -> AccessDecision:
        if MASTERS in question.user.groups or question.path in self._paths:
            return AccessDecision(allowed=True)
        if (review := self._review) is None:
            return AccessDecision(allowed=False)

        async def ask() -> AccessDecision:
            if question.user != ANONYMOUS:
                return await review(question)
            async with self._anonymous:
                return await review(question)

        return await self._decisions.get(digest(question), ask)


_NEVER_CACHE = ("Cache-Control", "no-cache, private")


class HandlerChain:
    """Handler of all requests of a server.

    Args:
        pages: handlers by path; a path that ends with a slash stands for all paths below it, and
            other paths match exactly.
        authenticator: identifies the caller.
        authorizer: decides whether the caller may access the path.
    """

    def __init__(
        self,
        pages: Mapping[str, Handler],
        *,
        authenticator: Authenticator,
        authorizer: DelegatingAuthorizer,
    ) -> None:
        self._pages = dict(pages)
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._access = AccessLog()

    async def answer(self, request: Request) -> Response:
        """Authenticate, authorize and serve one request."""
        answer = await self._answer(request)
        return replace(answer, headers=(*answer.headers, _NEVER_CACHE))

    async def close(self) -> None:
        """Cancel running TokenReviews and SubjectAccessReviews."""
        await self._authenticator.close()
        await self._authorizer.close()

    async def _answer(self, request: Request) -> Response:
        try:
            user = await self._authenticator.identify(request)
        except InvalidCredentials as error:
            self._access.unauthorized(request, error)
            return status_response(401, "Unauthorized", "Unauthorized")
        request = replace(request, user=user.name)
        question = AccessAttributes(user=user, verb=request.method.lower(), path=request.path)
        try:
            decision = await self._authorizer.decide(question)
        except ReviewFailed as error:
            self._access.review_failed(request, error)
            return text(f'Internal Server Error: "{request.path}": {error}\n', 500)
        if not decision.allowed:
            self._access.forbidden(request)
            return status_response(
                403, "Forbidden", forbidden_message(user, question, decision.reason)
            )
        if user != ANONYMOUS:
            request.mark_authenticated()
        self._access.allowed(request)
        page = find_page(self._pages, request.path)
        return text("404 page not found\n", 404) if page is None else await page(request)


def forbidden_message(user: UserInfo, question: AccessAttributes, reason: str) -> str:
    """Return the message of a 403, worded as by the API server."""
    message = f'forbidden: User "{user.name}" cannot {question.verb} path "{question.path}"'
    return f"{message}: {reason}" if reason else message


def status_response(code: int, reason: str, message: str) -> Response:
    """Return an error response whose body is a Status object, as from the API server."""
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
"""Rate limit of each kind of log line: lines per second, and burst."""

MAX_LOGGED_CHARS = 256
"""Maximum characters of a user name, verb or path in the log."""

PRIVILEGED_PREFIXES = ("/configz", "/explain", "/journal")
"""Prefixes of sensitive paths, whose requests are logged.

`/metrics` is not included, because monitoring requests it every few seconds.
"""

_HARMLESS = ("GET", "HEAD")


class LogRateLimits:
    """Rate limits for log lines that any caller can cause; each kind of line has its own limit."""

    def __init__(self) -> None:
        self._buckets = defaultdict[str, Bucket](lambda: Bucket(qps=LINES_PER_S, burst=BURST))
        self._left_out = Counter[str]()

    def admit(self, kind: str) -> dict[str, Any] | None:
        """Return additional keys for a log line of this kind; None = do not log the line.

        The key `left_out` has the number of lines dropped since the last logged line of this kind.
        """
        if not self._buckets[kind].take(clock.monotonic()):
            self._left_out[kind] += 1
            return None
        left_out = self._left_out.pop(kind, 0)
        return {"left_out": left_out} if left_out else {}


class AccessLog:
    """Access log of one server; each kind of line has its own rate limit."""

    def __init__(self) -> None:
        self._log = log.logger("serving")
        self._rates = LogRateLimits()

    def unauthorized(self, request: Request, error: Exception) -> None:
        """Log a 401: invalid credentials."""
        if facts := self._line("unauthorized", request):
            self._log.v(1).info("request rejected", status=401, **facts, error=str(error))

    def forbidden(self, request: Request) -> None:
        """Log a 403: a forbidden request."""
        kind = "anonymous" if request.user == ANONYMOUS_NAME else "forbidden"
        if facts := self._line(kind, request):
            self._log.v(1).info("request forbidden", status=403, **facts)

    def review_failed(self, request: Request, error: Exception) -> None:
        """Log a 500 as a warning: the SubjectAccessReview failed."""
        if facts := self._line("unanswered", request):
            self._log.warning(
                "authorization check failed, returning status 500", **facts, error=str(error)
            )

    def allowed(self, request: Request) -> None:
        """Log an allowed request if its path is sensitive or its method is not read-only."""
        is_rare = request.method not in _HARMLESS or request.path.startswith(PRIVILEGED_PREFIXES)
        if is_rare and (facts := self._line("privileged", request)):
            self._log.v(1).info("privileged request", **facts)

    def _line(self, kind: str, request: Request) -> dict[str, Any] | None:
        """Return the keys and values of a log line; None if the rate limit forbids the line."""
        if (left_out := self._rates.admit(kind)) is None:
            return None
        facts = {
            "user": request.user[:MAX_LOGGED_CHARS],
            "verb": request.method.lower()[:MAX_LOGGED_CHARS],
            "path": request.path[:MAX_LOGGED_CHARS],
            "client": request.caller.address,
        }
        return {name: value for name, value in facts.items() if value} | left_out
