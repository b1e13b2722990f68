"""Ownership: claims of objects by owner reference, and expectations while the cache lags.

An owner keeps controlled objects that match its selector, adopts matching orphans, and releases
controlled objects that no longer match. Objects of another controller stay untouched. Before a
claim adopts, it reads the owner from the API server, past the cache: an owner that is being
deleted, or was recreated under the same name, must not adopt.
Counterpart in Kubernetes: the controller-ref manager.

With a stale cache a controller would create each object twice. So `Expectations` record each
creation by the object's name, chosen beforehand, and each deletion by UID. The cache handler clears
an expectation when the cache shows the change. While an owner has expectations, its controller
creates and deletes nothing. `verify_overdue` checks old expectations on the API server, because an
object may have been created and deleted between two lists of the cache. After a creation with an
unknown outcome, the next attempt uses the same name: the API server accepts each name only once.
Counterpart in Kubernetes: controller expectations, which only count the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ccm.base import clock
from ccm.kube.errors import KubeError, NotFound
from ccm.kube.informer import InformerStore
from ccm.kube.resources import ResourceKind
from ccm.model.meta import KubeObject, OwnerReference
from ccm.model.owners import adoption_patch, controller_reference, controller_uid, release_patch
from ccm.model.patches import Patch
from ccm.runtime.writer import ObjectWriter, PatchStep

O = TypeVar("O", bound=KubeObject)  # noqa: E741 - an owner
O_co = TypeVar("O_co", bound=KubeObject, covariant=True)
T = TypeVar("T", bound=KubeObject)

_NO_KEYS: frozenset[str] = frozenset()


class OwnerReader(Protocol[O_co]):
    """Read access to owners on the API server; implemented by `Resource`."""

    async def get(self, name: str, *, namespace: str = "") -> O_co:
        """Read one object from the API server."""
        ...


class Ownership(Generic[O, T]):
    """Claims objects of one kind for owners of another kind.

    Args:
        kind: kind of the owners.
        owners: client that reads an owner from the API server.
        write: writer of the owned objects.
    """

    def __init__(
        self, *, kind: ResourceKind[O], owners: OwnerReader[O], write: ObjectWriter[T]
    ) -> None:
        self._kind = kind
        self._owners = owners
        self._write = write

    def reference(self, owner: O) -> OwnerReference:
        """Return the controller reference to the owner, for objects that the owner creates."""
        return controller_reference(owner, api_version=self._kind.api_version, kind=self._kind.kind)

    async def claim(
        self, owner: O, candidates: Iterable[T], matches: Callable[[T], bool]
    ) -> Sequence[T]:
        """Adopt and release objects, and return the objects that the owner controls afterwards.

        A failed adoption or release does not stop the adoption or release of other objects.

        Args:
            owner: the claiming owner; while being deleted, it keeps its objects, and adopts and
                releases nothing.
            candidates: cached objects that the owner may claim; see `OwnerIndex`.
            matches: whether an object matches the owner's selector.

        Raises:
            KubeError: an adoption or a release failed, or the owner cannot be read. Raised after
                all adoptions and releases were tried; the first error wins.
        """
        kept, orphans, leaving = list[T](), list[T](), list[T]()
        for cached in candidates:
            # The cache may lag behind the owner's last write.
            obj = self._write.newest(cached)
            by = controller_uid(obj)
            if by == owner.uid:
                # An owner that is being deleted releases nothing: its objects are deleted too.
                (kept if owner.is_deleting or matches(obj) else leaving).append(obj)
            elif not by and _is_adoptable(obj, owner) and matches(obj):
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
        """Adopt the object; return it if the owner controls it afterwards, else nothing.

        Another owner may have adopted the object meanwhile.
        """
        reference = self.reference(owner)

        def adopted(current: T) -> Patch | None:
            if controller_uid(current) or not _is_adoptable(current, owner) or not matches(current):
                return None
            return adoption_patch(current, reference)

        written = (await self._write.change(obj, PatchStep(adopted))).obj
        is_ours = written is not None and controller_uid(written) == owner.uid and matches(written)
        return [written] if written is not None and is_ours else []

    async def _release(self, owner: O, obj: T) -> None:
        def released(current: T) -> Patch | None:
            return (
                release_patch(current, owner.uid) if controller_uid(current) == owner.uid else None
            )

        await self._write.change(obj, PatchStep(released))


class OwnerIndex(Generic[T]):
    """Index of object keys by the UID of the controller; the UID is empty for orphans.

    The cache handler updates the index, so that a claim need not scan all objects.
    """

    def __init__(self) -> None:
        self._by_owner: dict[str, set[str]] = {}

    def update(self, old: T | None, new: T | None) -> None:
        """Update the index; `old` is None for a new object, `new` is None for a removed object."""
        if old is not None:
            self._drop(controller_uid(old), old.key)
        if new is not None:
            self._by_owner.setdefault(controller_uid(new), set()).add(new.key)

    def owned(self, uid: str) -> Collection[str]:
        """Return the keys of the objects that the owner controls."""
        return self._by_owner.get(uid, _NO_KEYS) if uid else _NO_KEYS

    @property
    def orphans(self) -> Collection[str]:
        """Keys of the objects without a controller."""
        return self._by_owner.get("", _NO_KEYS)

    def candidates(self, uid: str) -> Sequence[str]:
        """Return the keys of the objects that the owner controls, and of all orphans."""
        return [*sorted(self.owned(uid)), *sorted(self.orphans)]

    def _drop(self, uid: str, key: str) -> None:
        keys = self._by_owner.get(uid)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._by_owner[uid]


def _is_adoptable(obj: KubeObject, owner: KubeObject) -> bool:
    return not (obj.is_deleting or owner.is_deleting) and obj.namespace == owner.namespace


EXPECTATION_TIMEOUT_S = 300.0
"""Seconds after which a change that the cache does not show is checked on the API server
(client-go, controller expectations)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expectation:
    """Expected change; `uid` is the UID of the object to delete, empty for a creation."""

    owner: str
    namespace: str
    name: str
    uid: str
    until: float

    @property
    def token(self) -> str:
        """Identifier of the change: the UID for a deletion, else `namespace/name`."""
        return self.uid or f"{self.namespace}/{self.name}"


class Expectations:
    """Creations and deletions of owned objects, by the owner's UID, that are not in the cache yet.

    Args:
        timeout_s: seconds after which a change is checked on the API server.
    """

    def __init__(self, timeout_s: float = EXPECTATION_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._awaited: dict[str, _Expectation] = {}
        self._tokens: dict[str, set[str]] = {}
        self._uncertain: dict[str, dict[str, None]] = {}

    def expect_creation(self, owner: str, namespace: str, name: str) -> None:
        """Record a creation before it is requested."""
        # The request may retry a creation with an unknown outcome, which is expected again from now
        # on.
        self._resolve_uncertain(owner, name)
        self._wait(owner, namespace, name, "")

    def creation_failed(self, namespace: str, name: str) -> None:
        """Drop the expectation of a creation that the API server refused."""
        self._fulfil(f"{namespace}/{name}")

    def creation_unknown(self, namespace: str, name: str) -> None:
        """Drop the expectation of a creation whose outcome is unknown, and keep the object's name.

        See `uncertain_creations`.
        """
        change = self._fulfil(f"{namespace}/{name}")
        if change is not None:
            self._uncertain.setdefault(change.owner, {})[name] = None

    def uncertain_creations(self, owner: str) -> Sequence[str]:
        """Return the names of the owner's objects whose creation has an unknown outcome.

        The controller uses these names before any new name. The error AlreadyExists means that the
        creation succeeded.
        """
        return list(self._uncertain.get(owner, ()))

    def expect_deletion(self, owner: str, obj: KubeObject) -> None:
        """Record a deletion before it is requested."""
        self._wait(owner, obj.namespace, obj.name, obj.uid)

    def deletion_failed(self, obj: KubeObject) -> None:
        """Drop the expectation of a deletion that the API server refused."""
        self._fulfil(obj.uid)

    def deletion_unknown(self, obj: KubeObject) -> None:
        """Let `verify_overdue` check a deletion at once, because its outcome is unknown."""
        change = self._fulfil(obj.uid)
        if change is not None:
            self._wait(change.owner, change.namespace, change.name, change.uid, timeout_s=0.0)

    def observe(self, obj: KubeObject) -> None:
        """Clear the expectations that a cached object fulfils.

        An object fulfils the expectation of its creation and, if it is being deleted, of its
        deletion.
        """
        change = self._fulfil(obj.key)
        # The object may come from a creation with an unknown outcome, of any owner.
        if change is None and self._uncertain:
            for owner in list(self._uncertain):
                self._resolve_uncertain(owner, obj.name)
        if obj.is_deleting:
            self._fulfil(obj.uid)

    def observe_deletion(self, obj: KubeObject) -> None:
        """Clear the expectations about an object that left the cache."""
        self._fulfil(obj.key)
        self._fulfil(obj.uid)

    def satisfied(self, owner: str) -> bool:
        """Return whether the cache shows all expected changes of the owner's objects."""
        return owner not in self._tokens

    def due_s(self, owner: str) -> float | None:
        """Return the seconds until `verify_overdue` is due; None: the owner has no expectations."""
        deadlines = [self._awaited[token].until for token in self._tokens.get(owner, ())]
        return max(0.0, min(deadlines) - clock.monotonic()) if deadlines else None

    def forget(self, owner: str) -> None:
        """Drop all expectations of an owner that is gone."""
        for token in list(self._tokens.get(owner, ())):
            self._fulfil(token)
        self._uncertain.pop(owner, None)

    async def verify_overdue(self, owner: str, api: OwnerReader[T], cache: InformerStore[T]) -> int:
        """Check the owner's overdue expectations on the API server, and drop or renew them.

        Args:
            owner: UID of the owner.
            api: client that reads the changed objects from the API server.
            cache: cache of the changed objects.

        Returns:
            The number of overdue changes that took effect but are not in the cache yet.

        Raises:
            KubeError: the API server did not answer, or refused the read.
        """
        now, late = clock.monotonic(), 0
        for token in list(self._tokens.get(owner, ())):
            change = self._awaited.get(token)
            if change is None or change.until > now:
                continue
            cached = cache.get(f"{change.namespace}/{change.name}")
            # The cache may show the change although the cache handler was not called for it.
            if change.uid:
                is_shown = cached is None or cached.uid != change.uid or cached.is_deleting
            else:
                is_shown = cached is not None
            if not is_shown and await _took_effect(change, api):
                # The change took effect and only the cache lags, so wait again.
                late += 1
                self._wait(change.owner, change.namespace, change.name, change.uid)
            else:
                self._fulfil(token)
        return late

    def _wait(
        self, owner: str, namespace: str, name: str, uid: str, timeout_s: float | None = None
    ) -> None:
        until = clock.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        change = _Expectation(owner=owner, namespace=namespace, name=name, uid=uid, until=until)
        self._awaited[change.token] = change
        self._tokens.setdefault(owner, set()).add(change.token)

    def _fulfil(self, token: str) -> _Expectation | None:
        change = self._awaited.pop(token, None)
        if change is not None:
            tokens = self._tokens[change.owner]
            tokens.discard(token)
            if not tokens:
                del self._tokens[change.owner]
        return change

    def _resolve_uncertain(self, owner: str, name: str) -> None:
        names = self._uncertain.get(owner)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self._uncertain[owner]


async def _took_effect(change: _Expectation, api: OwnerReader[T]) -> bool:
    """Return whether the API server shows the change, so that the cache will show it too."""
    try:
        live = await api.get(change.name, namespace=change.namespace)
    except NotFound:
        return bool(change.uid)
    return not change.uid or live.uid != change.uid or live.is_deleting
