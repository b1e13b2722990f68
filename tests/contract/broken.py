"""The contract broken: a test class for each defect.

Not collected by itself: `test_suite.py` runs it and expects the cases of each to fail.
"""

from __future__ import annotations

from typing import ClassVar

import pytest_asyncio

from ccm.testing.contract import Harness
from tests.contract import bad_machines, bad_networks, bad_providers, defects

__all__ = ["bad_machines", "bad_networks", "bad_providers", "defects"]


class Broken:
    """One defect put to the whole contract that it breaks."""

    defect: ClassVar[str]

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return defects.DEFECTS[self.defect].harness()


for name, defect in defects.DEFECTS.items():
    bases = (Broken, defect.contract)
    globals()[f"Test{name}"] = type(f"Test{name}", bases, {"defect": name})
