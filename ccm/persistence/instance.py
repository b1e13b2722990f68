"""One instance of storage as the engine sees it: whether it is up, how fast, what is under way."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ccm.base import clock, lease_guard
from ccm.base.log import logger
from ccm.persistence import metrics
from ccm.persistence.errors import BackendUnavailable, CorruptObject, PersistenceError
from ccm.persistence.interface import PersistenceProviderStatus
from ccm.persistence.keys import Place
from ccm.persistence.store import Claim, Store
from ccm.persistence.turns import Turns, UnderWay

WINDOW = 256
"""Writes and deletes that the mean latency is made of."""

DEADLINE_S = 30.0
"""Of one operation: three tries of an S3 request (5 s to connect, 10 s to answer) fit."""


class Instance:
    """One instance.

    Args:
        backend: type of storage, for metrics.
        name: of the instance.
        store: where it is kept.
        deadline_s: of one operation.
    """

    def __init__(self, backend: str, name: str, store: Store, deadline_s: float) -> None:
        self.backend = backend
        self.name = name
        self.store = store
        self.is_up = False
        self.is_open = False
        self._deadline_s = deadline_s
        self._took: deque[float] = deque(maxlen=WINDOW)
        self._turns = Turns()
        self._under_way = UnderWay()
        self._log = logger("persistence")

    @property
    def status(self) -> PersistenceProviderStatus:
        """From memory."""
        return PersistenceProviderStatus(
            instance_exists=True, status=self.is_up, mean_persist_latency=self._mean()
        )

    async def open(self, claim: Claim) -> None:
        """Open the store and count as up.

        Raises:
            BackendUnavailable: not now.
            BackendDead: never.
        """
        async with self.operation("open"):
            await self.store.open(claim)
            self.is_open = True

    @asynccontextmanager
    async def operation(self, name: str, place: Place | None = None) -> AsyncIterator[None]:
        """Something is done to the store: in its turn, in time, and counted.

        Args:
            name: of the operation, for metrics; `put` and `delete` make the mean latency.
            place: what is written; writes to one place take turns.
        """
        began, result = clock.monotonic(), "ok"
        try:
            with self._under_way.one():
                async with self._turns.of(place), lease_guard.limit(self._deadline_s):
                    yield
            self._worked(name, clock.monotonic() - began)
        except lease_guard.Lapsed as error:
            result = "BackendUnavailable"
            raise BackendUnavailable(f"{self.name}: {error}") from error
        except TimeoutError as error:
            result = "BackendUnavailable"
            self.down("it did not answer in time")
            raise BackendUnavailable(f"{self.name} did not answer in time") from error
        except PersistenceError as error:
            result = type(error).__name__
            self._failed(error)
            raise
        except BaseException:
            result = "cut"
            raise
        finally:
            labels = (self.backend, self.name, name)
            metrics.OPERATIONS.labels(*labels, result).inc()
            metrics.DURATION.labels(*labels).observe(clock.monotonic() - began)

    async def idle(self) -> None:
        """Nothing is under way."""
        await self._under_way.none()

    def down(self, why: str) -> None:
        """It does not work."""
        if self.is_up:
            self._log.warning("persistence instance is down", instance=self.name, error=why)
        self._set(up=False)

    def corrupt(self) -> None:
        """A damaged object was met."""
        metrics.CORRUPT.labels(self.name).inc()
        self._log.error("persistence holds a damaged object", instance=self.name)

    def _worked(self, name: str, took_s: float) -> None:
        if not self.is_up:
            self._log.info("persistence instance is up", instance=self.name)
        self._set(up=True)
        if name in ("put", "delete"):
            self._took.append(took_s)
            metrics.LATENCY.labels(self.name).set(self._mean())

    def _failed(self, error: PersistenceError) -> None:
        if isinstance(error, BackendUnavailable):
            self.down(str(error))
        elif isinstance(error, CorruptObject):
            self.corrupt()

    def _set(self, *, up: bool) -> None:
        self.is_up = up
        metrics.UP.labels(self.name).set(up)

    def _mean(self) -> float:
        return sum(self._took) / len(self._took) if self._took else 0.0
