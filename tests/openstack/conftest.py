"""The fixtures of a vendor's tests, for OpenStack."""

from __future__ import annotations

from typing import Any

import pytest

from providers.openstack import balancers
from providers.openstack.testing import server
from tests.openstack.harness import OpenStackHarness
from tests.support.vendor import endpoint, harness, seen, service  # noqa: F401 - fixtures


@pytest.fixture
def vendor() -> tuple[Any, type[OpenStackHarness]]:
    """The fake and the harness."""
    return server, OpenStackHarness


@pytest.fixture(autouse=True)
def _quick_balancers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake changes load balancers at once, or when the test says so."""
    monkeypatch.setattr(balancers, "PAUSES_S", (0.0,) * 5)
    monkeypatch.setattr(balancers, "RETRY_S", 0.01)
    monkeypatch.setattr(balancers, "SETTLED_S", 0.1)
    monkeypatch.setattr(balancers.OpenStackBalancers, "unsettled", {})
