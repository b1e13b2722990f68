"""Finds out who asks: by a trusted proxy's headers, a client certificate, or a bearer token.

Each way says who it is, that it knows nothing, or that what it was shown is wrong. The first
that knows decides; where none does, one wrong proof is enough for 401, and no proof at all
makes the caller anonymous. Counterpart: k8s.io/apiserver, authentication.

Deviation: a certificate that no trusted authority has signed ends the TLS handshake, where
the Go reference answers 401 [conformance serving-tls-05].
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
from ccm.serving.acceptor import Turns
from ccm.serving.http import Caller, Request
from ccm.serving.ttl_cache import Shelf, TTLCache

ANONYMOUS_NAME = "system:anonymous"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"

_UID_ATTRIBUTE = "1.3.6.1.4.1.57683.2"
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody who asks.

    Attributes:
        name: user name.
        uid: tells users of one name apart; often empty.
        groups: in their order.
        extra: further facts, each with several values.
    """

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def authenticated(self) -> User:
        """The same, as a member of the group of all who have proved who they are."""
        if self.name == ANONYMOUS_NAME or {AUTHENTICATED, UNAUTHENTICATED} & {*self.groups}:
            return self
        return User(
            name=self.name,
            uid=self.uid,
            groups=(*self.groups, AUTHENTICATED),
            extra=self.extra,
        )


ANONYMOUS = User(name=ANONYMOUS_NAME, groups=(UNAUTHENTICATED,))
"""Whoever shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """Whose certificates are believed for one purpose; no PEM believes none.

    Attributes:
        pem: the bundle.
        members: its certificates in DER.
    """

    pem: bytes = b""
    members: frozenset[bytes] = field(default_factory=frozenset, repr=False)

    @classmethod
    def of(cls, pem: bytes) -> Authorities:
        """Those of a PEM bundle.

        Raises:
            ValueError: it holds no certificate, or something broken.
        """
        found = frozenset(_certificates(pem))
        if not found:
            raise ValueError("no certificate found in the certificate authority data")
        return cls(pem=pem, members=found)

    def vouch_for(self, caller: Caller) -> bool:
        """Whether the caller's chain, verified by TLS, leads to one of these."""
        return any(link in self.members for link in caller.chain)


def _certificates(pem: bytes) -> Iterable[bytes]:
    for block in pem.split(_BEGIN)[1:]:
        body, end, _rest = block.partition(_END)
        if not end:
            raise ValueError("a certificate in the certificate authority data is cut short")
        text = (_BEGIN + body + _END).decode("ascii", errors="replace")
        yield ssl.PEM_cert_to_DER_cert(text)


def user_of(certificate: Mapping[str, object]) -> User | None:
    """The user that a certificate (as `ssl` tells it) names; None if it names nobody."""
    facts = _subject(certificate)
    name = common_name(certificate)
    if not name:
        return None
    return User(
        name=name,
        uid=next(iter(facts.get(_UID_ATTRIBUTE, ())), ""),
        groups=tuple(facts.get("organizationName", ())),
    )


def common_name(certificate: Mapping[str, object]) -> str:
    """The common name of a certificate; may be empty. Of several the last counts, as in Go."""
    return next(reversed(_subject(certificate).get("commonName", ())), "")


def is_over(certificate: Mapping[str, object], now: datetime) -> bool:
    """Whether the time of a certificate is over; TLS looks only when a connection begins."""
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
"""User names that the metric tells apart (k8s.io/apiserver, endpoints/filters)."""

UNKNOWN_AT_ONCE = 32
"""Reviews of tokens that never were good that are under way at one time: a crowd of those must
not keep callers whose tokens were good waiting for the API server."""

UNKNOWN_OF_EACH = 8
"""Of those, the ones for callers from one address, who take turns: nor may a crowd keep out a
caller from elsewhere whose token is good, and new to us."""

GOOD_KEPT = 256
"""Tokens that were good whose digests are remembered."""


class ReviewFailed(Exception):
    """The API server gave no answer about a caller; the message says why."""


class Unauthorized(Exception):
    """The caller showed something, and it is wrong; the message is for our log alone."""


TokenReview = Callable[[str], Awaitable[User | None]]
"""Returns the owner of a token, None if it is no good one; raises ReviewFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """Whose word about their own callers is believed.

    Attributes:
        authorities: who certifies such proxies.
        names: common names of them; empty: everyone who is certified.
        user_headers: the first that is there names the user.
        uid_headers: the first that is there gives the UID.
        group_headers: all of them name groups.
        extra_prefixes: beginnings of the headers with further facts.
    """

    authorities: Authorities = field(default_factory=Authorities)
    names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ()
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whom we believe besides the API server; may change while the process runs.

    Attributes:
        clients: who certifies callers.
        proxies: whose word about callers is believed.
    """

    clients: Authorities = field(default_factory=Authorities)
    proxies: Proxies = field(default_factory=Proxies)

    @property
    def pem(self) -> bytes | None:
        """All authorities together, for TLS; None without any."""
        both = (self.clients.pem, self.proxies.authorities.pem)
        return b"\n".join(pem for pem in both if pem) or None


class Authenticator:
    """Tells who asks.

    Args:
        review: asks about tokens; None: every token is wrong.
        token_ttl_s: how long an answer about a token is remembered.
        shelf: where answers are kept; None: one of its own.
    """

    def __init__(
        self, review: TokenReview | None, *, token_ttl_s: float, shelf: Shelf | None = None
    ) -> None:
        self.trust = Trust()
        self._review_token = review
        self._salt = secrets.token_bytes(32)
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._unknown = Turns(UNKNOWN_AT_ONCE, each=UNKNOWN_OF_EACH)
        self._tokens: TTLCache[bytes, User | None] = TTLCache(
            lambda _answer: token_ttl_s, name="authentication", shelf=shelf
        )
        for result in ("success", "failure", "error"):
            _attempts.labels(result)

    async def identify(self, request: Request) -> User:
        """Who sent a request.

        Raises:
            Unauthorized: what it shows is wrong.
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
        """Ask nobody any more."""
        await self._tokens.close()

    async def _identify(self, request: Request) -> User:
        wrong: list[str] = []
        for way in (self._by_proxy, self._by_certificate, self._by_token):
            try:
                user = await way(request)
            except Unauthorized as error:
                wrong.append(str(error))
            else:
                if user is not None:
                    return user.authenticated()
        if wrong:
            raise Unauthorized("; ".join(wrong))
        return ANONYMOUS

    async def _by_proxy(self, request: Request) -> User | None:
        proxies, caller = self.trust.proxies, request.caller
        if not proxies.authorities.members or caller.certificate is None:
            return None
        if not proxies.authorities.vouch_for(caller):
            raise Unauthorized("the certificate is not a trusted proxy's")
        self._check_time(caller.certificate)
        if proxies.names and common_name(caller.certificate) not in proxies.names:
            raise Unauthorized("the certificate's common name is not a trusted proxy's")
        return _told_by_proxy(proxies, request)

    async def _by_certificate(self, request: Request) -> User | None:
        caller = request.caller
        if caller.certificate is None or not self.trust.clients.members:
            return None
        if not self.trust.clients.vouch_for(caller):
            raise Unauthorized("the certificate is signed by an unknown authority")
        self._check_time(caller.certificate)
        return user_of(caller.certificate)

    def _check_time(self, certificate: Mapping[str, object]) -> None:
        if is_over(certificate, clock.now()):
            raise Unauthorized("the certificate has expired")

    async def _by_token(self, request: Request) -> User | None:
        scheme, _, rest = request.headers.get("Authorization", "").strip().partition(" ")
        token = rest.partition(" ")[0]
        if scheme.lower() != "bearer" or not token:
            return None
        try:
            # The token itself is kept no longer than the question takes.
            key = hmac.digest(self._salt, token.encode(), hashlib.sha256)
        except UnicodeEncodeError:
            raise Unauthorized("the token is no text") from None
        if key in self._good:
            request.known()
        try:
            user = await self._tokens.get(
                key, lambda: self._review(key, token, request.caller.origin)
            )
        except ReviewFailed as error:
            raise Unauthorized(f"the token could not be reviewed: {error}") from error
        if user is None:
            self._good.pop(key, None)
            raise Unauthorized("the token is wrong")
        self._good[key] = None
        self._good.move_to_end(key)
        if len(self._good) > GOOD_KEPT:
            self._good.popitem(last=False)
        return user

    async def _review(self, key: bytes, token: str, origin: str) -> User | None:
        if self._review_token is None:
            return None
        if key in self._good:
            return await self._review_token(token)
        async with self._unknown.place(origin):
            return await self._review_token(token)


def _told_by_proxy(proxies: Proxies, request: Request) -> User | None:
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
    return User(
        name=name,
        uid=_first(request, proxies.uid_headers),
        groups=tuple(groups),
        extra=tuple(extra.items()),
    )


def _first(request: Request, headers: Sequence[str]) -> str:
    return next((found for name in headers if (found := request.headers.get(name))), "")
