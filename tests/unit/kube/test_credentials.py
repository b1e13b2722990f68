"""Credentials that never change, and that nobody sees."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from ccm.base import redact
from ccm.kube import credentials
from ccm.kube.credentials import Credential, Fixed


async def test_a_fixed_credential_never_changes() -> None:
    source = Fixed(credentials.basic("user", "pa:ss"))

    credential = await source.current()

    assert credential.header is not None
    assert base64.b64decode(credential.header.removeprefix("Basic ")) == b"user:pa:ss"
    assert not await source.rejected(credential, 0.0)


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
