"""The fixtures of a vendor's tests, for the Hetzner Cloud."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from providers.hcloud.testing import robot, server
from tests.hcloud.harness import HcloudHarness
from tests.hcloud.robots import Robots
from tests.support.vendor import endpoint, harness, seen, service  # noqa: F401 - fixtures


@pytest.fixture
def vendor() -> tuple[Any, type[HcloudHarness]]:
    """The fake and the harness."""
    return server, HcloudHarness


@pytest_asyncio.fixture
async def robots() -> AsyncIterator[Robots]:
    """An account of Robot."""
    account = robot.RobotService()
    async with robot.serve(account) as url:
        yield Robots(account, url)
