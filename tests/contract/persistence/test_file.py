"""A folder of files keeps the persistence contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccm.testing.persistence_contract import PersistenceContract
from ccm.testing.persistence_harness import PersistenceHarness
from tests.contract.persistence.stores import FileHarness


class TestFile(PersistenceContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> PersistenceHarness:
        return FileHarness(tmp_path)
