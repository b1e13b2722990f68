"""Who may import whom: the contracts, which `make lint` holds, cover every room."""

from __future__ import annotations

import tomllib
from typing import Any

from tests.architecture.sources import ROOT

OPEN_TO_PROVIDERS = {"base", "cloud", "model", "persistence"}
PURE_MODULES_NEVER_REACH = {"kube", "persistence", "runtime"}


def settings() -> dict[str, Any]:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, Any] = whole["tool"]["importlinter"]
    return found


def contract(name: str) -> dict[str, Any]:
    return next(entry for entry in settings()["contracts"] if entry["name"] == name)


def rooms() -> set[str]:
    """The packages of ccm that exist."""
    return {path.parent.name for path in (ROOT / "ccm").glob("*/__init__.py")}


def test_no_contract_was_dropped() -> None:
    names = {entry["name"] for entry in settings()["contracts"]}

    assert names >= {
        "ccm is a stack: a layer imports only what lies below it",
        "providers rest on ccm; ccm never imports a provider",
        "a provider sees the SDK and nothing else",
        "providers do not know each other",
        "controllers do not know each other",
        "inside a controller: manifest, then shell, then steps, then plan",
        "pure modules reach no client, runtime or store, even through others",
        "pure modules use no clock, chance, event loop, wire or log",
        "settings are read without a clock, event loop, wire or log",
        "every third-party package has its own door",
        "no cycles anywhere",
    }


def test_each_room_is_closed_to_providers_unless_it_is_part_of_the_sdk() -> None:
    closed = set(contract("a provider sees the SDK and nothing else")["forbidden_modules"])

    assert {f"ccm.{room}" for room in rooms() - OPEN_TO_PROVIDERS} <= closed


def test_each_room_with_side_effects_is_closed_to_pure_modules() -> None:
    name = "pure modules reach no client, runtime or store, even through others"
    closed = set(contract(name)["forbidden_modules"])

    assert {f"ccm.{room}" for room in rooms() & PURE_MODULES_NEVER_REACH} <= closed
