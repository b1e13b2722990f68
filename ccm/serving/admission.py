"""Admission webhooks: the `admission.k8s.io/v1` format, an HTTP handler, and a webhook.

A webhook is a name and a coroutine function from an `AdmissionRequest` to an `AdmissionResponse`.
`Webhooks` serves webhooks over HTTP. `ServiceAnnotations` is a webhook that checks the annotations
of Services.
"""

from __future__ import annotations

import asyncio
import difflib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ccm.base import clock, log, metrics, redact
from ccm.base.parsing import parse_duration
from ccm.base.redact import mask_for_api
from ccm.model import Service
from ccm.model.meta import Wire
from ccm.serving import http
from ccm.serving.handler_chain import LogRateLimits

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

CREATE = "CREATE"
UPDATE = "UPDATE"
"""Values of `AdmissionRequest.operation`; others are DELETE and CONNECT."""

FORBIDDEN = 403
"""HTTP status code of a denied write, unless the webhook sets another."""

_REASONS = {400: "BadRequest", 403: "Forbidden", 409: "Conflict", 422: "Invalid"}
_NULL = msgspec.Raw(b"null")


class InvalidReview(Exception):
    """The body of a request is no valid AdmissionReview; the message is the cause."""


class GroupVersionKind(Wire, frozen=True, kw_only=True):
    """Group, version and kind of an object; an empty group means the core group."""

    group: str = ""
    version: str = ""
    kind: str = ""


class AdmissionRequest(Wire, frozen=True, kw_only=True):
    """Request of an API server to admit one write.

    Attributes:
        object: the new object, JSON; `null` for DELETE.
        old_object: the stored object, JSON; `null` for CREATE.
    """

    uid: str
    kind: GroupVersionKind = GroupVersionKind()
    sub_resource: str = ""
    operation: str = ""
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionResponse:
    """Decision of a webhook.

    Attributes:
        allowed: whether the write is allowed.
        message: why the write is denied, shown to the client.
        code: HTTP status for the client if the write is denied.
        warnings: warnings for the client, also for an allowed write; an API server truncates long
            warnings.
        patch: JSON Patch operations that the API server applies to the object of an allowed write.
    """

    allowed: bool
    message: str = ""
    code: int = FORBIDDEN
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()


ALLOWED = AdmissionResponse(allowed=True)

Handler = Callable[[AdmissionRequest], Awaitable[AdmissionResponse]]
"""Coroutine function that decides about one write; it may be called concurrently.

After an exception the response is 500, so the API server applies the `failurePolicy`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A webhook.

    Attributes:
        name: name in `--webhooks`, metrics and logs; the path is `/<name>`.
        handle: decides about writes.
    """

    name: str
    handle: Handler

    @property
    def path(self) -> str:
        """URL path of the webhook."""
        return f"/{self.name}"


class _AdmissionReview(Wire, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


class _ResponseStatus(Wire, frozen=True, kw_only=True):
    code: int
    reason: str = ""
    message: str = ""


class _Response(Wire, frozen=True, kw_only=True):
    uid: str
    allowed: bool
    status: _ResponseStatus | None = None
    warnings: list[str] | None = None
    patch_type: str | None = None
    patch: bytes | None = None


class _AdmissionReviewResponse(Wire, frozen=True, kw_only=True):
    api_version: str
    kind: str
    response: _Response


_REVIEW = msgspec.json.Decoder(_AdmissionReview)


def decode(body: bytes) -> AdmissionRequest:
    """Decode the request in an AdmissionReview.

    Raises:
        InvalidReview: the body is no AdmissionReview, or has no request.
    """
    try:
        review = _REVIEW.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidReview(f"body is not an {KIND}: {error}") from error
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        given = f"apiVersion {review.api_version[:64]!r} and kind {review.kind[:64]!r}"
        raise InvalidReview(f"body has {given}; expected {API_VERSION!r} and {KIND!r}")
    if review.request is None:
        raise InvalidReview(f"{KIND} has no request")
    return review.request


def encode(request: AdmissionRequest, answer: AdmissionResponse) -> bytes:
    """Encode the AdmissionReview with a response; redact secrets in message and warnings."""
    status = None
    if not answer.allowed:
        reason = _REASONS.get(answer.code, "")
        status = _ResponseStatus(
            code=answer.code, reason=reason, message=mask_for_api(answer.message)
        )
    return msgspec.json.encode(
        _AdmissionReviewResponse(
            api_version=API_VERSION,
            kind=KIND,
            response=_Response(
                uid=request.uid,
                allowed=answer.allowed,
                status=status,
                warnings=list(map(mask_for_api, answer.warnings)) or None,
                patch_type="JSONPatch" if answer.patch else None,
                # JSON has the bytes as base64.
                patch=msgspec.json.encode(answer.patch) if answer.patch else None,
            ),
        )
    )


MAX_WARNINGS = 10
"""Maximum number of warnings in a response; an API server drops warnings beyond 4 KiB anyway."""

_MAX_COMPARED = 63
"""Maximum characters of an unknown annotation name that are compared with known names.

A valid name has at most 63 characters after its slash, but the name is not validated yet.
"""

_SERVICE = GroupVersionKind(version="v1", kind="Service")
_DECODER = msgspec.json.Decoder(Service | None)


class AnnotationRule(Protocol):
    """Validation rule for the values of one annotation."""

    @property
    def name(self) -> str:
        """Full name of the annotation."""
        ...

    def fault(self, text: str) -> str:
        """Return why a value of the annotation is invalid, in one sentence; empty if valid."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationSchema:
    """Schema of the annotations of a provider.

    Attributes:
        rules: rules for annotation values.
        prefixes: prefixes of annotation names that belong to the provider. A name that equals a
            prefix is accepted even without a rule.
    """

    rules: Sequence[AnnotationRule] = ()
    prefixes: Sequence[str] = ()


class ServiceAnnotations:
    """Webhook that validates the annotations of Services.

    Args:
        schema: returns the current schema, which may change while the process runs.
        is_relevant: returns whether the daemon reads the annotations of a Service.
    """

    def __init__(
        self, schema: Callable[[], AnnotationSchema], is_relevant: Callable[[Service], bool]
    ) -> None:
        self._schema = schema
        self._is_relevant = is_relevant

    async def __call__(self, request: AdmissionRequest) -> AdmissionResponse:
        """Deny the creation or update of a Service whose changed annotations have invalid values.

        Raises:
            msgspec.DecodeError: the object is no Service.
        """
        if request.kind != _SERVICE or request.sub_resource:
            return ALLOWED
        if request.operation not in (CREATE, UPDATE):
            return ALLOWED
        service = _DECODER.decode(request.object)
        if service is None or service.is_deleting or not self._is_relevant(service):
            return ALLOWED
        old = _DECODER.decode(request.old_object)
        # All annotations count as changed if the old Service was not relevant.
        before = old.annotations if old is not None and self._is_relevant(old) else {}
        return validate_change(self._schema(), before, service.annotations)


def validate_change(
    schema: AnnotationSchema, before: Mapping[str, str], after: Mapping[str, str]
) -> AdmissionResponse:
    """Deny a write that sets an annotation to an invalid value.

    Warn about changed annotations with unknown names, and about invalid values that did not change.
    A write that changes no annotation of the provider gets no warnings.
    """
    changed = {name for name, text in after.items() if before.get(name) != text}
    rules = {rule.name: rule for rule in schema.rules}
    prefixes = tuple(schema.prefixes)
    unknown_names = sorted(
        name
        for name in changed
        if name not in rules and name not in prefixes and name.startswith(prefixes)
    )
    if not unknown_names and changed.isdisjoint(rules):
        return ALLOWED
    faults = {name: rules[name].fault(after[name]) for name in rules if name in after}
    wrong = [fault for name, fault in faults.items() if fault and name in changed]
    warnings = [_unknown(name, rules, schema.prefixes) for name in unknown_names[:MAX_WARNINGS]]
    warnings += [fault for name, fault in faults.items() if fault and name not in changed]
    return AdmissionResponse(
        allowed=not wrong, message="; ".join(wrong), warnings=tuple(warnings[:MAX_WARNINGS])
    )


def _unknown(name: str, rules: Mapping[str, AnnotationRule], prefixes: Sequence[str]) -> str:
    prefix = max((candidate for candidate in prefixes if name.startswith(candidate)), key=len)
    # Names are compared without the prefix; with the prefix, all names would be similar.
    ends = {rule.removeprefix(prefix): rule for rule in rules}
    close = difflib.get_close_matches(name.removeprefix(prefix)[:_MAX_COMPARED], ends, n=1)
    hint = f"did you mean {ends[close[0]]}?" if close else f"known: {', '.join(sorted(rules))}"
    return f"annotation {name} is unknown and has no effect; {hint}"


BODY_LIMITS = http.BodyLimits(max_body=7 << 20, max_total=24 << 20, timeout_s=2.0)
"""Limits for the bodies of AdmissionReviews.

A review contains the old and the new object, each up to 3 MiB. The timeout is short because API
servers send bodies from memory.
"""

_BUCKETS = (0.25, 0.5, 0.7, 1, 1.5, 3, 5, 10)
"""Histogram buckets in seconds (from Go's k8s.io/cloud-provider)."""

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
_DENIALS = metrics.counter("ccm_webhook_denials", "Writes denied by a webhook.", ["webhook"])
_USUAL_CODES = (200, 400, 500)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookLimits:
    """Limits of the webhook server.

    Attributes:
        timeout_s: timeout of one request in seconds; the default is an API server's default.
        max_concurrent: maximum concurrent calls of webhooks; further requests wait, with their
            bodies in memory.
    """

    timeout_s: float = 10.0
    max_concurrent: int = 16


class _Refusal(Exception):
    """The response is an HTTP error instead of an AdmissionReview."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Webhooks:
    """HTTP handler of all webhooks.

    Args:
        webhooks: the enabled webhooks, with unique names.
        limits: limits of the server.
    """

    def __init__(self, webhooks: Sequence[Webhook], *, limits: WebhookLimits | None = None) -> None:
        self._by_path = {webhook.path: webhook for webhook in webhooks}
        self._limits = limits or WebhookLimits()
        self._slots = asyncio.Semaphore(self._limits.max_concurrent)
        self._log = log.logger("webhook")
        self._rates = LogRateLimits()
        for webhook in webhooks:
            _DENIALS.labels(webhook.name)
            for code in _USUAL_CODES:
                _REQUESTS.labels(str(code), webhook.name)

    async def handle(self, request: http.Request) -> http.Response:
        """Serve one HTTP request."""
        webhook = self._by_path.get(request.path)
        if webhook is None:
            return http.text("404 page not found\n", 404)
        if request.method != "POST":
            return http.text("use POST\n", 405, ("Allow", "POST"))
        since = clock.monotonic()
        response = await self._answer(webhook, request)
        # Deviation: Go's k8s.io/cloud-provider counts only responses with 400 and 500.
        labels = (str(response.status), webhook.name)
        _REQUESTS.labels(*labels).inc()
        _DURATION.labels(*labels).observe(clock.monotonic() - since)
        return response

    async def _answer(self, webhook: Webhook, request: http.Request) -> http.Response:
        try:
            # The API server's timeout, at most `timeout_s`.
            asked_s = parse_duration(request.query.get("timeout", "")).total_seconds()
        except ValueError:
            asked_s = math.inf
        timeout_s = min(asked_s if asked_s > 0 else math.inf, self._limits.timeout_s)
        try:
            body = await self._review(webhook, request, asyncio.timeout(timeout_s))
        except (_Refusal, http.BodyError) as refusal:
            return http.text(f"{redact.mask_for_api(str(refusal))}\n", refusal.status)
        return http.Response(body=body, content_type=http.JSON)

    async def _review(
        self, webhook: Webhook, request: http.Request, deadline: asyncio.Timeout
    ) -> bytes:
        # `late` is the response if the timeout expires during the current step.
        late = _Refusal(408, "request body not received in time")
        try:
            async with deadline:
                # Read the body before taking a slot: a slow sender must not occupy a slot.
                body = await _body(request)
                late = _Refusal(503, "too many concurrent requests")
                async with self._slots:
                    late = _Refusal(500, f"webhook {webhook.name} timed out")
                    return await self._decide(webhook, _decode_review(body))
        except TimeoutError:
            # Log lines are rate limited, because any caller can cause them.
            if late.status >= 500 and (left_out := self._rates.admit("slow")) is not None:
                facts = {"webhook": webhook.name, "error": str(late), **left_out}
                self._log.warning("webhook request timed out", **facts)
            raise late from None

    async def _decide(self, webhook: Webhook, review_request: AdmissionRequest) -> bytes:
        try:
            answer = await webhook.handle(review_request)
            encoded = encode(review_request, answer)
        except Exception as error:
            if (left_out := self._rates.admit("failed")) is not None:
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


def _decode_review(body: bytes) -> AdmissionRequest:
    try:
        return decode(body)
    except InvalidReview as error:
        raise _Refusal(400, str(error)) from error
