"""What can go wrong when talking to the API server, as one tree.

```text
KubeError
├─ ApiError(status, reason, message)   the server answered: no
│  ├─ Unauthorized 401                 credentials were refreshed once already
│  ├─ Forbidden 403
│  ├─ NotFound 404                      an answer, often a welcome one
│  ├─ Conflict 409                     read again, then repeat the write
│  │  └─ AlreadyExists                 reason AlreadyExists
│  ├─ Gone 410                         list again
│  ├─ Invalid 422                      do not repeat unchanged
│  ├─ TooManyRequests 429                      obey `retry_after`
│  └─ ServerError 5xx                  back off
├─ Unreachable(kind)                   no answer of the API server: back off
│  └─ NoCredentials                    nothing was sent: no credential to send
└─ WriteRefused                        nothing was sent: this program only looks
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from ccm.base import redact
from ccm.base.backoff import RETRY_AFTER_LIMIT_S
from ccm.base.decoding import UNDECODABLE
from ccm.model.meta import Wire

Trouble = Literal["refused", "reset", "timeout", "silent", "garbage", "tls", "credentials"]
"""Why there was no answer: nothing listens or no route; cut in the middle; too slow;
a watch without a byte for too long; bytes that make no sense; no trust; no credential."""

REASON_RESOURCE_VERSION_TOO_LARGE = "ResourceVersionTooLarge"
"""Cause in a 504 Status: the server has not yet seen the requested version."""

_BODY_SHOWN = 200

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Gone",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}
"""The reason of an answer that carries none (client-go, generic server response)."""


class Cause(Wire, frozen=True, kw_only=True):
    """One of several faults behind an answer; `field` is a path such as `spec.taints`."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Wire, frozen=True, kw_only=True):
    """What an answer is about."""

    causes: list[Cause] | None = None
    retry_after_seconds: int | None = None


class Status(Wire, frozen=True, kw_only=True):
    """The API server's answer when it has no object to give."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


STATUS = msgspec.json.Decoder(Status)


class KubeError(Exception):
    """Anything that may come out of a call to the API server, cancellation apart."""


class ApiError(KubeError):
    """The server answered with an error.

    Attributes:
        status: HTTP status, or the code of a Status sent inside a watch.
        reason: Kubernetes' machine-readable reason, such as `NotFound`.
        message: for people.
        retry_after: seconds the server asks us to wait, if it does; at most 5 minutes.
        details: what the answer is about, if the server said so.
    """

    def __init__(
        self,
        *,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        details: StatusDetails | None = None,
    ) -> None:
        super().__init__(f"{message} ({status} {reason})")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.details = details

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The single faults behind the answer; often empty."""
        return tuple(self.details.causes or ()) if self.details else ()

    def has_cause(self, reason: str) -> bool:
        """Whether one of the causes has this reason."""
        return any(cause.reason == reason for cause in self.causes)


class Unauthorized(ApiError):
    """401: the server does not know us, also with refreshed credentials."""


class Forbidden(ApiError):
    """403: we may not do this; a role is missing."""


class NotFound(ApiError):
    """404: no such object, or no such resource."""


class Conflict(ApiError):
    """409: the object changed meanwhile, or a precondition does not hold."""


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists: an object of that name is there."""


class Gone(ApiError):
    """410: the requested resourceVersion or continue token is too old."""


class Invalid(ApiError):
    """422: the server refuses the object as it is."""


class TooManyRequests(ApiError):
    """429: the server is busy, or an eviction would break a disruption budget."""


class ServerError(ApiError):
    """Any 5xx: the server, or a proxy before it, failed."""


class Unreachable(KubeError):
    """No answer of the API server; whether it acted on the request is unknown.

    The cause is chained. `kind` says what happened.
    """

    def __init__(self, message: str, *, kind: Trouble) -> None:
        super().__init__(message)
        self.kind: Trouble = kind


class NoCredentials(Unreachable):
    """The request was not sent: the credential it needs could not be obtained."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="credentials")


class WriteRefused(KubeError):
    """The request was not sent: it would write, and its wire only reads. Never in the daemon."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def from_response(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error for an HTTP answer of 300 or more.

    The body is a Status if the API server wrote it; a proxy's page is not shown, a
    short plain text is.
    """
    said = _parse_status(body) or Status(message=_plain_message(status, headers, body))
    return _build(said, status, retry_after_seconds(headers))


def from_status(status: Status) -> ApiError:
    """The error for a Status that came inside a watch; its own code counts."""
    return _build(status, status.code or 500, None)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """The Retry-After header if it is a number of seconds, at most 5 minutes; no date counts."""
    text = headers.get("Retry-After", "").strip()
    return _believed(float(text)) if text.isascii() and text.isdigit() else None


def _believed(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, RETRY_AFTER_LIMIT_S)


def _build(status: Status, code: int, retry_after: float | None) -> ApiError:
    if retry_after is None and status.details is not None:
        retry_after = _believed(status.details.retry_after_seconds)
    found = _BY_STATUS.get(code, ServerError if code >= 500 else ApiError)
    reason = status.reason or _REASONS.get(code, "InternalError" if code >= 500 else "Unknown")
    if found is Conflict and reason == "AlreadyExists":
        found = AlreadyExists
    return found(
        status=code,
        reason=reason,
        message=status.message or f"the server answered {code}",
        retry_after=retry_after,
        details=status.details,
    )


def _parse_status(body: bytes) -> Status | None:
    try:
        status = STATUS.decode(body)
    except UNDECODABLE:
        return None
    return status if status.kind == "Status" else None


def _plain_message(status: int, headers: Mapping[str, str], body: bytes) -> str:
    head = f"the server answered {status} without a Status"
    if not headers.get("Content-Type", "").startswith("text/plain"):
        return head
    # Masked before it is cut: half of a secret is known to nobody.
    text = " ".join(redact.words(body.decode(errors="replace")).split())
    shown = "".join(letter for letter in text if letter.isprintable())[:_BODY_SHOWN]
    return f"{head}: {shown}" if shown else head
