"""What the APIs of STACKIT say about errors, and what it means: one table, for all of them.

An absence is believed where status 404 comes with words of the API itself. The load balancer API
documents a 404 without words; `SilentAbsence` has it looked for in a listing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from ccm import cloud
from ccm.cloud import rest

EXHAUSTED = ("no valid host", "quota")
"""Words of a message that tell of capacity or quota, whatever the status; in small letters."""


class SilentAbsence(cloud.NotFound):
    """Status 404 without a word: perhaps of the API, perhaps of a proxy."""


class Meaning(NamedTuple):
    """One line of the table.

    Attributes:
        answer: what comes from the cloud.
        kind: what it is to us.
        when: what it tells.
        machine: when a machine is tried again; empty = by the kind.
    """

    answer: str
    kind: type[cloud.CloudError]
    when: str
    machine: str = ""


TABLE: tuple[Meaning, ...] = (
    Meaning(
        "400", cloud.InvalidArgument, "the order makes no sense, such as an unknown machine type"
    ),
    Meaning("401", cloud.Unauthenticated, "the key or token is refused, a fresh token included"),
    Meaning("403", cloud.PermissionDenied, "the service account may not do that"),
    Meaning(
        "404", cloud.NotFound, "the thing does not exist; without the API's words it is `Unknown`"
    ),
    Meaning(
        "404 to an order",
        cloud.FailedPrecondition,
        "an image, network or volume it names is not there",
    ),
    Meaning("408, 504, none in time", cloud.DeadlineExceeded, "the API is too slow"),
    Meaning("409", cloud.Aborted, "something else works on the thing, or its version is another"),
    Meaning("413", cloud.ResourceExhausted, "a quota is used up"),
    Meaning("422", cloud.InvalidArgument, "a value of the order cannot be had"),
    Meaning("429", cloud.RetryAfter, "too many requests; after the time of `Retry-After`"),
    Meaning("5xx, no connection", cloud.Unavailable, "the API has trouble of its own"),
    Meaning("any, with `no valid host`", cloud.ResourceExhausted, "no room for such a server"),
    Meaning("any, with `quota`", cloud.ResourceExhausted, "a quota is used up"),
    Meaning(
        "a server in state ERROR",
        cloud.Aborted,
        "it never came up, and was deleted again; by its words it may be `ResourceExhausted`",
        "never: it has failed, and its set replaces it",
    ),
    Meaning("anything else", cloud.Unknown, "an answer that nobody can read"),
)
"""Everything that may come, in the order of statuses."""

STATUSES: Mapping[int, type[cloud.CloudError]] = {
    **rest.STATUSES,
    **{int(one.answer): one.kind for one in TABLE if one.answer.isdigit() and one.answer != "404"},
}
"""HTTP status -> what it means where the words say nothing more special."""

CODES: Mapping[str, type[cloud.CloudError]] = {
    "404": cloud.NotFound,
    "silent": SilentAbsence,
    **dict.fromkeys(EXHAUSTED, cloud.ResourceExhausted),
}
"""What `iaas` and `balancers` below make of a body -> what it means."""


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
"""Of gRPC, whose codes the load balancer API has."""


def iaas(body: bytes) -> rest.Refusal:
    """The words of the IaaS API."""
    said = msgspec.json.decode(body, type=_Iaas)
    return rest.Refusal(code=exhausted(said.msg) or str(said.code), message=said.msg)


def balancers(body: bytes) -> rest.Refusal:
    """The words of the load balancer API; nothing at all is a word there."""
    if not body.strip():
        return rest.Refusal(code="silent")
    said = msgspec.json.decode(body, type=_Balancers)
    code = "404" if said.code == NOT_FOUND else str(said.code)
    return rest.Refusal(code=exhausted(said.message) or code, message=said.message)


def tokens(body: bytes) -> rest.Refusal:
    """The words of the token API, which are those of OAuth."""
    said = msgspec.json.decode(body, type=_Tokens)
    return rest.Refusal(code=said.error, message=said.error_description)


@contextlib.contextmanager
def of_order() -> Iterator[None]:
    """What errors mean where something is ordered.

    Raises:
        FailedPrecondition: what the order names is not there.
        ResourceExhausted: a quota is used up, though the status says to come back soon.
    """
    try:
        yield
    except cloud.NotFound as error:
        raise cloud.FailedPrecondition(str(error)) from error
    except cloud.RetryAfter as error:
        if exhausted(str(error)):
            raise cloud.ResourceExhausted(str(error)) from error
        raise


def exhausted(text: str) -> str:
    """Which of `EXHAUSTED` a text has; empty: none."""
    return next((one for one in EXHAUSTED if one in text.lower()), "")


_SOON = (cloud.Unknown, cloud.DeadlineExceeded, cloud.Aborted, cloud.Unavailable)


def machine_retry(kind: type[cloud.CloudError]) -> str:
    """When a machine is tried again after an error of its creation, in words."""
    if kind is cloud.RetryAfter:
        return "after that time"
    if kind is cloud.ResourceExhausted:
        return "`--resource-exhausted-retry`"
    return "5 s" if kind in _SOON else "3 min"
