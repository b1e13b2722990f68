"""The persistence contract: what the daemon relies on, as a test class to subclass.

```python
class TestAcme(PersistenceContract):
    @pytest_asyncio.fixture
    async def harness(self):
        async with FakeAcme() as fake:
            yield AcmeHarness(fake)
```

`PersistenceHarness` says what it needs. What cannot hold is declared: `exempt = {"PS-23": "it is
gone with the process"}`; the report shows the reason. `ROWS` maps each statement to its cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ccm.base import clock
from ccm.base.tasks import spawn
from ccm.persistence import errors
from ccm.persistence.interface import MachineId, ObjectKey
from ccm.persistence.objects import INSTANCE
from ccm.testing.persistence_harness import (
    ELSEWHERE,
    HERE,
    PATIENCE_S,
    PersistenceHarness,
)
from ccm.testing.persistence_objects import KIND, ObjectCases, thing
from ccm.testing.persistence_trust import TrustCases

ROWS: dict[str, str] = {
    "PS-01": "test_dead_provider_says_so",
    "PS-02": "test_life_cycle",
    "PS-03": "test_one_instance_is_enough",
    "PS-04": "test_clusters_do_not_see_each_other",
    "PS-05": "test_names_of_instances",
    "PS-06": "test_names_are_the_same_in_another_process",
    "PS-07": "test_names_of_instances",
    "PS-08": "test_instances_are_listed_down_or_not",
    "PS-09": "test_status_of_an_unknown_instance",
    "PS-10": "test_status_does_not_wait",
    "PS-11": "test_failure_and_recovery_show",
    "PS-12": "test_mean_latency",
    "PS-13": "test_status_of_an_unknown_instance",
    "PS-14": "test_round_trip",
    "PS-15": "test_key_is_the_same_everywhere",
    "PS-16": "test_what_is_no_object_is_refused",
    "PS-17": "test_scopes",
    "PS-18": "test_list_beyond_a_page",
    "PS-19": "test_delete",
    "PS-20": "test_unknown_names_and_keys",
    "PS-21": "test_instances_are_isolated",
    "PS-22": "test_odd_names",
    "PS-23": "test_survives_a_new_process",
    "PS-24": "test_readers_see_old_or_new",
    "PS-25": "test_failed_put_leaves_old_or_new",
    "PS-26": "test_failed_put_leaves_old_or_new",
    "PS-27": "test_cancelled_put_leaves_old_or_new",
    "PS-28": "test_damage_is_noticed",
    "PS-29": "test_one_of_many_creates",
    "PS-30": "test_versions",
    "PS-31": "test_capabilities",
    "PS-32": "test_stale_leader_is_fenced",
    "PS-33": "test_not_open_to_others",
    "PS-34": "test_secrets_are_refused",
    "PS-35": "test_nothing_of_an_object_is_said",
    "PS-36": "test_many_at_once_do_not_block",
    "PS-37": "test_last_write_wins",
}
"""Statement -> case."""


@pytest.mark.asyncio
class PersistenceContract(ObjectCases, TrustCases):
    """Subclass it under a name `Test...` and give the subclass a fixture `harness`."""

    @pytest.fixture(autouse=True)
    def _exempt(self, request: pytest.FixtureRequest, harness: PersistenceHarness) -> None:
        name = request.node.originalname
        rows = [row for row, case in ROWS.items() if case == name]
        if rows and all(row in harness.exempt for row in rows):
            pytest.skip("; ".join(f"{row}: {harness.exempt[row]}" for row in rows))

    @pytest_asyncio.fixture
    async def provider(self, harness: PersistenceHarness) -> AsyncIterator[Any]:
        """Initialized."""
        made = harness.make()
        await made.initialize(HERE)
        yield made
        await made.close()

    @pytest.fixture
    def first(self, provider: Any) -> str:
        """Name of the first instance."""
        return str(provider.instances()[0])

    async def test_dead_provider_says_so(self, harness: PersistenceHarness) -> None:
        """After `initialize` failed nothing is tried any more, and it shows."""
        provider = harness.make()
        for name in provider.instances():
            await harness.fail(name)

        with pytest.raises(errors.BackendDead):
            await provider.initialize(HERE)
        for name in provider.instances():
            await harness.heal(name)

        with pytest.raises(errors.BackendDead):
            await provider.put_object(provider.instances()[0], thing())
        status = await provider.instance_status(provider.instances()[0])
        assert status.instance_exists
        assert not status.status
        await provider.close()

    async def test_life_cycle(self, harness: PersistenceHarness) -> None:
        """Not before, once, and never after."""
        provider = harness.make()
        (first, *_) = provider.instances()
        with pytest.raises(errors.NotInitialized):
            await provider.get_all_objects(first, KIND)
        await provider.initialize(HERE)
        await provider.initialize(HERE)
        with pytest.raises(errors.PersistenceError):
            await provider.initialize(MachineId(cluster_uid=HERE.cluster_uid, name="other"))
        writes = [spawn(provider.put_object(first, thing(f"n{at}")), name="put") for at in range(4)]
        await asyncio.sleep(0)

        await provider.close()
        await provider.close()

        assert [await write for write in writes] == [f"default/n{at}" for at in range(4)]
        with pytest.raises(errors.Closed):
            await provider.put_object(first, thing())

    async def test_one_instance_is_enough(self, harness: PersistenceHarness) -> None:
        """The other is down, and comes back by itself."""
        provider = harness.make()
        first, second = provider.instances()
        await harness.fail(second)

        await provider.initialize(HERE)

        assert (await provider.instance_status(first)).status
        assert not (await provider.instance_status(second)).status
        await harness.heal(second)
        await _until_up(provider, second)
        await provider.put_object(second, thing())
        await provider.close()

    async def test_clusters_do_not_see_each_other(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """Shared storage keeps them apart; storage of one cluster refuses another."""
        key = await provider.put_object(first, thing())
        if not harness.several:
            await provider.close()
        other = harness.make()
        if not harness.shares:
            with pytest.raises(errors.BackendDead, match=HERE.cluster_uid):
                await other.initialize(ELSEWHERE)
            await other.close()
            return

        await other.initialize(ELSEWHERE)

        assert await other.get_object(first, KIND, key) is None
        assert await other.get_all_objects(first, KIND) == []
        await other.close()

    async def test_names_of_instances(self, provider: Any) -> None:
        """They are unique, and of one form."""
        names = provider.instances()

        assert len(set(names)) == len(names) == 2
        assert all(INSTANCE.fullmatch(name) for name in names)

    async def test_names_are_the_same_in_another_process(
        self, harness: PersistenceHarness, provider: Any
    ) -> None:
        """They come from the configuration alone."""
        assert harness.make().instances() == provider.instances()

    async def test_instances_are_listed_down_or_not(
        self, harness: PersistenceHarness, provider: Any
    ) -> None:
        """Always all, always in the same order."""
        before = list(provider.instances())
        await harness.fail(before[0])
        with pytest.raises(errors.BackendUnavailable):
            await provider.put_object(before[0], thing())

        assert list(provider.instances()) == before
        await harness.heal(before[0])

    async def test_status_of_an_unknown_instance(self, provider: Any) -> None:
        """It does not exist; that is no error."""
        status = await provider.instance_status("nobody-0123456789abcdef")

        assert status.to_json() == {"exists": False}
        assert status.to_yaml() == {"exists": False}
        assert status.mean_persist_latency == 0.0

    async def test_status_does_not_wait(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """However the storage hangs."""
        await harness.hang(first)
        hanging = spawn(provider.put_object(first, thing()), name="hanging")
        await asyncio.sleep(0.01)

        try:
            async with asyncio.timeout(5):  # it hangs for ever
                for _ in range(10):
                    await provider.instance_status(first)
        finally:
            await harness.heal(first)
        await hanging

    async def test_failure_and_recovery_show(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """Down at once, up after the first success, be it a probe."""
        await harness.fail(first)
        with pytest.raises(errors.BackendUnavailable):
            await provider.put_object(first, thing())
        assert not (await provider.instance_status(first)).status
        with pytest.raises(errors.BackendUnavailable):
            await provider.get_object(first, KIND, ObjectKey("default/one"))
        with pytest.raises(errors.BackendUnavailable):
            await provider.get_all_objects(first, KIND)

        await harness.heal(first)

        await _until_up(provider, first)

    async def test_mean_latency(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """Of writes and deletes that succeeded, waiting included; of nothing else."""

        async def mean() -> float:
            status = await provider.instance_status(first)
            return float(status.mean_persist_latency)

        assert await mean() == 0.0
        await harness.hang(first)
        began = clock.monotonic()
        put = spawn(provider.put_object(first, thing()), name="put")
        await asyncio.sleep(0.4)  # a busy machine begins late
        await harness.heal(first)
        key = await put
        waited = await mean()
        # All of it, but for what is done before.
        assert 0.05 <= waited <= clock.monotonic() - began
        await provider.get_object(first, KIND, key)
        await harness.fail(first)
        with pytest.raises(errors.BackendUnavailable):
            await provider.put_object(first, thing())
        await harness.heal(first)
        assert await mean() == waited
        began = clock.monotonic()
        await provider.delete_object(first, KIND, key)
        took = clock.monotonic() - began
        assert waited / 2 < await mean() <= (waited + took) / 2


async def _until_up(provider: Any, instance: str) -> None:
    began = clock.monotonic()
    while not (await provider.instance_status(instance)).status:
        assert clock.monotonic() - began < PATIENCE_S
        await asyncio.sleep(0.01)
