"""Whom our HTTPS server believes: authorities from files and from the cluster, followed.

The cluster keeps its own settings in a config map of kube-system; they stand in where a flag
says nothing. It is read again every minute, and so are the files.
Counterpart: k8s.io/apiserver, server/options (delegating authentication).

Deviation: an API server that does not answer when we start is waited for, where the Go
reference ends [conformance serving-lookup-03].
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ccm.app.options import Options
from ccm.app.provider import Misconfigured
from ccm.base import clock, log, metrics
from ccm.base.backoff import Exponential
from ccm.base.decoding import UNDECODABLE
from ccm.base.files import reason
from ccm.base.log import Outage
from ccm.base.throttle import TokenBucket
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.transport import Transport
from ccm.serving.authentication import Authorities, Proxies, ReviewFailed, Trust, User
from ccm.serving.handler_chain import Decision, Question
from ccm.serving.tls import CertificateError

CONFIG_MAP = "extension-apiserver-authentication"
PATH = f"/api/v1/namespaces/kube-system/configmaps/{CONFIG_MAP}"

CHECK_S = 60.0
"""How often files and the config map are read again (k8s.io/apiserver, dynamic certificates)."""

RETRY_S = 5.0
"""Pause between two tries while the config map was never read."""

_HINT = (
    "grant the role extension-apiserver-authentication-reader in kube-system, or pass "
    "--authentication-tolerate-lookup-failure or --authentication-skip-lookup"
)


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


class DynamicClientCA:
    """Keeps up to date which authorities certify callers, and which proxies may speak for them.

    Args:
        options: the flags.
        client: reads the config map; None: only files count.
        adopt: told whom to believe; `CertificateError` if that cannot be used.
    """

    def __init__(
        self, options: Options, client: Raw | None, adopt: Callable[[Trust], None]
    ) -> None:
        self._options = options
        self._client = None if options.authentication_skip_lookup else client
        self._adopt = adopt
        self._looked_up = self._client is None
        self._cluster: Mapping[str, str] = {}
        self._used: Trust | None = None
        logger = log.logger("serving")
        self._unread = Outage(
            logger,
            begins="the API server does not let us read the cluster's authentication settings, "
            "retrying; callers may be taken for anonymous",
            ends="the cluster's authentication settings are read again",
        )
        self._unusable = Outage(
            logger,
            begins="client authorities cannot be used, the old stay until these are corrected",
            ends="client authorities can be used again",
        )

    @property
    def waiting(self) -> str:
        """What is still waited for, in words; empty when nothing is."""
        return "" if self._looked_up else f"config map {CONFIG_MAP} was not read yet"

    async def start(self) -> None:
        """Believe what the files say.

        Raises:
            Misconfigured: one cannot be used.
        """
        try:
            await self._use()
        except (OSError, ValueError, CertificateError) as error:
            raise Misconfigured(f"client authorities: {error}") from error

    async def run(self) -> None:
        """Follow files and config map until cancelled.

        Raises:
            Misconfigured: the config map cannot be had, and nobody said that it need not.
        """
        while True:
            await self._look_up()
            try:
                await self._use()
            except (OSError, ValueError, CertificateError) as error:
                self._unusable.goes_on(error=str(error))
            else:
                self._unusable.is_over()
            await asyncio.sleep(CHECK_S if self._looked_up else RETRY_S)

    async def _look_up(self) -> None:
        """Read the config map, if there is anybody to ask."""
        if self._client is None:
            return
        try:
            answer = await self._client.raw("GET", PATH)
            self._cluster = msgspec.json.decode(answer, type=_ConfigMap).data or {}
        except errors.NotFound:
            # A cluster whose API server believes no authority has none for us either.
            self._cluster = {}
        except (errors.KubeError, *UNDECODABLE) as error:
            self._not_looked_up(error)
            return
        self._looked_up = True
        self._unread.is_over()

    def _not_looked_up(self, error: Exception) -> None:
        passes = isinstance(error, errors.KubeError) and not isinstance(error, errors.Forbidden)
        tolerated = self._options.authentication_tolerate_lookup_failure
        if not (self._looked_up or passes or tolerated):
            raise Misconfigured(
                f"config map {CONFIG_MAP} cannot be read: {error}; {_HINT}"
            ) from error
        self._looked_up = self._looked_up or not passes
        self._unread.goes_on(error=str(error))

    async def _use(self) -> None:
        file = self._options.client_ca_file
        trust = Trust(
            clients=await _authorities(
                "client-ca-file", file, self._cluster.get("client-ca-file", "")
            ),
            proxies=await self._proxies(),
        )
        if trust != self._used:
            self._adopt(trust)
            self._used = trust

    async def _proxies(self) -> Proxies:
        """All from flags if one names the authority of proxies, else all from the cluster."""
        file = self._options.requestheader_client_ca_file
        setting: Callable[[str], Any] = self._options.get if file else self._list
        authorities = self._cluster.get("requestheader-client-ca-file", "")
        return Proxies(
            authorities=await _authorities("requestheader-client-ca-file", file, authorities),
            names=setting("requestheader-allowed-names"),
            user_headers=setting("requestheader-username-headers"),
            uid_headers=setting("requestheader-uid-headers"),
            group_headers=setting("requestheader-group-headers"),
            extra_prefixes=setting("requestheader-extra-headers-prefix"),
        )

    def _list(self, name: str) -> Any:
        text = self._cluster.get(name, "")
        return tuple(msgspec.json.decode(text, type=list[str])) if text else ()


async def _authorities(flag: str, file: str, pem: str) -> Authorities:
    """Those of a file, or else of a text; none if both are empty. Raises ValueError."""
    if file:
        try:
            return Authorities.of(await asyncio.to_thread(Path(file).read_bytes))
        except (OSError, ValueError) as error:
            raise ValueError(f"--{flag}={file} cannot be used: {reason(error)}") from error
    return Authorities.of(pem.encode()) if pem.strip() else Authorities()


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
                for number in range(TRIES - 1):
                    try:
                        answer = await self._once(kind, body)
                        break
                    except (errors.Unreachable, errors.ServerError, errors.TooManyRequests):
                        await asyncio.sleep(_PAUSES.delay(number, self._rng))
                else:
                    answer = await self._once(kind, body)
            return msgspec.json.decode(answer, type=_Review).status
        except errors.KubeError as error:
            raise ReviewFailed(str(error)) from error
        except TimeoutError as error:
            raise ReviewFailed("the API server does not answer in time") from error
        except UNDECODABLE as error:
            raise ReviewFailed("the API server's answer makes no sense") from error

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
