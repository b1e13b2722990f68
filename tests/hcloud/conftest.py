"""The fixtures of a vendor's tests, for the Hetzner Cloud."""

from __future__ import annotations

from typing import Any

import pytest

from providers.hcloud.testing import server
from tests.hcloud.harness import HcloudHarness
from tests.support.vendor import endpoint, harness, seen, service  # noqa: F401 - fixtures


@pytest.fixture
def vendor() -> tuple[Any, type[HcloudHarness]]:
    """The fake and the harness."""
    return server, HcloudHarness
