"""Which objects of this front an API server has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from ccm.gardener.kinds import MACHINES
from ccm.kube.errors import NotFound

PATH = f"/apis/{MACHINES.api_version}"


class Asks(Protocol):
    """What is needed to ask (a `Client`)."""

    async def raw(self, method: str, path: str) -> bytes:
        """Any request."""
        ...


async def resources(client: Asks) -> Collection[str]:
    """The plurals of those that are served; empty: their definitions are missing.

    Raises:
        KubeError: it does not say.
    """
    try:
        answer = msgspec.json.decode(await client.raw("GET", PATH))
    except NotFound:
        return frozenset()
    return frozenset(one.get("name", "") for one in answer.get("resources", ()))
