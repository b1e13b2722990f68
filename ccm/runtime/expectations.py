"""What an owner has made or deleted, and its cache does not show yet.

Who decides by a cache that lags would make everything twice. So an owner notes what it is about
to make, by a name it chooses beforehand, and what it deletes, by UID; the handler of the cache
strikes out what it shows; and nothing is decided before the list is empty. What is on it for too
long is looked up on the API server (`look_up`): what nobody told us of may have come and gone
unseen. A creation whose outcome nobody knows keeps its name for the next try: the same name
cannot be made twice.
Counterpart in Kubernetes: controller expectations, which count instead of naming.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ccm.base import clock
from ccm.kube.errors import NotFound
from ccm.kube.store import View
from ccm.model.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

TIMEOUT_S = 300.0
"""How long the cache has to show what was done (client-go, controller expectations)."""


class Reads(Protocol):
    """What is asked of the API server (a `Resource`)."""

    async def get(self, name: str, *, namespace: str = "") -> KubeObject:
        """Read from the API server."""
        ...


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

    async def look_up(self, owner: str, api: Reads, cache: View[T]) -> int:
        """Look up what the cache should have shown long since; how much of it is still to come.

        Raises:
            KubeError: the API server did not answer.
        """
        now, late = clock.monotonic(), 0
        for token in list(self._tokens.get(owner, ())):
            one = self._awaited.get(token)
            if one is None or one.until > now:
                continue
            if not _shows(cache, one) and await _stands(one, api):
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


def _shows(cache: View[T], one: _Awaited) -> bool:
    """Whether the cache shows the change; who was not told of it asks here."""
    found = cache.get(f"{one.namespace}/{one.name}")
    if not one.uid:
        return found is not None
    return found is None or found.uid != one.uid or found.is_deleting


async def _stands(one: _Awaited, api: Reads) -> bool:
    """Whether the change was made, and not undone, so that the cache will show it some time."""
    try:
        live = await api.get(one.name, namespace=one.namespace)
    except NotFound:
        return bool(one.uid)
    return not one.uid or live.uid != one.uid or live.is_deleting
