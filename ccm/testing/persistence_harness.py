"""What the persistence contract needs of a backend beyond its interface: hands behind it."""

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

from ccm.base import log
from ccm.base.tasks import cancel_and_join, spawn
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import Writer
from ccm.persistence.errors import BackendUnavailable
from ccm.persistence.interface import CAS, GVK, MachineId, ObjectKey
from ccm.persistence.store import Page, Store

HERE = MachineId(cluster_uid="3f2c9a56-0000-4000-8000-000000000001", name="one")
LOOK_S = 0.005

PATIENCE_S = 60.0
"""Limit for an answer that comes at once where nothing is broken; a busy machine is slow."""
LOUDEST = 10
"""Verbosity at which nothing is left out."""

ELSEWHERE = MachineId(cluster_uid="3f2c9a56-0000-4000-8000-000000000002", name="two")


class PersistenceHarness(ABC):
    """One kind of storage with two instances, and ways to harm it.

    Attributes:
        exempt: number of a statement -> why it cannot hold here; the report shows it.
        capabilities: that the storage has to have.
        shares: data of several clusters lie beside each other; False: storage belongs to one.
        several: two providers may have the same storage open.
        many: objects beyond what one page of a listing holds.
    """

    exempt: ClassVar[Mapping[str, str]] = {}
    capabilities: ClassVar[frozenset[str]] = frozenset({CAS})
    shares: ClassVar[bool] = False
    several: ClassVar[bool] = False
    many: ClassVar[int] = 1050

    @abstractmethod
    def make(self, *, epoch: int = 0) -> Any:
        """A new provider over the same storage, as another process would make it."""

    @abstractmethod
    async def exposed(self) -> Any:
        """A provider whose storage others could read: files of a wider mode, a connection without
        TLS or to somebody else's certificate. Where neither can be, exempt PS-33.

        Raises:
            BackendDead: it cannot even be made.
        """

    @abstractmethod
    async def damage(self, provider: Any, instance: str, kind: GVK, key: ObjectKey) -> None:
        """Change a byte of what is stored, behind the back of the provider."""

    @abstractmethod
    async def fail(self, instance: str) -> None:
        """From now on nothing works there."""

    @abstractmethod
    async def hang(self, instance: str) -> None:
        """From now on nothing there comes to an end."""

    @abstractmethod
    async def heal(self, instance: str) -> None:
        """All works again."""


TROUBLED = ("open", "probe", "read", "write", "remove")
"""Methods of a store that fail and hang on demand, beside `scan`."""


class Ill:
    """What is wrong with an instance."""

    def __init__(self) -> None:
        self.fails = False
        self.well = asyncio.Event()
        self.well.set()


class Troubled:
    """A store that fails and hangs on demand, around a real one."""

    def __init__(self, store: Store, ill: Ill) -> None:
        self._store = store
        self._ill = ill

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)

        async def call(*args: Any) -> Any:
            await self._trouble()
            return await real(*args)

        return call if name in TROUBLED else real

    async def _trouble(self) -> None:
        await self._ill.well.wait()
        if self._ill.fails:
            raise BackendUnavailable("it was told to fail")

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """As `Store.scan`."""
        await self._trouble()
        async for page in self._store.scan(kind):
            yield page


class StoreHarness(PersistenceHarness):
    """For storage that is a `Store`: trouble is made around it.

    `stores` makes new stores over the same storage, by their instances' names.
    """

    backend: ClassVar[str]
    provider: type[StoreProvider] = StoreProvider

    def __init__(self) -> None:
        self._ill: dict[str, Ill] = {}

    @abstractmethod
    def stores(self) -> Mapping[str, Store]:
        """Two."""

    def make(self, *, epoch: int = 0) -> StoreProvider:
        """As `PersistenceHarness.make`."""
        stores = {
            name: Troubled(store, self._ill.setdefault(name, Ill()))
            for name, store in self.stores().items()
        }
        writer = Writer(identity="test", epoch=epoch)
        return self.provider(self.backend, stores, writer=lambda: writer, probe_s=0.05)

    async def fail(self, instance: str) -> None:
        """As `PersistenceHarness.fail`."""
        self._ill.setdefault(instance, Ill()).fails = True

    async def hang(self, instance: str) -> None:
        """As `PersistenceHarness.hang`."""
        self._ill.setdefault(instance, Ill()).well.clear()

    async def heal(self, instance: str) -> None:
        """As `PersistenceHarness.heal`."""
        self._ill[instance].fails = False
        self._ill[instance].well.set()


@contextmanager
def overheard() -> Iterator[Callable[[], str]]:
    """All that is logged in this block, by us and by libraries, as the daemon would write it."""
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
async def stalls() -> AsyncIterator[Callable[[], float]]:
    """How long the event loop of this block stood still at most, in seconds.

    A thread counts its own looks between two signs of life of the loop. On a busy machine the
    whole process waits, and that thread with it, which is not held against the loop. Neither is
    the time for which the loop's thread could run and had no CPU.
    """
    looks, longest_s, queued_s = 0, 0.0, _queued_s()
    over = threading.Event()

    def look() -> None:
        nonlocal looks
        while not over.wait(LOOK_S):
            looks += 1

    def measure() -> float:
        nonlocal looks, longest_s, queued_s
        before, queued_s = queued_s, _queued_s()
        longest_s = max(longest_s, looks * LOOK_S - (queued_s - before))
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
    """Return how long this thread has waited for a CPU; 0 where the system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0
