"""Syntax of label keys and values."""

from __future__ import annotations

import pytest

from ccm.model.labels import key_fault, value_fault


@pytest.mark.parametrize("value", ["", "a", "A-1_b.c", "0", "x" * 63])
def test_good_values_have_no_fault(value: str) -> None:
    assert value_fault(value) == ""


@pytest.mark.parametrize("value", ["-a", "a-", "a b", "a/b", "ä", ".", "a\n", "x" * 64])
def test_bad_values_are_named(value: str) -> None:
    assert value_fault(value).startswith(repr(value))


@pytest.mark.parametrize(
    "key", ["a", "A.b_c-1", "x" * 63, "example.com/a", "a.b-c.d/E", f"{'x' * 253}/a"]
)
def test_good_keys_have_no_fault(key: str) -> None:
    assert key_fault(key) == ""


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a/b/c", "Example.com/a", "-a/b", "a..b/c", "a b", "x" * 64, f"{'x' * 254}/a"],
)
def test_bad_keys_are_named(key: str) -> None:
    assert key_fault(key).startswith(repr(key))
