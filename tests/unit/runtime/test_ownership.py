"""Claims: kept, adopted, released, and what is left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from ccm.gardener import crds, names
from ccm.gardener.kinds import MACHINE_SETS, MACHINES
from ccm.gardener.sets import MachineSet
from ccm.kube.client import Client
from ccm.kube.errors import Conflict, KubeError, Unreachable
from ccm.kube.informer import Store
from ccm.model import ObjectMeta, OwnerReference, Pod
from ccm.model.machines import Machine
from ccm.model.owners import controller_uid, release_patch
from ccm.runtime.ownership import Index, Ownership
from ccm.runtime.writer import Writer
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time

BASE = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/default"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Room:
    """A set `web`, machines, and who claims them."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        for one in crds.DEFINITIONS:
            self.server.put(DEFINITIONS, dict(crds.manifest(one)))
        self.client: Client = self.server.client()
        self.machines = self.client.resource(MACHINES)
        self.sets = self.client.resource(MACHINE_SETS)
        self.ownership = Ownership(
            kind=MACHINE_SETS, owners=self.sets, write=Writer(self.machines, strategic=False)
        )

    async def owner(self, name: str = "web", **metadata: Any) -> MachineSet:
        return await self.sets.create({"metadata": {"name": name, **metadata}}, namespace="default")

    async def machine(self, name: str, label: str = "web", **metadata: Any) -> Machine:
        body = {"metadata": {"name": name, "labels": {"name": label}, **metadata}}
        return await self.machines.create(body, namespace="default")

    async def owned(self, name: str, owner: MachineSet, label: str = "web") -> Machine:
        by = {
            "apiVersion": MACHINE_SETS.api_version,
            "kind": "MachineSet",
            "name": owner.name,
            "uid": owner.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        return await self.machine(name, label, ownerReferences=[by])

    async def claim(self, owner: MachineSet, among: Sequence[Machine]) -> list[str]:
        found = await self.ownership.claim(
            owner, among, lambda one: one.labels.get("name") == "web"
        )
        return [one.name for one in found]

    def owners(self, name: str) -> list[dict[str, Any]]:
        return list(
            (self.server.get(f"{BASE}/machines/{name}") or {})["metadata"].get(
                "ownerReferences", []
            )
        )


@pytest_asyncio.fixture
async def room() -> AsyncIterator[Room]:
    yield Room()


async def test_what_is_owned_and_matches_is_kept_without_a_request(room: Room) -> None:
    owner = await room.owner()
    kept = await room.owned("a", owner)
    before = room.server.requests.total()

    assert await room.claim(owner, [kept]) == ["a"]
    assert room.server.requests.total() == before


async def test_an_orphan_that_matches_is_adopted_beside_its_other_owners(room: Room) -> None:
    owner = await room.owner()
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u-x"}
    orphan = await room.machine("a", ownerReferences=[{**other, "blockOwnerDeletion": True}])
    stranger = await room.machine("b", "api")

    assert await room.claim(owner, [orphan, stranger]) == ["a"]

    kept, ours = room.owners("a")
    assert kept == {**other, "blockOwnerDeletion": True}
    assert ours == {
        "apiVersion": MACHINE_SETS.api_version,
        "kind": "MachineSet",
        "name": "web",
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert room.owners("b") == []


async def test_what_matches_no_more_is_released_for_good(room: Room) -> None:
    owner = await room.owner()
    left = await room.owned("a", owner, label="api")

    assert await room.claim(owner, [left]) == []
    assert room.owners("a") == []


async def test_what_another_one_controls_is_left_alone(room: Room) -> None:
    owner, other = await room.owner(), await room.owner("other")
    foreign = await room.owned("a", other)
    before = room.server.requests.total()

    assert await room.claim(owner, [foreign]) == []
    assert room.server.requests.total() == before


async def test_an_owner_that_is_going_takes_nothing_and_keeps_what_it_has(room: Room) -> None:
    owner = await room.owner(finalizers=["example.com/hold"])
    has = await room.owned("a", owner, label="api")
    orphan = await room.machine("b")
    await room.sets.delete("web", namespace="default")
    going = await room.sets.get("web", namespace="default")
    writes = room.server.writes("machines")

    assert await room.claim(going, [has, orphan]) == ["a"]
    assert room.server.writes("machines") == writes


async def test_the_cache_may_not_know_yet_that_the_owner_is_going(room: Room) -> None:
    cached = await room.owner(finalizers=["example.com/hold"])
    orphan = await room.machine("a")
    await room.sets.delete("web", namespace="default")

    assert await room.claim(cached, [orphan]) == []
    assert room.owners("a") == []


async def test_an_owner_that_was_made_anew_is_another_one(room: Room) -> None:
    cached = await room.owner()
    orphan = await room.machine("a")
    await room.sets.delete("web", namespace="default")

    assert await room.claim(cached, [orphan]) == []
    await room.owner()
    assert await room.claim(cached, [orphan]) == []
    assert room.owners("a") == []


async def test_what_is_deleted_is_not_adopted(room: Room) -> None:
    owner = await room.owner()
    await room.machine("a", finalizers=["example.com/hold"])
    await room.machines.delete("a", namespace="default")
    going = await room.machines.get("a", namespace="default")

    assert await room.claim(owner, [going]) == []
    assert room.owners("a") == []


async def test_who_is_faster_has_it(room: Room) -> None:
    """Two owners see the same orphan; the patch of the slower one meets another version."""
    first, second = await room.owner(), await room.owner("other")
    orphan = await room.machine("a")

    assert await room.claim(first, [orphan]) == ["a"]
    assert await room.claim(second, [orphan]) == []
    assert [one["uid"] for one in room.owners("a")] == [first.uid]


async def test_the_owner_is_read_once_for_all_orphans(room: Room) -> None:
    owner = await room.owner()
    orphans = [await room.machine(f"m{number}") for number in range(3)]

    await room.claim(owner, orphans)

    assert room.server.reads("machinesets") == 1


async def test_one_that_cannot_be_adopted_keeps_no_other_from_it(room: Room) -> None:
    owner = await room.owner()
    orphans = [await room.machine(name) for name in ("a", "b")]
    refusal: KubeError = Unreachable("cut", kind="timeout")
    room.server.refuse = lambda method, path: (
        refusal if method == "PATCH" and path.endswith("/a") else None
    )

    with pytest.raises(Unreachable):
        await room.claim(owner, orphans)

    assert room.owners("a") == []
    assert len(room.owners("b")) == 1


async def test_one_that_cannot_be_released_keeps_no_other_from_it(room: Room) -> None:
    owner = await room.owner()
    leaving = [await room.owned(name, owner, label="api") for name in ("a", "b")]
    refusal: KubeError = Unreachable("cut", kind="timeout")
    room.server.refuse = lambda method, path: (
        refusal if method == "PATCH" and path.endswith("/a") else None
    )

    with pytest.raises(Unreachable):
        await room.claim(owner, leaving)

    assert len(room.owners("a")) == 1
    assert room.owners("b") == []


async def test_an_adopted_one_counts_before_the_cache_has_it(room: Room) -> None:
    owner = await room.owner()
    orphan = await room.machine("a")
    cache: Store[Machine] = Store()
    cache._objects[orphan.key] = orphan
    writer = Writer(room.machines, cache=cache, strategic=False)
    ownership = Ownership(kind=MACHINE_SETS, owners=room.sets, write=writer)

    first = await ownership.claim(owner, cache.list(), lambda _: True)
    writes = room.server.writes("machines")
    second = await ownership.claim(owner, cache.list(), lambda _: True)

    assert [one.name for one in first] == [one.name for one in second] == ["a"]
    assert room.server.writes("machines") == writes


async def test_a_patch_is_for_the_very_object(room: Room) -> None:
    """One that was made anew under the name of a released one is not touched."""
    owner = await room.owner()
    old = await room.owned("a", owner, label="api")
    await room.machines.delete("a", namespace="default")
    await room.owned("a", owner, label="api")

    assert await room.claim(owner, [old]) == []
    assert len(room.owners("a")) == 1
    patch = release_patch(old, owner.uid)
    assert patch is not None
    with pytest.raises(Conflict):
        await room.machines.patch_merge("a", patch, namespace="default")


def owned_by(uid: str, name: str = "a") -> Pod:
    owners = [OwnerReference(uid=uid, controller=True)] if uid else None
    return Pod(metadata=ObjectMeta(name=name, namespace="n", owner_references=owners))


def test_an_index_follows_who_controls_what() -> None:
    index: Index[Pod] = Index()
    index.note(None, owned_by("u1"))
    index.note(None, owned_by("", "b"))
    assert list(index.owned("u1")) == ["n/a"]
    assert list(index.orphans) == ["n/b"]
    assert index.candidates("u1") == ["n/a", "n/b"]

    index.note(owned_by("u1"), owned_by("u2"))
    index.note(owned_by("", "b"), None)

    assert list(index.owned("u1")) == list(index.orphans) == list(index.owned("")) == []
    assert index.candidates("u2") == ["n/a"]


def test_an_owner_that_is_not_the_controller_controls_nothing() -> None:
    by = [OwnerReference(uid="u1"), OwnerReference(uid="u2", controller=False)]
    assert controller_uid(Pod(metadata=ObjectMeta(owner_references=by))) == ""
