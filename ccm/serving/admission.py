"""Admission reviews: what an API server asks before it stores an object, and our answers.

The wire format is `admission.k8s.io/v1`. A webhook is a name and an async function from a
`Request` to an `Answer`; the server around it (`webhook`) knows nothing of what is decided.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ccm.base.redact import public
from ccm.model.meta import Wire

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


class GroupVersionResource(Wire, frozen=True, kw_only=True):
    """Which resource a request goes to; the core group is empty."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Wire, frozen=True, kw_only=True):
    """Who sent the request."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None


class Request(Wire, frozen=True, kw_only=True):
    """One write that an API server asks about.

    `object` is the object as it would be stored, `old_object` the one that is stored; both as
    JSON, `null` where there is none. A dry run must have no side effects.
    """

    uid: str
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL
    dry_run: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a webhook decides.

    Attributes:
        allowed: whether the write may happen.
        message: why not, for whoever wrote.
        code: HTTP status that the writer gets for a refusal.
        warnings: shown to the writer either way; an API server cuts long ones.
        patch: changes to the object, as JSON patch operations; only a mutating webhook may
            have any.
    """

    allowed: bool
    message: str = ""
    code: int = FORBIDDEN
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()


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
    patch: bytes | None = None
    patch_type: str | None = None
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
                # Base64 on the wire, as Go writes bytes.
                patch=msgspec.json.encode(answer.patch) if answer.patch else None,
                patch_type="JSONPatch" if answer.patch else None,
                warnings=list(map(public, answer.warnings)) or None,
            ),
        )
    )
