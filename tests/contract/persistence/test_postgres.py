"""A PostgreSQL database keeps the persistence contract, against a real server."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import asyncpg
import pytest

from ccm.persistence.engine import StoreProvider
from ccm.persistence.interface import CAS, FENCING, GVK, SHARED, ObjectKey
from ccm.persistence.objects import instance_name
from ccm.persistence.postgres import PostgresConfig, PostgresStore
from ccm.persistence.store import Store
from ccm.testing.persistence_contract import PersistenceContract
from ccm.testing.persistence_harness import PersistenceHarness, StoreHarness
from tests import postgres
from tests.contract.persistence import secrets
from tests.contract.persistence.stores import MANY, flipped
from tests.storage import Database

pytestmark = pytest.mark.xdist_group("postgres")

NUMBERS = itertools.count()


class PostgresHarness(StoreHarness):
    """Two tables."""

    backend = "postgres"
    many: ClassVar[int] = MANY
    shares = several = True
    capabilities = frozenset({CAS, FENCING, SHARED})

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        configs = [
            PostgresConfig(
                host=str(database.socket),
                port=database.port,
                database="postgres",
                user=postgres.USER,
                table=f"objects_{next(NUMBERS)}",
            )
            for _ in "ab"
        ]
        self.configs = {instance_name("postgres", one.identity()): one for one in configs}

    def stores(self) -> Mapping[str, Store]:
        return {name: PostgresStore(config) for name, config in self.configs.items()}

    async def exposed(self) -> Any:
        """Nobody known has signed its certificate."""
        name = instance_name("postgres", {})
        config = PostgresConfig(host="127.0.0.1", port=self.database.port)
        return StoreProvider("postgres", {name: PostgresStore(config)})

    async def damage(self, provider: Any, instance: str, kind: GVK, key: ObjectKey) -> None:
        table = self.configs[instance].table
        db = await asyncpg.connect(
            host=str(self.database.socket),
            port=self.database.port,
            user=postgres.USER,
            database="postgres",
            ssl=False,
        )
        try:
            body = await db.fetchval(f"SELECT body FROM {table} WHERE key = $1", key)
            query = f"UPDATE {table} SET body = $1 WHERE key = $2"
            await db.execute(query, flipped(bytes(body)), key)
        finally:
            await db.close()


class TestPostgres(PersistenceContract):
    @pytest.fixture
    def harness(self, database: Database) -> PersistenceHarness:
        return PostgresHarness(database)


async def test_sealed_secrets(database: Database) -> None:
    """What is sealed comes back, and is nowhere to be read: not in the server's log either."""

    def stored() -> bytes:
        return b"".join(one.read_bytes() for one in database.socket.rglob("*") if one.is_file())

    await secrets.live(PostgresHarness(database).make(), stored)
