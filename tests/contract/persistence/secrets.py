"""Sealed secrets over any storage."""

from __future__ import annotations

from ccm.persistence.engine import StoreProvider
from ccm.persistence.secrets import SEALED, EncryptedSecretStore, RotationReport
from ccm.testing.persistence_harness import HERE

NEEDLE = b"needle-in-the-hay-5511"


async def live(inner: StoreProvider) -> None:
    """Put, get, rotate, delete."""
    store = EncryptedSecretStore(inner, [b"n" * 32])
    await store.initialize(HERE)
    try:
        first, *_ = store.instances()
        key = await store.put_secret(first, "one", {"token": NEEDLE})
        assert await store.get_secret(first, key) == {"token": NEEDLE}
        assert NEEDLE.decode() not in str(await inner.get_object(first, SEALED, key))
        assert await store.rotate(first) == RotationReport(current=1)
        await store.delete_secret(first, key)
        assert await store.list_secrets(first) == []
    finally:
        await store.close()
