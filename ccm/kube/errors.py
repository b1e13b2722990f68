"""Errors of calls to the API server, as one tree.

```text
KubeError
├─ ApiError(status, reason, message)   the API server answered with an error
│  ├─ Unauthorized 401                 credential rejected, and no renewal helped
│  ├─ Forbidden 403
│  ├─ NotFound 404                     often expected
│  ├─ Conflict 409                     read the object, then repeat the write
│  │  └─ AlreadyExists                 reason AlreadyExists
│  ├─ Gone 410                         list again
│  ├─ Invalid 422                      do not repeat the same request
│  ├─ TooManyRequests 429              wait for `retry_after`
│  └─ ServerError 5xx                  back off
├─ Unreachable(kind)                   no response from the API server: back off
│  └─ NoCredentials                    not sent: no credential available
└─ WriteRefused                        not sent: the transport is read-only
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from ccm.base import redact
from ccm.base.backoff import RETRY_AFTER_LIMIT_S
from ccm.base.decoding import DECODE_ERRORS
from ccm.model.meta import Wire

FailureKind = Literal["refused", "reset", "timeout", "silent", "garbage", "tls", "credentials"]
"""Reason for a missing response.

- refused: the connection could not be opened
- reset: the connection was cut
- timeout: the response took too long
- silent: a watch received no byte for too long
- garbage: the bytes cannot be decoded
- tls: the TLS settings are unusable, or the handshake failed
- credentials: no credential is available
"""

REASON_RESOURCE_VERSION_TOO_LARGE = "ResourceVersionTooLarge"
"""Cause in a 504 Status: the server does not have the requested resourceVersion yet."""

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
"""HTTP status -> reason for a response without a reason (client-go, generic server response)."""


class StatusCause(Wire, frozen=True, kw_only=True):
    """Cause of an error; `field` is a path such as `spec.taints`."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Wire, frozen=True, kw_only=True):
    """Details of a Status."""

    causes: list[StatusCause] | None = None
    retry_after_seconds: int | None = None


class Status(Wire, frozen=True, kw_only=True):
    """Kubernetes Status: response of the API server instead of an object."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


STATUS = msgspec.json.Decoder(Status)


class KubeError(Exception):
    """Any error of a call to the API server, except cancellation."""


class ApiError(KubeError):
    """Error response of the API server.

    Attributes:
        status: HTTP status, or the code of a Status in an ERROR event of a watch.
        reason: machine-readable reason of Kubernetes, such as `NotFound`.
        message: text for users.
        retry_after: seconds that the server asks to wait, capped at 5 minutes; None = not given.
        details: details of the Status; None = the server sent none.
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
    def causes(self) -> tuple[StatusCause, ...]:
        """Causes in the details of the Status; often empty."""
        return tuple(self.details.causes or ()) if self.details else ()

    def has_cause(self, reason: str) -> bool:
        """Return whether one of the causes has this reason."""
        return any(cause.reason == reason for cause in self.causes)


class Unauthorized(ApiError):
    """401: the server rejects the credential; a renewal was impossible or did not help."""


class Forbidden(ApiError):
    """403: the identity lacks the permission for this request."""


class NotFound(ApiError):
    """404: the object, or the resource, does not exist."""


class Conflict(ApiError):
    """409: the object changed meanwhile, or a precondition is not met."""


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists: an object with this name exists."""


class Gone(ApiError):
    """410: the requested resourceVersion or continue token is too old."""


class Invalid(ApiError):
    """422: the server rejects the content of the object."""


class TooManyRequests(ApiError):
    """429: the server is overloaded, or an eviction would violate a PodDisruptionBudget."""


class ServerError(ApiError):
    """5xx: the server, or a proxy in front of the server, failed."""


class Unreachable(KubeError):
    """No response from the API server, which may have processed the request nevertheless.

    Attributes:
        kind: category of the cause.
    """

    def __init__(self, message: str, *, kind: FailureKind) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class NoCredentials(Unreachable):
    """The request was not sent, because its credential could not be obtained."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="credentials")


class WriteRefused(KubeError):
    """The request was not sent, because its method is not GET and the transport is read-only.

    The daemon's own transport is not read-only.
    """


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
    """Return the error for an HTTP response with a status of 300 or more.

    The API server sends a Status as the body. Other bodies come from a proxy: the message quotes
    the beginning of plain text, but no HTML.
    """
    parsed = _parse_status(body) or Status(message=_plain_message(status, headers, body))
    return _build(parsed, status, retry_after_seconds(headers))


def from_status(status: Status) -> ApiError:
    """Return the error for the Status in an ERROR event of a watch; a missing code means 500."""
    return _build(status, status.code or 500, None)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the Retry-After header, capped at 5 minutes.

    None = the header is missing or has a date.
    """
    text = headers.get("Retry-After", "").strip()
    return _capped(float(text)) if text.isascii() and text.isdigit() else None


def _capped(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, RETRY_AFTER_LIMIT_S)


def _build(status: Status, code: int, retry_after: float | None) -> ApiError:
    if retry_after is None and status.details is not None:
        retry_after = _capped(status.details.retry_after_seconds)
    error_type = _BY_STATUS.get(code, ServerError if code >= 500 else ApiError)
    reason = status.reason or _REASONS.get(code, "InternalError" if code >= 500 else "Unknown")
    if error_type is Conflict and reason == "AlreadyExists":
        error_type = AlreadyExists
    return error_type(
        status=code,
        reason=reason,
        message=status.message or f"the server returned {code}",
        retry_after=retry_after,
        details=status.details,
    )


def _parse_status(body: bytes) -> Status | None:
    try:
        status = STATUS.decode(body)
    except DECODE_ERRORS:
        return None
    return status if status.kind == "Status" else None


def _plain_message(status: int, headers: Mapping[str, str], body: bytes) -> str:
    head = f"the server returned {status} without a Status"
    if not headers.get("Content-Type", "").startswith("text/plain"):
        return head
    # Mask before the cut: half of a secret would not be recognised.
    text = " ".join(redact.mask_text(body.decode(errors="replace")).split())
    shown = "".join(letter for letter in text if letter.isprintable())[:_BODY_SHOWN]
    return f"{head}: {shown}" if shown else head
