"""Who belongs to whom: claims what a selector matches, adopts orphans, releases what left.

An owner keeps what it controls and still matches, takes over what matches and nobody controls,
and lets go what it controls and does not match any more; never anything that another one
controls. Before the first adoption of a round the owner is read again, past the cache: one that
is being deleted, or was made anew under its name, must not take anything with it.
Counterpart in Kubernetes: the controller-ref manager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from ccm.kube.errors import KubeError, NotFound
from ccm.kube.resources import Kind
from ccm.model.meta import KubeObject, OwnerReference
from ccm.model.owners import (
    adoption_patch,
    as_controller,
    controller_uid,
    release_patch,
)
from ccm.model.patches import Patch
from ccm.runtime.writer import Step, Writer

O = TypeVar("O", bound=KubeObject)  # noqa: E741 - an owner
O_co = TypeVar("O_co", bound=KubeObject, covariant=True)
T = TypeVar("T", bound=KubeObject)

_NOBODY: frozenset[str] = frozenset()


class Reads(Protocol[O_co]):
    """What is asked of the API server about owners (a `Resource`)."""

    async def get(self, name: str, *, namespace: str = "") -> O_co:
        """Read from the API server."""
        ...


class Ownership(Generic[O, T]):
    """Claims objects of one kind for owners of another.

    Args:
        kind: of the owners.
        owners: reads one past the cache.
        write: writes what is owned.
    """

    def __init__(self, *, kind: Kind[O], owners: Reads[O], write: Writer[T]) -> None:
        self._kind = kind
        self._owners = owners
        self._write = write

    def reference(self, owner: O) -> OwnerReference:
        """By which what is made for an owner names it."""
        return as_controller(owner, api_version=self._kind.api_version, kind=self._kind.kind)

    async def claim(
        self, owner: O, among: Iterable[T], matches: Callable[[T], bool]
    ) -> Sequence[T]:
        """What belongs to the owner, of objects as the cache has them.

        What cannot be adopted or released does not keep others from it.

        Args:
            owner: who claims. One that is being deleted keeps what it has, and changes nothing.
            among: objects that may be its own; see `Index`.
            matches: whether an object is one that it wants.

        Raises:
            KubeError: something could not be adopted or released, after all else was.
        """
        kept, orphans, leaving = list[T](), list[T](), list[T]()
        for cached in among:
            obj = self._write.newest(cached)
            by = controller_uid(obj)
            if by == owner.uid:
                # What is deleted with the owner is not let go before.
                (kept if owner.is_deleting or matches(obj) else leaving).append(obj)
            elif not by and _may_be_adopted(obj, owner) and matches(obj):
                orphans.append(obj)
        errors = list[KubeError]()
        for obj in leaving:
            try:
                await self._release(owner, obj)
            except KubeError as error:
                errors.append(error)
        if orphans and await self._may_adopt(owner):
            for obj in orphans:
                try:
                    kept += await self._adopt(owner, obj, matches)
                except KubeError as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return kept

    async def _may_adopt(self, owner: O) -> bool:
        try:
            live = await self._owners.get(owner.name, namespace=owner.namespace)
        except NotFound:
            return False
        return live.uid == owner.uid and not live.is_deleting

    async def _adopt(self, owner: O, obj: T, matches: Callable[[T], bool]) -> Sequence[T]:
        """The object, if it is the owner's now; others may be faster."""
        reference = self.reference(owner)

        def adopted(one: T) -> Patch | None:
            if controller_uid(one) or not _may_be_adopted(one, owner) or not matches(one):
                return None
            return adoption_patch(one, reference)

        found = (await self._write.change(obj, Step(adopted))).obj
        is_ours = found is not None and controller_uid(found) == owner.uid and matches(found)
        return [found] if found is not None and is_ours else []

    async def _release(self, owner: O, obj: T) -> None:
        def released(one: T) -> Patch | None:
            return release_patch(one, owner.uid) if controller_uid(one) == owner.uid else None

        await self._write.change(obj, Step(released))


class Index(Generic[T]):
    """Objects by the UID of their controller, and those that nobody controls.

    A handler of the cache tells it of each change, so that a claim need not look at everything.
    """

    def __init__(self) -> None:
        self._by_owner: dict[str, set[str]] = {}

    def note(self, old: T | None, new: T | None) -> None:
        """An object changed; None: it was not there, or is not any more."""
        if old is not None:
            self._drop(controller_uid(old), old.key)
        if new is not None:
            self._by_owner.setdefault(controller_uid(new), set()).add(new.key)

    def owned(self, uid: str) -> Collection[str]:
        """Keys of what an owner controls."""
        return self._by_owner.get(uid, _NOBODY) if uid else _NOBODY

    @property
    def orphans(self) -> Collection[str]:
        """Keys of what nobody controls."""
        return self._by_owner.get("", _NOBODY)

    def candidates(self, uid: str) -> Sequence[str]:
        """Keys of what an owner may claim."""
        return [*sorted(self.owned(uid)), *sorted(self.orphans)]

    def _drop(self, uid: str, key: str) -> None:
        found = self._by_owner.get(uid)
        if found is not None:
            found.discard(key)
            if not found:
                del self._by_owner[uid]


def _may_be_adopted(obj: KubeObject, owner: KubeObject) -> bool:
    return not (obj.is_deleting or owner.is_deleting) and obj.namespace == owner.namespace
