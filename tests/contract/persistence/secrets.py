"""Sealed secrets over any storage."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable

from ccm.base import metrics
from ccm.persistence.engine import StoreProvider
from ccm.persistence.secrets import SEALED, EncryptedSecretStore, RotationReport
from ccm.testing.persistence_harness import HERE, captured_logs

NEEDLE = b"needle-in-the-hay-5511"
KEY = b"n" * 32


async def live(inner: StoreProvider, stored: Callable[[], bytes]) -> None:
    """Put, get, rotate, delete; the secret is in no byte that is stored or said.

    Args:
        inner: not open yet.
        stored: all bytes that lie in the storage.
    """
    store = EncryptedSecretStore(inner, [KEY])
    with captured_logs() as logged:
        await store.initialize(HERE)
        try:
            await _live(store, inner, stored, logged)
        finally:
            await store.close()


async def _live(
    store: EncryptedSecretStore,
    inner: StoreProvider,
    stored: Callable[[], bytes],
    logged: Callable[[], str],
) -> None:
    first, *_ = store.instances()
    key = await store.put_secret(first, "one", {"token": NEEDLE})
    assert await store.get_secret(first, key) == {"token": NEEDLE}
    assert await inner.get_object(first, SEALED, key) is not None
    lies = await asyncio.to_thread(stored)
    assert key.encode() in lies
    told = metrics.exposition()
    said = told + (logged() + repr(store)).encode()
    assert b"persistence instance is up" in said
    assert f'instance="{first}"'.encode() in told
    for needle in (NEEDLE, KEY):
        for form in (needle, base64.b64encode(needle)[:-4], needle.hex().encode()):
            assert form not in lies + said
    assert await store.rotate(first) == RotationReport(current=1)
    await store.delete_secret(first, key)
    assert await store.list_secrets(first) == []
