"""Deletion of a CustomResourceDefinition must not delete VMs."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from ccm.base.metrics import REGISTRY
from ccm.gardener import names
from ccm.kube.errors import Forbidden
from ccm.machines import crdguard
from ccm.model.names import ANNOTATION_ALLOW_DELETION, REASON_DELETION_HELD
from ccm.testing.clock import advance
from tests.unit.controllers.machinedeployments import Rolling
from tests.unit.controllers.machines import DEFINITIONS, World

pytestmark = pytest.mark.virtual_time

WORK = ("machine", "machineclass", "machinesafety")
FORBIDDEN = Forbidden(status=403, reason="Forbidden", message="no CRDs for you")
SAMPLE = "ccm_deletions_held"


def crd(plural: str) -> str:
    return f"{DEFINITIONS}/{plural}.{names.GROUP}"


CRD = crd("machines")


def lived(world: World, count: int = 1) -> list[str]:
    """Machines with VM and node; their paths."""
    world.ready_class()
    paths = list[str]()
    for number in range(count):
        name = f"m{number}"
        paths.append(world.lived(name))
        world.node(name)
        world.driver.add(world.identity(name))
    return paths


def reads(world: World) -> int:
    return world.server.requests["GET", CRD]


def blocked(kind: str = "Machine") -> float:
    labels = {"kind": kind, "reason": crdguard.REASON}
    return REGISTRY.get_sample_value(SAMPLE, labels) or 0.0


def held(world: World) -> list[str]:
    return [text for reason, text in world.events if reason == REASON_DELETION_HELD]


def allow(world: World, path: str = CRD) -> None:
    world.server.patch(path, {"metadata": {"annotations": {ANNOTATION_ALLOW_DELETION: "true"}}})


def forbid(world: World) -> None:
    world.server.refuse = lambda _method, path: FORBIDDEN if path == CRD else None


async def test_crd_deletion_deletes_no_vm_until_it_is_annotated() -> None:
    world, before = World(), blocked()
    lived(world, 3)
    async with world.running(*WORK):
        await advance(5)
        world.server.drop(CRD)
        await advance(4000)

        assert all("deletionTimestamp" in world.get(f"m{each}")["metadata"] for each in range(3))
        assert len(world.driver.vms) == 3
        assert world.drains.tasks == []
        assert [world.phase(f"m{each}") for each in range(3)] == ["Running"] * 3
        assert not any(
            world.node_object(f"m{each}")["spec"].get("unschedulable") for each in (0, 1)
        )
        assert blocked() - before == 3.0
        (text,) = held(world)
        assert f"kubectl annotate crd machines.{names.GROUP} {ANNOTATION_ALLOW_DELETION}" in text

        allow(world)
        await advance(60)

    assert (world.driver.vms, world.get("m0"), blocked()) == ({}, {}, before)


async def test_fifty_deletions_read_the_crd_once(world: World) -> None:
    paths = lived(world, 50)
    async with world.running(*WORK):
        await advance(5)
        assert reads(world) == 0
        for path in paths:
            world.server.drop(path)
        await advance(60)

    assert (world.driver.vms, reads(world)) == ({}, 1)


async def test_blocked_deletions_are_rechecked_with_few_crd_reads(world: World) -> None:
    lived(world, 50)
    async with world.running(*WORK):
        await advance(5)
        world.server.drop(CRD)
        await advance(600)

    assert len(world.driver.vms) == 50
    assert reads(world) <= 600 / crdguard.BLOCKED_S + 1


async def test_crd_read_from_before_a_deletion_is_not_trusted(world: World) -> None:
    paths = lived(world, 2)
    async with world.running(*WORK):
        await advance(5)
        world.server.drop(paths[0])
        await advance(crdguard.INTERVAL_S / 2)
        assert reads(world) == 1
        world.server.drop(CRD)
        await advance(120)

    assert [one.identity.name for one in world.driver.vms.values()] == ["m1"]


@pytest.mark.parametrize(("earlier_s", "left"), [(0.0, 1), (1.0, 1), (2.0, 0)])
async def test_deletion_during_downtime_is_judged_by_its_timestamp(
    world: World, earlier_s: float, left: int
) -> None:
    """A difference of one second may come from the clocks of two API servers."""
    (path,) = lived(world)
    await advance(10)
    world.server.drop(path)
    await advance(earlier_s)
    world.server.drop(CRD)
    await world.run(120, *WORK)

    assert len(world.driver.vms) == left


async def test_deletion_started_before_the_crd_deletion_continues(world: World) -> None:
    world.drains.seconds = 300.0
    (path,) = lived(world)
    async with world.running(*WORK):
        await advance(5)
        world.server.drop(path)
        await advance(crdguard.INTERVAL_S)
        world.server.drop(CRD)
        await advance(400)

    assert world.driver.vms == {}


async def test_machine_that_outlived_a_former_crd_keeps_its_vm(world: World) -> None:
    """Without its finalizer a CRD is deleted at once; its objects reappear with the next CRD."""
    lived(world)
    await advance(10)
    world.server.drop(CRD)
    await advance(10)
    definition = world.server.get(CRD)
    assert definition is not None
    stored = world.server.store.kinds.named(f"machines.{names.GROUP}")
    kinds = world.server.store.kinds.named("customresourcedefinitions.apiextensions.k8s.io")
    definition["metadata"] |= {"creationTimestamp": definition["metadata"]["deletionTimestamp"]}
    definition["metadata"] |= {"uid": "another"}
    del definition["metadata"]["deletionTimestamp"]
    world.server.store.put(kinds, f"machines.{names.GROUP}", definition)
    assert world.server.store.kinds.named(f"machines.{names.GROUP}") is not stored
    async with world.running(*WORK):
        await advance(120)
        assert (len(world.driver.vms), len(held(world))) == (1, 1)
        allow(world)
        await advance(60)

    assert world.driver.vms == {}


async def test_forbidden_crd_read_allows_deletions_with_one_warning(world: World) -> None:
    lived(world, 3)
    forbid(world)
    with capture_logs() as lines:
        async with world.running(*WORK):
            await advance(5)
            world.server.drop(CRD)
            await advance(120)

    assert world.driver.vms == {}
    assert [one["log_level"] for one in lines if "CRD unreadable" in one["event"]] == ["warning"]


async def test_forbidden_answer_of_a_starting_api_server_deletes_no_vm(world: World) -> None:
    """A starting API server answers 403 until it has loaded the roles."""
    lived(world)
    async with world.running(*WORK):
        await advance(5)
        forbid(world)
        world.server.drop(CRD)
        await advance(2)
        world.server.answers()
        await advance(600)

    assert len(world.driver.vms) == 1


async def test_revoked_crd_read_permission_deletes_no_vm(world: World) -> None:
    """`helm upgrade` may delete the roles before the CRDs."""
    paths = lived(world, 2)
    async with world.running(*WORK):
        await advance(5)
        world.server.drop(paths[0])
        await advance(60)
        forbid(world)
        world.server.drop(CRD)
        await advance(600)

    assert [one.identity.name for one in world.driver.vms.values()] == ["m1"]


@pytest.mark.parametrize(
    ("plural", "kind"), [("machinesets", "MachineSet"), ("machinedeployments", "MachineDeployment")]
)
async def test_deleted_set_or_deployment_crd_deletes_no_machine(plural: str, kind: str) -> None:
    world, counted = Rolling(), blocked(kind)
    world.deployment(replicas=3)
    async with world.at_work():
        await advance(60)
        before = sorted(world.here())
        world.server.drop(crd(plural))
        await advance(1500)

        assert (sorted(world.here()), blocked(kind) - counted) == (before, 1.0)
        assert world.driver.deleted == []
        assert len(held(world)) == 1
        allow(world, crd(plural))
        await advance(600)

    assert world.driver.deleted


async def test_deletion_of_all_crds_deletes_no_vm(world: Rolling) -> None:
    world.deployment(replicas=3)
    async with world.at_work():
        await advance(60)
        for plural in ("machinedeployments", "machinesets", "machines", "machineclasses"):
            world.server.drop(crd(plural))
        await advance(4000)

        assert world.driver.deleted == []
        assert len(world.driver.vms) == 3
