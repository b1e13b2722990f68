"""Fixtures of the tests before real services."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from ccm.testing import probes
from ccm.testing.fake_api import Exchange
from providers.openstack import balancers
from tests.openstack.lab import services
from tests.openstack.lab.harness import LabHarness, open_lab
from tests.openstack.lab.project import VARIABLE, LabState, read_state

REAL_PAUSES = balancers.PAUSES_S
FOLDER = Path(__file__).parents[3] / ".cache" / "openstack-lab"


@pytest.fixture(autouse=True)
def _quick_balancers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real services take seconds: undo what harnesses of the fake have set."""
    monkeypatch.setattr(balancers, "PAUSES_S", REAL_PAUSES)
    monkeypatch.setattr(probes, "PAUSE_S", 2.0)


@pytest.fixture(scope="session")
def lab_state() -> Iterator[LabState]:
    """The project that the variable names, or else that of a lab of our own."""
    if given := os.environ.get(VARIABLE):
        yield read_state(Path(given))
        return
    lab = services.LabServices(FOLDER)
    try:
        yield read_state(lab.up())
    except services.LabUnavailable as error:
        pytest.skip(f"no OpenStack: {error}; or set {VARIABLE} to a clouds.yaml")
    finally:
        lab.down()


@pytest_asyncio.fixture
async def harness(lab_state: LabState, seen: list[Exchange]) -> AsyncIterator[LabHarness]:
    """The harness, and the provider with the settings of the contract suite."""
    async with open_lab(lab_state, witness=seen.append) as made, made.open() as made.project:
        yield made
