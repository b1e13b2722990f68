"""Which objects of an API group an API server has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from ccm.kube.errors import NotFound

_NONE = b"{}"


class Asks(Protocol):
    """Raw requests (a `Client`)."""

    async def raw(self, method: str, path: str) -> bytes: ...


def path_of(api_version: str) -> str:
    """Return the path at which an API server names the objects of a group."""
    return f"/apis/{api_version}"


async def answer(client: Asks, api_version: str) -> bytes:
    """Return the API server's answer about a group.

    Raises:
        KubeError: the API server did not answer.
    """
    try:
        return await client.raw("GET", path_of(api_version))
    except NotFound:
        return _NONE


def plurals(answered: bytes) -> Collection[str]:
    """Return the plurals in such an answer; empty = the definitions are missing."""
    found = msgspec.json.decode(answered).get("resources", ())
    return frozenset(one.get("name", "") for one in found)


async def resources(client: Asks, api_version: str) -> Collection[str]:
    """Return the plurals that an API server has.

    Raises:
        KubeError: the API server did not answer.
    """
    return plurals(await answer(client, api_version))
