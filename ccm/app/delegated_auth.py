"""Client CAs of the HTTPS server, and delegated authentication and authorization.

Where a flag is empty, the cluster's settings apply: the ConfigMap
kube-system/extension-apiserver-authentication. The ConfigMap and the files are read again every
minute. Counterpart: k8s.io/apiserver, server/options (delegating authentication).

Deviation: if the API server is unavailable at start, the daemon waits for it, while the Go
cloud-controller-manager exits [conformance serving-lookup-03].
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
from ccm.base.backoff import ExponentialBackoff
from ccm.base.decoding import DECODE_ERRORS
from ccm.base.files import describe_error
from ccm.base.log import Outage
from ccm.base.throttle import TokenBucket
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.transport import Transport
from ccm.serving.authentication import CABundle, FrontProxies, ReviewFailed, Trust, UserInfo
from ccm.serving.handler_chain import AccessAttributes, AccessDecision
from ccm.serving.tls import CertificateError

CONFIG_MAP = "extension-apiserver-authentication"
PATH = f"/api/v1/namespaces/kube-system/configmaps/{CONFIG_MAP}"

CHECK_S = 60.0
"""Seconds between reads of files and ConfigMap (k8s.io/apiserver, dynamic certificates)."""

RETRY_S = 5.0
"""Seconds between attempts until the ConfigMap has been read for the first time."""

_HINT = (
    "grant the role extension-apiserver-authentication-reader in kube-system, or pass "
    "--authentication-tolerate-lookup-failure or --authentication-skip-lookup"
)


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


class DynamicClientCA:
    """Watcher of the client CAs, and of the settings for front proxies.

    Args:
        options: the flags.
        client: reads the ConfigMap; None means that only the files count.
        adopt: called with changed CAs and settings, to apply them; raises CertificateError if
            they are unusable.
    """

    def __init__(
        self, options: Options, client: RawClient | None, adopt: Callable[[Trust], None]
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
            start_message="authentication ConfigMap cannot be read, retrying; requests may be "
            "treated as anonymous",
            end_message="authentication ConfigMap read again",
        )
        self._unusable = Outage(
            logger,
            start_message="client CAs invalid, previous CAs stay in use",
            end_message="client CAs valid again",
        )

    @property
    def pending_reason(self) -> str:
        """Reason why the cluster's settings are not loaded yet; empty once they are loaded."""
        return "" if self._looked_up else f"ConfigMap {CONFIG_MAP} not read yet"

    async def start(self) -> None:
        """Read the files for the first time, and apply them.

        Raises:
            Misconfigured: a file is unusable.
        """
        try:
            await self._apply()
        except (OSError, ValueError, CertificateError) as error:
            raise Misconfigured(f"client CAs: {error}") from error

    async def run(self) -> None:
        """Watch files and ConfigMap until cancelled.

        Raises:
            Misconfigured: a permanent error prevented the first read of the ConfigMap, and
                --authentication-tolerate-lookup-failure is false.
        """
        while True:
            await self._look_up()
            try:
                await self._apply()
            except (OSError, ValueError, CertificateError) as error:
                self._unusable.record_failure(error=str(error))
            else:
                self._unusable.record_success()
            await asyncio.sleep(CHECK_S if self._looked_up else RETRY_S)

    async def _look_up(self) -> None:
        """Read the ConfigMap if there is a client for it."""
        if self._client is None:
            return
        try:
            answer = await self._client.raw("GET", PATH)
            self._cluster = msgspec.json.decode(answer, type=_ConfigMap).data or {}
        except errors.NotFound:
            # An API server without client CAs may create no ConfigMap; then it provides no CAs.
            self._cluster = {}
        except (errors.KubeError, *DECODE_ERRORS) as error:
            self._not_looked_up(error)
            return
        self._looked_up = True
        self._unread.record_success()

    def _not_looked_up(self, error: Exception) -> None:
        is_temporary = isinstance(error, errors.KubeError) and not isinstance(
            error, errors.Forbidden
        )
        tolerated = self._options.authentication_tolerate_lookup_failure
        if not (self._looked_up or is_temporary or tolerated):
            raise Misconfigured(
                f"ConfigMap {CONFIG_MAP} cannot be read: {error}; {_HINT}"
            ) from error
        # A tolerated permanent error counts as a successful lookup: waiting would not help.
        self._looked_up = self._looked_up or not is_temporary
        self._unread.record_failure(error=str(error))

    async def _apply(self) -> None:
        file = self._options.client_ca_file
        trust = Trust(
            clients=await _load_cas(
                "client-ca-file", file, self._cluster.get("client-ca-file", "")
            ),
            proxies=await self._proxies(),
        )
        if trust != self._used:
            self._adopt(trust)
            self._used = trust

    async def _proxies(self) -> FrontProxies:
        """Return the front-proxy settings.

        All come from flags if --requestheader-client-ca-file is set, else from the ConfigMap.
        """
        file = self._options.requestheader_client_ca_file
        setting: Callable[[str], Any] = self._options.get if file else self._list
        authorities = self._cluster.get("requestheader-client-ca-file", "")
        return FrontProxies(
            authorities=await _load_cas("requestheader-client-ca-file", file, authorities),
            names=setting("requestheader-allowed-names"),
            user_headers=setting("requestheader-username-headers"),
            uid_headers=setting("requestheader-uid-headers"),
            group_headers=setting("requestheader-group-headers"),
            extra_prefixes=setting("requestheader-extra-headers-prefix"),
        )

    def _list(self, name: str) -> Any:
        text = self._cluster.get(name, "")
        return tuple(msgspec.json.decode(text, type=list[str])) if text else ()


async def _load_cas(flag: str, file: str, pem: str) -> CABundle:
    """Read CAs from a file, or from `pem` if `file` is empty; no CAs if both are empty.

    Raises:
        ValueError: the file or `pem` is invalid.
    """
    if file:
        try:
            return CABundle.parse(await asyncio.to_thread(Path(file).read_bytes))
        except (OSError, ValueError) as error:
            raise ValueError(f"--{flag}={file} cannot be used: {describe_error(error)}") from error
    return CABundle.parse(pem.encode()) if pem.strip() else CABundle()


TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

QPS, BURST = 200.0, 400
"""Rate limit of each client for reviews: requests per second, and burst.

Source: k8s.io/apiserver, server/options.
"""

REVIEW_TIMEOUT_S = 10.0
"""Timeout of one review, retries included (k8s.io/apiserver, server/options)."""

TRIES = 5
_PAUSES = ExponentialBackoff(base_s=0.5, factor=1.5, cap_s=5.0, jitter=0.2)
"""Attempts for one review, and the back-off between them (k8s.io/apiserver, server/options)."""

_SECONDS = (0.25, 0.5, 0.7, 1, 1.5, 3, 5, 10)


class _ReviewKind:
    """A kind of review (TokenReview or SubjectAccessReview), and its metrics."""

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


_AUTHN = _ReviewKind("TokenReview", TOKEN_REVIEWS, "authn", "delegated authentication")
_AUTHZ = _ReviewKind("SubjectAccessReview", ACCESS_REVIEWS, "authz", "delegated authorization")


class _UserInfo(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _ReviewStatus(msgspec.Struct):
    """Status of a review.

    A TokenReview has `authenticated` and `user`, a SubjectAccessReview the other fields.
    """

    authenticated: bool = False
    user: _UserInfo | None = None
    allowed: bool = False
    denied: bool = False
    reason: str = ""


class _ReviewResponse(msgspec.Struct):
    status: _ReviewStatus


class RawClient(Protocol):
    """The method of the API client (`ccm.kube.client.Client`) that this module needs."""

    async def raw(
        self, method: str, path: str, *, body: bytes | None = None, retry: bool = True
    ) -> bytes:
        """Send a request and return the body of the response.

        Raises:
            KubeError: the request failed.
        """
        ...


class ReviewClient:
    """Client for TokenReviews and SubjectAccessReviews.

    Args:
        client: sends the reviews to the API server.
    """

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._rng = random.Random()

    async def review_token(self, token: str) -> UserInfo | None:
        """Return the user of a bearer token; None if the token is invalid. Raises ReviewFailed."""
        status = await self._review(_AUTHN, {"token": token})
        user = status.user
        if not status.authenticated or user is None:
            return None
        return UserInfo(
            name=user.username,
            uid=user.uid,
            groups=tuple(user.groups or ()),
            extra=tuple((key, tuple(value)) for key, value in (user.extra or {}).items()),
        )

    async def review_access(self, question: AccessAttributes) -> AccessDecision:
        """Return whether a user may access a path. Raises ReviewFailed."""
        user = question.user
        spec: dict[str, Any] = {
            "user": user.name,
            "groups": user.groups,
            "extra": {key: list(value) for key, value in user.extra},
            "nonResourceAttributes": {"path": question.path, "verb": question.verb},
        }
        if user.uid:
            spec["uid"] = user.uid
        status = await self._review(_AUTHZ, spec)
        return AccessDecision(allowed=status.allowed and not status.denied, reason=status.reason)

    async def _review(self, kind: _ReviewKind, spec: Mapping[str, Any]) -> _ReviewStatus:
        review = {"apiVersion": kind.api_version, "kind": kind.name, "spec": spec}
        body = msgspec.json.encode(review)
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT_S):
                for number in range(TRIES - 1):
                    try:
                        answer = await self._send(kind, body)
                        break
                    except (errors.Unreachable, errors.ServerError, errors.TooManyRequests):
                        await asyncio.sleep(_PAUSES.delay(number, self._rng))
                else:
                    # The error of the last attempt is final.
                    answer = await self._send(kind, body)
            return msgspec.json.decode(answer, type=_ReviewResponse).status
        except errors.KubeError as error:
            raise ReviewFailed(str(error)) from error
        except TimeoutError as error:
            raise ReviewFailed("the API server did not respond in time") from error
        except DECODE_ERRORS as error:
            raise ReviewFailed("the response of the API server cannot be decoded") from error

    async def _send(self, kind: _ReviewKind, body: bytes) -> bytes:
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
    """Return a client for TokenReviews and SubjectAccessReviews, with its own rate limit."""
    limiter = TokenBucket(qps=QPS, burst=BURST)
    return Client(transport, name=name, limiter=limiter, timeout_s=REVIEW_TIMEOUT_S)
