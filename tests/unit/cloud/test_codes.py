"""Numbers, names and the one text of errors about machines, as other programs read them."""

from __future__ import annotations

from enum import Enum, IntEnum

import pytest

from ccm.cloud import codes, errors

NAMES = [
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
    "Uninitialized",
]


class Grpc(IntEnum):
    NOT_FOUND = 5


class Named(Enum):
    ResourceExhausted = object()


@pytest.mark.parametrize(("number", "name"), [*enumerate(NAMES, start=1)])
def test_each_code_is_a_class_of_its_name(number: int, name: str) -> None:
    kind = getattr(errors, name)

    assert codes.code_of(kind("x")) == (number, name)
    assert codes.kind_of(number) is codes.kind_of(name) is kind


def test_every_class_has_a_code() -> None:
    without = [kind for kind in errors.POLICY if kind not in codes.CODES]

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
def test_classes_without_a_code_of_their_own_have_a_sensible_one(
    error: errors.CloudError, name: str
) -> None:
    assert codes.code_of(error).name == name


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Grpc.NOT_FOUND, errors.NotFound),
        (Named.ResourceExhausted, errors.ResourceExhausted),
        (0, None),
        ("OK", None),
        (99, None),
        (None, None),
        ([], None),
    ],
    ids=repr,
)
def test_codes_come_as_numbers_names_or_enumerations(
    code: object, kind: type[errors.CloudError] | None
) -> None:
    assert codes.kind_of(code) is kind


def test_the_text_is_the_one_of_the_wire() -> None:
    text = codes.format_error(errors.ResourceExhausted("quota of [cores] is used up"))

    assert text == (
        "machine codes error: code = [ResourceExhausted] message = [quota of [cores] is used up]"
    )
    found = codes.parse_error(f"[rpc] failed: {text}. Will be repeated")
    assert type(found) is errors.ResourceExhausted
    assert str(found) == "quota of [cores] is used up"


@pytest.mark.parametrize("said", ["a ] b", "a [ b", "a] [b", "]["])
def test_brackets_that_do_not_match_keep_the_text_readable(said: str) -> None:
    found = codes.parse_error(codes.format_error(errors.NotFound(said)))

    assert type(found) is errors.NotFound
    assert str(found) == said.replace("[", "(").replace("]", ")")


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
def test_texts_are_read_by_their_groups(text: str, kind: type[errors.CloudError] | None) -> None:
    found = codes.parse_error(text)

    assert (found and type(found)) == kind
