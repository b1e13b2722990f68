"""Error responses of the STACKIT APIs and their meaning: one table for all APIs.

Status 404 means absence only with a body of the API itself. The load balancer API documents a 404
without body; `UnconfirmedNotFound` makes the client verify the absence with a listing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from ccm import cloud
from ccm.cloud import rest

EXHAUSTION_TEXTS = ("no valid host", "quota")
"""Texts in lower case. A message that contains one of them, in upper or lower case, indicates
exhausted capacity or quota, whatever the status."""


class UnconfirmedNotFound(cloud.NotFound):
    """Status 404 without a body: it may come from a proxy instead of the API."""


class ErrorRule(NamedTuple):
    """Row of the error table.

    Attributes:
        response: response of the API.
        kind: error class of the SDK.
        meaning: meaning of the response.
        machine: when the creation of a machine is retried; empty = as for every error of `kind`.
    """

    response: str
    kind: type[cloud.CloudError]
    meaning: str
    machine: str = ""


TABLE: tuple[ErrorRule, ...] = (
    ErrorRule(
        "400", cloud.InvalidArgument, "the request is invalid, such as an unknown machine type"
    ),
    ErrorRule(
        "401",
        cloud.Unauthenticated,
        "the key or token is refused, also after a renewal of the token where that is possible",
    ),
    ErrorRule("403", cloud.PermissionDenied, "the service account lacks a permission"),
    ErrorRule(
        "404", cloud.NotFound, "the resource does not exist; `Unknown` without a body of the API"
    ),
    ErrorRule(
        "404 on creation",
        cloud.FailedPrecondition,
        "a referenced image, network or volume does not exist",
    ),
    ErrorRule("408, 504, timeout", cloud.DeadlineExceeded, "the API is too slow"),
    ErrorRule("409", cloud.Aborted, "another operation is running, or the version is outdated"),
    ErrorRule("413", cloud.ResourceExhausted, "a quota is used up"),
    ErrorRule("422", cloud.InvalidArgument, "a value of the request is not supported"),
    ErrorRule("429", cloud.RetryAfter, "rate limit exceeded; retried after `Retry-After`"),
    ErrorRule("5xx, no connection", cloud.Unavailable, "the API is unavailable"),
    ErrorRule("any, with `no valid host`", cloud.ResourceExhausted, "no capacity for the server"),
    ErrorRule("any, with `quota`", cloud.ResourceExhausted, "a quota is used up"),
    ErrorRule(
        "a server in state ERROR",
        cloud.Aborted,
        "the server never ran and was deleted; `ResourceExhausted` if capacity or quota is lacking",
        "never: the machine failed, and its set replaces it",
    ),
    ErrorRule("anything else", cloud.Unknown, "a malformed response"),
)
"""All error responses, ordered by status."""

STATUSES: Mapping[int, type[cloud.CloudError]] = {
    **rest.STATUSES,
    **{
        int(row.response): row.kind
        for row in TABLE
        if row.response.isdigit() and row.response != "404"
    },
}
"""HTTP status -> error class, unless the body is more specific."""

CODES: Mapping[str, type[cloud.CloudError]] = {
    "404": cloud.NotFound,
    "silent": UnconfirmedNotFound,
    **dict.fromkeys(EXHAUSTION_TEXTS, cloud.ResourceExhausted),
}
"""Error code, as extracted from a body by `iaas` or `balancers` below -> error class."""


class _Iaas(msgspec.Struct, frozen=True):
    code: int
    msg: str = ""


class _Balancers(msgspec.Struct, frozen=True):
    code: int
    message: str = ""


class _Tokens(msgspec.Struct, frozen=True):
    error: str
    error_description: str = ""


NOT_FOUND = 5
"""Code NOT_FOUND of gRPC, which the load balancer API uses in its error bodies."""


def iaas(body: bytes) -> rest.Refusal:
    """Parse an error response of the IaaS API."""
    error = msgspec.json.decode(body, type=_Iaas)
    return rest.Refusal(code=exhaustion_text(error.msg) or str(error.code), message=error.msg)


def balancers(body: bytes) -> rest.Refusal:
    """Parse an error response of the load balancer API; an empty body is valid there."""
    if not body.strip():
        return rest.Refusal(code="silent")
    error = msgspec.json.decode(body, type=_Balancers)
    code = "404" if error.code == NOT_FOUND else str(error.code)
    return rest.Refusal(code=exhaustion_text(error.message) or code, message=error.message)


def tokens(body: bytes) -> rest.Refusal:
    """Parse an error response of the token API, which is an OAuth error."""
    error = msgspec.json.decode(body, type=_Tokens)
    return rest.Refusal(code=error.error, message=error.error_description)


@contextlib.contextmanager
def creation_errors() -> Iterator[None]:
    """Translate the errors of a creation.

    Raises:
        FailedPrecondition: a resource that the request references does not exist.
        ResourceExhausted: a quota is used up, although the status suggests a retry.
    """
    try:
        yield
    except cloud.NotFound as error:
        raise cloud.FailedPrecondition(str(error)) from error
    except cloud.RetryAfter as error:
        if exhaustion_text(str(error)):
            raise cloud.ResourceExhausted(str(error)) from error
        raise


def exhaustion_text(text: str) -> str:
    """Return the text of `EXHAUSTION_TEXTS` that a message contains; empty if there is none."""
    return next((word for word in EXHAUSTION_TEXTS if word in text.lower()), "")


_SOON = (cloud.Unknown, cloud.DeadlineExceeded, cloud.Aborted, cloud.Unavailable)


def machine_retry(kind: type[cloud.CloudError]) -> str:
    """Describe when the creation of a machine is retried after an error."""
    if kind is cloud.RetryAfter:
        return "after that time"
    if kind is cloud.ResourceExhausted:
        return "`--resource-exhausted-retry`"
    return "5 s" if kind in _SOON else "3 min"
