"""The fixtures of a vendor's tests, for OpenStack."""

from __future__ import annotations

from typing import Any

import pytest

from providers.openstack.testing import server
from tests.openstack.harness import OpenStackHarness
from tests.support.vendor import endpoint, harness, seen, service  # noqa: F401 - fixtures


@pytest.fixture
def vendor() -> tuple[Any, type[OpenStackHarness]]:
    """The fake and the harness."""
    return server, OpenStackHarness
