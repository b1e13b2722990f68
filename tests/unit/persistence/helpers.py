"""Stores and providers for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ccm.persistence.engine import StoreProvider
from ccm.persistence.objects import instance_name
from ccm.persistence.sqlite import SqliteStore
from ccm.persistence.store import Store
from ccm.testing.persistence_contract import KIND, thing
from ccm.testing.persistence_harness import HERE

__all__ = ["HERE", "KIND", "LOCAL", "NAME", "opened", "provider", "thing"]

NAME = instance_name("test", {})

LOCAL: dict[str, Callable[[Path], Store]] = {
    "sqlite": lambda folder: SqliteStore(folder / "store" / "x.db"),
}
"""Storage of this machine."""


def provider(store: Store, **settings: Any) -> StoreProvider:
    """A provider of one instance, whose name is `NAME`."""
    return StoreProvider("test", {NAME: store}, **settings)


@asynccontextmanager
async def opened(store: Store, **settings: Any) -> AsyncIterator[StoreProvider]:
    """Open an initialized provider, and close it afterwards."""
    made = provider(store, **settings)
    try:
        await made.initialize(HERE)
        yield made
    finally:
        await made.close()
