"""Writes to the API server: patches planned from the current object, replanned on conflict.

A write consists of `PatchStep`s. Each plans a patch from the current object, with the object's
resourceVersion or UID as a precondition (see `ccm.model.patches`). When the API server rejects the
patch because the object changed, the writer reads the object from the API server and plans the
patches again. The writer keeps the written object until the cache has the write, so that no
reconcile works on an older state (see `ObjectWriter.newest`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ccm.base.backoff import jittered
from ccm.kube.errors import Conflict, Invalid, NotFound
from ccm.kube.informer import InformerStore
from ccm.model import ObjectReference
from ccm.model.meta import KubeObject
from ccm.model.patches import Patch, StaleObject

T = TypeVar("T", bound=KubeObject)
T_co = TypeVar("T_co", bound=KubeObject, covariant=True)

ATTEMPTS = 5
"""Default number of attempts of one write (Go cloud-provider, taint helpers)."""


class PatchClient(Protocol[T_co]):
    """Read and patch requests for one kind; implemented by `Resource`."""

    async def get(self, name: str, *, namespace: str = "") -> T_co:
        """Read one object from the API server."""
        ...

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T_co:
        """Send a strategic merge patch; return the patched object."""
        ...

    async def patch_merge(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T_co:
        """Send a JSON merge patch; return the patched object."""
        ...


class DeleteClient(PatchClient[T_co], Protocol[T_co]):
    """`PatchClient` that also sends delete requests."""

    async def delete(self, name: str, *, namespace: str = "", uid: str | None = None) -> None:
        """Delete the object, with the UID as precondition if `uid` is given."""
        ...


@dataclass(frozen=True, slots=True)
class PatchStep(Generic[T]):
    """One request of a write.

    Attributes:
        plan: returns the patch that the object needs; None = it needs no patch. Raises
            `StaleObject` when the write no longer applies to the object.
        subresource: `status`, `scale`, or empty for the object itself.
    """

    plan: Callable[[T], Patch | None]
    subresource: str = ""


class WriteResult(NamedTuple, Generic[T]):
    """Result of a write.

    Attributes:
        obj: the object after the write; None: the object is gone or was recreated.
        changed: whether the API server accepted a patch. False also when no patch was needed, for
            instance because another client wrote the same values before a retry.
    """

    obj: T | None
    changed: bool


class ObjectWriter(Generic[T]):
    """Writer of objects of one kind, with optimistic concurrency.

    Args:
        api: client for the objects.
        cache: the controller's cache; the result of a write is kept until the cache has it (see
            `newest`). None = results are not kept.
        strategic: whether patches are strategic merge patches; custom resources accept only JSON
            merge patches (False).
        attempts: maximum attempts of one write while other clients change the object.
        pause_s: minimum seconds before the third and each later attempt; the maximum is twice as
            long.
        rng: source of jitter for the pause.
    """

    def __init__(
        self,
        api: PatchClient[T],
        *,
        cache: InformerStore[T] | None = None,
        strategic: bool = True,
        attempts: int = ATTEMPTS,
        pause_s: float = 0.0,
        rng: random.Random | None = None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._send = api.patch_strategic if strategic else api.patch_merge
        self._attempts = attempts
        self._pause_s = pause_s
        self._rng = rng or random.Random()
        self._latest: dict[str, T] = {}

    async def change(self, obj: T, *steps: PatchStep[T]) -> WriteResult[T]:
        """Apply the steps to the object, and retry all steps on conflict.

        An object that was recreated under the same name counts as gone.

        Raises:
            StaleObject: the write no longer applies to the object, according to a step.
            Conflict: another client changed the object before each attempt.
            Invalid: the API server found a patch invalid.
            KubeError: the API server did not answer, or refused a request for another reason.
        """
        uid, changed = obj.uid, False
        for attempt in range(1, self._attempts + 1):
            try:
                for step in steps:
                    patch = step.plan(obj)
                    if patch is not None:
                        obj = await self._request(obj, patch, step.subresource)
                        changed = True
                return WriteResult(obj, changed)
            except NotFound:
                return WriteResult(None, changed)
            except (Conflict, Invalid) as error:
                if attempt == self._attempts or not (
                    isinstance(error, Conflict)
                    # The UID differs: the object was recreated under the same name.
                    or any(cause.field == "metadata.uid" for cause in error.causes)
                ):
                    raise
            if attempt > 1:
                await asyncio.sleep(jittered(self._pause_s, 1.0, self._rng))
            try:
                obj = await self._api.get(obj.name, namespace=obj.namespace)
            except NotFound:
                return WriteResult(None, changed)
            if obj.uid != uid:
                return WriteResult(None, changed)
        raise AssertionError("the last attempt returns or raises")

    def newest(self, cached: T) -> T:
        """Return the cached object, or the result of the last write if the cache lags behind."""
        latest = self._latest.get(cached.key)
        if latest is not None and not cached.is_older_than(latest):
            del self._latest[cached.key]
            return cached
        return latest or cached

    def forget(self, key: str) -> None:
        """Drop the kept write of an object that is gone."""
        self._latest.pop(key, None)

    async def _request(self, obj: T, patch: Patch, subresource: str) -> T:
        after = await self._send(obj.name, patch, namespace=obj.namespace, subresource=subresource)
        # The watch event may precede the response; an object missing from the cache was deleted.
        cached = self._cache.get(after.key) if self._cache is not None else None
        if cached is not None and cached.is_older_than(after):
            self._latest[after.key] = after
        return after


async def delete(api: DeleteClient[T], obj: T) -> bool:
    """Delete the object, with its UID as a precondition; return False if it was already gone.

    Raises:
        StaleObject: the object was recreated under the same name.
        KubeError: the API server did not answer, or refused the deletion.
    """
    try:
        await api.delete(obj.name, namespace=obj.namespace, uid=obj.uid)
    except NotFound:
        return False
    except Conflict as error:
        raise StaleObject from error
    return True


class Recorder(Protocol):
    """Event recorder; implemented by `EventRecorder`."""

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Record an event of kind `Normal` or `Warning`; never blocks."""
        ...
