"""What runs a controller: keys, workers, turns, caches and passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.kube.informer import Informer
from ccm.kube.resources import NODES
from ccm.model import Node
from ccm.runtime.controller import PassTimer
from ccm.runtime.workers import MOST_LENT, Workers
from ccm.testing.clock import advance, elapsed_s, settle
from tests.unit.controllers.drains import Server

pytestmark = pytest.mark.virtual_time


class Crew:
    """Workers of keys that take as long as the test says, and fail if it says so."""

    def __init__(self, count: int = 1, /, **lasts: float) -> None:
        self.workers = Workers("crew", queue="crew", take=self.take, count=count)
        self.lasts = lasts
        self.failing: set[str] = set()
        self.began: list[tuple[str, float]] = []
        self.hands: Counter[str] = Counter()
        self.peak = 0

    async def take(self, key: str) -> bool:
        self.began.append((key, elapsed_s()))
        self.hands[key] += 1
        assert self.hands[key] == 1, f"{key} is in two hands"
        self.peak = max(self.peak, self.hands.total())
        try:
            await asyncio.sleep(self.lasts.get(key, 0))
        finally:
            self.hands[key] -= 1
        return key not in self.failing

    def add(self, *keys: str) -> None:
        for key in keys:
            self.workers.queue.add(key)

    async def hang(self, *keys: str) -> None:
        """Let keys hold up their workers once, and forget that."""
        for key in keys:
            self.add(key)
            await advance(self.lasts[key])
        self.began.clear()

    def since(self, when: float) -> dict[str, float]:
        """When keys were begun for the last time, in seconds since then."""
        return {key: began - when for key, began in self.began}

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async def run() -> None:
            async with Group() as group:
                self.workers.start(group)

        task = spawn(run(), name="crew")
        await settle()
        try:
            yield
        finally:
            await cancel_and_join(task)
        assert task.cancelled()


ADDED = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=30),
        st.sampled_from([0.0, 1.0, 29.0, 31.0, 500.0]),
        st.booleans(),
        st.floats(min_value=0, max_value=100),
    ),
    max_size=60,
)


@given(added=ADDED, count=st.integers(min_value=1, max_value=3))
async def test_whatever_hangs_every_key_is_served_and_none_in_two_hands(
    added: list[tuple[int, float, bool, float]], count: int
) -> None:
    crew = Crew(count)
    asked_at: dict[str, float] = {}
    async with crew.at_work():
        for number, lasts, fails, pause in added:
            key = str(number)
            crew.lasts[key] = lasts
            crew.failing = crew.failing | {key} if fails else crew.failing - {key}
            asked_at[key] = elapsed_s()
            crew.add(key)
            await advance(pause)
        await advance(60 * 500)
        assert crew.hands.total() == 0
        assert crew.peak <= count + MOST_LENT
        for key, when in asked_at.items():
            assert crew.since(when)[key] >= 0, "an addition was lost"
        crew.began.clear()
        crew.lasts = dict.fromkeys("abcdef", 1.0)
        crew.add(*crew.lasts)
        await advance(0)
        assert len(crew.began) == count, "workers are as many as at the start"


@pytest.mark.parametrize(("joins", "ends"), [(False, 3), (True, 4)])
async def test_a_pass_ends_with_its_last_key(joins: bool, ends: float) -> None:
    """Two keys at 0 s, one more at 1 s; they are finished at 2, 3 and 4 s."""
    seen: list[float] = []
    timer = PassTimer(seen.append)
    timer.started(["a", "b"], joins=joins)
    await advance(1)
    timer.started(["b", "c"], joins=joins)
    for key in ("a", "b", "c"):
        await advance(1)
        timer.finished(key)
    assert seen == [ends]


def informer(server: Server) -> Informer[Node]:
    return Informer(server.client().resource(NODES), resource=NODES.plural)
