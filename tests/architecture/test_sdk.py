"""What provider authors rely on."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ccm import cloud
from ccm.cloud import errors, gardener, registry

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


def test_what_a_driver_of_gardeners_shape_is_handed_is_public() -> None:
    values = {name for name, kind in vars(gardener).items() if dataclasses.is_dataclass(kind)}
    ours = {name for name in values if getattr(gardener, name).__module__ == gardener.__name__}

    assert ours
    assert ours <= set(cloud.__all__)


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
        "import sys; from ccm.cloud import registry; names = set(registry.available()); "
        "assert 'sim' in names, names; "
        "print([name for name in sys.modules if name.startswith('providers.')])"
    )

    assert output_of(script).strip() == "[]"


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(registry.ProviderError, match=r"'nimbus'.*sim"):
        registry.load("nimbus")
