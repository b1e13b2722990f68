"""A provider's fake in the place of its cloud."""

from __future__ import annotations

import pytest

from ccm.cloud import registry
from ccm.sandbox import fakes


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("sim", ""),
        ("hcloud", "providers.hcloud.testing"),
        ("stackit", "providers.stackit.testing"),
    ],
)
def test_who_has_one(name: str, module: str) -> None:
    assert fakes.module_of(registry.load(name)) == module


def test_an_opener_from_nowhere_has_none() -> None:
    async def opener(_: object) -> None:
        """Of a module that is no package."""

    assert fakes.module_of(opener) == ""  # type: ignore[arg-type]


def test_nothing_of_a_real_account_reaches_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("ACME_TOKEN", "ACME_URL", "HOME_OF_ACME"):
        monkeypatch.setenv(key, "real")

    found = {**fakes._clean("acme"), "ACME_URL": "fake"}

    assert found.get("ACME_TOKEN") is None
    assert (found["ACME_URL"], found["HOME_OF_ACME"]) == ("fake", "real")
