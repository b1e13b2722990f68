"""Authenticates callers by a front proxy's headers, a client certificate, or a bearer token.

The methods are tried in this order until one returns a user. If none does, the response is 401 if
any method found invalid credentials; otherwise the caller is anonymous. Counterpart:
k8s.io/apiserver, authentication.

Deviation: with a certificate of an unknown CA the TLS handshake fails, while the Go
cloud-controller-manager responds with 401 [conformance serving-tls-05].
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from urllib.parse import unquote

from ccm.base import clock, metrics
from ccm.serving.acceptor import FairLimiter
from ccm.serving.http import Caller, Request
from ccm.serving.ttl_cache import LRUStore, TTLCache

ANONYMOUS_NAME = "system:anonymous"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"

_UID_ATTRIBUTE = "1.3.6.1.4.1.57683.2"
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """An authenticated or anonymous user.

    Attributes:
        name: user name.
        uid: distinguishes users with the same name; often empty.
        groups: groups of the user.
        extra: further attributes as (key, values) pairs.
    """

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def authenticated(self) -> UserInfo:
        """Return the user with the group `system:authenticated` added.

        A user is returned unchanged if it is anonymous, or is in that group or in
        `system:unauthenticated`.
        """
        if self.name == ANONYMOUS_NAME or {AUTHENTICATED, UNAUTHENTICATED} & {*self.groups}:
            return self
        return UserInfo(
            name=self.name, uid=self.uid, groups=(*self.groups, AUTHENTICATED), extra=self.extra
        )


ANONYMOUS = UserInfo(name=ANONYMOUS_NAME, groups=(UNAUTHENTICATED,))
"""User of a request without credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CABundle:
    """CA bundle; an empty bundle trusts no certificate.

    Attributes:
        pem: the bundle in PEM.
        members: the certificates of the bundle in DER.
    """

    pem: bytes = b""
    members: frozenset[bytes] = field(default_factory=frozenset, repr=False)

    @classmethod
    def parse(cls, pem: bytes) -> CABundle:
        """Parse a PEM bundle.

        Raises:
            ValueError: the bundle has no certificate, or an invalid certificate.
        """
        certificates = frozenset(_certificates(pem))
        if not certificates:
            raise ValueError("no certificate found in the CA data")
        return cls(pem=pem, members=certificates)

    def has_issued(self, caller: Caller) -> bool:
        """Return whether the caller's verified chain contains one of these CAs."""
        return any(link in self.members for link in caller.chain)


def _certificates(pem: bytes) -> Iterable[bytes]:
    for block in pem.split(_BEGIN)[1:]:
        body, end, _rest = block.partition(_END)
        if not end:
            raise ValueError("a certificate in the CA data is truncated")
        text = (_BEGIN + body + _END).decode("ascii", errors="replace")
        yield ssl.PEM_cert_to_DER_cert(text)


def user_of(certificate: Mapping[str, object]) -> UserInfo | None:
    """Return the user named in a certificate; None if it has no common name.

    `certificate` has the format of `ssl.SSLSocket.getpeercert`.
    """
    facts = _subject(certificate)
    name = common_name(certificate)
    if not name:
        return None
    return UserInfo(
        name=name,
        uid=next(iter(facts.get(_UID_ATTRIBUTE, ())), ""),
        groups=tuple(facts.get("organizationName", ())),
    )


def common_name(certificate: Mapping[str, object]) -> str:
    """Return the last common name of a certificate, as Go does; empty if there is none."""
    return next(reversed(_subject(certificate).get("commonName", ())), "")


def has_expired(certificate: Mapping[str, object], now: datetime) -> bool:
    """Return whether a certificate has expired; TLS checks the expiry only in the handshake."""
    end = certificate.get("notAfter")
    return isinstance(end, str) and ssl.cert_time_to_seconds(end) < now.timestamp()


def _subject(certificate: Mapping[str, object]) -> Mapping[str, tuple[str, ...]]:
    facts: dict[str, tuple[str, ...]] = {}
    parts = cast("Iterable[Iterable[tuple[str, Any]]]", certificate.get("subject", ()))
    for part in parts:
        for name, value in part:
            facts[name] = (*facts.get(name, ()), str(value))
    return facts


_BUCKETS = metrics.exponential_buckets(0.001, 2, 15)

_users = metrics.plain_counter(
    "authenticated_user_requests",
    "[ALPHA] Counter of authenticated requests broken out by username.",
    ["username"],
)
_attempts = metrics.plain_counter(
    "authentication_attempts", "[ALPHA] Counter of authenticated attempts.", ["result"]
)
_duration = metrics.histogram(
    "authentication_duration_seconds",
    "[ALPHA] Authentication duration in seconds broken out by result.",
    ["result"],
    buckets=_BUCKETS,
)

_KNOWN_NAMES = frozenset(
    {"admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default"}
)
"""User names that appear in metrics; others count as "other" or "email_id".

Source: k8s.io/apiserver, endpoints/filters.
"""

MAX_NEW_TOKEN_REVIEWS = 32
"""Maximum concurrent TokenReviews for tokens that are not known to have been valid.

A flood of invalid tokens must not delay the reviews of tokens that were valid before.
"""

MAX_NEW_TOKEN_REVIEWS_PER_ORIGIN = 8
"""Maximum concurrent TokenReviews of one origin, for tokens not known to have been valid.

A flood from one address must not block a new valid token from another address.
"""

MAX_VALID_TOKENS = 256
"""Maximum number of valid tokens whose digests are kept."""


class ReviewFailed(Exception):
    """A TokenReview or SubjectAccessReview failed; the message is the cause."""


class InvalidCredentials(Exception):
    """The caller's credentials are invalid; the message is for the log, not for the caller."""


TokenReview = Callable[[str], Awaitable[UserInfo | None]]
"""Function that returns the user of a token, or None for an invalid token.

It raises ReviewFailed if the review failed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxies:
    """Front proxies that may name the user of a request in headers.

    Attributes:
        authorities: CAs of the proxies' client certificates.
        names: accepted common names of these certificates; empty accepts every name.
        user_headers: headers for the user name; the first header that is not empty counts.
        uid_headers: headers for the UID; the first header that is not empty counts.
        group_headers: headers for groups; all headers count.
        extra_prefixes: prefixes of headers for `UserInfo.extra`.
    """

    authorities: CABundle = field(default_factory=CABundle)
    names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ()
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Trusted CAs and front proxies; may change while the process runs.

    Attributes:
        clients: CAs of client certificates.
        proxies: trusted front proxies.
    """

    clients: CABundle = field(default_factory=CABundle)
    proxies: FrontProxies = field(default_factory=FrontProxies)

    @property
    def pem(self) -> bytes | None:
        """All CAs of client certificates, for TLS; None if there are no CAs."""
        both = (self.clients.pem, self.proxies.authorities.pem)
        return b"\n".join(pem for pem in both if pem) or None


class Authenticator:
    """Authenticator of requests.

    Args:
        review: sends a TokenReview; None means that every token is rejected.
        token_ttl_s: seconds for which the result of a TokenReview is cached.
        store: storage of the results; None means a store of its own.
    """

    def __init__(
        self, review: TokenReview | None, *, token_ttl_s: float, store: LRUStore | None = None
    ) -> None:
        self.trust = Trust()
        self._review_token = review
        self._salt = secrets.token_bytes(32)
        self._valid_tokens: OrderedDict[bytes, None] = OrderedDict()
        self._new_token_reviews = FairLimiter(
            MAX_NEW_TOKEN_REVIEWS, per_origin=MAX_NEW_TOKEN_REVIEWS_PER_ORIGIN
        )
        self._tokens: TTLCache[bytes, UserInfo | None] = TTLCache(
            lambda _answer: token_ttl_s, name="authentication", store=store
        )
        for result in ("success", "failure", "error"):
            _attempts.labels(result)

    async def identify(self, request: Request) -> UserInfo:
        """Return the user of a request.

        Raises:
            InvalidCredentials: the credentials are invalid.
        """
        started = clock.monotonic()
        result = "error"
        try:
            user = await self._identify(request)
            result = "success"
        finally:
            _attempts.labels(result).inc()
            _duration.labels(result).observe(clock.monotonic() - started)
        other = "email_id" if "@" in user.name else "other"
        _users.labels(user.name if user.name in _KNOWN_NAMES else other).inc()
        return user

    async def close(self) -> None:
        """Cancel running TokenReviews."""
        await self._tokens.close()

    async def _identify(self, request: Request) -> UserInfo:
        wrong: list[str] = []
        for way in (self._by_proxy, self._by_certificate, self._by_token):
            try:
                user = await way(request)
            except InvalidCredentials as error:
                wrong.append(str(error))
            else:
                if user is not None:
                    return user.authenticated()
        if wrong:
            raise InvalidCredentials("; ".join(wrong))
        return ANONYMOUS

    async def _by_proxy(self, request: Request) -> UserInfo | None:
        proxies, caller = self.trust.proxies, request.caller
        if not proxies.authorities.members or caller.certificate is None:
            return None
        if not proxies.authorities.has_issued(caller):
            raise InvalidCredentials("the certificate does not belong to a trusted proxy")
        self._check_time(caller.certificate)
        if proxies.names and common_name(caller.certificate) not in proxies.names:
            raise InvalidCredentials("the certificate's common name is not an allowed proxy name")
        return _proxied_user(proxies, request)

    async def _by_certificate(self, request: Request) -> UserInfo | None:
        caller = request.caller
        if caller.certificate is None or not self.trust.clients.members:
            return None
        if not self.trust.clients.has_issued(caller):
            raise InvalidCredentials("the certificate is signed by an unknown authority")
        self._check_time(caller.certificate)
        return user_of(caller.certificate)

    def _check_time(self, certificate: Mapping[str, object]) -> None:
        if has_expired(certificate, clock.now()):
            raise InvalidCredentials("the certificate has expired")

    async def _by_token(self, request: Request) -> UserInfo | None:
        scheme, _, rest = request.headers.get("Authorization", "").strip().partition(" ")
        token = rest.partition(" ")[0]
        if scheme.lower() != "bearer" or not token:
            return None
        try:
            # The keys are salted digests, so that no token stays in memory.
            key = hmac.digest(self._salt, token.encode(), hashlib.sha256)
        except UnicodeEncodeError:
            raise InvalidCredentials("the token is not valid UTF-8") from None
        if key in self._valid_tokens:
            request.mark_authenticated()
        try:
            user = await self._tokens.get(
                key, lambda: self._review(key, token, request.caller.origin)
            )
        except ReviewFailed as error:
            raise InvalidCredentials(f"the token could not be reviewed: {error}") from error
        if user is None:
            self._valid_tokens.pop(key, None)
            raise InvalidCredentials("the token is invalid")
        self._valid_tokens[key] = None
        self._valid_tokens.move_to_end(key)
        if len(self._valid_tokens) > MAX_VALID_TOKENS:
            self._valid_tokens.popitem(last=False)
        return user

    async def _review(self, key: bytes, token: str, origin: str) -> UserInfo | None:
        if self._review_token is None:
            return None
        if key in self._valid_tokens:
            return await self._review_token(token)
        async with self._new_token_reviews.slot(origin):
            return await self._review_token(token)


def _proxied_user(proxies: FrontProxies, request: Request) -> UserInfo | None:
    name = _first(request, proxies.user_headers)
    if not name:
        return None
    groups = [
        value for header in proxies.group_headers for value in request.headers.getall(header, ())
    ]
    extra: dict[str, tuple[str, ...]] = {}
    for header, value in request.headers.items():
        for prefix in proxies.extra_prefixes:
            if header.lower().startswith(prefix.lower()):
                key = unquote(header[len(prefix) :].lower())
                extra[key] = (*extra.get(key, ()), value)
    return UserInfo(
        name=name,
        uid=_first(request, proxies.uid_headers),
        groups=tuple(groups),
        extra=tuple(extra.items()),
    )


def _first(request: Request, headers: Sequence[str]) -> str:
    return next((value for name in headers if (value := request.headers.get(name))), "")
