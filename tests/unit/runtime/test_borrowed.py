"""A cache that is watched only while somebody needs it."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from ccm.kube.informer import Informer
from ccm.kube.resources import NODES
from ccm.model import Node
from ccm.runtime.borrowed import Borrowed, following
from ccm.testing.clock import settle
from tests.unit.controllers.drains import Server

pytestmark = pytest.mark.virtual_time

PATH = "/api/v1/nodes"


def informer(server: Server) -> Informer[Node]:
    return Informer(server.client().resource(NODES), resource=NODES.plural)


async def test_the_first_starts_it_and_the_last_ends_it() -> None:
    server = Server()
    server.put(PATH, {"metadata": {"name": "a"}})
    cache = Borrowed(lambda: informer(server))
    async with AsyncExitStack() as first:
        mine = await first.enter_async_context(cache.use())
        async with cache.use() as other:
            await mine.wait_synced(1)
            assert mine is other
            assert mine.store.get("a") is not None
        assert len(server.watches) == 1
    assert (len(server.watches), server.opened[PATH]) == (0, 1)

    async with cache.use() as again:
        await again.wait_synced(1)
        assert again is not mine
    assert (len(server.watches), server.opened[PATH]) == (0, 2)


async def test_an_error_of_its_user_ends_it_too() -> None:
    server = Server()

    async def user() -> None:
        async with following(informer(server)):
            await settle()
            assert len(server.watches) == 1
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await user()
    assert len(server.watches) == 0
