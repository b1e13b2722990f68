"""The installed providers and what they say about themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ccm import cloud
from ccm.cloud import registry
from ccm.doctor import catalogue
from tests.contract.memory import MemoryApi, MemoryProvider


@cloud.provider(sdk="2.0")
async def open_plain(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """A provider without configuration, whose source says little."""
    offered = MemoryProvider(MemoryApi())
    facts = {"instances": offered, "inventory": offered} if context.cluster_name else {}
    yield cloud.Cloud(name="plain", **facts)  # type: ignore[arg-type]


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """`plain` works, `broken` does not."""
    found = (
        EntryPoint("plain", f"{__name__}:open_plain", registry.GROUP),
        EntryPoint("broken", "no_such_module:open_cloud", registry.GROUP),
    )
    for module in (registry, catalogue):
        monkeypatch.setattr(module, "entry_points", lambda *, group: found)


def test_a_broken_provider_is_listed_with_the_reason(entries: None) -> None:
    broken, plain = catalogue.installed()

    assert (plain.name, plain.fault) == ("plain", "")
    assert broken.name == "broken"
    assert broken.fault.endswith("ModuleNotFoundError: No module named 'no_such_module'")
    assert catalogue.plain(broken)["usable"] is False


async def test_without_a_configuration_it_is_not_opened(entries: None) -> None:
    told = await catalogue.describe("plain")

    assert (told.opened, told.offers, told.form, told.settings) == (False, None, "", ())


async def test_an_open_provider_says_what_it_offers(entries: None, tmp_path: Path) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text("")

    told = await catalogue.describe("plain", cloud_config=str(file))

    assert told.opened
    assert told.offers is not None
    assert list(told.offers)[:2] == ["instances", "bulk listing"]
    assert catalogue.document(told)["offers"] == list(told.offers)


async def test_what_the_simulated_cloud_declares_is_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text("url: http://127.0.0.1:1\ntoken: t\n")

    declared = await catalogue.describe("sim")
    opened = await catalogue.describe("sim", cloud_config=str(file))

    assert list(declared.offers or ()) == list(opened.offers or ())[: len(declared.offers or ())]
    assert set(opened.offers or ()) - set(declared.offers or ()) == {
        "existence and power in one answer",
        "load balancers compared by digest",
    }
    assert (declared.prefixes, declared.annotations) == (opened.prefixes, opened.annotations)
