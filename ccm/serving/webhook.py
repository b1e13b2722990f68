"""Answers admission reviews over HTTP, as the Go reference does.

`POST /<name>` with exactly `Content-Type: application/json` and a body that holds a request is
answered with 200 and the decision; what cannot be understood with 400, and a webhook that fails
with 500. Nobody is authenticated here: an API server's call proves who it is only where it was
told to show a certificate, and then TLS asks for it.

Beyond the reference, nothing a caller does makes us hold much memory or wait for ever, or keeps
others waiting: a body has a limit and so have all together (413, 503) and the time to send one
(408), which the server keeps (`BODIES`); only then is there waiting for a free place (503) and
a decision (500), for as long as the `timeout` that an API server announces allows.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ccm.base import clock, log, metrics, redact
from ccm.base.durations import parse_duration
from ccm.serving import admission, bodies, http
from ccm.serving.accesslog import LineRates
from ccm.serving.admission import Webhook

BODIES = bodies.Limits(each=7 << 20, together=24 << 20, patience_s=2.0)
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
        given_s = self._patience_s(request)
        try:
            body = await self._review(webhook, request, asyncio.timeout(given_s))
        except (_Refusal, bodies.BadBody) as refusal:
            return http.text(f"{redact.public(str(refusal))}\n", refusal.status)
        return http.Response(body=body, content_type=http.JSON)

    def _patience_s(self, request: http.Request) -> float:
        """How long the request may take: as the caller says in `timeout`, up to our limit."""
        try:
            asked_s = parse_duration(request.query.get("timeout", "")).total_seconds()
        except ValueError:
            asked_s = math.inf
        return min(asked_s, self._limits.timeout_s) if asked_s > 0 else self._limits.timeout_s

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

    async def _decided(self, webhook: Webhook, asked: admission.Request) -> bytes:
        try:
            answer = await webhook.handle(asked)
            encoded = admission.encode(asked, answer)
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


def _understood(body: bytes) -> admission.Request:
    try:
        return admission.decode(body)
    except admission.Malformed as error:
        raise _Refusal(400, str(error)) from error
