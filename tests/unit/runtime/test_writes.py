"""Writes to the API server, ownership, and expectations."""

from __future__ import annotations

import asyncio
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
from ccm.kube.errors import (
    ApiError,
    Conflict,
    Invalid,
    KubeError,
    NotFound,
    StatusCause,
    StatusDetails,
    Unreachable,
)
from ccm.kube.informer import InformerStore
from ccm.model import Node, ObjectMeta, patches
from ccm.model.machines import Machine, MachineSet
from ccm.model.patches import Patch, StaleObject
from ccm.runtime.ownership import Expectations, Ownership
from ccm.runtime.writer import ObjectWriter, PatchStep, delete
from ccm.testing.builders import node
from ccm.testing.clock import elapsed_s
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time


def conflict() -> ApiError:
    return Conflict(status=409, reason="Conflict", message="modified")


class Api:
    """API with one object; refuses on request, and records the requests."""

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
    return {"metadata": {**patches.version_precondition(obj), "labels": {"a": "b"}}}


def writer(api: Api, **settings: Any) -> ObjectWriter[Node]:
    return ObjectWriter(api, rng=random.Random(1), **settings)


A = versioned(node("a", uid="u1"), "1")


OWNER = "uid-of-web"


def machine(name: str = "a", uid: str = "u-a", *, is_deleting: bool = False) -> MachineObject:
    stamp = "2026-01-01T00:00:00Z" if is_deleting else None
    meta = ObjectMeta(name=name, namespace="n", uid=uid, deletion_timestamp=stamp)
    return MachineObject(metadata=meta)


async def test_patch_step_is_planned_from_the_result_of_the_former_step() -> None:
    api = Api(A)
    written, changed = await writer(api).change(
        A, PatchStep(label, "status"), PatchStep(lambda _: None), PatchStep(label)
    )
    assert (changed, written and written.resource_version) == (True, "3")
    assert api.requests == ["strategic status", "strategic"]
    assert [each["metadata"]["resourceVersion"] for each in api.patches] == ["1", "2"]


def other_uid() -> ApiError:
    causes = [StatusCause(reason="FieldValueInvalid", message="immutable", field="metadata.uid")]
    details = StatusDetails(causes=causes)
    return Invalid(status=422, reason="Invalid", message="no", details=details)


@pytest.mark.parametrize("refusal", [conflict, other_uid])
@pytest.mark.parametrize(
    ("now", "requests"),
    [
        (versioned(A, "7"), ["strategic", "get", "strategic"]),
        (versioned(A, "9", uid="u2"), ["strategic", "get"]),
        (None, ["strategic", "get"]),
    ],
    ids=["there", "made anew", "gone"],
)
async def test_conflicting_write_is_replanned_only_for_the_same_object(
    refusal: Callable[[], ApiError], now: Node | None, requests: list[str]
) -> None:
    api = Api(A)
    api.refuse = [refusal()]
    api.meanwhile = lambda: setattr(api, "obj", now)
    _, changed = await writer(api, strategic=True).change(A, PatchStep(label))
    assert (api.requests, changed) == (requests, len(requests) == 3)
    assert not changed or api.patches[1]["metadata"]["resourceVersion"] == "7"


async def test_permanent_conflicts_and_invalid_patches_are_errors() -> None:
    api = Api(A)
    api.refuse = [conflict() for _ in range(20)]
    with pytest.raises(Conflict):
        await writer(api, attempts=20, pause_s=0.05).change(A, PatchStep(label))
    assert api.requests.count("strategic") == 20
    assert 18 * 0.05 <= elapsed_s() <= 18 * 0.1, "the first retry is at once"
    api.refuse = [Invalid(status=422, reason="Invalid", message="no")]
    with pytest.raises(Invalid):
        await writer(api).change(A, PatchStep(label))


async def test_writer_returns_its_own_writes_until_the_cache_has_them() -> None:
    cache: InformerStore[Node] = InformerStore()
    cache.put(A)
    own = writer(Api(A), cache=cache)
    written, _ = await own.change(A, PatchStep(label))
    later, anew = versioned(A, "3"), versioned(A, "1", uid="u2")
    assert own.newest(A) is written
    assert own.newest(later) is later
    assert own.newest(A) is A, "a version that the cache reached is forgotten"
    await own.change(A, PatchStep(label))
    assert own.newest(anew) is anew
    cache.pop(A.key)
    await own.change(A, PatchStep(label))
    assert own.newest(A) is A, "an object that left the cache before the response is forgotten"


async def test_delete_requires_the_same_uid() -> None:
    api = Api(versioned(A, "2", uid="u2"))
    with pytest.raises(StaleObject):
        await delete(api, A)
    assert api.obj is not None
    assert await delete(api, api.obj)
    assert not await delete(api, A)


class Lookups:
    """The objects that the API server has."""

    def __init__(self, *there: MachineObject) -> None:
        self.there = {one.key: one for one in there}

    async def get(self, name: str, *, namespace: str = "") -> MachineObject:
        if (found := self.there.get(f"{namespace}/{name}")) is None:
            raise NotFound(status=404, reason="NotFound", message="gone")
        return found


GOING, ANEW = machine(is_deleting=True), machine(uid="u-new")


@pytest.mark.parametrize(
    ("expected", "shown", "there", "late"),
    [
        pytest.param("creation", [], [], 0, id="it came and went unseen"),
        pytest.param("creation", [], [machine()], 1, id="it is there, the cache lags"),
        pytest.param("creation", [machine()], [machine()], 0, id="the cache shows it"),
        pytest.param("deletion", [machine()], [], 1, id="it is gone, the cache lags"),
        pytest.param("deletion", [machine()], [GOING], 1, id="it goes, the cache lags"),
        pytest.param("deletion", [machine()], [ANEW], 1, id="another has its name"),
        pytest.param("deletion", [machine()], [machine()], 0, id="it was never deleted"),
        pytest.param("deletion", [], [], 0, id="the cache shows it gone"),
        pytest.param("deletion", [ANEW], [], 0, id="the cache shows another of its name"),
        pytest.param("deletion", [GOING], [], 0, id="the cache shows it going"),
    ],
)
async def test_overdue_expectation_is_verified_by_a_read(
    expected: str, shown: list[MachineObject], there: list[MachineObject], late: int
) -> None:
    found, cache = Expectations(timeout_s=60.0), InformerStore[MachineObject]()
    cache._objects.update({one.key: one for one in shown})
    if expected == "creation":
        found.expect_creation(OWNER, "n", "a")
    else:
        found.expect_deletion(OWNER, machine())
    await asyncio.sleep(59.0)
    assert await found.verify_overdue(OWNER, Lookups(*there), cache) == 0
    assert not found.satisfied(OWNER)
    await asyncio.sleep(1.0)
    assert await found.verify_overdue(OWNER, Lookups(*there), cache) == late
    assert found.satisfied(OWNER) is (late == 0)
    assert (found.due_s(OWNER) or 0.0) == pytest.approx(60.0 * late)


@pytest.mark.parametrize(
    ("expected", "end"),
    [
        ("creation", lambda found: found.observe(machine())),
        ("creation", lambda found: found.observe_deletion(machine())),
        ("creation", lambda found: found.creation_failed("n", "a")),
        ("deletion", lambda found: found.observe_deletion(machine())),
        ("deletion", lambda found: found.observe(GOING)),
        ("deletion", lambda found: found.deletion_failed(machine())),
    ],
    ids=["seen", "came and went", "refused", "gone", "going", "kept"],
)
def test_expectation_ends_only_with_its_own_object(
    expected: str, end: Callable[[Expectations], None]
) -> None:
    found = Expectations()
    if expected == "creation":
        found.expect_creation(OWNER, "n", "a")
        found.observe(machine("b"))
    else:
        found.expect_deletion(OWNER, machine())
        found.observe(machine())
        found.observe_deletion(machine(uid="u-older"))
    assert not found.satisfied(OWNER)
    assert found.satisfied("another")
    end(found)
    assert found.satisfied(OWNER)
    assert list(found.uncertain_creations(OWNER)) == []


def test_creation_with_an_unknown_outcome_keeps_its_name() -> None:
    found = Expectations()
    for name in "abc":
        found.expect_creation(OWNER, "n", name)
        found.creation_unknown("n", name)
    assert found.satisfied(OWNER)
    found.observe(machine("a"))
    found.expect_creation(OWNER, "n", "b")
    assert list(found.uncertain_creations(OWNER)) == ["c"]


def test_forgotten_owner_has_no_expectations() -> None:
    found = Expectations()
    found.expect_creation(OWNER, "n", "a")
    found.creation_unknown("n", "a")
    found.expect_creation(OWNER, "n", "b")
    found.expect_deletion(OWNER, machine("c"))

    found.forget(OWNER)

    assert found.satisfied(OWNER)
    assert found.due_s(OWNER) is None
    assert list(found.uncertain_creations(OWNER)) == []


BASE = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/default"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def by(owner: MachineSet) -> dict[str, Any]:
    kind = {"apiVersion": MACHINE_SETS.api_version, "kind": "MachineSet"}
    controls = {"controller": True, "blockOwnerDeletion": True}
    return {**kind, "name": owner.name, "uid": owner.uid, **controls}


class Room:
    """A machine set `web`, machines, and their claims."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        for one in crds.DEFINITIONS:
            self.server.put(DEFINITIONS, dict(one.to_manifest()))
        self.client: Client = self.server.client()
        self.machines = self.client.resource(MACHINES)
        self.sets = self.client.resource(MACHINE_SETS)
        self.ownership = Ownership(
            kind=MACHINE_SETS, owners=self.sets, write=ObjectWriter(self.machines, strategic=False)
        )

    async def owner(self, name: str = "web", **metadata: Any) -> MachineSet:
        return await self.sets.create({"metadata": {"name": name, **metadata}}, namespace="default")

    async def machine(self, name: str, label: str = "web", **metadata: Any) -> Machine:
        body = {"metadata": {"name": name, "labels": {"name": label}, **metadata}}
        return await self.machines.create(body, namespace="default")

    async def owned(self, name: str, owner: MachineSet, label: str = "web") -> Machine:
        return await self.machine(name, label, ownerReferences=[by(owner)])

    async def claim(self, owner: MachineSet, among: Sequence[Machine]) -> list[str]:
        found = await self.ownership.claim(
            owner, among, lambda one: one.labels.get("name") == "web"
        )
        return [one.name for one in found]

    def owners(self, name: str) -> list[dict[str, Any]]:
        found = self.server.get(f"{BASE}/machines/{name}") or {}
        return list(found["metadata"].get("ownerReferences", []))


@pytest_asyncio.fixture
async def room() -> AsyncIterator[Room]:
    yield Room()


async def test_matching_orphan_is_adopted_and_keeps_its_other_owners(room: Room) -> None:
    owner = await room.owner()
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u-x"}
    orphan = await room.machine("a", ownerReferences=[{**other, "blockOwnerDeletion": True}])
    stranger = await room.machine("b", "api")

    assert await room.claim(owner, [orphan, stranger]) == ["a"]

    assert room.owners("a") == [{**other, "blockOwnerDeletion": True}, by(owner)]
    assert room.owners("b") == []


async def test_recreated_owner_adopts_nothing_for_the_former_one(room: Room) -> None:
    cached = await room.owner()
    orphan = await room.machine("a")
    await room.sets.delete("web", namespace="default")

    assert await room.claim(cached, [orphan]) == []
    await room.owner()
    assert await room.claim(cached, [orphan]) == []
    assert room.owners("a") == []


async def test_only_own_machines_are_released_and_not_by_a_deleted_owner(room: Room) -> None:
    owner, other = await room.owner(finalizers=["example.com/hold"]), await room.owner("other")
    kept, foreign = await room.owned("kept", owner), await room.owned("foreign", other)
    left = await room.owned("left", owner, label="api")
    before = room.server.writes("machines")
    assert await room.claim(owner, [kept, foreign]) == ["kept"]
    assert room.server.writes("machines") == before
    assert await room.claim(owner, [left]) == []
    assert room.owners("left") == []

    has, orphan = await room.owned("has", owner, label="api"), await room.machine("orphan")
    await room.sets.delete("web", namespace="default")
    before = room.server.writes("machines")
    assert await room.claim(owner, [orphan]) == [], "the cache does not have the deletion yet"
    going = await room.sets.get("web", namespace="default")
    assert await room.claim(going, [has, orphan]) == ["has"]
    assert room.server.writes("machines") == before


async def test_deleted_or_recreated_machine_is_not_claimed(room: Room) -> None:
    owner = await room.owner()
    await room.machine("a", finalizers=["example.com/hold"])
    await room.machines.delete("a", namespace="default")
    going = await room.machines.get("a", namespace="default")
    old = await room.owned("b", owner, label="api")
    await room.machines.delete("b", namespace="default")
    await room.owned("b", owner, label="api")

    assert await room.claim(owner, [going, old]) == []
    assert [len(room.owners(name)) for name in "ab"] == [0, 1]


async def test_first_of_two_owners_adopts_an_orphan(room: Room) -> None:
    """Both owners see the same orphan; the second patch conflicts by resource version."""
    first, second = await room.owner(), await room.owner("other")
    orphan = await room.machine("a")

    assert await room.claim(first, [orphan]) == ["a"]
    assert await room.claim(second, [orphan]) == []
    assert [one["uid"] for one in room.owners("a")] == [first.uid]


@pytest.mark.parametrize("is_owned", [False, True], ids=["adopted", "released"])
async def test_failed_adoption_or_release_does_not_block_the_others(
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


async def test_adopted_machine_is_claimed_before_the_cache_has_it(room: Room) -> None:
    owner = await room.owner()
    orphan = await room.machine("a")
    cache: InformerStore[Machine] = InformerStore()
    cache._objects[orphan.key] = orphan
    writer = ObjectWriter(room.machines, cache=cache, strategic=False)
    ownership = Ownership(kind=MACHINE_SETS, owners=room.sets, write=writer)

    first = await ownership.claim(owner, cache.list(), lambda _: True)
    writes = room.server.writes("machines")
    second = await ownership.claim(owner, cache.list(), lambda _: True)

    assert [one.name for one in first] == [one.name for one in second] == ["a"]
    assert room.server.writes("machines") == writes
