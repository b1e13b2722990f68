"""Which objects of this front an API server has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from ccm.gardener.kinds import MACHINES
from ccm.kube.errors import NotFound

PATH = f"/apis/{MACHINES.api_version}"
"""Where it says so."""

_NONE = b"{}"


class Asks(Protocol):
    """What is needed to ask (a `Client`)."""

    async def raw(self, method: str, path: str) -> bytes:
        """Any request."""
        ...


async def answer(client: Asks) -> bytes:
    """What an API server says at `PATH`; raises KubeError if nothing."""
    try:
        return await client.raw("GET", PATH)
    except NotFound:
        return _NONE


def plurals(said: bytes) -> Collection[str]:
    """The plurals of what is served, by such an answer; empty: the definitions are missing."""
    return frozenset(one.get("name", "") for one in msgspec.json.decode(said).get("resources", ()))


async def resources(client: Asks) -> Collection[str]:
    """The plurals of what an API server has; raises KubeError if it does not say."""
    return plurals(await answer(client))
