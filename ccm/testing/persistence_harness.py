"""Hooks through which the persistence contract controls a storage, such as injected faults."""

from __future__ import annotations

import asyncio
import io
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ccm.base import clock, log
from ccm.base.tasks import cancel_and_join, spawn
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.errors import BackendUnavailable
from ccm.persistence.interface import CAS, GVK, MachineId, ObjectKey
from ccm.persistence.objects import MAX_BYTES
from ccm.persistence.store import Page, Store

HERE = MachineId(cluster_uid="3f2c9a56-0000-4000-8000-000000000001", name="one")
LOOK_S = 0.005

PATIENCE_S = 60.0
"""Time limit in seconds for calls that return at once without a fault; allows for a busy machine.
"""
LOUDEST = 10
"""Verbosity at which everything is logged."""

ELSEWHERE = MachineId(cluster_uid="3f2c9a56-0000-4000-8000-000000000002", name="two")


class PersistenceHarness(ABC):
    """One kind of storage with two instances, and ways to inject faults.

    Attributes:
        exempt: statement, such as `PS-23` -> why the storage cannot fulfil it. The test report
            shows the reason.
        capabilities: capabilities that the storage must have.
        shares: whether clusters share storage; False = storage belongs to one cluster.
        several: whether two providers can open the same storage.
        max_bytes: maximum bytes of a stored object, including about 1,000 bytes of metadata.
        many: number of objects that exceeds one page of a listing.
    """

    exempt: ClassVar[Mapping[str, str]] = {}
    capabilities: ClassVar[frozenset[str]] = frozenset({CAS})
    shares: ClassVar[bool] = False
    several: ClassVar[bool] = False
    max_bytes: ClassVar[int] = MAX_BYTES
    many: ClassVar[int] = 1050

    @abstractmethod
    def make(self, *, epoch: int = 0) -> Any:
        """Return a new provider over the same storage, as in another process.

        Args:
            epoch: number of leader transitions of the Lease; storage with fencing refuses writes
                of older epochs.
        """

    @abstractmethod
    async def exposed(self) -> Any:
        """Return a provider whose storage others could read.

        Examples are files with a wider mode and a connection without TLS or with a foreign
        certificate. If neither is possible, exempt PS-33.

        Raises:
            BackendDead: the provider cannot be created.
        """

    @abstractmethod
    async def damage(self, provider: Any, instance: str, kind: GVK, key: ObjectKey) -> None:
        """Change a stored byte of an object, bypassing the provider."""

    @abstractmethod
    async def fail(self, instance: str) -> None:
        """Make all calls to an instance fail from now on."""

    @abstractmethod
    async def hang(self, instance: str) -> None:
        """Make all calls to an instance hang from now on."""

    @abstractmethod
    async def heal(self, instance: str) -> None:
        """End the faults of an instance."""


FAULTY_METHODS = ("open", "probe", "read", "write", "remove")
"""Methods of a store, beside `scan`, that fail and hang on demand."""


class InstanceFaults:
    """Faults of an instance: calls fail while `fails` is true, and hang while `well` is not set."""

    def __init__(self) -> None:
        self.fails = False
        self.well = asyncio.Event()
        self.well.set()


class FaultyStore:
    """A store that wraps a real one and fails or hangs on demand."""

    def __init__(self, store: Store, ill: InstanceFaults) -> None:
        self._store = store
        self._ill = ill

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)

        async def call(*args: Any) -> Any:
            await self._trouble()
            return await real(*args)

        return call if name in FAULTY_METHODS else real

    async def _trouble(self) -> None:
        await self._ill.well.wait()
        if self._ill.fails:
            raise BackendUnavailable("fault injected by the test")

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        await self._trouble()
        async for page in self._store.scan(kind):
            yield page


class StoreHarness(PersistenceHarness):
    """Harness for storage that implements `Store`; wraps each store to inject faults."""

    backend: ClassVar[str]
    provider: type[StoreProvider] = StoreProvider

    def __init__(self) -> None:
        self._ill: dict[str, InstanceFaults] = {}

    @abstractmethod
    def stores(self) -> Mapping[str, Store]:
        """Return two new stores over the same storage, by instance name."""

    def make(self, *, epoch: int = 0) -> StoreProvider:
        stores = {
            name: FaultyStore(store, self._ill.setdefault(name, InstanceFaults()))
            for name, store in self.stores().items()
        }
        writer = WriterIdentity(identity="test", epoch=epoch)
        return self.provider(self.backend, stores, writer=lambda: writer, probe_s=0.05)

    async def fail(self, instance: str) -> None:
        self._ill.setdefault(instance, InstanceFaults()).fails = True

    async def hang(self, instance: str) -> None:
        self._ill.setdefault(instance, InstanceFaults()).well.clear()

    async def heal(self, instance: str) -> None:
        self._ill[instance].fails = False
        self._ill[instance].well.set()


@contextmanager
def captured_logs() -> Iterator[Callable[[], str]]:
    """Yield a function that returns the logs of this block, formatted as in the daemon."""
    root, stream = logging.getLogger(), io.BytesIO()
    handlers, level, verbosity = root.handlers, root.level, log.verbosity()
    log.setup(verbosity=LOUDEST, stream=stream)
    try:
        yield lambda: stream.getvalue().decode()
    finally:
        log.setup(verbosity=verbosity)
        root.handlers = handlers
        root.setLevel(level)


@asynccontextmanager
async def measure_stalls() -> AsyncIterator[Callable[[], float]]:
    """Yield a function that returns the longest stall of the event loop in this block, in seconds.

    A thread counts its iterations between two steps of the loop. On a busy machine the whole
    process waits, the thread included, so that such a wait does not count as a stall. Time for
    which the loop's thread was runnable without a CPU does not count either.
    """
    looks, longest_s, queued_s, measured_at = 0, 0.0, _queued_s(), clock.monotonic()
    over = threading.Event()

    def look() -> None:
        nonlocal looks
        while not over.wait(LOOK_S):
            looks += 1

    def measure() -> float:
        nonlocal looks, longest_s, queued_s, measured_at
        queued_before, queued_s = queued_s, _queued_s()
        before, measured_at = measured_at, clock.monotonic()
        # The smaller of both: the thread, too, counts less while the loop waits for a CPU.
        running_s = measured_at - before - (queued_s - queued_before)
        longest_s = max(longest_s, min(looks * LOOK_S, running_s))
        looks = 0
        return longest_s

    async def live() -> None:
        while True:
            measure()
            await asyncio.sleep(LOOK_S / 2)

    watching = threading.Thread(target=look)
    watching.start()
    living = spawn(live(), name="stalls")
    try:
        yield measure
    finally:
        over.set()
        await cancel_and_join(living)
        watching.join()


def _queued_s() -> float:
    """Return how long this thread has waited for a CPU; 0 if the system does not report it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0
