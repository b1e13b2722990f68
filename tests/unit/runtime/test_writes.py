"""Writes to the API server, ownership, and what an owner waits for."""

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
    Cause,
    Conflict,
    Invalid,
    KubeError,
    NotFound,
    StatusDetails,
    Unreachable,
)
from ccm.kube.informer import Store
from ccm.model import Node, ObjectMeta, OwnerReference, Pod, patches
from ccm.model.machines import Machine, MachineSet
from ccm.model.owners import controller_uid, release_patch
from ccm.model.patches import Patch, StaleObject
from ccm.runtime.ownership import Expectations, Index, Ownership
from ccm.runtime.writer import Step, Writer, delete
from ccm.testing.builders import node
from ccm.testing.clock import elapsed_s
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time


def conflict() -> ApiError:
    return Conflict(status=409, reason="Conflict", message="modified")


def other_uid() -> ApiError:
    causes = [Cause(reason="FieldValueInvalid", message="immutable", field="metadata.uid")]
    details = StatusDetails(causes=causes)
    return Invalid(status=422, reason="Invalid", message="no", details=details)


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


async def test_each_step_is_planned_for_the_state_that_the_one_before_left() -> None:
    api = Api(A)
    written, changed = await writer(api).change(
        A, Step(label, "status"), Step(lambda _: None), Step(label)
    )
    assert changed
    assert api.requests == ["strategic status", "strategic"]
    assert [each["metadata"]["resourceVersion"] for each in api.patches] == ["1", "2"]
    assert written is not None
    assert written.resource_version == "3"


async def test_custom_resources_get_merge_patches() -> None:
    api = Api(A)
    await writer(api, strategic=False).change(A, Step(label, "scale"))
    assert api.requests == ["merge scale"]


@pytest.mark.parametrize("refusal", [conflict, other_uid])
async def test_a_refused_write_is_decided_anew_on_what_is_there(
    refusal: Callable[[], ApiError],
) -> None:
    api = Api(versioned(A, "7"))
    api.refuse = [refusal()]
    await writer(api).change(A, Step(label))
    assert api.requests == ["strategic", "get", "strategic"]
    assert api.patches[1]["metadata"]["resourceVersion"] == "7"


async def test_conflicts_without_end_become_an_error_after_growing_pauses() -> None:
    api = Api(A)
    api.refuse = [conflict() for _ in range(20)]
    with pytest.raises(Conflict):
        await writer(api, attempts=20, pause_s=0.05).change(A, Step(label))
    assert api.requests.count("strategic") == 20
    # The first retry is at once; 18 pauses of 50 to 100 ms follow.
    assert 18 * 0.05 <= elapsed_s() <= 18 * 0.1


async def test_a_wrong_patch_is_an_error_at_once() -> None:
    api = Api(A)
    api.refuse = [Invalid(status=422, reason="Invalid", message="no")]
    with pytest.raises(Invalid):
        await writer(api).change(A, Step(label))
    assert api.requests == ["strategic"]


@pytest.mark.parametrize("now", [None, versioned(A, "9", uid="u2")], ids=["gone", "made anew"])
async def test_a_write_ends_with_its_object(now: Node | None) -> None:
    api = Api(A)
    api.refuse = [conflict()]
    api.meanwhile = lambda: setattr(api, "obj", now)
    assert await writer(api).change(A, Step(label)) == (None, False)
    assert api.requests == ["strategic", "get"]


async def test_what_somebody_else_wrote_in_between_is_not_taken_for_our_own_change() -> None:
    api = Api(A)
    api.refuse = [conflict()]
    api.meanwhile = lambda: setattr(api, "obj", versioned(A, "9"))

    def until_nine(obj: Node) -> Patch | None:
        return label(obj) if obj.resource_version == "1" else None

    assert await writer(api).change(A, Step(until_nine)) == (api.obj, False)
    assert api.requests == ["strategic", "get"]


async def test_a_writer_reads_its_own_writes_until_the_cache_has_them() -> None:
    cache: Store[Node] = Store()
    cache.put(A)
    own = writer(Api(A), cache=cache)
    written, _ = await own.change(A, Step(label))
    assert own.newest(A) is written
    later = versioned(A, "3")
    assert own.newest(later) is later
    assert own.newest(A) is A, "what the cache has once seen is not remembered"
    await own.change(A, Step(label))
    anew = versioned(A, "1", uid="u2")
    assert own.newest(anew) is anew


async def test_what_the_cache_saw_deleted_before_the_answer_is_not_remembered() -> None:
    own = writer(Api(A), cache=Store())
    await own.change(A, Step(label))
    assert own.newest(A) is A


async def test_only_the_very_object_is_deleted() -> None:
    api = Api(versioned(A, "2", uid="u2"))
    with pytest.raises(StaleObject):
        await delete(api, A)
    assert api.obj is not None
    assert await delete(api, api.obj)
    assert not await delete(api, A)


OWNER = "uid-of-web"


def machine(name: str = "a", uid: str = "u-a", *, is_deleting: bool = False) -> MachineObject:
    stamp = "2026-01-01T00:00:00Z" if is_deleting else None
    meta = ObjectMeta(name=name, namespace="n", uid=uid, deletion_timestamp=stamp)
    return MachineObject(metadata=meta)


class Lookups:
    """What the API server has."""

    def __init__(self, *there: MachineObject) -> None:
        self.there = {one.key: one for one in there}
        self.reads: list[str] = []

    async def get(self, name: str, *, namespace: str = "") -> MachineObject:
        self.reads.append(name)
        if (found := self.there.get(f"{namespace}/{name}")) is None:
            raise NotFound(status=404, reason="NotFound", message="gone")
        return found


def cache(*shown: MachineObject) -> Store[MachineObject]:
    found: Store[MachineObject] = Store()
    found._objects.update({one.key: one for one in shown})
    return found


def test_a_creation_is_awaited_until_the_cache_shows_it() -> None:
    found = Expectations()
    found.creating(OWNER, "n", "a")
    assert not found.satisfied(OWNER)
    assert found.satisfied("another")

    found.seen(machine("b"))
    assert not found.satisfied(OWNER)
    found.seen(machine("a"))
    assert found.satisfied(OWNER)


def test_what_came_and_went_was_shown() -> None:
    found = Expectations()
    found.creating(OWNER, "n", "a")
    found.gone(machine("a"))
    assert found.satisfied(OWNER)


def test_what_was_refused_is_not_awaited() -> None:
    found = Expectations()
    found.creating(OWNER, "n", "a")
    found.refused("n", "a")
    assert found.satisfied(OWNER)
    assert list(found.doubtful(OWNER)) == []


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_deletion_is_awaited_until_the_cache_shows_it(is_gone: bool) -> None:
    found = Expectations()
    found.deleting(OWNER, machine())
    found.seen(machine())
    assert not found.satisfied(OWNER)

    if is_gone:
        found.gone(machine())
    else:
        found.seen(machine(is_deleting=True))
    assert found.satisfied(OWNER)


def test_a_deletion_is_of_one_object_whoever_has_its_name() -> None:
    found = Expectations()
    found.deleting(OWNER, machine())
    found.gone(machine(uid="u-older"))
    assert not found.satisfied(OWNER)


def test_what_was_not_deleted_is_not_awaited() -> None:
    found = Expectations()
    found.deleting(OWNER, machine())
    found.kept(machine())
    assert found.satisfied(OWNER)


def test_a_creation_in_doubt_keeps_its_name() -> None:
    found = Expectations()
    for name in ("a", "b", "c"):
        found.creating(OWNER, "n", name)
        found.in_doubt("n", name)
    assert found.satisfied(OWNER)
    assert list(found.doubtful(OWNER)) == ["a", "b", "c"]

    found.seen(machine("a"))
    found.creating(OWNER, "n", "b")
    assert list(found.doubtful(OWNER)) == ["c"]
    found.seen(machine("c"))
    assert list(found.doubtful(OWNER)) == []


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


async def test_nothing_is_looked_up_before_its_time() -> None:
    found, api = Expectations(timeout_s=60.0), Lookups()
    found.creating(OWNER, "n", "a")
    await asyncio.sleep(59.0)

    assert found.due_s(OWNER) == pytest.approx(1.0)
    assert await found.look_up(OWNER, api, cache()) == 0
    assert api.reads == []
    assert not found.satisfied(OWNER)


@pytest.mark.parametrize(
    ("shown", "there", "late"),
    [
        pytest.param([], [], 0, id="it came and went unseen"),
        pytest.param([], [machine()], 1, id="it is there, the cache lags"),
        pytest.param([machine()], [machine()], 0, id="the cache shows it"),
    ],
)
async def test_a_creation_that_is_late_is_looked_up(
    shown: list[MachineObject], there: list[MachineObject], late: int
) -> None:
    found = Expectations(timeout_s=60.0)
    found.creating(OWNER, "n", "a")
    await asyncio.sleep(60.0)

    assert await found.look_up(OWNER, Lookups(*there), cache(*shown)) == late
    assert found.satisfied(OWNER) is (late == 0)
    assert (found.due_s(OWNER) or 0.0) == pytest.approx(60.0 * late)


@pytest.mark.parametrize(
    ("shown", "there", "late"),
    [
        pytest.param([machine()], [], 1, id="it is gone, the cache lags"),
        pytest.param([machine()], [machine(is_deleting=True)], 1, id="it goes, the cache lags"),
        pytest.param([machine()], [machine(uid="u-new")], 1, id="another has its name"),
        pytest.param([machine()], [machine()], 0, id="it was never deleted"),
        pytest.param([], [], 0, id="the cache shows it"),
        pytest.param([machine(uid="u-new")], [], 0, id="the cache shows another of its name"),
        pytest.param([machine(is_deleting=True)], [], 0, id="the cache shows it going"),
    ],
)
async def test_a_deletion_that_is_late_is_looked_up(
    shown: list[MachineObject], there: list[MachineObject], late: int
) -> None:
    found = Expectations(timeout_s=60.0)
    found.deleting(OWNER, machine())
    await asyncio.sleep(60.0)

    assert await found.look_up(OWNER, Lookups(*there), cache(*shown)) == late
    assert found.satisfied(OWNER) is (late == 0)


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
