"""Each kind of storage keeps the persistence contract, and so do sealed secrets over it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from ccm.app.clients import ProviderClient
from ccm.kube.client import Client
from ccm.kube.config import load
from ccm.kube.transport import Transport
from ccm.persistence import errors, objects
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.interface import (
    ABSENT,
    GVK,
    MachineId,
    ObjectKey,
    PersistenceProviderStatus,
)
from ccm.persistence.objects import StoragePlace, to_canonical_json
from ccm.persistence.secrets import SEALED, EncryptedSecretStore
from ccm.persistence.store import Claim
from ccm.testing.persistence_contract import KIND, ROWS, PersistenceContract, thing
from ccm.testing.persistence_harness import (
    ELSEWHERE,
    HERE,
    PersistenceHarness,
    StoreHarness,
)
from tests import servers
from tests.contract.persistence import buckets, secrets, stores
from tests.contract.persistence.cluster import Cluster
from tests.storage import Database

NO_VERSIONS = "it has no versions of its own; rotation uses those of the storage inside"


class AsObjects:
    """A secret store with the methods of a provider: each object is a secret with one value."""

    def __init__(self, inner: Any) -> None:
        self._store = EncryptedSecretStore(inner, [secrets.KEY])
        self.capabilities = inner.capabilities

    def __repr__(self) -> str:
        return repr(self._store)

    async def initialize(self, machine_id: MachineId) -> None:
        await self._store.initialize(machine_id)

    def instances(self) -> Sequence[str]:
        return self._store.instances()

    async def instance_status(self, instance: str) -> PersistenceProviderStatus:
        return await self._store.instance_status(instance)

    async def close(self) -> None:
        await self._store.close()

    async def put_object(self, instance: str, obj: Mapping[str, Any]) -> ObjectKey:
        place = objects.place_of(obj)
        await self._store.put_secret(instance, name_of(place), {"object": to_canonical_json(obj)})
        return place.key

    async def get_object(self, instance: str, kind: GVK, key: ObjectKey) -> Any:
        return _object(await self._store.get_secret(instance, secret_of(kind, key)))

    async def delete_object(self, instance: str, kind: GVK, key: ObjectKey) -> None:
        await self._store.delete_secret(instance, secret_of(kind, key))

    async def get_all_objects(self, instance: str, kind: GVK) -> list[Any]:
        found = [
            _object(await self._store.get_secret(instance, key))
            for key in await self._store.list_secrets(instance)
        ]
        wanted = (kind.api_version, kind.kind)
        return [obj for obj in found if (obj["apiVersion"], obj["kind"]) == wanted]


def _object(data: Mapping[str, bytes] | None) -> Any:
    return None if data is None else json.loads(data["object"])


def name_of(place: StoragePlace) -> str:
    return "/".join((*place.kind, place.key))


def secret_of(kind: GVK, key: str) -> ObjectKey:
    return objects.key_of("", name_of(StoragePlace(kind, objects.check_key(key))))


class SealedHarness(PersistenceHarness):
    """Sealed secrets in the storage of another harness."""

    exempt: ClassVar[Mapping[str, str]] = {
        "PS-16": "it takes names and bytes; what is neither is refused by a test of its own",
        "PS-29": NO_VERSIONS,
        "PS-30": NO_VERSIONS,
        "PS-31": NO_VERSIONS,
        "PS-34": "secrets are what it is for",
    }

    def __init__(self, inner: StoreHarness) -> None:
        self.inner = inner

    def make(self, *, epoch: int = 0) -> AsObjects:
        return AsObjects(self.inner.make(epoch=epoch))

    async def exposed(self) -> AsObjects:
        return AsObjects(await self.inner.exposed())

    async def damage(self, provider: Any, instance: str, kind: GVK, key: ObjectKey) -> None:
        await self.inner.damage(provider, instance, SEALED, secret_of(kind, key))

    async def fail(self, instance: str) -> None:
        await self.inner.fail(instance)

    async def hang(self, instance: str) -> None:
        await self.inner.hang(instance)

    async def heal(self, instance: str) -> None:
        await self.inner.heal(instance)


def sealed_over(inner: StoreHarness) -> PersistenceHarness:
    """Shares and exempts the same as the storage."""
    same = {name: getattr(inner, name) for name in ("shares", "several", "many", "capabilities")}
    exempt = {"exempt": {**inner.exempt, **SealedHarness.exempt}}
    made: PersistenceHarness = type("Sealed", (SealedHarness,), same | exempt)(inner)
    return made


def postgres(request: pytest.FixtureRequest, _: Path) -> StoreHarness:
    """One against a real server."""
    return stores.PostgresHarness(request.getfixturevalue("database"))


def s3(request: pytest.FixtureRequest, folder: Path) -> buckets.S3Harness:
    """One against moto's server."""
    return buckets.S3Harness(request.getfixturevalue("bucket_url"), folder)


STORAGE: dict[str, Callable[[pytest.FixtureRequest, Path], StoreHarness]] = {
    "memory": lambda *_: stores.MemoryHarness(),
    "kubernetes": lambda *_: stores.KubernetesHarness(Cluster()),
    "sqlite": lambda _, folder: stores.SqliteHarness(folder),
    "postgres": postgres,
    "s3": s3,
}
GROUPS = {name: pytest.mark.xdist_group(name) for name in ("postgres", "s3")}


class TestStorage(PersistenceContract):
    @pytest.fixture(params=[pytest.param(n, marks=GROUPS.get(n, ())) for n in STORAGE])
    def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> PersistenceHarness:
        return STORAGE[request.param](request, tmp_path)


class TestKubernetes(PersistenceContract):
    """ConfigMaps of an API server."""

    @pytest_asyncio.fixture
    async def harness(self, api_server: servers.ApiServer) -> AsyncIterator[PersistenceHarness]:
        cluster = load(str(api_server.kubeconfig_path), "", environ={})
        async with Transport(cluster) as transport:
            yield stores.KubernetesHarness(ProviderClient(Client(transport)))


class TestEncrypted(PersistenceContract):
    @pytest.fixture(
        params=[n if n == "memory" else pytest.param(n, marks=pytest.mark.soak) for n in STORAGE]
    )
    def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> PersistenceHarness:
        return sealed_over(STORAGE[request.param](request, tmp_path))


@pytest.mark.parametrize("name", [pytest.param(n, marks=GROUPS.get(n, ())) for n in STORAGE])
async def test_text_that_databases_refuse_is_refused_before_any_request(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """NUL and surrogates in names, kinds and versions; the storage stays up."""
    provider = STORAGE[name](request, tmp_path).make()
    await provider.initialize(HERE)
    first, _ = provider.instances()
    key, _ = await provider.put_versioned(first, thing(), expect=ABSENT)
    objects = [
        thing("a\0b"),
        thing("\ud800"),
        thing(namespace="a\0b"),
        thing() | {"kind": "K\0"},
        thing() | {"apiVersion": "v\ud800"},
    ]
    kinds = [KIND._replace(kind="K\0"), KIND._replace(group="\ud800")]
    versions: list[Any] = ["a\0b", "\ud800", 5]
    for call in (
        *(provider.put_object(first, obj) for obj in objects),
        *(provider.get_object(first, kind, key) for kind in kinds),
        *(provider.delete_object(first, kind, key) for kind in kinds),
        *(provider.get_all_objects(first, kind) for kind in kinds),
        *(provider.put_versioned(first, thing(), expect=version) for version in versions),
    ):
        with pytest.raises(errors.InvalidObject):
            await call
    assert (await provider.instance_status(first)).status
    await provider.close()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=GROUPS.get(n, ())) for n in STORAGE if n != "kubernetes"]
)
async def test_clusters_are_listed_and_none_is_created(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    harness = STORAGE[name](request, tmp_path)
    first, _ = harness.make().instances()
    here, elsewhere = HERE.cluster_uid, ELSEWHERE.cluster_uid

    async def listed(wanted: str) -> set[str]:
        one: Any = harness.stores()[first]
        try:
            return {*await one.clusters(wanted)}
        finally:
            await one.close()

    assert await listed(elsewhere) == set()
    assert await listed(here) == set()
    provider = harness.make()
    await provider.initialize(HERE)
    await provider.put_object(first, thing())
    await provider.close()
    assert await listed(elsewhere) == {here}
    assert await listed(here) == {here}
    assert await listed(elsewhere) == {here}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=GROUPS.get(n, ())) for n in STORAGE if n != "memory"]
)
async def test_storage_of_another_daemon_is_refused_and_its_writes_go_on(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two daemons of one cluster have Leases of their own, whose epochs cannot be compared."""
    harness = STORAGE[name](request, tmp_path)
    first, _ = harness.make().instances()

    @asynccontextmanager
    async def opened(epoch: int, lease: str = "") -> AsyncIterator[StoreProvider]:
        writer, store = WriterIdentity(epoch=epoch, lease=lease), harness.stores()[first]
        made = StoreProvider(name, {first: store}, writer=lambda: writer, probe_s=1e6)
        try:
            await made.initialize(HERE)
            yield made
        finally:
            await made.close()

    async with opened(2) as former:  # a command, or an earlier version, of which no Lease is known
        await former.put_object(first, thing("a"))
    async with opened(3, "kube-system/one") as one:
        await one.put_object(first, thing("b"))
        for epoch in (0, 9):
            with pytest.raises(errors.BackendDead, match="of the Lease kube-system/one, not of ot"):
                async with opened(epoch, "other/two"):
                    pass
        await one.put_object(first, thing("c"))
        async with opened(3) as command:
            await command.put_object(first, thing("d"))
        await one.put_object(first, thing("e"))
    async with opened(4, "kube-system/one") as successor:
        names = [obj["metadata"]["name"] for obj in await successor.get_all_objects(first, KIND)]
    assert sorted(names) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=GROUPS.get(n, ())) for n in STORAGE if n != "memory"]
)
async def test_of_two_daemons_that_open_new_storage_at_once_one_owns_it(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    harness = STORAGE[name](request, tmp_path)
    first, _ = harness.make().instances()
    opening = [harness.stores()[first] for _ in range(2)]
    claims = [Claim(HERE.cluster_uid, epoch, f"kube-system/{epoch}") for epoch in (1, 2)]

    results = await asyncio.gather(
        *(store.open(claim) for store, claim in zip(opening, claims, strict=True)),
        return_exceptions=True,
    )

    for store in opening:
        await store.close()
    assert sorted(map(type, results), key=str) == [type(None), errors.BackendDead]


def test_every_contract_id_has_a_case() -> None:
    assert set(ROWS) == {f"PS-{number:02}" for number in range(1, 38)}
    assert all(callable(getattr(PersistenceContract, case)) for case in ROWS.values())


@GROUPS["postgres"]
async def test_a_database_and_its_log_contain_no_encrypted_secret_in_plain_text(
    database: Database,
) -> None:
    def stored() -> bytes:
        return b"".join(one.read_bytes() for one in database.socket.rglob("*") if one.is_file())

    await secrets.live(stores.PostgresHarness(database).make(), stored)


@GROUPS["s3"]
async def test_a_bucket_contains_no_encrypted_secret_in_plain_text(
    bucket_url: str, tmp_path: Path
) -> None:
    harness = buckets.S3Harness(bucket_url, tmp_path)
    await secrets.live(harness.make(), harness.stored)
