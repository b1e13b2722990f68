"""A scripted API server for one kind: what each list page and each watch shall do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ccm.base.backoff import ExponentialBackoff
from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube import errors
from ccm.kube.client import Page, WatchEvent
from ccm.kube.informer import ReflectorSettings
from ccm.model import Node
from ccm.model.meta import KubeObject
from ccm.testing import builders
from ccm.testing.clock import advance, elapsed_s

T = TypeVar("T", bound=KubeObject)
STEADY = ExponentialBackoff(base_s=0.8, factor=2.0, cap_s=30.0)
LISTED = ReflectorSettings(backoff=STEADY)
Step = WatchEvent[Node] | Exception | float
"""An event, a failure, or seconds of silence."""


def node(name: str, version: int) -> Node:
    return builders.node(name, resource_version=str(version))


def event(type_: str, obj: T) -> WatchEvent[T]:
    return WatchEvent(
        type=type_,  # type: ignore[arg-type]
        object=obj,
        resource_version=obj.resource_version,
        key=obj.key,
        wire_type=type_,
    )


def added(obj: T) -> WatchEvent[T]:
    return event("ADDED", obj)


def modified(obj: T) -> WatchEvent[T]:
    return event("MODIFIED", obj)


def deleted(obj: T) -> WatchEvent[T]:
    return event("DELETED", obj)


def bookmark(version: int, *, end: bool = False) -> WatchEvent[Node]:
    return WatchEvent(
        type="BOOKMARK",
        object=None,
        resource_version=str(version),
        initial_events_end=end,
        wire_type="BOOKMARK",
    )


def malformed(key: str, version: int, wire_type: str = "MODIFIED") -> WatchEvent[Node]:
    return WatchEvent(
        type="MALFORMED", object=None, resource_version=str(version), key=key, wire_type=wire_type
    )


def page(items: Sequence[Node], version: int, *, malformed: Sequence[str] = ()) -> Page[Node]:
    return Page(items=items, resource_version=str(version), malformed_keys=malformed)


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """What never ends by itself runs for as long as the block."""
    task = spawn(work, name="work")
    try:
        await advance(0)
        yield
        assert not task.done(), "it ended by itself"
    finally:
        await cancel_and_join(task)


def api_error(status: int, retry_after: float | None = None) -> errors.ApiError:
    headers = {} if retry_after is None else {"Retry-After": str(int(retry_after))}
    return errors.from_response(status, headers, b"")


def refused() -> errors.Unreachable:
    return errors.Unreachable("connection refused", kind="refused")


@dataclass
class Call:
    """One request as the reflector made it."""

    verb: str
    at: float
    version: str = ""
    initial: bool = False
    timeout_s: int = 0
    token: str = ""
    limit: int = 0
    idle_timeout_s: float | None = None


@dataclass
class Server:
    """Answers lists and watches from two scripts; without a script a watch stays silent.

    A number in place of a watch's script: the answer does not begin for so long.
    """

    lists: list[Page[Node] | Exception] = field(default_factory=list)
    watches: list[Sequence[Step] | Exception | float] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    open_watches: int = 0

    async def list_page(self, *, limit: int, continue_: str = "") -> Page[Node]:
        self.calls.append(Call("list", elapsed_s(), token=continue_, limit=limit))
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @contextlib.asynccontextmanager
    async def watch(
        self,
        *,
        resource_version: str = "",
        timeout_s: int,
        send_initial_events: bool = False,
        idle_timeout_s: float | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[Node]]]:
        self.calls.append(
            Call(
                "watch",
                elapsed_s(),
                version=resource_version,
                initial=send_initial_events,
                timeout_s=timeout_s,
                idle_timeout_s=idle_timeout_s,
            )
        )
        script: Sequence[Step] | Exception | float
        script = self.watches.pop(0) if self.watches else (1e9,)
        if isinstance(script, Exception):
            raise script
        if isinstance(script, float):
            await asyncio.sleep(script)
            script = ()
        self.open_watches += 1
        try:
            yield self._play(script)
        finally:
            self.open_watches -= 1

    async def _play(self, script: Iterable[Step]) -> AsyncIterator[WatchEvent[Node]]:
        for step in script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, WatchEvent):
                yield step
            else:
                await asyncio.sleep(step)

    @property
    def versions(self) -> list[str]:
        """Where each watch began."""
        return [call.version for call in self.of("watch")]

    def of(self, verb: str) -> list[Call]:
        return [call for call in self.calls if call.verb == verb]


class Recorder:
    """A sink that writes down what it is told."""

    def __init__(self) -> None:
        self.objects = self.store = dict[str, Node]()
        self.removed: list[tuple[str, str | None]] = []
        self.upserts: list[str] = []
        self.completed: list[float] = []

    def upsert(self, obj: Node) -> None:
        self.objects[obj.key] = obj
        self.upserts.append(f"{obj.key}@{obj.resource_version}")

    def remove(self, key: str, last: Node | None = None) -> None:
        self.objects.pop(key, None)
        self.removed.append((key, last.resource_version if last else None))

    def mark_synced(self) -> None:
        self.completed.append(elapsed_s())
