"""What controllers ask of the API server about one kind of object (a `Resource`).

A controller names the narrowest of these, so that it shows what it can do to objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Patches(Protocol[T_co]):
    """Changes parts of objects without a namespace."""

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> T_co:
        """Strategic merge patch; the object as it is then."""
        ...


class Reads(Patches[T_co], Protocol[T_co]):
    """Reads them too, past the cache."""

    async def get(self, name: str) -> T_co:
        """Read from the API server."""
        ...


class Deletes(Reads[T_co], Protocol[T_co]):
    """Deletes them too."""

    async def delete(self, name: str, *, uid: str | None = None) -> None:
        """Delete, only if the object still has this UID."""
        ...
