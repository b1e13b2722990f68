"""Storage in the process keeps the persistence contract."""

from __future__ import annotations

import pytest

from ccm.testing.persistence_contract import ROWS, PersistenceContract
from ccm.testing.persistence_harness import PersistenceHarness
from tests.contract.persistence.stores import MemoryHarness


class TestMemory(PersistenceContract):
    @pytest.fixture
    def harness(self) -> PersistenceHarness:
        return MemoryHarness()


def test_every_statement_has_a_case() -> None:
    statements = {f"PS-{number:02}" for number in range(1, 38)}

    assert set(ROWS) == statements
    assert all(callable(getattr(PersistenceContract, case)) for case in ROWS.values())
