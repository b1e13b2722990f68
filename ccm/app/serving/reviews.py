"""Asks the API server about callers of our own HTTPS server: who they are, what they may.

A TokenReview tells the owner of a token, a SubjectAccessReview whether somebody may have a
path. An attempt that got no answer is repeated after a growing pause, and all attempts
together have a limit. Counterpart: k8s.io/apiserver, its webhook authenticator and authorizer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from ccm.base import clock, metrics
from ccm.base.backoff import Exponential
from ccm.base.decoding import UNDECODABLE
from ccm.base.throttle import TokenBucket
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.transport import Transport
from ccm.serving.authentication import ReviewFailed
from ccm.serving.authorization import Decision, Question
from ccm.serving.identity import User

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

QPS, BURST = 200.0, 400
"""Rate of the clients that ask (k8s.io/apiserver, server/options)."""

LIMIT_S = 10.0
"""Longest time for one question, repetitions included (the same)."""

TRIES = 5
_PAUSES = Exponential(base_s=0.5, factor=1.5, cap_s=5.0, jitter=0.2)
"""Of one question (the same)."""

_SECONDS = (0.25, 0.5, 0.7, 1, 1.5, 3, 5, 10)


class _Kind:
    """One kind of question, and its metrics."""

    def __init__(self, name: str, path: str, metric: str, words: str) -> None:
        self.name = name
        self.path = path
        self.api_version = path.removeprefix("/apis/").rpartition("/")[0]
        self._total = metrics.counter(
            f"apiserver_delegated_{metric}_request_total",
            f"[ALPHA] Number of HTTP requests for {words} partitioned by status code.",
            ["code"],
        )
        self._seconds = metrics.histogram(
            f"apiserver_delegated_{metric}_request_duration_seconds",
            f"[ALPHA] Latency of HTTP requests for {words} in seconds. Broken down by status code.",
            ["code"],
            buckets=_SECONDS,
        )

    def observe(self, code: str, seconds: float) -> None:
        self._total.labels(code).inc()
        self._seconds.labels(code).observe(seconds)


_AUTHN = _Kind("TokenReview", TOKEN_REVIEWS, "authn", "delegated authentication")
_AUTHZ = _Kind("SubjectAccessReview", ACCESS_REVIEWS, "authz", "delegated authorization")


class _Owner(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _Status(msgspec.Struct):
    """Of either review: the first two of a token's, the others of an access's."""

    authenticated: bool = False
    user: _Owner | None = None
    allowed: bool = False
    denied: bool = False
    reason: str = ""


class _Review(msgspec.Struct):
    status: _Status


class Raw(Protocol):
    """What is needed of an API client."""

    async def raw(
        self, method: str, path: str, *, body: bytes | None = None, retry: bool = True
    ) -> bytes:
        """Send a request; raises `ccm.kube.errors`."""
        ...


class Reviews:
    """Asks one API server.

    Args:
        client: sends the questions.
    """

    def __init__(self, client: Raw) -> None:
        self._client = client
        self._rng = random.Random()

    async def review_token(self, token: str) -> User | None:
        """The owner of a token; None if it is wrong. Raises ReviewFailed."""
        status = await self._ask(_AUTHN, {"token": token})
        user = status.user
        if not status.authenticated or user is None:
            return None
        return User(
            name=user.username,
            uid=user.uid,
            groups=tuple(user.groups or ()),
            extra=tuple((key, tuple(value)) for key, value in (user.extra or {}).items()),
        )

    async def review_access(self, question: Question) -> Decision:
        """Whether somebody may have a path. Raises ReviewFailed."""
        user = question.user
        spec: dict[str, Any] = {
            "user": user.name,
            "groups": user.groups,
            "extra": {key: list(value) for key, value in user.extra},
            "nonResourceAttributes": {"path": question.path, "verb": question.verb},
        }
        if user.uid:
            spec["uid"] = user.uid
        status = await self._ask(_AUTHZ, spec)
        return Decision(allowed=status.allowed and not status.denied, reason=status.reason)

    async def _ask(self, kind: _Kind, spec: Mapping[str, Any]) -> _Status:
        review = {"apiVersion": kind.api_version, "kind": kind.name, "spec": spec}
        body = msgspec.json.encode(review)
        try:
            async with asyncio.timeout(LIMIT_S):
                answer = await self._repeated(lambda: self._once(kind, body))
            return msgspec.json.decode(answer, type=_Review).status
        except errors.KubeError as error:
            raise ReviewFailed(str(error)) from error
        except TimeoutError as error:
            raise ReviewFailed("the API server does not answer in time") from error
        except UNDECODABLE as error:
            raise ReviewFailed("the API server's answer makes no sense") from error

    async def _repeated(self, attempt: Callable[[], Awaitable[bytes]]) -> bytes:
        for number in range(TRIES - 1):
            try:
                return await attempt()
            except (errors.Unreachable, errors.ServerError, errors.TooManyRequests):
                await asyncio.sleep(_PAUSES.delay(number, self._rng))
        return await attempt()

    async def _once(self, kind: _Kind, body: bytes) -> bytes:
        started = clock.monotonic()
        code = "<error>"
        try:
            answer = await self._client.raw("POST", kind.path, body=body, retry=False)
            code = "201"
        except errors.ApiError as error:
            code = str(error.status)
            raise
        finally:
            kind.observe(code, clock.monotonic() - started)
        return answer


def client(transport: Transport, name: str) -> Client:
    """The client for questions over one transport; it has a rate limit of its own."""
    limiter = TokenBucket(qps=QPS, burst=BURST)
    return Client(transport, name=name, limiter=limiter, timeout_s=LIMIT_S)
