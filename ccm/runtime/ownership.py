"""Ownership: an owner claims what its selector matches, and remembers changes its cache lacks.

An owner keeps what it controls and still matches, adopts what matches and has no controller,
and releases what it controls and does not match any more; never anything that another one
controls. Before the first adoption of a round the owner is read again, past the cache: one that
is being deleted, or was made anew under its name, must not take anything with it.
Counterpart in Kubernetes: the controller-ref manager.

A decision by a cache that lags would make everything twice. So an owner notes what it is about
to make, by a name it chooses beforehand, and what it deletes, by UID; the handler of the cache
strikes out what it shows; and nothing is decided before the list is empty. What is on it for too
long is looked up on the API server (`look_up`): it may have come and gone unseen. A creation with
an unknown outcome keeps its name for the next try: the same name cannot be made twice.
Counterpart in Kubernetes: controller expectations, which count instead of naming.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ccm.base import clock
from ccm.kube.errors import KubeError, NotFound
from ccm.kube.informer import Store
from ccm.kube.resources import Kind
from ccm.model.meta import KubeObject, OwnerReference
from ccm.model.owners import adoption_patch, as_controller, controller_uid, release_patch
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


TIMEOUT_S = 300.0
"""How long the cache has to show what was done (client-go, controller expectations)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Awaited:
    """One change; `uid` is empty for a creation."""

    owner: str
    namespace: str
    name: str
    uid: str
    until: float

    @property
    def token(self) -> str:
        """Under which the change is known: what is made by its name, what goes by its UID."""
        return self.uid or f"{self.namespace}/{self.name}"


class Expectations:
    """The changes that owners wait for; owners are told apart by their UID.

    Args:
        timeout_s: seconds after which a change is looked up.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._awaited: dict[str, _Awaited] = {}
        self._tokens: dict[str, set[str]] = {}
        self._doubtful: dict[str, dict[str, None]] = {}

    def creating(self, owner: str, namespace: str, name: str) -> None:
        """An object is about to be made."""
        self._settled(owner, name)
        self._wait(owner, namespace, name, "")

    def refused(self, namespace: str, name: str) -> None:
        """It was not made."""
        self._met(f"{namespace}/{name}")

    def in_doubt(self, namespace: str, name: str) -> None:
        """Whether it was made nobody knows: see `doubtful`."""
        found = self._met(f"{namespace}/{name}")
        if found is not None:
            self._doubtful.setdefault(found.owner, {})[name] = None

    def doubtful(self, owner: str) -> Sequence[str]:
        """Names to be used before any new one: who finds one taken has made it already."""
        return list(self._doubtful.get(owner, ()))

    def deleting(self, owner: str, obj: KubeObject) -> None:
        """An object is about to be deleted."""
        self._wait(owner, obj.namespace, obj.name, obj.uid)

    def kept(self, obj: KubeObject) -> None:
        """It was not deleted."""
        self._met(obj.uid)

    def hurry(self, obj: KubeObject) -> None:
        """Whether it was deleted nobody knows: it is looked up at once."""
        found = self._met(obj.uid)
        if found is not None:
            self._wait(found.owner, found.namespace, found.name, found.uid, timeout_s=0.0)

    def seen(self, obj: KubeObject) -> None:
        """The cache shows an object."""
        found = self._met(obj.key)
        if found is None and self._doubtful:
            for owner in list(self._doubtful):
                self._settled(owner, obj.name)
        if obj.is_deleting:
            self._met(obj.uid)

    def gone(self, obj: KubeObject) -> None:
        """The cache shows that an object is gone."""
        self._met(obj.key)
        self._met(obj.uid)

    def satisfied(self, owner: str) -> bool:
        """Whether the cache shows all that the owner did."""
        return owner not in self._tokens

    def due_s(self, owner: str) -> float | None:
        """Seconds until something has to be looked up; None: there is nothing to wait for."""
        found = [self._awaited[token].until for token in self._tokens.get(owner, ())]
        return max(0.0, min(found) - clock.monotonic()) if found else None

    def forget(self, owner: str) -> None:
        """The owner is gone."""
        for token in list(self._tokens.get(owner, ())):
            self._met(token)
        self._doubtful.pop(owner, None)

    async def look_up(self, owner: str, api: Reads[T], cache: Store[T]) -> int:
        """Look up what the cache should have shown long since; how much of it is still to come.

        Raises:
            KubeError: the API server did not answer.
        """
        now, late = clock.monotonic(), 0
        for token in list(self._tokens.get(owner, ())):
            one = self._awaited.get(token)
            if one is None or one.until > now:
                continue
            cached = cache.get(f"{one.namespace}/{one.name}")
            # Whoever was not told of a change finds it in the cache.
            if one.uid:
                is_shown = cached is None or cached.uid != one.uid or cached.is_deleting
            else:
                is_shown = cached is not None
            if not is_shown and await _stands(one, api):
                late += 1
                self._wait(one.owner, one.namespace, one.name, one.uid)
            else:
                self._met(token)
        return late

    def _wait(
        self, owner: str, namespace: str, name: str, uid: str, timeout_s: float | None = None
    ) -> None:
        until = clock.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        one = _Awaited(owner=owner, namespace=namespace, name=name, uid=uid, until=until)
        self._awaited[one.token] = one
        self._tokens.setdefault(owner, set()).add(one.token)

    def _met(self, token: str) -> _Awaited | None:
        found = self._awaited.pop(token, None)
        if found is not None:
            tokens = self._tokens[found.owner]
            tokens.discard(token)
            if not tokens:
                del self._tokens[found.owner]
        return found

    def _settled(self, owner: str, name: str) -> None:
        names = self._doubtful.get(owner)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self._doubtful[owner]


async def _stands(one: _Awaited, api: Reads[T]) -> bool:
    """Whether the change was made, and not undone, so that the cache will show it some time."""
    try:
        live = await api.get(one.name, namespace=one.namespace)
    except NotFound:
        return bool(one.uid)
    return not one.uid or live.uid != one.uid or live.is_deleting
