"""A copy of a cluster in memory that answers as its API server does.

It holds what the daemon's types hold, and applies the patches that the daemon writes. Objects
that cannot be decoded are known by their keys, as they are to a daemon. Who writes here writes
nowhere else: the copy has no way to the API server it was read from.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar, cast

import msgspec

from ccm.base import clock
from ccm.base.digits import parse_digits
from ccm.kube import errors
from ccm.kube.client import Client, Resource
from ccm.kube.decode import Page, WatchEvent
from ccm.kube.resources import Kind
from ccm.model.meta import KubeObject
from ccm.model.times import format_time
from ccm.planning import merging

T = TypeVar("T", bound=KubeObject)

Apply = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class Copy(Generic[T]):
    """All objects of one kind.

    Attributes:
        kind: their kind.
        before: by key, as they were read.
        now: by key, as they are by now.
        malformed: keys of those that cannot be decoded.
        touched: key -> when it was first written, or went, by the monotonic clock.
        log: what happened since, for watches.
    """

    kind: Kind[T]
    before: Mapping[str, T]
    malformed: Collection[str] = ()
    now: dict[str, T] = field(init=False)
    touched: dict[str, float] = field(init=False, default_factory=dict)
    log: list[WatchEvent[T]] = field(init=False, default_factory=list)
    news: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.now = dict(self.before)

    def put(self, obj: T) -> None:
        """An object is there, new or changed; one that was let go by its last finalizer goes."""
        known = obj.key in self.now
        if obj.is_deleting and not obj.finalizers:
            self.now.pop(obj.key, None)
            self.touched.pop(obj.key, None)
            self._happened("DELETED", obj)
        else:
            self.now[obj.key] = obj
            self._happened("MODIFIED" if known else "ADDED", obj)

    def _happened(self, what: Any, obj: T) -> None:
        self.touched.setdefault(obj.key, clock.monotonic())
        self.log.append(
            WatchEvent(
                type=what,
                object=obj,
                resource_version=obj.resource_version,
                key=obj.key,
                wire_type=what,
            )
        )
        self.news.set()
        self.news = asyncio.Event()


class ClusterCopy:
    """The copy; it makes clients as `ccm.app.clients.Clients` does.

    Attributes:
        answers: to requests about no resource, by path.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self._copies: dict[Kind[Any], Copy[Any]] = {}
        self._version = 0

    def load(
        self, kind: Kind[T], objects: Mapping[str, T], *, malformed: Collection[str] = ()
    ) -> None:
        """These are all the objects of a kind."""
        self._copies[kind] = Copy(kind=kind, before=objects, malformed=malformed)
        versions = [parse_digits(obj.resource_version) or 0 for obj in objects.values()]
        self._version = max(self._version, *versions, 0)

    def of(self, kind: Kind[T]) -> Copy[T]:
        """The objects of a kind; none if nobody loaded it."""
        found = self._copies.setdefault(kind, Copy(kind=kind, before={}))
        return cast("Copy[T]", found)

    def named(self, name: str) -> Client:
        """A client; all write the same copy."""
        return _Client(self, name)

    @property
    def version(self) -> str:
        """That of the newest state."""
        return str(self._version)

    def next_version(self) -> str:
        """That of the next state."""
        self._version += 1
        return str(self._version)


class _Client(Client):
    """Calls to the copy."""

    def __init__(self, cluster: ClusterCopy, name: str) -> None:
        self._cluster = cluster
        self.name = self.user_agent = name

    def resource(self, kind: Kind[T]) -> Resource[T]:
        return _Resource(self._cluster, kind)

    def server_time(self) -> datetime:
        return clock.now()

    async def raw(self, method: str, path: str, **_: Any) -> bytes:
        if method == "GET" and path in self._cluster.answers:
            return self._cluster.answers[path]
        raise errors.WriteRefused(f"{method} {path}: the copy has resources only")

    def lines(self, path: str, **_: Any) -> NoReturn:
        raise errors.WriteRefused(f"GET {path}: the copy has resources only")


class _Resource(Resource[T]):
    """Calls about one kind."""

    def __init__(self, cluster: ClusterCopy, kind: Kind[T]) -> None:
        self.kind = kind
        self._cluster = cluster
        self._copy = cluster.of(kind)

    async def get(self, name: str, *, namespace: str = "") -> T:
        return self._find(name, namespace)

    async def list_page(self, *, namespace: str = "", **_: Any) -> Page[T]:
        return Page(
            items=[obj for obj in self._copy.now.values() if _is_in(obj, namespace)],
            resource_version=self._cluster.version,
            malformed_keys=tuple(self._copy.malformed),
        )

    async def create(self, obj: T | Mapping[str, Any], *, namespace: str = "") -> T:
        body = msgspec.to_builtins(obj) if isinstance(obj, KubeObject) else _written(obj, namespace)
        made = self._with(body, uid=f"plan-{self._cluster.version}")
        if made.key in self._copy.now:
            raise _answer(errors.AlreadyExists, 409, "AlreadyExists", made.key)
        self._copy.put(made)
        return made

    async def replace(self, obj: T, *, subresource: str = "") -> NoReturn:
        raise errors.WriteRefused(f"PUT {obj.key} {subresource}: the daemon patches what is copied")

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        del subresource  # we name in each patch only what belongs there
        return self._patch(name, namespace, patch, merging.strategic)

    async def patch_merge(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        del subresource
        return self._patch(name, namespace, patch, merging.merge)

    async def delete(
        self,
        name: str,
        *,
        namespace: str = "",
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_s: int | None = None,
    ) -> None:
        del grace_period_s  # no Pods are copied
        current = self._find(name, namespace)
        if uid not in (None, current.uid) or resource_version not in (
            None,
            current.resource_version,
        ):
            raise _answer(errors.Conflict, 409, "Conflict", current.key)
        if not current.is_deleting:
            moment = {"metadata": {"deletionTimestamp": format_time(clock.now())}}
            self._copy.put(self._with(merging.merge(msgspec.to_builtins(current), moment)))

    @contextlib.asynccontextmanager
    async def watch(
        self,
        *,
        namespace: str = "",
        resource_version: str = "",
        send_initial_events: bool = False,
        **_: Any,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        # From now on, whatever is told first.
        place = len(self._copy.log)
        if not send_initial_events:
            place = sum(
                int(one.resource_version) <= int(resource_version) for one in self._copy.log
            )
        told = self._told(place, namespace, initial=send_initial_events)
        async with contextlib.aclosing(told) as events:
            yield events

    async def _told(
        self, place: int, namespace: str, *, initial: bool
    ) -> AsyncGenerator[WatchEvent[T], None]:
        if initial:
            for event in self._initial():
                if event.object is None or _is_in(event.object, namespace):
                    yield event
        while True:
            news = self._copy.news
            while place < len(self._copy.log):
                event = self._copy.log[place]
                if event.object is None or _is_in(event.object, namespace):
                    yield event
                place += 1
            if news is self._copy.news:
                await news.wait()

    def _initial(self) -> list[WatchEvent[T]]:
        def event(what: Any, **facts: Any) -> WatchEvent[T]:
            facts.setdefault("resource_version", self._cluster.version)
            return WatchEvent(type=what, **{"object": None, "wire_type": "ADDED", **facts})

        return [
            *(
                event("ADDED", object=obj, key=obj.key, resource_version=obj.resource_version)
                for obj in self._copy.now.values()
            ),
            *(event("MALFORMED", key=key) for key in self._copy.malformed),
            event("BOOKMARK", wire_type="BOOKMARK", initial_events_end=True),
        ]

    def _find(self, name: str, namespace: str) -> T:
        key = f"{namespace}/{name}" if namespace else name
        found = self._copy.now.get(key)
        if found is None:
            raise _answer(errors.NotFound, 404, "NotFound", key)
        return found

    def _patch(self, name: str, namespace: str, patch: Mapping[str, Any], apply: Apply) -> T:
        current = self._find(name, namespace)
        metadata = dict(patch.get("metadata") or {})
        uid, version = metadata.pop("uid", None), metadata.pop("resourceVersion", None)
        if uid not in (None, current.uid) or version not in (None, current.resource_version):
            raise _answer(errors.Conflict, 409, "Conflict", current.key)
        before = msgspec.to_builtins(getattr(current, "source", current))
        after = apply(before, {**patch, "metadata": metadata})
        if after == before:
            return current
        changed = self._with(after)
        self._copy.put(changed)
        return changed

    def _with(self, body: Mapping[str, Any], **metadata: str) -> T:
        """The object in a new state."""
        known = {"resourceVersion": self._cluster.next_version(), **metadata}
        document = merging.merge(body, {"metadata": known})
        return self.kind.converted(msgspec.convert(document, self.kind.document or self.kind.type))


def _is_in(obj: KubeObject, namespace: str) -> bool:
    return not namespace or obj.namespace == namespace


def _written(obj: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """An object as it is stored that was sent without its namespace, a Secret perhaps in text."""
    texts: Mapping[str, str] = obj.get("stringData") or {}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    found = {key: value for key, value in obj.items() if key != "stringData"}
    return merging.merge(
        found, {"metadata": {"namespace": namespace}, **({"data": data} if data else {})}
    )


def _answer(kind: type[errors.ApiError], status: int, reason: str, key: str) -> errors.ApiError:
    return kind(status=status, reason=reason, message=f"{key} in the copy of the cluster")
