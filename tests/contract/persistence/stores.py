"""A harness for each kind of storage of ours but buckets."""

from __future__ import annotations

import base64
import itertools
import json
import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import asyncpg

from ccm.persistence import kubestore
from ccm.persistence.engine import StoreProvider
from ccm.persistence.interface import CAS, FENCING, GVK, SHARED, ObjectKey
from ccm.persistence.kubestore import KubernetesConfig, KubeStore
from ccm.persistence.memory import MemoryStore
from ccm.persistence.objects import StoragePlace, instance_name
from ccm.persistence.postgres import PostgresConfig, PostgresStore, storage
from ccm.persistence.registry import ApiRequests, BackendContext
from ccm.persistence.sqlite import SqliteStore
from ccm.persistence.store import Store
from ccm.testing.persistence_harness import HERE, StoreHarness
from tests import postgres
from tests.storage import Database

PAGE = 20
"""Objects of a page of a listing in these tests, in place of hundreds."""

MANY = 2 * PAGE + 10
"""Three pages; ten thousand objects are listed in `make soak`, in pages of full size."""


def flipped(body: bytes) -> bytes:
    """With one bit of its middle changed."""
    at = body.index(b'"size"') + 8 if b'"size"' in body else len(body) // 2
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


class MemoryHarness(StoreHarness):
    """Two dictionaries."""

    backend = "memory"
    many: ClassVar[int] = MANY
    shares = several = True
    capabilities = frozenset({CAS, FENCING})
    exempt: ClassVar[Mapping[str, str]] = {
        "PS-23": "it is gone with the process; here only the object of the test lives on",
        "PS-33": "nothing of it leaves the process",
    }

    def __init__(self) -> None:
        super().__init__()
        self.held = {instance_name("memory", {"n": n}): MemoryStore() for n in "ab"}

    def stores(self) -> Mapping[str, Store]:
        return self.held

    async def exposed(self) -> Any:
        return self.make()

    async def damage(self, provider: Any, instance: str, kind: GVK, key: ObjectKey) -> None:
        held = self.held[instance].held
        at = (HERE.cluster_uid, StoragePlace(kind, key))
        held[at] = flipped(held[at])


class KubernetesHarness(StoreHarness):
    """Two namespaces.

    Args:
        requests: client of the API server.
    """

    backend = "kubernetes"
    many: ClassVar[int] = MANY
    several = True
    capabilities = frozenset({CAS, FENCING, SHARED})
    max_bytes = kubestore.MAX_BYTES
    exempt: ClassVar[Mapping[str, str]] = {
        "PS-33": "the kubeconfig decides how the API server is reached"
    }

    def __init__(self, requests: ApiRequests) -> None:
        super().__init__()
        self.requests = requests

    def stores(self) -> Mapping[str, KubeStore]:
        context = BackendContext(requests=self.requests)
        stores = [
            KubeStore(kubestore.CONFIG_MAPS, KubernetesConfig(namespace=namespace), context)
            for namespace in ("default", "kube-system")
        ]
        return {instance_name("kubernetes", store.identity()): store for store in stores}

    async def exposed(self) -> Any:
        return self.make()

    async def damage(self, provider: Any, instance: str, kind: GVK, key: ObjectKey) -> None:
        store = self.stores()[instance]
        path = f"{store._path}/{store._name_of(*kind, key)}"
        item = json.loads(await self.requests.request("GET", path))
        body = zlib.decompress(base64.b64decode(item["binaryData"][kubestore.FIELD]))
        changed = base64.b64encode(zlib.compress(flipped(body))).decode()
        item["binaryData"][kubestore.FIELD] = changed
        await self.requests.request("PUT", path, body=json.dumps(item).encode())


class SqliteHarness(StoreHarness):
    """Two databases."""

    backend = "sqlite"
    many: ClassVar[int] = MANY
    several = True
    capabilities = frozenset({CAS, FENCING})

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.files = {instance_name("sqlite", {"n": n}): folder / n / "x.db" for n in "ab"}

    def stores(self) -> Mapping[str, Store]:
        return {name: SqliteStore(file) for name, file in self.files.items()}

    async def exposed(self) -> Any:
        for file in self.files.values():
            file.parent.mkdir(mode=0o700)
            file.touch(mode=0o644)
        return self.make()

    async def damage(self, provider: Any, instance: str, kind: GVK, key: ObjectKey) -> None:
        with closing(sqlite3.connect(self.files[instance])) as db, db:
            (body,) = db.execute("SELECT body FROM objects WHERE key = ?", (key,)).fetchone()
            db.execute("UPDATE objects SET body = ? WHERE key = ?", (flipped(body), key))


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
        names = storage(configs, BackendContext()).instances()
        self.configs = dict(zip(names, configs, strict=True))

    def stores(self) -> Mapping[str, Store]:
        return {name: PostgresStore(config) for name, config in self.configs.items()}

    async def exposed(self) -> Any:
        """Its certificate is signed by an unknown CA."""
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
