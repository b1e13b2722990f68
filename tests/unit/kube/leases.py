"""A Lease on a scripted API server: optimistic locking, a watch, and faults."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec

from ccm.base import clock
from ccm.kube import errors
from ccm.kube.client import WatchEvent
from ccm.model import Lease, LeaseSpec, ObjectMeta
from ccm.model.times import format_micro_time
from ccm.testing.clock import elapsed_s
from tests.support.watches import event

NAMESPACE = "kube-system"
NAME = "ccm"


class Server:
    """Holds one Lease. `fault` is asked before each request and may raise or wait."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.calls: list[tuple[float, str]] = []
        self.fault: Callable[[str], Exception | float | None] = lambda verb: None
        self.watch_works = True
        self.watches_opened = 0
        self._version = 0
        self._watchers: set[asyncio.Queue[WatchEvent[Lease]]] = set()

    @property
    def verbs(self) -> list[str]:
        return [verb for _, verb in self.calls]

    @property
    def spec(self) -> LeaseSpec:
        assert self.lease is not None
        return self.lease.spec

    def hold(
        self, holder: str, *, duration_s: int = 15, transitions: int = 0, renewed: str = ""
    ) -> None:
        """Write the Lease as another replica would."""
        moment = renewed or format_micro_time(clock.now())
        spec = LeaseSpec(
            holder_identity=holder,
            lease_duration_seconds=duration_s,
            acquire_time=moment,
            renew_time=moment,
            lease_transitions=transitions,
        )
        self._store(msgspec.structs.replace(self.lease or self._fresh(), spec=spec))

    def drop(self) -> None:
        """Delete the Lease."""
        assert self.lease is not None
        self._tell("DELETED", self.lease)
        self.lease = None

    async def get(self, name: str, *, namespace: str) -> Lease:
        await self._pass("get")
        assert (name, namespace) == (NAME, NAMESPACE)
        if self.lease is None:
            raise errors.from_response(404, {}, b"")
        return self.lease

    async def create(self, obj: Lease, *, namespace: str) -> Lease:
        await self._pass("create")
        assert (obj.name, namespace) == (NAME, NAMESPACE)
        if self.lease is not None:
            raise errors.from_response(409, {}, b"")
        return self._store(obj)

    async def replace(self, obj: Lease) -> Lease:
        await self._pass("update")
        if self.lease is None:
            raise errors.from_response(404, {}, b"")
        if obj.resource_version != self.lease.resource_version:
            raise errors.from_response(409, {}, b"")
        return self._store(obj)

    @contextlib.asynccontextmanager
    async def watch(
        self, *, namespace: str, timeout_s: int, field_selector: str, idle_timeout_s: float | None
    ) -> AsyncIterator[AsyncIterator[WatchEvent[Lease]]]:
        assert (namespace, field_selector) == (NAMESPACE, f"metadata.name={NAME}")
        if not self.watch_works:
            raise errors.from_response(403, {}, b"")
        self.watches_opened += 1
        queue: asyncio.Queue[WatchEvent[Lease]] = asyncio.Queue()
        if self.lease is not None:
            queue.put_nowait(event("ADDED", self.lease))
        self._watchers.add(queue)
        try:
            yield _play(queue)
        finally:
            self._watchers.discard(queue)

    async def _pass(self, verb: str) -> None:
        self.calls.append((elapsed_s(), verb))
        answer = self.fault(verb)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            await asyncio.sleep(answer)

    def _fresh(self) -> Lease:
        return Lease(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE))

    def _store(self, lease: Lease) -> Lease:
        self._version += 1
        metadata = msgspec.structs.replace(
            lease.metadata, resource_version=str(self._version), uid="uid-lease"
        )
        known = self.lease is not None
        self.lease = msgspec.structs.replace(lease, metadata=metadata)
        self._tell("MODIFIED" if known else "ADDED", self.lease)
        return self.lease

    def _tell(self, type_: str, lease: Lease) -> None:
        for queue in self._watchers:
            queue.put_nowait(event(type_, lease))


async def _play(queue: asyncio.Queue[WatchEvent[Lease]]) -> AsyncIterator[WatchEvent[Lease]]:
    while True:
        yield await queue.get()
