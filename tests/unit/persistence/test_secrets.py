"""Encrypted secrets: read unchanged, and protected against reading, moving and changing."""

from __future__ import annotations

import base64
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from ccm.base.tasks import NamedTaskGroup
from ccm.persistence import errors, keyring
from ccm.persistence.keyring import Keyring
from ccm.persistence.kubesecrets import KubernetesSecretStore
from ccm.persistence.memory import MemoryStore
from ccm.persistence.registry import BackendContext
from ccm.persistence.secrets import (
    SEALED,
    EncryptedConfig,
    EncryptedSecretStore,
    RotationReport,
    storage,
)
from ccm.persistence.store import Store
from ccm.testing.persistence_harness import ELSEWHERE, captured_logs
from tests.unit.persistence.helpers import HERE, LOCAL, NAME, provider

OLD, NEW = b"o" * 32, b"n" * 32
NEEDLE = b"needle-in-the-hay-9371"
DATA = {"token": NEEDLE, "binary": bytes(range(256)), "empty": b""}


class Status(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Cluster:
    """Secrets of an API server, with resource versions."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Any]] = {}
        self.version = 0

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        given = json.loads(body) if body else {}
        name = path.partition("/secrets")[2].removeprefix("/")
        if not name and method == "GET":
            return json.dumps(self.listed(query or {})).encode()
        name = name or given["metadata"]["name"]
        found = self.held.get(name)
        if method == "POST" and found:
            raise Status(409)
        if method != "POST" and not found:
            raise Status(404)
        wanted = given.get("metadata", given.get("preconditions", {})).get("resourceVersion")
        if found and wanted not in (None, found["metadata"]["resourceVersion"]):
            raise Status(409)
        if method in ("POST", "PUT"):
            self.version += 1
            given["metadata"]["resourceVersion"] = str(self.version)
            self.held[name] = given
        elif method == "DELETE":
            del self.held[name]
        return json.dumps(self.held.get(name, {})).encode()

    def listed(self, query: Mapping[str, str]) -> dict[str, Any]:
        start, most = int(query.get("continue", 0)), int(query["limit"])
        items = [
            item
            for item in self.held.values()
            if query["labelSelector"] in item["metadata"].get("labels", {})
        ]
        more = {"continue": str(start + most)} if len(items) > start + most else {}
        return {"metadata": more, "items": items[start : start + most]}


@asynccontextmanager
async def sealed(store: Store, *ring: bytes) -> AsyncIterator[EncryptedSecretStore]:
    made = EncryptedSecretStore(provider(store), ring or (NEW,))
    await made.initialize(HERE)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def in_cluster(cluster: Cluster) -> AsyncIterator[KubernetesSecretStore]:
    made = KubernetesSecretStore(cluster, "kube-system", BackendContext())
    await made.initialize(HERE)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def any_store(kind: str, folder: Path) -> AsyncIterator[Any]:
    if kind == "kubernetes":
        async with in_cluster(Cluster()) as store:
            yield store
    else:
        async with sealed(LOCAL[kind](folder) if kind in LOCAL else MemoryStore()) as store:
            yield store


@pytest.mark.parametrize("kind", ["kubernetes", "memory", *LOCAL])
async def test_secret_is_stored_read_listed_and_deleted(tmp_path: Path, kind: str) -> None:
    async with any_store(kind, tmp_path) as store:
        (instance,) = store.instances()
        assert (await store.instance_status(instance)).status
        key = await store.put_secret(instance, "Of:one", DATA)
        assert await store.put_secret(instance, "two", {"a": b"b"}) != key
        assert await store.put_secret(instance, "Of:one", DATA) == key

        assert await store.get_secret(instance, key) == DATA
        assert len(await store.list_secrets(instance)) == 2
        await store.delete_secret(instance, key)
        await store.delete_secret(instance, key)
        assert await store.get_secret(instance, key) is None
        for bad in ({"a": "text"}, {1: b""}, "text"):
            with pytest.raises(errors.InvalidObject):
                await store.put_secret(instance, "n", bad)
        with pytest.raises(errors.ObjectTooLarge):
            await store.put_secret(instance, "n", {"a": b"x" * (1 << 21)})


@pytest.mark.parametrize("kind", LOCAL)
async def test_secrets_appear_neither_in_storage_nor_in_logs(tmp_path: Path, kind: str) -> None:
    """Encoded forms of the secret and of the key are searched too, and the repr of the store."""
    spellings = {NEEDLE, base64.b64encode(NEEDLE)[:-4], NEEDLE.hex().encode()}
    with captured_logs() as logged:
        async with sealed(LOCAL[kind](tmp_path)) as store:
            await store.put_secret(NAME, "one", DATA)
        stored = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
        said = (logged() + repr(store) + repr(Keyring([NEW]))).encode()

    assert stored
    assert b"persistence instance is up" in said
    for needle in (*spellings, NEW, base64.b64encode(NEW)):
        assert needle not in stored + said


async def test_rotation_in_the_cluster_rewrites_every_secret() -> None:
    cluster = Cluster()
    async with in_cluster(cluster) as store:
        (instance,) = store.instances()
        for at in range(120):
            await store.put_secret(instance, f"n{at}", {"a": b"b"})
        before = cluster.version
        assert await store.rotate(instance) == RotationReport(rewritten=120)
        assert cluster.version == before + 120


async def test_unlabelled_secret_is_never_read_or_changed() -> None:
    """A Secret of the daemon whose label was removed counts as foreign."""
    cluster = Cluster()
    async with in_cluster(cluster) as store:
        (instance,) = store.instances()
        key = await store.put_secret(instance, "one", DATA)
        (held,) = cluster.held.values()
        held["metadata"]["labels"] = {}
        for call in (
            store.put_secret(instance, "one", {}),
            store.get_secret(instance, key),
            store.delete_secret(instance, key),
        ):
            with pytest.raises(errors.CorruptObject, match="lacks the label"):
                await call
        assert list(cluster.held.values()) == [held]


async def test_passphrase_opens_the_store_and_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        keyring, "MEMORY_KIB", 1 << 10
    )  # key derivation would take too long otherwise
    phrase = b"correct horse battery staple"

    async def ask(*phrases: bytes) -> Any:
        store = EncryptedSecretStore(provider(LOCAL["sqlite"](tmp_path)), [], phrases)
        await store.initialize(HERE)
        try:
            if await store.list_secrets(NAME):
                return await store.get_secret(NAME, (await store.list_secrets(NAME))[0])
            return await store.put_secret(NAME, "one", DATA)
        finally:
            await store.close()

    await ask(phrase)
    assert await ask(phrase) == DATA
    assert await ask(b"another passphrase entirely", phrase) == DATA
    with pytest.raises(errors.CorruptObject):
        await ask(b"another passphrase entirely")
    with closing(sqlite3.connect(tmp_path / "store" / "x.db")) as db:
        bodies = b"".join(row[0] for row in db.execute("SELECT body FROM objects"))
    assert phrase not in bodies


def test_key_files_are_validated(tmp_path: Path) -> None:
    raw, text = tmp_path / "raw", tmp_path / "text"
    raw.write_bytes(NEW)
    text.write_bytes(base64.b64encode(OLD) + b"\n")
    for path in (raw, text):
        path.chmod(0o400)
    assert keyring.read_keys([raw, text]) == [NEW, OLD]

    raw.chmod(0o440)
    with pytest.raises(errors.BackendDead, match="chmod 0400"):
        keyring.read_keys([raw])
    short = tmp_path / "short"
    short.write_text("short")
    short.chmod(0o600)
    with pytest.raises(errors.BackendDead, match="/dev/urandom"):
        keyring.read_keys([short])
    with pytest.raises(errors.BackendDead, match="20 bytes"):
        keyring.read_passphrase(short)
    with pytest.raises(errors.BackendDead, match="cannot be read"):
        keyring.read_keys([tmp_path / "absent"])
    with pytest.raises(errors.BackendDead, match="at least one key"):
        EncryptedSecretStore(provider(MemoryStore()), [])
    # The storage is not opened without its keys.
    config = EncryptedConfig(key_files=(tmp_path / "absent",), storage={"none": {}})
    with pytest.raises(errors.BackendDead, match="cannot be read"):
        storage([config], BackendContext())


async def test_secret_of_another_key_is_refused() -> None:
    store = MemoryStore()
    async with sealed(store, OLD) as before:
        key = await before.put_secret(NAME, "one", DATA)
    async with sealed(store, NEW) as after:
        with pytest.raises(errors.CorruptObject, match="which is not in the keyring"):
            await after.get_secret(NAME, key)


async def test_secret_moved_to_another_name_is_refused() -> None:
    """The sealed value is refused although the object around it is valid."""
    inner = provider(MemoryStore())
    store = EncryptedSecretStore(inner, [NEW])
    await store.initialize(HERE)
    one, two = [await store.put_secret(NAME, name, DATA) for name in ("one", "two")]
    obj = await inner.get_object(NAME, SEALED, one)
    assert obj is not None
    obj["metadata"]["name"] = "two"
    await inner.put_object(NAME, obj)

    with pytest.raises(errors.CorruptObject, match="moved"):
        await store.get_secret(NAME, two)
    assert await store.get_secret(NAME, one) == DATA
    await store.close()


@pytest.mark.parametrize("field", ["sealed", "sealedKey"])
@pytest.mark.parametrize("at", [0, 5, 12, 20, -1])
def test_sealed_value_with_a_flipped_bit_is_refused(field: str, at: int) -> None:
    ring = Keyring([NEW])
    made = ring.seal(NEEDLE, b"here")
    raw = bytearray(base64.b64decode(made[field]))
    raw[at] ^= 1
    for changed in (bytes(raw), bytes(raw[:at]), b""):
        with pytest.raises(errors.CorruptObject):
            ring.open(made | {field: base64.b64encode(changed).decode()}, b"here")
    assert ring.open(made, b"here") == NEEDLE


async def test_interrupted_rotation_is_completed_by_the_next_one() -> None:
    store = MemoryStore()
    async with sealed(store, OLD) as before:
        wanted = [await before.put_secret(NAME, f"n{at}", DATA) for at in range(6)]
    async with sealed(store, NEW, OLD) as between:
        for key in wanted[:2]:
            await between._reseal(NAME, key)
    async with sealed(store, NEW, OLD) as after:
        assert await after.rotate(NAME) == RotationReport(rewritten=4, current=2)
        assert await after.rotate(NAME) == RotationReport(current=6)
    async with sealed(store, NEW) as alone:
        assert [await alone.get_secret(NAME, key) for key in wanted] == [DATA] * 6
    async with sealed(store, OLD) as gone:
        assert await gone.rotate(NAME) == RotationReport(failed=6)


async def test_later_write_wins_even_when_it_is_encrypted_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seal, waits = Keyring.seal, iter([0.05, 0.0])

    def slowly(self: Keyring, value: bytes, where: bytes) -> dict[str, str]:
        time.sleep(next(waits))
        return seal(self, value, where)

    monkeypatch.setattr(Keyring, "seal", slowly)
    async with sealed(MemoryStore()) as store, NamedTaskGroup() as group:
        for value in (b"old", b"new"):
            group.start(store.put_secret(NAME, "one", {"a": value}), name="put")
    async with sealed(store._inner._instances[NAME].store) as again:
        (key,) = await again.list_secrets(NAME)
        assert await again.get_secret(NAME, key) == {"a": b"new"}


async def test_secret_of_another_cluster_is_refused() -> None:
    ring, other = (EncryptedSecretStore(provider(MemoryStore()), [NEW]) for _ in "ab")
    await ring.initialize(HERE)
    await other.initialize(ELSEWHERE)
    key = await ring.put_secret(NAME, "one", DATA)
    obj = await ring._inner.get_object(NAME, SEALED, key)
    await other._inner.put_object(NAME, obj)

    with pytest.raises(errors.CorruptObject):
        await other.get_secret(NAME, key)
    await ring.close()
    await other.close()


async def test_write_during_a_rotation_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    async with sealed(store, OLD) as before:
        key = await before.put_secret(NAME, "one", DATA)
    async with sealed(store, NEW, OLD) as ours, sealed(store, NEW, OLD) as other:
        seal = ours._seal

        async def late(*given: Any) -> dict[str, str]:
            await other.put_secret(NAME, "one", {"a": b"new"})
            return await seal(*given)

        monkeypatch.setattr(ours, "_seal", late)
        assert await ours.rotate(NAME) == RotationReport(failed=1)
        assert await other.get_secret(NAME, key) == {"a": b"new"}


@pytest.mark.parametrize(
    ("keys", "phrases", "expected"), [(1, 0, False), (2, 0, True), (1, 1, True), (0, 2, True)]
)
def test_old_keys_in_the_keyring_are_detected(keys: int, phrases: int, expected: bool) -> None:
    ring = [bytes([at]) * 32 for at in range(keys)]
    store = EncryptedSecretStore(provider(MemoryStore()), ring, [b"phrase"] * phrases)
    assert store.has_old_keys is expected
