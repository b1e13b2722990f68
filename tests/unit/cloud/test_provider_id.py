"""Provider IDs: a foreign or malformed one is refused and never an absence."""

from __future__ import annotations

import pytest

from ccm.cloud import (
    Cloud,
    InvalidArgument,
    format_provider_id,
    is_foreign,
    parse_provider_id,
)


@pytest.mark.parametrize("instance_id", ["i-1", "zone/i-1", "/zone/i-1", "a://b"])
def test_what_was_built_is_read_back(instance_id: str) -> None:
    assert parse_provider_id(format_provider_id("acme", instance_id), "acme") == instance_id


@pytest.mark.parametrize(
    "provider_id", ["", "i-1", "acme:i-1", "acme:/i-1", "acme://", "acme:///", "ACME://i-1", "://1"]
)
def test_malformed_ids_are_refused_with_a_hint(provider_id: str) -> None:
    with pytest.raises(InvalidArgument, match="expected acme://<id>") as caught:
        parse_provider_id(provider_id, "acme")

    assert repr(provider_id) in str(caught.value)


def test_another_scheme_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        parse_provider_id("acme2://i-1", "acme")


@pytest.mark.parametrize(
    ("provider_id", "foreign"),
    [("acme://1", False), ("old-acme://1", False), ("", False), ("i-1", False), ("aws://1", True)],
)
def test_only_another_scheme_is_foreign(provider_id: str, foreign: bool) -> None:
    assert is_foreign(provider_id, ("acme", "old-acme")) is foreign


def test_the_name_is_the_scheme_unless_told_otherwise() -> None:
    assert Cloud(name="acme").provider_schemes == ("acme",)
    assert Cloud(name="acme", schemes=("acme", "old")).provider_schemes == ("acme", "old")
