"""Admission reviews: what an API server asks before it stores an object, and our answers.

The wire format is `admission.k8s.io/v1`. A webhook is a name and an async function from a
`Request` to an `Answer`; the server around it (`webhook`) knows nothing of what is decided.
"""

from __future__ import annotations

import asyncio
import difflib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ccm.base import clock, log, metrics, redact
from ccm.base.parsing import parse_duration
from ccm.base.redact import public
from ccm.model import Service
from ccm.model.meta import Wire
from ccm.serving import http
from ccm.serving.handler_chain import LineRates

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

CREATE = "CREATE"
UPDATE = "UPDATE"
"""Values of `Request.operation`; others are DELETE and CONNECT."""

FORBIDDEN = 403
"""Status code of a refusal unless the answer names another."""

_REASONS = {400: "BadRequest", 403: "Forbidden", 409: "Conflict", 422: "Invalid"}
_NULL = msgspec.Raw(b"null")


class Malformed(Exception):
    """The body is no admission review that can be answered; the message says why."""


class GroupVersionKind(Wire, frozen=True, kw_only=True):
    """Which kind an object is of; the core group is empty."""

    group: str = ""
    version: str = ""
    kind: str = ""


class Request(Wire, frozen=True, kw_only=True):
    """One write that an API server asks about.

    `object` is the object as it would be stored, `old_object` the one that is stored; both as
    JSON, `null` where there is none.
    """

    uid: str
    kind: GroupVersionKind = GroupVersionKind()
    sub_resource: str = ""
    operation: str = ""
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a webhook decides.

    Attributes:
        allowed: whether the write may happen.
        message: why not, for whoever wrote.
        code: HTTP status that the writer gets for a refusal.
        warnings: shown to the writer either way; an API server cuts long ones.
    """

    allowed: bool
    message: str = ""
    code: int = FORBIDDEN
    warnings: Sequence[str] = ()


ALLOWED = Answer(allowed=True)

Handler = Callable[[Request], Awaitable[Answer]]
"""Decides about one write. Called for many at once; whatever it raises becomes a 500, which an
API server treats as its `failurePolicy` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One webhook.

    Attributes:
        name: in `--webhooks`, metrics and logs; its path is `/<name>`.
        handle: what it decides.
    """

    name: str
    handle: Handler

    @property
    def path(self) -> str:
        """Where it is served."""
        return f"/{self.name}"


class _Review(Wire, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    request: Request | None = None


class _Status(Wire, frozen=True, kw_only=True):
    code: int
    reason: str = ""
    message: str = ""


class _Response(Wire, frozen=True, kw_only=True):
    uid: str
    allowed: bool
    status: _Status | None = None
    warnings: list[str] | None = None


class _Reviewed(Wire, frozen=True, kw_only=True):
    api_version: str
    kind: str
    response: _Response


_REVIEW = msgspec.json.Decoder(_Review)


def decode(body: bytes) -> Request:
    """The request of an admission review.

    Raises:
        Malformed: it is none, or holds no request.
    """
    try:
        review = _REVIEW.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Malformed(f"body is no {KIND}: {error}") from error
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        given = f"apiVersion {review.api_version[:64]!r} and kind {review.kind[:64]!r}"
        raise Malformed(f"body has {given}; expected {API_VERSION!r} and {KIND!r}")
    if review.request is None:
        raise Malformed(f"{KIND} has no request")
    return review.request


def encode(request: Request, answer: Answer) -> bytes:
    """The admission review that answers a request; its words are fit for everybody."""
    status = None
    if not answer.allowed:
        reason = _REASONS.get(answer.code, "")
        status = _Status(code=answer.code, reason=reason, message=public(answer.message))
    return msgspec.json.encode(
        _Reviewed(
            api_version=API_VERSION,
            kind=KIND,
            response=_Response(
                uid=request.uid,
                allowed=answer.allowed,
                status=status,
                warnings=list(map(public, answer.warnings)) or None,
            ),
        )
    )


MOST_WARNINGS = 10
"""Warnings in one answer; an API server drops those beyond 4 KiB anyway."""

_LONGEST = 63
"""Characters of a name that are compared with known ones: no valid name has more after its
slash, and nobody has checked yet that this one is valid."""

_SERVICE = GroupVersionKind(version="v1", kind="Service")
_DECODER = msgspec.json.Decoder(Service | None)


class Rule(Protocol):
    """One annotation of a schema."""

    @property
    def name(self) -> str:
        """The whole name."""
        ...

    def fault(self, text: str) -> str:
        """What is wrong with a text, one sentence; empty if it is a value."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Which annotations there are.

    Attributes:
        rules: those whose values are checked.
        prefixes: beginnings of names that have a meaning; a name that equals one is known.
    """

    rules: Sequence[Rule] = ()
    prefixes: Sequence[str] = ()


class ServiceAnnotations:
    """Decides about the writes of Services.

    Args:
        schema: the schema of now; it may change while the process runs.
        concerns: whether a Service is one whose annotations are read.
    """

    def __init__(self, schema: Callable[[], Schema], concerns: Callable[[Service], bool]) -> None:
        self._schema = schema
        self._concerns = concerns

    async def __call__(self, request: Request) -> Answer:
        """Refuse wrong values; raises `msgspec.DecodeError` for what is no Service."""
        if request.kind != _SERVICE or request.sub_resource:
            return ALLOWED
        if request.operation not in (CREATE, UPDATE):
            return ALLOWED
        service = _DECODER.decode(request.object)
        if service is None or service.is_deleting or not self._concerns(service):
            return ALLOWED
        old = _DECODER.decode(request.old_object)
        # What nobody read before counts as written now.
        before = old.annotations if old is not None and self._concerns(old) else {}
        return judge(self._schema(), before, service.annotations)


def judge(schema: Schema, before: Mapping[str, str], after: Mapping[str, str]) -> Answer:
    """Whether annotations may change from one state to another."""
    changed = {name for name, text in after.items() if before.get(name) != text}
    rules = {rule.name: rule for rule in schema.rules}
    prefixes = tuple(schema.prefixes)
    strangers = sorted(
        name
        for name in changed
        if name not in rules and name not in prefixes and name.startswith(prefixes)
    )
    if not strangers and changed.isdisjoint(rules):
        return ALLOWED
    found = {name: rules[name].fault(after[name]) for name in rules if name in after}
    wrong = [fault for name, fault in found.items() if fault and name in changed]
    warnings = [_unknown(name, rules, schema.prefixes) for name in strangers[:MOST_WARNINGS]]
    warnings += [fault for name, fault in found.items() if fault and name not in changed]
    return Answer(
        allowed=not wrong, message="; ".join(wrong), warnings=tuple(warnings[:MOST_WARNINGS])
    )


def _unknown(name: str, rules: Mapping[str, Rule], prefixes: Sequence[str]) -> str:
    prefix = max((one for one in prefixes if name.startswith(one)), key=len)
    # Without what they share, or all would look alike.
    ends = {rule.removeprefix(prefix): rule for rule in rules}
    close = difflib.get_close_matches(name.removeprefix(prefix)[:_LONGEST], ends, n=1)
    right = f"did you mean {ends[close[0]]}?" if close else f"known: {', '.join(sorted(rules))}"
    return f"annotation {name} is unknown and has no effect; {right}"


BODIES = http.Limits(each=7 << 20, together=24 << 20, patience_s=2.0)
"""Of reviews. One holds an object twice, and an API server takes none above 3 MiB; it sends from
memory, so who is slow is none."""

_BUCKETS = (0.25, 0.5, 0.7, 1, 1.5, 3, 5, 10)
"""Buckets of the Go reference."""

_REQUESTS = metrics.counter(
    "cloud_provider_webhook_request_total",
    "[ALPHA] Number of HTTP requests to webhooks, by status code and webhook.",
    ["code", "webhook"],
)
_DURATION = metrics.histogram(
    "cloud_provider_webhook_request_duration_seconds",
    "[ALPHA] Time to answer an HTTP request to a webhook.",
    ["code", "webhook"],
    buckets=_BUCKETS,
)
_DENIALS = metrics.counter("ccm_webhook_denials", "Writes that a webhook refused.", ["webhook"])
_USUAL_CODES = (200, 400, 500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a caller may cost.

    Attributes:
        timeout_s: longest time for one request; the default of an API server's own patience.
        at_once: requests that are decided at one time; others wait, with their bodies.
    """

    timeout_s: float = 10.0
    at_once: int = 16


class _Refusal(Exception):
    """A request that is not answered with a review."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Webhooks:
    """Serves webhooks by their paths; `handle` is what a server calls.

    Args:
        webhooks: those that are on; their names differ.
        limits: what a caller may cost.
    """

    def __init__(self, webhooks: Sequence[Webhook], *, limits: Limits | None = None) -> None:
        self._by_path = {webhook.path: webhook for webhook in webhooks}
        self._limits = limits or Limits()
        self._places = asyncio.Semaphore(self._limits.at_once)
        self._log = log.logger("webhook")
        self._rates = LineRates()
        for webhook in webhooks:
            _DENIALS.labels(webhook.name)
            for code in _USUAL_CODES:
                _REQUESTS.labels(str(code), webhook.name)

    async def handle(self, request: http.Request) -> http.Response:
        """Answer one HTTP request."""
        webhook = self._by_path.get(request.path)
        if webhook is None:
            return http.text("404 page not found\n", 404)
        if request.method != "POST":
            return http.text("use POST\n", 405, ("Allow", "POST"))
        since = clock.monotonic()
        response = await self._answer(webhook, request)
        # Deviation: the reference counts only 400 and 500.
        labels = (str(response.status), webhook.name)
        _REQUESTS.labels(*labels).inc()
        _DURATION.labels(*labels).observe(clock.monotonic() - since)
        return response

    async def _answer(self, webhook: Webhook, request: http.Request) -> http.Response:
        try:
            # As the caller says, up to our limit.
            asked_s = parse_duration(request.query.get("timeout", "")).total_seconds()
        except ValueError:
            asked_s = math.inf
        given_s = min(asked_s if asked_s > 0 else math.inf, self._limits.timeout_s)
        try:
            body = await self._review(webhook, request, asyncio.timeout(given_s))
        except (_Refusal, http.BadBody) as refusal:
            return http.text(f"{redact.public(str(refusal))}\n", refusal.status)
        return http.Response(body=body, content_type=http.JSON)

    async def _review(
        self, webhook: Webhook, request: http.Request, deadline: asyncio.Timeout
    ) -> bytes:
        late = _Refusal(408, "the body did not arrive in time")
        try:
            async with deadline:
                # Before anybody's place is taken: who sends slowly keeps nobody waiting.
                body = await _body(request)
                late = _Refusal(503, "too many requests at once")
                async with self._places:
                    late = _Refusal(500, f"webhook {webhook.name} did not decide in time")
                    return await self._decided(webhook, _understood(body))
        except TimeoutError:
            # Anybody can cause as many of these lines as they like.
            if late.status >= 500 and (left_out := self._rates.take("slow")) is not None:
                facts = {"webhook": webhook.name, "error": str(late), **left_out}
                self._log.warning("webhook is too slow", **facts)
            raise late from None

    async def _decided(self, webhook: Webhook, asked: Request) -> bytes:
        try:
            answer = await webhook.handle(asked)
            encoded = encode(asked, answer)
        except Exception as error:
            if (left_out := self._rates.take("failed")) is not None:
                facts = {"webhook": webhook.name, **left_out}
                self._log.error("webhook failed", **facts, exc_info=error)
            raise _Refusal(500, f"webhook {webhook.name} failed: {error}") from error
        if not answer.allowed:
            _DENIALS.labels(webhook.name).inc()
        return encoded


async def _body(request: http.Request) -> bytes:
    if request.headers.get("Content-Type", "") != http.JSON:
        raise _Refusal(400, f"Content-Type must be {http.JSON}")
    body = await request.read()
    if not body:
        raise _Refusal(400, "body is empty")
    return body


def _understood(body: bytes) -> Request:
    try:
        return decode(body)
    except Malformed as error:
        raise _Refusal(400, str(error)) from error
