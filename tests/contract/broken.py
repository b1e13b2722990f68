"""The contract broken: a test class for each defect.

Not collected by itself: `test_suite.py` runs it and expects the cases of each to fail.
"""

from __future__ import annotations

from typing import ClassVar

import pytest_asyncio

from ccm.testing.contract import Harness, ProviderContract
from tests.contract import bad_networks, bad_providers, defects

__all__ = ["bad_networks", "bad_providers", "defects"]


class Broken(ProviderContract):
    """One defect put to the whole contract."""

    defect: ClassVar[str]

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return defects.DEFECTS[self.defect].harness()


for name in defects.DEFECTS:
    globals()[f"Test{name}"] = type(f"Test{name}", (Broken,), {"defect": name})
