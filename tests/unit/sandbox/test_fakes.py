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


@pytest.mark.parametrize(
    ("name", "real", "others"),
    [
        ("hcloud", ["HCLOUD_TOKEN", "ROBOT_ENABLED", "ROBOT_USER_FILE"], ["HOME_OF_HCLOUD"]),
        ("stackit", ["STACKIT_REGION"], ["ROBOT_ENABLED"]),
        ("my-cloud", ["MY_CLOUD_TOKEN"], ["MY_CLOUDY_DAY", "HCLOUD_TOKEN"]),
    ],
)
def test_nothing_of_a_real_account_reaches_the_daemon(
    monkeypatch: pytest.MonkeyPatch, name: str, real: list[str], others: list[str]
) -> None:
    """Neither by its name nor by what the provider declares; all else stays."""
    for key in (*real, *others):
        monkeypatch.setenv(key, "real")

    config = registry.declared(registry.load(name)).config if name in registry.available() else None

    found = fakes._clean(name, config)

    assert [key for key in (*real, *others) if key in found] == others
