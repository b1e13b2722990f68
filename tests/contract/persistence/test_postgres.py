"""A PostgreSQL database keeps the persistence contract, against a real server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from ccm.persistence.interface import CAS, FENCING, GVK, SHARED, ObjectKey
from ccm.persistence.keys import instance_name
from ccm.persistence.postgres import PostgresConfig, PostgresStore
from ccm.persistence.store import Store
from ccm.testing.persistence_contract import PersistenceContract
from ccm.testing.persistence_harness import PersistenceHarness, StoreHarness
from tests import postgres
from tests.contract.persistence import secrets
from tests.contract.persistence.stores import flipped

NUMBERS = itertools.count()


class PostgresHarness(StoreHarness):
    """Two tables."""

    backend = "postgres"
    shares = several = True
    capabilities = frozenset({CAS, FENCING, SHARED})

    def __init__(self, socket: Path) -> None:
        super().__init__()
        self.socket = socket
        configs = [
            PostgresConfig(
                host=str(socket),
                database="postgres",
                user=postgres.USER,
                table=f"objects_{next(NUMBERS)}",
            )
            for _ in "ab"
        ]
        self.configs = {instance_name("postgres", one.identity()): one for one in configs}

    def stores(self) -> Mapping[str, Store]:
        return {name: PostgresStore(config) for name, config in self.configs.items()}

    async def damage(self, provider: Any, instance: str, kind: GVK, key: ObjectKey) -> None:
        table = self.configs[instance].table
        db = await asyncpg.connect(
            host=str(self.socket), user=postgres.USER, database="postgres", ssl=False
        )
        try:
            body = await db.fetchval(f"SELECT body FROM {table} WHERE key = $1", key)
            query = f"UPDATE {table} SET body = $1 WHERE key = $2"
            await db.execute(query, flipped(bytes(body)), key)
        finally:
            await db.close()


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with postgres.running() as folder:
        yield folder


class TestPostgres(PersistenceContract):
    @pytest.fixture
    def harness(self, socket: Path) -> PersistenceHarness:
        return PostgresHarness(socket)


async def test_sealed_secrets(socket: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is sealed comes back, and is nowhere to be read: not in the server's log either."""

    def stored() -> bytes:
        return b"".join(one.read_bytes() for one in socket.rglob("*") if one.is_file())

    await secrets.live(PostgresHarness(socket).make(), stored, caplog)
