"""Sealed secrets over any storage."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable

import pytest
from prometheus_client import generate_latest

from ccm.persistence.engine import StoreProvider
from ccm.persistence.secrets import SEALED, EncryptedSecretStore, RotationReport
from ccm.testing.persistence_harness import HERE

NEEDLE = b"needle-in-the-hay-5511"
KEY = b"n" * 32


async def live(
    inner: StoreProvider, stored: Callable[[], bytes], log: pytest.LogCaptureFixture
) -> None:
    """Put, get, rotate, delete; the secret is in no byte that is stored or said.

    Args:
        inner: not open yet.
        stored: all bytes that lie in the storage.
        log: of the test.
    """
    log.set_level(logging.DEBUG)
    store = EncryptedSecretStore(inner, [KEY])
    await store.initialize(HERE)
    try:
        first, *_ = store.instances()
        key = await store.put_secret(first, "one", {"token": NEEDLE})
        assert await store.get_secret(first, key) == {"token": NEEDLE}
        assert await inner.get_object(first, SEALED, key) is not None
        lies = await asyncio.to_thread(stored)
        assert key.encode() in lies
        said = generate_latest() + (log.text + repr(store)).encode()
        for needle in (NEEDLE, KEY):
            for form in (needle, base64.b64encode(needle)[:-4], needle.hex().encode()):
                assert form not in lies + said
        assert await store.rotate(first) == RotationReport(current=1)
        await store.delete_secret(first, key)
        assert await store.list_secrets(first) == []
    finally:
        await store.close()
