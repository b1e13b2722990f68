"""Encrypted secrets: read unchanged, and protected against reading, moving and changing."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ccm.base.tasks import NamedTaskGroup
from ccm.persistence import errors, keyring, kubesecrets
from ccm.persistence.keyring import Keyring
from ccm.persistence.kubestore import KubernetesConfig
from ccm.persistence.memory import MemoryStore
from ccm.persistence.registry import BackendContext
from ccm.persistence.secrets import (
    SEALED,
    EncryptedConfig,
    EncryptedSecretStore,
    RotationReport,
    SecretStore,
    storage,
)
from ccm.persistence.store import Store
from ccm.testing.persistence_harness import ELSEWHERE, captured_logs
from tests.contract.persistence.cluster import Cluster
from tests.unit.persistence.helpers import HERE, LOCAL, NAME, provider

OLD, NEW = b"o" * 32, b"n" * 32
NEEDLE = b"needle-in-the-hay-9371"
DATA = {"token": NEEDLE, "binary": bytes(range(256)), "empty": b""}


@asynccontextmanager
async def sealed(store: Store, *ring: bytes) -> AsyncIterator[EncryptedSecretStore]:
    made = EncryptedSecretStore(provider(store), ring or (NEW,))
    await made.initialize(HERE)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def in_cluster(cluster: Cluster) -> AsyncIterator[SecretStore]:
    made = kubesecrets.storage([KubernetesConfig()], BackendContext(requests=cluster))
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
        (held,) = cluster.stored()
        before = len(cluster.held)
        held["metadata"]["labels"] = {}
        for call in (
            store.put_secret(instance, "one", {}),
            store.get_secret(instance, key),
            store.delete_secret(instance, key),
        ):
            with pytest.raises(errors.CorruptObject, match="lacks the label"):
                await call
        assert cluster.stored() == [held]
        assert len(cluster.held) == before


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
    inner: Any = store._inner
    async with sealed(inner._instances[NAME].store) as again:
        (key,) = await again.list_secrets(NAME)
        assert await again.get_secret(NAME, key) == {"a": b"new"}


async def test_secret_of_another_cluster_is_refused() -> None:
    ring, other = (EncryptedSecretStore(provider(MemoryStore()), [NEW]) for _ in "ab")
    await ring.initialize(HERE)
    await other.initialize(ELSEWHERE)
    key = await ring.put_secret(NAME, "one", DATA)
    obj = await ring._inner.get_object(NAME, SEALED, key)
    assert obj is not None
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
        put = ours._inner.put_versioned

        async def late(*given: Any, **named: Any) -> Any:
            await other.put_secret(NAME, "one", {"a": b"new"})
            return await put(*given, **named)

        monkeypatch.setattr(ours._inner, "put_versioned", late)
        assert await ours.rotate(NAME) == RotationReport(failed=1)
        assert await other.get_secret(NAME, key) == {"a": b"new"}


@pytest.mark.parametrize(("keys", "expected"), [(1, False), (2, True)])
def test_old_keys_in_the_keyring_are_detected(keys: int, expected: bool) -> None:
    ring = [bytes([at]) * 32 for at in range(keys)]
    assert EncryptedSecretStore(provider(MemoryStore()), ring).has_old_keys is expected
