"""Credentials that never change, and that nobody sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ccm.base import redact
from ccm.kube import credentials
from ccm.kube.credentials import Credential


@pytest.mark.parametrize(
    "secret", ["x" * 300_000, "hunter2\nX-Admin: 1"], ids=lambda value: repr(value)[:24]
)
def test_a_credential_that_no_header_can_carry_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match=r"one line .* has") as caught:
        credentials.bearer(secret)

    assert "hunter2" not in str(caught.value)


def test_a_credential_is_not_printed() -> None:
    assert "never-shown" not in repr(credentials.bearer("never-shown"))


@pytest.mark.parametrize(
    ("made", "secret"),
    [
        (lambda: credentials.bearer("opaque-token"), "opaque-token"),
        (lambda: credentials.basic("me", "hunter22"), "hunter22"),
    ],
    ids=["bearer", "basic"],
)
def test_the_log_never_shows_a_credential(made: Callable[[], Credential], secret: str) -> None:
    sent = str(made().header)

    assert redact.words(f"{secret} and {sent.split()[1]}").count(redact.MASK) == 2
