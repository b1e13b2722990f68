"""Writes to the API server, ownership, and what an owner waits for."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ccm.gardener import crds, names
from ccm.gardener.codec import MACHINE_SETS, MACHINES
from ccm.gardener.types import Machine as MachineObject
from ccm.kube.client import Client
from ccm.kube.errors import ApiError, Conflict, KubeError, NotFound, Unreachable
from ccm.model import Node, ObjectMeta, patches
from ccm.model.machines import Machine, MachineSet
from ccm.model.patches import Patch
from ccm.runtime.ownership import Expectations, Ownership
from ccm.runtime.writer import Writer
from ccm.testing.builders import node
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time


def conflict() -> ApiError:
    return Conflict(status=409, reason="Conflict", message="modified")


class Api:
    """One object; refuses as told, and notes the requests."""

    def __init__(self, obj: Node | None) -> None:
        self.obj = obj
        self.requests: list[str] = []
        self.patches: list[Mapping[str, Any]] = []
        self.refuse: list[ApiError] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def _found(self) -> Node:
        if self.obj is None:
            raise NotFound(status=404, reason="NotFound", message="gone")
        return self.obj

    async def get(self, name: str, *, namespace: str = "") -> Node:
        self.requests.append("get")
        return self._found()

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> Node:
        return self._patched("strategic", patch, subresource)

    async def patch_merge(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> Node:
        return self._patched("merge", patch, subresource)

    def _patched(self, kind: str, patch: Mapping[str, Any], subresource: str) -> Node:
        self.requests.append(f"{kind} {subresource}".strip())
        self.patches.append(patch)
        if self.refuse:
            refusal = self.refuse.pop(0)
            self.meanwhile()
            raise refusal
        found = self._found()
        self.obj = versioned(found, str(int(found.resource_version) + 1))
        return self.obj

    async def delete(self, name: str, *, namespace: str = "", uid: str | None = None) -> None:
        if self._found().uid != uid:
            raise conflict()
        self.obj = None


def versioned(obj: Node, version: str, **metadata: Any) -> Node:
    meta = msgspec.structs.replace(obj.metadata, resource_version=version, **metadata)
    return msgspec.structs.replace(obj, metadata=meta)


def label(obj: Node) -> Patch | None:
    return {"metadata": {**patches.same_version(obj), "labels": {"a": "b"}}}


def writer(api: Api, **settings: Any) -> Writer[Node]:
    return Writer(api, rng=random.Random(1), **settings)


A = versioned(node("a", uid="u1"), "1")


OWNER = "uid-of-web"


def machine(name: str = "a", uid: str = "u-a", *, is_deleting: bool = False) -> MachineObject:
    stamp = "2026-01-01T00:00:00Z" if is_deleting else None
    meta = ObjectMeta(name=name, namespace="n", uid=uid, deletion_timestamp=stamp)
    return MachineObject(metadata=meta)


def test_an_owner_that_is_gone_waits_for_nothing() -> None:
    found = Expectations()
    found.creating(OWNER, "n", "a")
    found.in_doubt("n", "a")
    found.creating(OWNER, "n", "b")
    found.deleting(OWNER, machine("c"))

    found.forget(OWNER)

    assert found.satisfied(OWNER)
    assert found.due_s(OWNER) is None
    assert list(found.doubtful(OWNER)) == []


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


async def test_an_owner_that_was_made_anew_is_another_one(room: Room) -> None:
    cached = await room.owner()
    orphan = await room.machine("a")
    await room.sets.delete("web", namespace="default")

    assert await room.claim(cached, [orphan]) == []
    await room.owner()
    assert await room.claim(cached, [orphan]) == []
    assert room.owners("a") == []


async def test_who_is_faster_has_it(room: Room) -> None:
    """Two owners see the same orphan; the patch of the slower one meets another version."""
    first, second = await room.owner(), await room.owner("other")
    orphan = await room.machine("a")

    assert await room.claim(first, [orphan]) == ["a"]
    assert await room.claim(second, [orphan]) == []
    assert [one["uid"] for one in room.owners("a")] == [first.uid]


@pytest.mark.parametrize("is_owned", [False, True], ids=["adopted", "released"])
async def test_one_that_cannot_be_written_keeps_no_other_from_it(
    room: Room, is_owned: bool
) -> None:
    owner = await room.owner()
    claimed = [
        await (room.owned(name, owner, label="api") if is_owned else room.machine(name))
        for name in ("a", "b")
    ]
    refusal: KubeError = Unreachable("cut", kind="timeout")
    room.server.refuse = lambda method, path: (
        refusal if method == "PATCH" and path.endswith("/a") else None
    )

    with pytest.raises(Unreachable):
        await room.claim(owner, claimed)

    assert [len(room.owners(name)) for name in ("a", "b")] == ([1, 0] if is_owned else [0, 1])
