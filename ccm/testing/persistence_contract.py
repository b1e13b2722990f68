"""The persistence contract: a test class that checks the behaviour on which the daemon relies.

```python
class TestAcme(PersistenceContract):
    @pytest_asyncio.fixture
    async def harness(self):
        async with FakeAcme() as fake:
            yield AcmeHarness(fake)
```

Fill the hooks of `PersistenceHarness`. Declare each statement that your storage cannot fulfil:
`exempt = {"PS-23": "objects end with the process"}`; the report shows the reason. The docstring of
a case starts with the numbers of the statements that it checks.
"""

from __future__ import annotations

import asyncio
import copy
import math
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ccm.base import clock, metrics
from ccm.base.tasks import NamedTaskGroup, cancel_and_join, spawn
from ccm.persistence import errors
from ccm.persistence.interface import ABSENT, CAS, FENCING, GVK, MachineId, ObjectKey
from ccm.persistence.objects import INSTANCE_NAME, MAX_DEPTH
from ccm.testing.persistence_harness import (
    ELSEWHERE,
    HERE,
    PATIENCE_S,
    PersistenceHarness,
    captured_logs,
    measure_stalls,
)

__all__ = ["KIND", "PATIENCE_S", "PersistenceContract"]

KIND = GVK("contract.ccm", "v1", "Thing")
ODD = ("a:b", "Upper", "upper", "100%", ".hidden", "x" * 253, "ünï-☃", "a/b", "..", "~", "_")
NEEDLE = "s3cr3t-needle-in-the-hay"


def thing(name: str = "one", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """Return an object for storage."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "metadata": metadata,
        "spec": {"size": 3, "zones": ["a", None, True, 1.5], "text": "größe\n"} | spec,
    }


class ObjectCases:
    """Cases about objects; part of `PersistenceContract`."""

    async def test_round_trip(self, provider: Any, first: str) -> None:
        """PS-14: A stored object equals the object that was written."""
        obj = thing()
        before = copy.deepcopy(obj)

        key = await provider.put_object(first, obj)

        assert await provider.get_object(first, KIND, key) == before == obj

    async def test_key_is_the_same_everywhere(self, provider: Any) -> None:
        """PS-15: Namespace and name determine the key; a second put replaces the object."""
        first, second = provider.instances()
        key = await provider.put_object(first, thing(size=1))

        assert await provider.put_object(second, thing(size=2)) == key
        assert await provider.put_object(first, thing(size=3)) == key
        assert await provider.get_all_objects(first, KIND) == [thing(size=3)]

    async def test_what_is_no_object_is_refused(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """PS-16: An invalid or too large object is refused and nothing of it is written."""
        deep: Any = "end"
        for _ in range(MAX_DEPTH + 1):
            deep = [deep]
        refused = [
            {"kind": "K", "metadata": {"name": "n"}},
            {"apiVersion": "v1", "metadata": {"name": "n"}},
            {"apiVersion": "v1", "kind": "K", "metadata": {}},
            *(
                thing(bad=bad)
                for bad in (math.nan, math.inf, b"bytes", {1: 2}, deep, {1}, "\ud800")
            ),
        ]
        for bad in refused:
            with pytest.raises(errors.InvalidObject):
                await provider.put_object(first, bad)
        with pytest.raises(errors.ObjectTooLarge):
            await provider.put_object(first, thing(big="x" * harness.max_bytes))

        assert await provider.get_all_objects(first, KIND) == []
        await provider.put_object(first, thing(big="x" * (harness.max_bytes - 1000)))

    async def test_scopes(self, provider: Any, first: str) -> None:
        """PS-17: Namespace, group, version and kind distinguish objects."""
        others = [
            thing() | {"apiVersion": "contract.ccm/v1beta1"},
            thing() | {"apiVersion": "v1"},
            thing() | {"kind": "Other"},
            thing(namespace="other"),
            thing(namespace=""),
        ]
        for obj in (thing(), *others):
            await provider.put_object(first, obj)

        beta = GVK("contract.ccm", "v1beta1", KIND.kind)
        assert await provider.get_all_objects(first, beta) == [others[0]]
        assert len(await provider.get_all_objects(first, KIND)) == 3

    async def test_delete(self, provider: Any, first: str) -> None:
        """PS-19: A delete removes the object and can be repeated; a later put works."""
        key = await provider.put_object(first, thing())

        await provider.delete_object(first, KIND, key)
        await provider.delete_object(first, KIND, key)

        assert await provider.get_object(first, KIND, key) is None
        assert await provider.get_all_objects(first, KIND) == []
        assert await provider.put_object(first, thing()) == key
        assert await provider.get_object(first, KIND, key) == thing()

    async def test_unknown_names_and_keys(self, provider: Any, first: str) -> None:
        """PS-20: Unknown instances and malformed keys are refused without a storage request."""
        unknown, key = "nobody-0123456789abcdef", ObjectKey("default/one")
        for call in (
            provider.put_object(unknown, thing()),
            provider.get_object(unknown, KIND, key),
            provider.delete_object(unknown, KIND, key),
            provider.get_all_objects(unknown, KIND),
        ):
            with pytest.raises(errors.UnknownInstance):
                await call
        for bad in ("../x", "x", "a/../b", "a/b/c", "A/b", "a/.b", "", "a/%zz", "a/" + "b" * 300):
            for refused in (provider.get_object, provider.delete_object):
                with pytest.raises(errors.InvalidObject):
                    await refused(first, KIND, ObjectKey(bad))

    async def test_instances_are_isolated(self, provider: Any) -> None:
        """PS-21: An instance does not see the objects of another instance."""
        first, second = provider.instances()
        key = await provider.put_object(first, thing())

        assert await provider.get_object(second, KIND, key) is None
        assert await provider.get_all_objects(second, KIND) == []

    async def test_odd_names(self, provider: Any, first: str) -> None:
        """PS-22: Unusual names do not get lost or collide."""
        keys = {name: await provider.put_object(first, thing(name, odd=name)) for name in ODD}

        assert len(set(keys.values())) == len(ODD)
        assert len({key.lower() for key in keys.values()}) == len(ODD)
        for name, key in keys.items():
            assert await provider.get_object(first, KIND, key) == thing(name, odd=name)

    async def test_list_beyond_a_page(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """PS-18: A listing has all objects; changing the result changes nothing in storage."""
        count = harness.many
        await put_many(provider, first, count)

        objects = await provider.get_all_objects(first, KIND)

        assert sorted(obj["metadata"]["name"] for obj in objects) == sorted(
            f"n{at}" for at in range(count)
        )
        objects[0]["spec"]["size"] = "changed"
        again = await provider.get_all_objects(first, KIND)
        assert all(obj["spec"]["size"] == 3 for obj in again)


async def put_many(provider: Any, instance: str, count: int) -> None:
    """Write `count` objects, 16 at a time."""
    names = iter(range(count))

    async def work() -> None:
        for at in names:
            await provider.put_object(instance, thing(f"n{at}"))

    async with NamedTaskGroup() as group:
        for number in range(16):
            group.start(work(), name=f"puts-{number}")


WRITERS = 16
"""Number of competing writers."""


class TrustCases:
    """Cases about consistency and confidentiality; part of `PersistenceContract`."""

    async def test_readers_see_old_or_new(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """PS-24: Readers, also in another process, see the complete old or complete new object."""
        reader = harness.make() if harness.several else provider
        await reader.initialize(HERE)
        key = await provider.put_object(first, thing(a=0, b="0" * 9000))
        seen = set()

        async def write() -> None:
            for at in range(1, 25):
                await provider.put_object(first, thing(a=at, b=str(at % 10) * 9000))

        writing = spawn(write(), name="write")
        while not writing.done():
            stored = await reader.get_object(first, KIND, key)
            assert stored["spec"]["b"] == str(stored["spec"]["a"] % 10) * 9000
            seen.add(stored["spec"]["a"])
        await writing
        assert seen
        await reader.close()

    async def test_failed_put_leaves_old_or_new(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """PS-25, PS-26: After a failed put, the object is entirely old or new; retries are safe."""
        key = await provider.put_object(first, thing(size=1))
        await harness.fail(first)
        with pytest.raises(errors.BackendUnavailable):
            await provider.put_object(first, thing(size=2))
        await harness.heal(first)

        assert await provider.get_object(first, KIND, key) in (thing(size=1), thing(size=2))
        await provider.put_object(first, thing(size=2))
        assert await provider.get_object(first, KIND, key) == thing(size=2)

    async def test_cancelled_put_leaves_old_or_new(self, provider: Any, first: str) -> None:
        """PS-27: A put can be cancelled at any point and blocks no later put."""
        key = await provider.put_object(first, thing(size=0))
        for at in range(1, 12):
            put = spawn(provider.put_object(first, thing(size=at)), name="put")
            for _ in range(at):
                await asyncio.sleep(0)
            await asyncio.sleep(0.0002 * at)
            await cancel_and_join(put)
            stored = await provider.get_object(first, KIND, key)
            assert stored["spec"]["size"] <= at

        async with asyncio.timeout(PATIENCE_S):
            await provider.put_object(first, thing(size=99))
        assert await provider.get_object(first, KIND, key) == thing(size=99)

    async def test_survives_a_new_process(self, harness: PersistenceHarness) -> None:
        """PS-23: After a restart, acknowledged objects exist and deleted objects do not."""
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
        """PS-28: A damaged object is never returned and does not hide intact objects."""
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
        """PS-29: Of many writers that expect absence, exactly one succeeds."""
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

        async with NamedTaskGroup() as group:
            for number in range(WRITERS):
                group.start(create(number), name=f"create-{number}")

        (winner,) = outcomes
        assert await provider.get_all_objects(first, KIND) == [thing(by=winner)]
        for other in others:
            await other.close()

    async def test_versions(self, provider: Any, first: str) -> None:
        """PS-30: A write that expects an outdated version changes nothing."""
        key, first_version = await provider.put_versioned(first, thing(size=1), expect=ABSENT)
        _, second_version = await provider.put_versioned(first, thing(size=2), expect=first_version)

        assert first_version != second_version
        assert await provider.get_versioned(first, KIND, key) == (thing(size=2), second_version)
        for stale in (first_version, ABSENT, "never"):
            with pytest.raises(errors.VersionConflict):
                await provider.put_versioned(first, thing(size=3), expect=stale)
        items = [item async for item in provider.iter_objects(first, KIND)]
        assert items == [(key, thing(size=2), second_version)]
        await provider.delete_object(first, KIND, key)
        with pytest.raises(errors.VersionConflict):
            await provider.put_versioned(first, thing(size=4), expect=second_version)
        assert await provider.get_versioned(first, KIND, key) is None
        await provider.put_versioned(first, thing(size=1), expect=ABSENT)
        with pytest.raises(errors.VersionConflict):
            await provider.put_versioned(first, thing(size=5), expect=first_version)

    async def test_capabilities(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """PS-31: The provider has the required capabilities; without CAS, versioned puts fail."""
        capabilities = provider.capabilities(first)

        assert capabilities >= harness.capabilities
        if CAS not in capabilities:
            with pytest.raises(errors.VersionConflict):
                await provider.put_versioned(first, thing(), expect=ABSENT)
            assert await provider.get_all_objects(first, KIND) == []

    async def test_stale_leader_is_fenced(self, harness: PersistenceHarness) -> None:
        """PS-32: After a newer leader opened the storage, the older leader can change nothing."""
        if not harness.several:
            pytest.skip("not supported: access by several processes")
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
        """PS-33: The provider refuses storage that others could read, at rest or in transit."""
        with pytest.raises(errors.BackendDead):
            await _opened(await harness.exposed())

    async def test_secrets_are_refused(self, provider: Any, first: str) -> None:
        """PS-34: Storage without encryption refuses objects with secrets."""
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
        """PS-35: Logs, errors, metrics and `repr` have no content of objects."""
        with captured_logs() as logged:
            key = await provider.put_object(first, thing("needle", hay=NEEDLE))
            await harness.damage(provider, first, KIND, key)
            with pytest.raises(errors.CorruptObject) as corrupt:
                await provider.get_object(first, KIND, key)
            await harness.fail(first)
            with pytest.raises(errors.BackendUnavailable) as failed:
                await provider.put_object(first, thing(hay=NEEDLE))
            await harness.heal(first)

        outputs = [logged(), repr(provider), repr(corrupt.value), repr(failed.value)]
        assert NEEDLE not in "".join(outputs) + metrics.exposition().decode()

    async def test_many_at_once_do_not_block(self, provider: Any, first: str) -> None:
        """PS-36: A hundred concurrent writes, some of them large, do not block the event loop.

        Blocking code stalls the loop in every attempt; a busy machine stalls it in some attempts.
        """
        large, stalls_s = "x" * 300_000, list[float]()
        for _ in range(10):
            async with measure_stalls() as longest, NamedTaskGroup() as group:
                for at in range(100):
                    obj = thing(f"n{at}", text=large if at % 20 == 0 else "small")
                    group.start(provider.put_object(first, obj), name=f"put-{at}")

            assert len(await provider.get_all_objects(first, KIND)) == 100
            stalls_s.append(longest())
            if not 0.05 < stalls_s[-1] <= 1.0:  # above 1 s, a busy machine is no excuse
                break
        assert min(stalls_s) <= 0.05

    async def test_last_write_wins(self, provider: Any, first: str) -> None:
        """PS-37: Writes to one object take effect in the order of the calls."""
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


@pytest.mark.asyncio
class PersistenceContract(ObjectCases, TrustCases):
    """Base class for the tests of a persistence provider.

    Name the subclass `Test...` and give it a fixture `harness`.
    """

    @pytest.fixture(autouse=True)
    def _exempt(self, request: pytest.FixtureRequest, harness: PersistenceHarness) -> None:
        name = request.node.originalname
        rows = [row for row, case in ROWS.items() if case == name]
        if rows and all(row in harness.exempt for row in rows):
            pytest.skip("; ".join(f"{row}: {harness.exempt[row]}" for row in rows))

    @pytest_asyncio.fixture
    async def provider(self, harness: PersistenceHarness) -> AsyncIterator[Any]:
        """Open an initialized provider."""
        opened = harness.make()
        await opened.initialize(HERE)
        yield opened
        await opened.close()

    @pytest.fixture
    def first(self, provider: Any) -> str:
        """Return the name of the first instance."""
        return str(provider.instances()[0])

    async def test_dead_provider_says_so(self, harness: PersistenceHarness) -> None:
        """PS-01: After a failed `initialize`, all calls fail and the status is down."""
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
        """PS-02: Calls fail before `initialize` and after `close`; both can be repeated."""
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
        """PS-03: `initialize` succeeds with one instance down, which recovers by itself."""
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
        """PS-04: Shared storage separates clusters; exclusive storage refuses another cluster."""
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
        """PS-05, PS-07: Names of instances are unique and well-formed."""
        names = provider.instances()

        assert len(set(names)) == len(names) == 2
        assert all(INSTANCE_NAME.fullmatch(name) for name in names)

    async def test_names_are_the_same_in_another_process(
        self, harness: PersistenceHarness, provider: Any
    ) -> None:
        """PS-06: Names of instances depend only on the configuration."""
        assert harness.make().instances() == provider.instances()

    async def test_instances_are_listed_down_or_not(
        self, harness: PersistenceHarness, provider: Any
    ) -> None:
        """PS-08: `instances` always returns all instances in the same order."""
        before = list(provider.instances())
        await harness.fail(before[0])
        with pytest.raises(errors.BackendUnavailable):
            await provider.put_object(before[0], thing())

        assert list(provider.instances()) == before
        await harness.heal(before[0])

    async def test_status_of_an_unknown_instance(self, provider: Any) -> None:
        """PS-09, PS-13: The status of an unknown instance is "does not exist", without an error."""
        status = await provider.instance_status("nobody-0123456789abcdef")

        assert status.to_json() == {"exists": False}
        assert status.to_yaml() == {"exists": False}
        assert status.mean_persist_latency == 0.0

    async def test_status_does_not_wait(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """PS-10: A status call returns at once, also while the storage hangs."""
        await harness.hang(first)
        hanging = spawn(provider.put_object(first, thing()), name="hanging")
        await asyncio.sleep(0.01)

        try:
            async with asyncio.timeout(5):  # a status call that waits would never return
                for _ in range(10):
                    await provider.instance_status(first)
        finally:
            await harness.heal(first)
        await hanging

    async def test_failure_and_recovery_show(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """PS-11: The status is down after a failure and up after the first success or probe."""
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
        """PS-12: The mean latency covers successful writes and deletes, including time in hangs."""

        async def mean() -> float:
            status = await provider.instance_status(first)
            return float(status.mean_persist_latency)

        assert await mean() == 0.0
        await harness.hang(first)
        began = clock.monotonic()
        put = spawn(provider.put_object(first, thing()), name="put")
        await asyncio.sleep(0.4)  # on a busy machine, the put starts late
        await harness.heal(first)
        key = await put
        waited = await mean()
        # The provider starts to measure later than `began`.
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


ROWS = {
    row: name
    for name in dir(PersistenceContract)
    for row in re.findall(r"PS-\d\d", getattr(PersistenceContract, name).__doc__ or "")
}
"""Statement -> name of its case, read from the docstrings of the cases."""
