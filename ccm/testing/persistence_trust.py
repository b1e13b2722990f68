"""Cases of the persistence contract about trust: what holds whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ccm.base import metrics
from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.persistence import errors
from ccm.persistence.interface import ABSENT, CAS, FENCING
from ccm.testing.persistence_harness import HERE, PATIENCE_S, PersistenceHarness, overheard, stalls
from ccm.testing.persistence_objects import KIND, NEEDLE, thing

WRITERS = 16
"""That compete."""


class TrustCases:
    """Part of `PersistenceContract`."""

    async def test_readers_see_old_or_new(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """Never a mixture, never nothing; nor does another process, where one may read."""
        reader = harness.make() if harness.several else provider
        await reader.initialize(HERE)
        key = await provider.put_object(first, thing(a=0, b="0" * 9000))
        seen = set()

        async def write() -> None:
            for at in range(1, 25):
                await provider.put_object(first, thing(a=at, b=str(at % 10) * 9000))

        writing = spawn(write(), name="write")
        while not writing.done():
            found = await reader.get_object(first, KIND, key)
            assert found["spec"]["b"] == str(found["spec"]["a"] % 10) * 9000
            seen.add(found["spec"]["a"])
        await writing
        assert seen
        await reader.close()

    async def test_failed_put_leaves_old_or_new(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """In full; trying again is safe."""
        key = await provider.put_object(first, thing(size=1))
        await harness.fail(first)
        with pytest.raises(errors.BackendUnavailable):
            await provider.put_object(first, thing(size=2))
        await harness.heal(first)

        assert await provider.get_object(first, KIND, key) in (thing(size=1), thing(size=2))
        await provider.put_object(first, thing(size=2))
        assert await provider.get_object(first, KIND, key) == thing(size=2)

    async def test_cancelled_put_leaves_old_or_new(self, provider: Any, first: str) -> None:
        """At whatever point; nobody waits for it afterwards."""
        key = await provider.put_object(first, thing(size=0))
        for at in range(1, 12):
            put = spawn(provider.put_object(first, thing(size=at)), name="put")
            for _ in range(at):
                await asyncio.sleep(0)
            await asyncio.sleep(0.0002 * at)
            await cancel_and_join(put)
            found = await provider.get_object(first, KIND, key)
            assert found["spec"]["size"] <= at

        async with asyncio.timeout(PATIENCE_S):
            await provider.put_object(first, thing(size=99))
        assert await provider.get_object(first, KIND, key) == thing(size=99)

    async def test_survives_a_new_process(self, harness: PersistenceHarness) -> None:
        """What was acknowledged is there, what was deleted is not."""
        before = harness.make()
        await before.initialize(HERE)
        (first, *_) = before.instances()
        kept = await before.put_object(first, thing("kept"))
        gone = await before.put_object(first, thing("gone"))
        await before.delete_object(first, KIND, gone)
        await before.close()

        after = harness.make()
        await after.initialize(HERE)

        assert await after.get_object(first, KIND, kept) == thing("kept")
        assert await after.get_object(first, KIND, gone) is None
        await after.close()

    async def test_damage_is_noticed(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """It is never returned, and hides nothing that is healthy."""
        key = await provider.put_object(first, thing("bad"))
        await provider.put_object(first, thing("good"))

        await harness.damage(provider, first, KIND, key)

        with pytest.raises(errors.CorruptObject):
            await provider.get_object(first, KIND, key)
        assert await provider.get_all_objects(first, KIND) == [thing("good")]
        with pytest.raises(errors.CorruptObject):
            await provider.get_object(first, KIND, key)
        await provider.put_object(first, thing("bad"))
        assert await provider.get_object(first, KIND, key) == thing("bad")

    async def test_one_of_many_creates(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """Of many writers that expect nothing there exactly one succeeds."""
        others = [harness.make() for _ in range(3)] if harness.several else []
        for other in others:
            await other.initialize(HERE)
        outcomes: list[int] = []

        async def create(number: int) -> None:
            mine = [provider, *others][number % (1 + len(others))]
            try:
                await mine.put_versioned(first, thing(by=number), expect=ABSENT)
            except errors.VersionConflict:
                return
            outcomes.append(number)

        async with Group() as group:
            for number in range(WRITERS):
                group.start(create(number), name=f"create-{number}")

        (winner,) = outcomes
        assert await provider.get_all_objects(first, KIND) == [thing(by=winner)]
        for other in others:
            await other.close()

    async def test_versions(self, provider: Any, first: str) -> None:
        """A write that expects what is not there any more does nothing."""
        key, one = await provider.put_versioned(first, thing(size=1), expect=ABSENT)
        _, two = await provider.put_versioned(first, thing(size=2), expect=one)

        assert one != two
        assert await provider.get_versioned(first, KIND, key) == (thing(size=2), two)
        for stale in (one, ABSENT, "never"):
            with pytest.raises(errors.VersionConflict):
                await provider.put_versioned(first, thing(size=3), expect=stale)
        found = [each async for each in provider.iter_objects(first, KIND)]
        assert found == [(key, thing(size=2), two)]
        await provider.delete_object(first, KIND, key)
        with pytest.raises(errors.VersionConflict):
            await provider.put_versioned(first, thing(size=4), expect=two)
        assert await provider.get_versioned(first, KIND, key) is None
        await provider.put_versioned(first, thing(size=1), expect=ABSENT)
        with pytest.raises(errors.VersionConflict):
            await provider.put_versioned(first, thing(size=5), expect=one)

    async def test_capabilities(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """It has what it has to have; without conditions it does not pretend."""
        found = provider.capabilities(first)

        assert found >= harness.capabilities
        if CAS not in found:
            with pytest.raises(errors.VersionConflict):
                await provider.put_versioned(first, thing(), expect=ABSENT)
            assert await provider.get_all_objects(first, KIND) == []

    async def test_stale_leader_is_fenced(self, harness: PersistenceHarness) -> None:
        """Once a newer leader has opened it, the older one changes nothing, old or new."""
        if not harness.several:
            pytest.skip("only one process may have it open")
        old, new = harness.make(epoch=3), harness.make(epoch=4)
        await old.initialize(HERE)
        (first, *_) = old.instances()
        assert FENCING in old.capabilities(first)
        key = await old.put_object(first, thing(by="old"))
        await new.initialize(HERE)
        await new.put_object(first, thing(by="new"))

        for name in ("one", "another"):
            with pytest.raises(errors.Fenced):
                await old.put_object(first, thing(name, by="old"))
        with pytest.raises(errors.Fenced):
            await old.delete_object(first, KIND, key)

        assert await new.get_object(first, KIND, key) == thing(by="new")
        await old.close()
        await new.close()

    async def test_not_open_to_others(self, harness: PersistenceHarness) -> None:
        """What others could read, lying there or on its way, is not used."""
        with pytest.raises(errors.BackendDead):
            await _opened(await harness.exposed())

    async def test_secrets_are_refused(self, provider: Any, first: str) -> None:
        """Where everybody may read them in the clear."""
        for bad in (
            thing() | {"apiVersion": "v1", "kind": "Secret"},
            thing(cloudProviderSpec={"token": NEEDLE}),
            thing(cloudProviderSpec={"password": {"value": NEEDLE}}),
            thing(kubeconfig=NEEDLE),
        ):
            with pytest.raises(errors.SensitiveObjectRefused) as refused:
                await provider.put_object(first, bad)
            assert NEEDLE not in str(refused.value)
        by_name = {"secretKeyRef": {"name": "s", "namespace": "n", "key": "k"}}
        await provider.put_object(first, thing(token=by_name, idempotencyToken="t-1"))

    async def test_nothing_of_an_object_is_said(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """Neither in the log, nor in an error, a metric, nor by a `repr`."""
        with overheard() as logged:
            key = await provider.put_object(first, thing("needle", hay=NEEDLE))
            await harness.damage(provider, first, KIND, key)
            with pytest.raises(errors.CorruptObject) as corrupt:
                await provider.get_object(first, KIND, key)
            await harness.fail(first)
            with pytest.raises(errors.BackendUnavailable) as failed:
                await provider.put_object(first, thing(hay=NEEDLE))
            await harness.heal(first)

        said = [logged(), repr(provider), repr(corrupt.value), repr(failed.value)]
        assert NEEDLE not in "".join(said) + metrics.exposition().decode()

    async def test_many_at_once_do_not_block(self, provider: Any, first: str) -> None:
        """A hundred, among them large ones; the event loop goes on. What blocks it does so every
        time, a busy machine does not."""
        large, found = "x" * 300_000, list[float]()
        for _ in range(10):
            async with stalls() as longest, Group() as group:
                for at in range(100):
                    obj = thing(f"n{at}", text=large if at % 20 == 0 else "small")
                    group.start(provider.put_object(first, obj), name=f"put-{at}")

            assert len(await provider.get_all_objects(first, KIND)) == 100
            found.append(longest())
            if not 0.05 < found[-1] <= 1.0:  # no machine is so busy for a whole second
                break
        assert min(found) <= 0.05

    async def test_last_write_wins(self, provider: Any, first: str) -> None:
        """Writes to one object happen in the order they were asked for."""
        writes = [
            spawn(provider.put_object(first, thing(size=at)), name=f"put-{at}") for at in range(20)
        ]
        key = [await write for write in writes][-1]

        assert await provider.get_object(first, KIND, key) == thing(size=19)


async def _opened(provider: Any) -> None:
    try:
        await provider.initialize(HERE)
    finally:
        await provider.close()
