"""Discovery: the resources that the API server serves in an API group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from ccm.kube.errors import NotFound

_NONE = b"{}"


class RawClient(Protocol):
    """Sender of raw requests (a `Client`)."""

    async def raw(self, method: str, path: str) -> bytes: ...


def discovery_path(api_version: str) -> str:
    """Return the discovery path of an API group."""
    return f"/apis/{api_version}"


async def fetch_discovery(client: RawClient, api_version: str) -> bytes:
    """Return the discovery document of an API group; an empty object if the group is unknown.

    Raises:
        KubeError: the request failed.
    """
    try:
        return await client.raw("GET", discovery_path(api_version))
    except NotFound:
        return _NONE


def plurals_of(document: bytes) -> Collection[str]:
    """Return the plural resource names in a discovery document; empty = the CRDs are missing."""
    entries = msgspec.json.decode(document).get("resources", ())
    return frozenset(entry.get("name", "") for entry in entries)


async def fetch_plurals(client: RawClient, api_version: str) -> Collection[str]:
    """Return the plural names of the resources that the API server serves in an API group.

    Raises:
        KubeError: the request failed.
    """
    return plurals_of(await fetch_discovery(client, api_version))
