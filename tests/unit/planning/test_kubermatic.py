"""Plans for Kubermatic's machine objects, without writes to the cluster or the cloud."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccm.app import options
from ccm.cloud import Cloud, errors
from ccm.cloud.machines import MachineInfo, MachineRequest
from ccm.gardener import crds as gardener_crds
from ccm.kubermatic import names
from ccm.planning import changes, forecast
from ccm.planning.changes import VM, ChangeKind, Forecast
from ccm.planning.timeloop import FastForwardLoop
from tests.unit.controllers.machines import CLUSTER, DEFINITIONS, FakeDriver
from tests.unit.kubermatic.test_machines import ALL, BASE, WEB, Kubermatic
from tests.unit.planning.test_machines import CHANGES, told
from tests.unit.planning.world import run

FLAGS = (
    "--cloud-provider=fake",
    f"--controllers={','.join(f'kubermatic{name}' for name in ALL)}",
    f"--cluster-id={CLUSTER}",
    "--kubermatic-namespace=default",
)
MACHINE = f"Machine.{names.GROUP}"


class GoCloud(FakeDriver):
    """Instances of the Go program: found by the UID of their machine, and in no listing."""

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        for provider_id, record in self.vms.items():
            if not req.provider_id and record.identity.uid == req.identity.uid:
                req = replace(req, provider_id=provider_id)
        return await super().get_machine_status(req)


class Choosy(FakeDriver):
    """Refuses every creation."""

    async def check_creation(self, req: MachineRequest) -> None:
        size = req.provider_spec["cloudProviderSpec"]["size"]
        raise errors.InvalidArgument(f"size is {size!r}; it must be large")


def planned(world: Kubermatic, *flags: str) -> Forecast:
    """Return the plan; check that neither the cluster nor the cloud was changed."""
    before = dict(world.server.requests)
    world.driver.calls.clear()
    cloud = Cloud(name="fake", machines=world.driver, kubermatic=world.driver, has_cluster_id=True)
    chosen = options.parse([*FLAGS, *flags])
    found = run(forecast.forecast(chosen, world.server.client(), cloud), loop=FastForwardLoop)
    print(*changes.lines(found), changes.summary(found), sep="\n")
    asked = {key for key, number in world.server.requests.items() if number > before.get(key, 0)}
    assert {method for method, _ in asked} == {"GET"}
    assert not CHANGES & world.driver.calls.keys()
    return found


async def new(replicas: int) -> Kubermatic:
    world = Kubermatic()
    world.deployment(replicas)
    return world


async def settled() -> Kubermatic:
    """A deployment of one machine, at work."""
    world = await new(1)
    async with world.running(*ALL):
        await world.settle()
    return world


async def refused() -> Kubermatic:
    """A deployment of one machine, whose creation the daemon has refused."""
    world = await new(1)
    text = "size is 'small'; it must be large"
    world.driver.faults["create_machine"] = errors.InvalidArgument(text)
    async with world.running(*ALL):
        await world.settle()
    return world


async def left_by_go() -> Kubermatic:
    """The objects and the instance as the Go program leaves them; their user data are gone."""
    world = await settled()
    path = f"{BASE}/machines/{name_of(world)}"
    ours = {names.ANNOTATION_ORIGIN: None, names.ANNOTATION_CREATION: None}
    world.server.patch(path, {"metadata": {"annotations": ours}})
    status = {"phase": None, "lastOperation": None, "lastUpdated": None}
    world.server.patch(path, {"spec": {"providerID": None}, "status": status})
    driver = GoCloud()
    driver.vms = world.driver.vms
    driver.hides = {*driver.vms}
    world.driver = driver
    return world


def name_of(world: Kubermatic) -> str:
    (found,) = world.objects("machines")
    return str(found["metadata"]["name"])


def clouds(found: Forecast) -> list[tuple[str, ChangeKind]]:
    return [(str(one.subject), one.action) for one in found.changes if one.what == VM]


@pytest.mark.row("kubermatic-command-01")
def test_plan_of_a_new_deployment_includes_its_set_machines_and_vms() -> None:
    found = planned(run(new(2)))

    (deployment,) = (line for line in told(found) if line.startswith("MachineDeployment"))
    assert deployment == f"MachineDeployment.{names.GROUP} default/web"
    assert len([line for line in told(found) if line.startswith(f"MachineSet.{names.GROUP}")]) == 1
    made = [line for line in told(found) if line.startswith(f"{MACHINE} default/web-")]
    assert clouds(found) == [(line, ChangeKind.CREATE) for line in made]
    assert len(made) == 2
    assert any(line.startswith("+ VM: of set web-") for line in told(found)[made[0]])


@pytest.mark.row("kubermatic-command-01")
def test_plan_creates_no_vm_without_user_data() -> None:
    world = run(new(1))
    world.user_data("7")

    assert clouds(planned(world)) == []


@pytest.mark.row("kubermatic-command-07")
@pytest.mark.parametrize("is_known", [False, True])
def test_plan_shows_why_the_daemon_would_create_no_vm(is_known: bool) -> None:
    """Also if the daemon has refused the machine before, so that its status does not change."""
    world = run(refused() if is_known else new(1))
    world.driver = Choosy()

    found = planned(world)

    assert clouds(found) == []
    ((machine, lines),) = [one for one in told(found).items() if one[0].startswith(MACHINE)]
    assert "! SpecInvalid: size is 'small'; it must be large" in lines, machine
    assert ("+ status.errorReason: InvalidConfiguration" in lines) is not is_known


@pytest.mark.row("kubermatic-command-02", "kubermatic-takeover-01")
def test_plan_after_the_go_program_has_no_cloud_change() -> None:
    """Although the listing lacks the instance, and its user data are of another revision."""
    world = run(left_by_go())
    world.user_data("7")
    (vm,) = world.driver.vms

    found = planned(world)

    assert clouds(found) == []
    assert found.deletions == []
    subject = f"{MACHINE} default/{name_of(world)}"
    assert f"+ spec.providerID: {vm}" in told(found)[subject]
    assert "+ status.phase: Running" in told(found)[subject]


@pytest.mark.row("kubermatic-command-01")
def test_plan_of_a_settled_deployment_changes_nothing() -> None:
    assert planned(run(settled())).changes == []


@pytest.mark.row("kubermatic-command-01")
def test_plan_of_a_deleted_deployment_includes_vm_and_node() -> None:
    world = run(settled())
    name = name_of(world)
    world.server.drop(WEB)
    world.server.drop(f"{BASE}/machines/{name}")

    found = planned(world)

    (vm,) = world.driver.vms
    assert f"- VM: {vm} (drain of node {name} first)" in told(found)[f"{MACHINE} default/{name}"]
    assert told(found)[f"Node {name}"] == [f"- would delete (with Machine default/{name})"]


@pytest.mark.row("kubermatic-command-01")
def test_plan_reads_both_api_groups() -> None:
    """A Machine of the other group has the same name, in another namespace."""
    world = run(settled())
    for one in gardener_crds.DEFINITIONS:
        world.server.put(DEFINITIONS, dict(one.to_manifest()))
    where = "/apis/machine.sapcloud.io/v1alpha1/namespaces/kube-system"
    world.server.put(f"{where}/machines", {"metadata": {"name": name_of(world)}})

    found = planned(world, f"{FLAGS[1]},machine", "--namespace=kube-system")

    assert told(found).keys() == {f"Machine kube-system/{name_of(world)}"}


@pytest.mark.row("kubermatic-command-01")
def test_missing_crds_are_reported_with_their_manifest() -> None:
    world = run(new(0))
    for plural in ("machines", "machinesets", "machinedeployments"):
        world.server.drop(f"{DEFINITIONS}/{plural}.{names.GROUP}")

    found = planned(world)

    assert found.left_out.keys() == {
        "kubermatic-machine-controller",
        "kubermatic-machine-set-controller",
        "kubermatic-machine-deployment-controller",
    }
    texts: set[Any] = {*found.left_out.values()}
    assert texts == {
        "waiting: the CRDs of Machines are missing; apply manifests/kubermatic-crds.yaml"
    }


async def restored() -> Kubermatic:
    """A machine that was restored with another UID than its VM bears."""
    world = await settled()
    (found,) = world.objects("machines")
    meta = {key: found["metadata"][key] for key in ("name", "labels", "ownerReferences")}
    notes = {names.ANNOTATION_FORMER_UID: found["metadata"]["uid"]}
    world.server.unmake(f"{BASE}/machines/{meta['name']}")
    del found["spec"]["providerID"]
    world.server.put(
        f"{BASE}/machines", {"metadata": {**meta, "annotations": notes}, "spec": found["spec"]}
    )
    return world


@pytest.mark.row("kubermatic-command-02", "kubermatic-machine-09")
def test_plan_of_a_restored_machine_keeps_its_vm() -> None:
    world = run(restored())

    async def migrate_uid(req: MachineRequest, former: str) -> None:
        raise AssertionError(req, former)

    world.driver.migrate_uid = migrate_uid  # type: ignore[attr-defined]

    found = planned(world)

    subject = f"{MACHINE} default/{name_of(world)}"
    assert clouds(found) == [(subject, ChangeKind.CHANGE)]
    assert "~ VM: with the new UID of its machine" in told(found)[subject]
    assert found.deletions == []
