"""The persistence contract broken: backends with one defect each, and the cases that notice it.

Not collected by itself: `test_defects.py` runs it and expects the named cases to fail.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from ccm.base.log import logger
from ccm.persistence import errors
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.interface import GVK, Expected, ObjectKey, PersistenceProviderStatus, Version
from ccm.persistence.memory import MemoryStore
from ccm.persistence.objects import StoragePlace, instance_name
from ccm.persistence.store import Claim, Page, Store
from ccm.testing.persistence_contract import PersistenceContract
from ccm.testing.persistence_harness import PersistenceHarness
from tests.contract.persistence.stores import MemoryHarness


class Forgets(MemoryStore):
    """It acknowledges and writes nothing."""

    noticed = ("test_round_trip",)

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        return entry.version


class IgnoresNamespaces(MemoryStore):
    noticed = ("test_scopes",)

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        key = ObjectKey("_/" + place.key.partition("/")[2])
        return await super().write(StoragePlace(place.kind, key), entry, expect)


class FoldsCase(MemoryStore):
    """Names are stored unchanged on a case-insensitive file system."""

    noticed = ("test_odd_names",)

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        key = ObjectKey(place.key.replace("%55", "u"))
        return await super().write(StoragePlace(place.kind, key), entry, expect)


class KeepsTheOld(MemoryStore):
    noticed = ("test_key_is_the_same_everywhere", "test_last_write_wins")

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        if await self.read(place) is not None:
            return entry.version
        return await super().write(place, entry, expect)


class DeletesNothing(MemoryStore):
    noticed = ("test_delete",)

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        return


class ListsOnePage(MemoryStore):
    noticed = ("test_list_beyond_a_page",)

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        async for page in super().scan(kind):
            yield page
            return


class IgnoresConditions(MemoryStore):
    noticed = ("test_versions", "test_one_of_many_creates")

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        return await super().write(place, entry, None)


class NeverFences(MemoryStore):
    noticed = ("test_stale_leader_is_fenced",)

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        self._epoch = 0
        return await super().write(place, entry, expect)


class BlocksTheLoop(MemoryStore):
    noticed = ("test_many_at_once_do_not_block",)

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        if place.key.endswith("/n7"):
            time.sleep(4)  # on a busy machine too there are looks enough in it
        return await super().write(place, entry, expect)


class MixesClusters(MemoryStore):
    noticed = ("test_clusters_do_not_see_each_other",)

    async def open(self, claim: Claim) -> None:
        await super().open(claim._replace(cluster_uid="all"))


class WritesInPieces(MemoryStore):
    """A reader sees half of it."""

    noticed = ("test_readers_see_old_or_new", "test_cancelled_put_leaves_old_or_new")

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        half = entry.body[: len(entry.body) // 2]
        await super().write(place, entry._replace(body=half), expect)
        await asyncio.sleep(0.002)
        return await super().write(place, entry, None)


class SharesInstances(MemoryHarness):
    noticed = ("test_instances_are_isolated",)

    def stores(self) -> Mapping[str, Store]:
        return dict.fromkeys(self.held, next(iter(self.held.values())))


class NamesAtRandom(MemoryHarness):
    noticed = ("test_names_are_the_same_in_another_process",)

    def stores(self) -> Mapping[str, Store]:
        return {instance_name("memory", {"n": str(uuid.uuid4())}): MemoryStore() for _ in "ab"}


class LostOnRestart(MemoryHarness):
    noticed = ("test_survives_a_new_process",)
    exempt: ClassVar[Mapping[str, str]] = {}

    def stores(self) -> Mapping[str, Store]:
        return {name: MemoryStore() for name in self.held}


class OpenToOthers(MemoryHarness):
    noticed = ("test_not_open_to_others",)
    exempt: ClassVar[Mapping[str, str]] = {}


class ErrorMeansAbsent(StoreProvider):
    noticed = ("test_failure_and_recovery_show",)

    async def get_object(self, instance: str, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        try:
            return await super().get_object(instance, kind, key)
        except errors.BackendUnavailable:
            return None


class StatusAsks(StoreProvider):
    noticed = ("test_status_does_not_wait", "test_status_of_an_unknown_instance")

    async def instance_status(self, instance: str) -> PersistenceProviderStatus:
        await self._instances[instance].store.probe()
        return await super().instance_status(instance)


class NoticesNoDamage(StoreProvider):
    noticed = ("test_damage_is_noticed",)

    def _open_page(self, page: Page) -> Any:
        return [*super()._open_page(page)[0]], []

    async def get_object(self, instance: str, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        try:
            return await super().get_object(instance, kind, key)
        except errors.CorruptObject:
            return None


class CountsReads(StoreProvider):
    noticed = ("test_mean_latency",)

    async def get_object(self, instance: str, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        self._instances[instance]._latencies.append(5.0)
        return await super().get_object(instance, kind, key)


class ClosesAtOnce(StoreProvider):
    noticed = ("test_life_cycle",)

    async def _close(self) -> None:
        for one in self._instances.values():
            await one.store.close()
            one.store = _Closed()


class _Closed(MemoryStore):
    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        raise errors.Closed("closed")


class TakesSecrets(StoreProvider):
    noticed = ("test_secrets_are_refused",)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named, sensitive=True)


class TellsAll(StoreProvider):
    noticed = ("test_nothing_of_an_object_is_said",)

    async def put_object(self, instance: str, obj: Mapping[str, Any]) -> ObjectKey:
        try:
            return await super().put_object(instance, obj)
        except errors.BackendUnavailable as error:
            raise errors.BackendUnavailable(f"cannot store {obj}") from error


class LogsAll(StoreProvider):
    noticed = ("test_nothing_of_an_object_is_said",)

    async def put_object(self, instance: str, obj: Mapping[str, Any]) -> ObjectKey:
        logger("persistence").debug("object is written", detail=obj)
        return await super().put_object(instance, obj)


class ListsOnlyTheUp(StoreProvider):
    noticed = ("test_instances_are_listed_down_or_not",)

    def instances(self) -> Sequence[str]:
        up = [name for name, one in self._instances.items() if one.is_up]
        return up or super().instances()


class NamesAsItLikes(StoreProvider):
    noticed = ("test_names_of_instances",)

    def instances(self) -> Sequence[str]:
        return ["first", *super().instances()[1:]]


class TakesAnything(StoreProvider):
    noticed = ("test_what_is_no_object_is_refused",)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._prepare = lambda obj: json.dumps(obj, default=str).encode()  # type: ignore[assignment]


class FailsInTheMiddle(StoreProvider):
    """The old object is deleted before the new one is written."""

    noticed = ("test_failed_put_leaves_old_or_new",)

    async def put_object(self, instance: str, obj: Mapping[str, Any]) -> ObjectKey:
        try:
            return await super().put_object(instance, obj)
        except errors.BackendUnavailable:
            trouble: Any = self._instances[instance].store
            trouble._store.held.clear()
            raise


class PromisesNothing(MemoryStore):
    noticed = ("test_capabilities",)

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = frozenset()


class OutOfTurn(StoreProvider):
    """Two writes to one object overtake each other."""

    noticed = ("test_last_write_wins",)

    async def put_object(self, instance: str, obj: Mapping[str, Any]) -> ObjectKey:
        await asyncio.sleep(0.0 if obj["spec"]["size"] == 19 else 0.05)
        return await super().put_object(instance, obj)


class GoesOnWhenDead(StoreProvider):
    noticed = ("test_dead_provider_says_so",)

    async def initialize(self, machine_id: Any) -> None:
        try:
            await super().initialize(machine_id)
        except errors.BackendDead:
            self._dead, self._machine = "", machine_id
            raise


class NeedsAll(StoreProvider):
    """One instance that is down is taken for the end."""

    noticed = ("test_one_instance_is_enough",)

    async def _open_all(self, machine_id: Any) -> None:
        await super()._open_all(machine_id)
        if not all(one.is_up for one in self._instances.values()):
            raise errors.BackendDead("not all are up")


class AnyKey(StoreProvider):
    noticed = ("test_unknown_names_and_keys",)

    async def get_object(self, instance: str, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        found = await self._usable_instance(instance).store.read(StoragePlace(kind, key))
        return {} if found else None


DEFECTS: dict[str, Any] = {
    each.__name__: each
    for each in list(globals().values())
    if isinstance(each, type) and getattr(each, "noticed", None)
}


class Broken(PersistenceContract):
    """One defect put to the whole contract."""

    defect: ClassVar[Any]

    @pytest.fixture
    def harness(self) -> PersistenceHarness:
        defect = self.defect
        if issubclass(defect, PersistenceHarness):
            made_by: PersistenceHarness = defect()
            return made_by
        made = MemoryHarness()
        if issubclass(defect, MemoryStore):
            made.held = {name: defect() for name in made.held}
        else:
            made.provider = defect
        return made


for name, defect in DEFECTS.items():
    globals()[f"Test{name}"] = type(f"Test{name}", (Broken,), {"defect": defect})
del name, defect
