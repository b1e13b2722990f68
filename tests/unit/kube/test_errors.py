"""Answers become one tree of errors."""

from __future__ import annotations

import json

import pytest

from ccm.kube import errors
from tests.unit.kube.proxy import a_status


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
        (400, "BadRequest", errors.ApiError),
    ],
)
def test_a_status_becomes_the_error_of_its_code(
    status: int, reason: str, expected: type[errors.ApiError]
) -> None:
    body = json.dumps(a_status(status, reason, "because")).encode()

    error = errors.from_response(status, {}, body)

    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (status, reason, "because")
    assert str(error) == f"because ({status} {reason})"


def test_already_exists_is_a_conflict() -> None:
    assert issubclass(errors.AlreadyExists, errors.Conflict)


def test_causes_and_wait_come_from_the_details() -> None:
    status = a_status(504, "Timeout")
    status["details"] = {
        "retryAfterSeconds": 7,
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "m", "field": "f"}],
    }

    error = errors.from_response(504, {}, json.dumps(status).encode())

    assert error.retry_after == 7
    assert error.has_cause(errors.REASON_RESOURCE_VERSION_TOO_LARGE)
    assert not error.has_cause("Other")
    assert error.causes[0].field == "f"


def test_the_header_wins_over_the_details() -> None:
    status = a_status(429, "TooManyRequests") | {"details": {"retryAfterSeconds": 7}}

    error = errors.from_response(429, {"Retry-After": "3"}, json.dumps(status).encode())

    assert error.retry_after == 3


@pytest.mark.parametrize("seconds", ["86400", "9" * 5000], ids=["a day", "no end"])
def test_a_server_is_waited_for_five_minutes_at_most(seconds: str) -> None:
    details = {"details": {"retryAfterSeconds": 86400}}
    body = json.dumps(a_status(429, "TooManyRequests") | details).encode()

    assert errors.retry_after_seconds({"Retry-After": seconds}) == 300
    assert errors.from_response(429, {"Retry-After": seconds}, b"").retry_after == 300
    assert errors.from_response(429, {}, body).retry_after == 300


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", "²"])
def test_only_whole_seconds_count_as_retry_after(text: str) -> None:
    assert errors.retry_after_seconds({"Retry-After": text}) is None


def test_a_proxys_page_is_not_shown() -> None:
    body = b"<html><body>" + b"x" * 10_000 + b"</body></html>"

    error = errors.from_response(502, {"Content-Type": "text/html"}, body)

    assert type(error) is errors.ServerError
    assert error.message == "the server answered 502 without a Status"
    assert error.reason == "InternalError"


def test_a_plain_text_is_shown_short_and_on_one_line() -> None:
    body = b"Too many requests,\n\x1b[31m try later " + b"y" * 1000

    error = errors.from_response(429, {"Content-Type": "text/plain; charset=utf-8"}, body)

    assert type(error) is errors.TooManyRequests
    assert "Too many requests, [31m try later" in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"[]", b'{"kind": "Node"}', b'{"kind": "Status", "code": "x"}']
)
def test_a_body_that_is_no_status_still_gives_the_error_of_the_code(body: bytes) -> None:
    assert isinstance(errors.from_response(404, {}, body), errors.NotFound)


def test_a_status_in_a_watch_is_judged_by_its_own_code() -> None:
    gone = errors.from_status(errors.Status(kind="Status", code=410, reason="Expired"))
    bare = errors.from_status(errors.Status(kind="Status"))

    assert isinstance(gone, errors.Gone)
    assert isinstance(bare, errors.ServerError)


def test_missing_credentials_count_as_unreachable() -> None:
    error = errors.NoCredentials("none")

    assert isinstance(error, errors.Unreachable)
    assert error.kind == "credentials"
