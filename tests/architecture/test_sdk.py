"""The SDK for provider authors, and the import contracts."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from ccm import cloud
from ccm.cloud import errors, gardener, kubermatic, registry
from tests.architecture.sources import ROOT

HEAVY = ("aiohttp", "kubernetes", "prometheus_client", "structlog")
CPU_LIMIT_S = 0.4


def descendants(base: type[errors.CloudError]) -> Iterator[type[errors.CloudError]]:
    for child in base.__subclasses__():
        yield child
        yield from descendants(child)


def sdk_errors() -> list[type[errors.CloudError]]:
    found = descendants(errors.CloudError)
    return [kind for kind in found if kind.__module__ == errors.__name__]


def test_every_public_name_exists_and_is_documented() -> None:
    undocumented = [
        name
        for name in cloud.__all__
        if isinstance(getattr(cloud, name), type) and not getattr(cloud, name).__doc__
    ]

    assert undocumented == []
    assert list(cloud.__all__) == sorted(set(cloud.__all__), key=cloud.__all__.index)


@pytest.mark.parametrize("module", [gardener, kubermatic])
def test_value_classes_of_the_driver_interfaces_of_others_are_public(module: ModuleType) -> None:
    values = {name for name, kind in vars(module).items() if dataclasses.is_dataclass(kind)}
    ours = {name for name in values if getattr(module, name).__module__ == module.__name__}
    public = {name for name in ours if not name.startswith("_")}

    assert public
    assert public <= set(cloud.__all__)


def test_every_error_class_of_the_sdk_is_public() -> None:
    assert {kind.__name__ for kind in sdk_errors()} <= set(cloud.__all__)


def test_every_error_class_has_a_row_in_the_policy() -> None:
    without = [
        kind.__name__
        for kind in sdk_errors()
        if kind not in errors.POLICY and not issubclass(kind, errors.NotFound)
    ]

    assert without == []


def output_of(script: str) -> str:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def import_report() -> tuple[set[str], float]:
    """The heavy modules that importing the SDK loads, and its CPU seconds."""
    script = (
        "import sys, time; before = time.process_time(); import ccm.cloud; "
        "print(round(time.process_time() - before, 3), "
        f"*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    answers = [output_of(script).split() for _ in range(3)]
    return set(answers[0][1:]), min(float(answer[0]) for answer in answers)


def test_importing_the_sdk_loads_no_client_library(import_report: tuple[set[str], float]) -> None:
    assert import_report[0] == set()


def test_importing_the_sdk_is_quick(import_report: tuple[set[str], float]) -> None:
    assert import_report[1] < CPU_LIMIT_S


def test_listing_providers_imports_none() -> None:
    script = (
        "import sys; from ccm.cloud import registry; names = set(registry.installed_providers()); "
        "assert 'sim' in names, names; "
        "print([name for name in sys.modules if name.startswith('providers.')])"
    )

    assert output_of(script).strip() == "[]"


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(registry.ProviderError, match=r"'nimbus'.*sim"):
        registry.load_provider("nimbus")


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


def test_the_import_contracts_are_complete() -> None:
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


def test_providers_may_import_only_packages_of_the_sdk() -> None:
    closed = set(contract("a provider sees the SDK and nothing else")["forbidden_modules"])

    assert {f"ccm.{room}" for room in rooms() - OPEN_TO_PROVIDERS} <= closed


def test_pure_modules_may_not_import_packages_with_side_effects() -> None:
    name = "pure modules reach no client, runtime or store, even through others"
    closed = set(contract(name)["forbidden_modules"])

    assert {f"ccm.{room}" for room in rooms() & PURE_MODULES_NEVER_REACH} <= closed
