"""The fixtures of a vendor's tests, for STACKIT."""

from __future__ import annotations

from typing import Any

import pytest

from providers.stackit.testing import server
from tests.stackit.harness import StackitHarness
from tests.support.vendor import endpoint, harness, seen, service  # noqa: F401 - fixtures


@pytest.fixture
def vendor() -> tuple[Any, type[StackitHarness]]:
    """The fake and the harness."""
    return server, StackitHarness
