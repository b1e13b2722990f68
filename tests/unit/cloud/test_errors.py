"""Errors of clouds, and the codes of drivers."""

from __future__ import annotations

import pytest

from ccm.cloud import errors
from ccm.cloud.errors import (
    POLICY,
    CloudError,
    DeadlineExceeded,
    DiskNotFound,
    ImplementedElsewhere,
    Internal,
    NotFound,
    RetryAfter,
    Unavailable,
    Unimplemented,
    normalize,
    policy_for,
)

CLASSES = sorted(
    (
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, CloudError) and kind is not CloudError
    ),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_class_is_documented_and_in_the_class_tree(kind: type[CloudError]) -> None:
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or "")


def test_every_error_class_has_a_retry_policy() -> None:
    assert set(POLICY) == set(CLASSES) - {DiskNotFound}


def test_direct_subclass_of_cloud_error_has_the_policy_of_unknown() -> None:
    class Odd(CloudError):
        """Error class of a provider."""

    assert policy_for(Odd("x")) is POLICY[errors.Unknown]


def test_exception_context_is_not_used_as_the_cause() -> None:
    error = ValueError("v")
    error.__context__ = Unimplemented("handled before")

    assert type(normalize(error)) is Internal


class Mute(Exception):
    def __str__(self) -> str:
        raise AttributeError("no attribute 'text'")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KeyError("server"), Internal, "KeyError: 'server'"),
        (RuntimeError(), Internal, "RuntimeError"),
        (TimeoutError(), DeadlineExceeded, "TimeoutError"),
        (Mute(), Internal, "Mute"),
    ],
)
def test_foreign_exception_is_normalized_and_kept_as_the_cause(
    error: Exception, kind: type[CloudError], text: str
) -> None:
    found = normalize(error)

    assert (type(found), str(found)) == (kind, text)
    assert found.__cause__ is error


@pytest.mark.parametrize("given", [float("nan"), float("inf"), float("-inf")])
def test_retry_after_must_be_finite(given: float) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        RetryAfter("wait", seconds=given)


@pytest.mark.parametrize(("given", "kept"), [(3, 3), (0.5, 0.5), (0, 0), (-7, 0)])
def test_negative_retry_after_becomes_zero(given: float, kept: float) -> None:
    assert RetryAfter("wait", seconds=given).seconds == kept


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ([Unavailable("a")], Unavailable),
        ([Unavailable("a"), Unavailable("b")], Unavailable),
        ([TimeoutError(), ExceptionGroup("g", [TimeoutError()])], DeadlineExceeded),
        ([ImplementedElsewhere("a")], ImplementedElsewhere),
        ([Unavailable("a"), TimeoutError()], Internal),
        ([ImplementedElsewhere("a"), Unavailable("b")], Internal),
        ([RetryAfter("a", seconds=1), Unavailable("b")], Internal),
        ([NotFound("a")], Internal),
        ([NotFound("a"), ValueError("b")], Internal),
        ([DiskNotFound("a")], Internal),
    ],
)
def test_exception_group_takes_the_common_class_of_its_members(
    members: list[Exception], kind: type[CloudError]
) -> None:
    """A group never becomes NotFound, nor ImplementedElsewhere beside another failure."""
    assert type(normalize(ExceptionGroup("g", members))) is kind


def test_exception_group_takes_the_longest_retry_after() -> None:
    group = ExceptionGroup("g", [RetryAfter("a", seconds=3), RetryAfter("b", seconds=7)])

    found = normalize(group)

    assert isinstance(found, RetryAfter)
    assert found.seconds == 7


def test_every_error_class_has_a_machine_code() -> None:
    without = [kind for kind in errors.POLICY if kind not in errors.CODES]

    assert without == []


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (errors.RetryAfter("x", seconds=5), "Unavailable"),
        (errors.ImplementedElsewhere("x"), "Unimplemented"),
        (errors.DiskNotFound("x"), "NotFound"),
        (errors.CloudError("x"), "Unknown"),
    ],
    ids=repr,
)
def test_error_class_without_an_own_code_uses_a_related_code(
    error: errors.CloudError, name: str
) -> None:
    assert errors.code_of(error).name == name


@pytest.mark.parametrize("said", ["a ] b", "a [ b", "a] [b", "]["])
def test_unbalanced_brackets_survive_formatting_and_parsing(said: str) -> None:
    found = errors.parse_error(errors.format_error(errors.NotFound(said)))

    assert type(found) is errors.NotFound
    assert str(found) == said.replace("[", "(").replace("]", ")")


def raised(error: Exception, *causes: BaseException) -> Exception:
    """Return the first error with the others chained as its causes."""
    current: BaseException = error
    for cause in causes:
        current.__cause__ = cause
        current = cause
    return error


@pytest.mark.parametrize(
    "inner", [RetryAfter("w", seconds=7), Unimplemented("u"), ImplementedElsewhere("e")]
)
@pytest.mark.parametrize("outer", [ValueError("v"), Unavailable("o"), NotFound("n")])
def test_retry_and_unimplemented_errors_are_found_among_causes(
    inner: CloudError, outer: Exception
) -> None:
    assert normalize(raised(outer, RuntimeError("between"), inner)) is inner


def test_not_found_is_never_taken_from_a_cause() -> None:
    wrapped = Unavailable("the proxy says 404")

    assert normalize(raised(wrapped, NotFound("gone"))) is wrapped
    assert type(normalize(raised(ValueError("v"), NotFound("gone")))) is Internal


def test_cyclic_causes_terminate() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first

    assert type(normalize(first)) is Internal


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("machine codes error: code = [Odd] message = [x]", errors.Unknown),
        ("machine codes error: code = [OK] message = [x]", errors.Unknown),
        ("machine codes error: [Internal][x]", errors.Internal),
        ("place [3] of [2]", None),
        ("machine codes error: code = [Internal] message = [x] [y]", None),
        ("machine codes error: code = [Internal] message = [x", None),
        ("machine codes error: code = Internal", None),
        ("", None),
    ],
)
def test_machine_code_texts_are_parsed_by_their_brackets(
    text: str, kind: type[errors.CloudError] | None
) -> None:
    found = errors.parse_error(text)

    assert (found and type(found)) == kind
