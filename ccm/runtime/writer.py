"""Writing to the API server: planned for the state it meets, read again where that moved on.

A write is a pure function from the object to a patch, bound to its version or UID (see
`ccm.model.patches`). When the server refuses it because the object changed, the object is
read again, past the cache, and the patch decided anew. What was written is remembered until
the cache has it, so that a reconcile never works on a state from before its own write.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ccm.base.backoff import jittered
from ccm.kube.errors import Conflict, Invalid, NotFound
from ccm.kube.informer import Store
from ccm.model import ObjectReference
from ccm.model.meta import KubeObject
from ccm.model.patches import Patch, StaleObject

T = TypeVar("T", bound=KubeObject)
T_co = TypeVar("T_co", bound=KubeObject, covariant=True)

ATTEMPTS = 5
"""Attempts of one write unless told otherwise (Go cloud-provider, taint helpers)."""


class Writes(Protocol[T_co]):
    """What a writer asks of the API server about one kind (a `Resource`)."""

    async def get(self, name: str, *, namespace: str = "") -> T_co:
        """Read from the API server."""
        ...

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T_co:
        """Strategic merge patch; the object as it is then."""
        ...

    async def patch_merge(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T_co:
        """JSON merge patch; the object as it is then."""
        ...


class Deletes(Writes[T_co], Protocol[T_co]):
    """Deletes objects too."""

    async def delete(self, name: str, *, namespace: str = "", uid: str | None = None) -> None:
        """Delete, only if the object still has this UID."""
        ...


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """One request of a write.

    Attributes:
        plan: the patch that the object needs; None = none. Raises `StaleObject` where the
            object is not what the write was meant for any more.
        subresource: `status`, `scale`, or empty for the object itself.
    """

    plan: Callable[[T], Patch | None]
    subresource: str = ""


class Written(NamedTuple, Generic[T]):
    """How a write ended.

    Attributes:
        obj: the object as it is then; None: it is gone.
        changed: whether anything was written. On a conflict somebody else may have written
            the same, and there is nothing left to do.
    """

    obj: T | None
    changed: bool


class Writer(Generic[T]):
    """Changes objects of one kind.

    Args:
        api: the requests.
        cache: the objects as a controller sees them; with it the writer remembers what it
            wrote until the cache has it, see `newest`.
        strategic: send strategic merge patches; custom resources take JSON merge patches only.
        attempts: how often one write is tried while others change the object.
        pause_s: seconds before the third attempt and each later one, up to doubled.
        rng: jitter of that pause.
    """

    def __init__(
        self,
        api: Writes[T],
        *,
        cache: Store[T] | None = None,
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

    async def change(self, obj: T, *steps: Step[T]) -> Written[T]:
        """Write what the steps say of the object as it is.

        An object that was made anew under the same name counts as gone.

        Raises:
            StaleObject: a step says so.
            Conflict, Invalid: others changed the object at every attempt, or the patch is
                wrong.
            KubeError: the API server did not answer, or refuses for another reason.
        """
        uid, changed = obj.uid, False
        for attempt in range(1, self._attempts + 1):
            try:
                for step in steps:
                    patch = step.plan(obj)
                    if patch is not None:
                        obj = await self._request(obj, patch, step.subresource)
                        changed = True
                return Written(obj, changed)
            except NotFound:
                return Written(None, changed)
            except (Conflict, Invalid) as error:
                if attempt == self._attempts or not (
                    isinstance(error, Conflict)
                    # Another object has the name by now.
                    or any(cause.field == "metadata.uid" for cause in error.causes)
                ):
                    raise
            if attempt > 1:
                await asyncio.sleep(jittered(self._pause_s, 1.0, self._rng))
            try:
                obj = await self._api.get(obj.name, namespace=obj.namespace)
            except NotFound:
                return Written(None, changed)
            if obj.uid != uid:
                return Written(None, changed)
        raise AssertionError("the last attempt returns or raises")

    def newest(self, cached: T) -> T:
        """The cached state, or that of our last write where the cache lags behind it."""
        latest = self._latest.get(cached.key)
        if latest is not None and not cached.lags_behind(latest):
            del self._latest[cached.key]
            return cached
        return latest or cached

    def forget(self, key: str) -> None:
        """The object is gone."""
        self._latest.pop(key, None)

    async def _request(self, obj: T, patch: Patch, subresource: str) -> T:
        after = await self._send(obj.name, patch, namespace=obj.namespace, subresource=subresource)
        # What the cache has no more was deleted, which it may learn before we have the answer.
        if self._cache is not None and self._cache.get(after.key) is not None:
            self._latest[after.key] = after
        return after


async def delete(api: Deletes[T], obj: T) -> bool:
    """Delete this very object; False when it was gone already.

    Raises:
        StaleObject: another object has its name by now.
        KubeError: the API server did not answer, or refuses.
    """
    try:
        await api.delete(obj.name, namespace=obj.namespace, uid=obj.uid)
    except NotFound:
        return False
    except Conflict as error:
        raise StaleObject from error
    return True


class Recorder(Protocol):
    """Where events go (an `EventRecorder`)."""

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Record an event of kind `Normal` or `Warning`; never blocks."""
        ...
