"""Checks of the doctor for Machines, their classes and VMs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccm.app import options
from ccm.cloud import Cloud, errors
from ccm.cloud.machines import Identity
from ccm.doctor import machines, permissions
from ccm.doctor.case import Case, CheckFinding, Severity
from ccm.gardener import names
from ccm.kube.errors import Forbidden, KubeError
from ccm.machines.tokens import GRANT
from tests.unit.controllers.machines import BASE, CLUSTER, DEFINITIONS, World

pytestmark = pytest.mark.virtual_time

CRD = f"{DEFINITIONS}/machines.{names.GROUP}"
CONTROLLERS = "--controllers=machine,machineclass,machinesafety"


@pytest.fixture
def world() -> World:
    found = World()
    found.ready_class()
    return found


def case(world: World, *flags: str) -> Case:
    words = ["--cloud-provider=fake", f"--cluster-id={CLUSTER}", *(flags or (CONTROLLERS,))]
    made = Case(options=options.parse(words), environ={})
    made.client = world.server.client()
    made.cloud = Cloud(name="fake", machines=world.driver, has_cluster_id=True)
    return made


def settled(world: World, name: str = "m0", *, phase: str = "Running") -> None:
    """Add a Machine with its VM."""
    world.machine(
        name,
        metadata={"labels": {"node": name}, "finalizers": [names.FINALIZER]},
        providerID=f"fake:///{name}",
        status={"currentStatus": {"phase": phase}, "lastOperation": {"description": "so it is"}},
    )
    world.driver.add(world.identity(name))


async def each(world: World, *flags: str) -> list[CheckFinding]:
    checks = (machines.machines, machines.classes, machines.vms)
    found = [await one(case(world, *flags)) for one in checks]
    print(*found, sep="\n")
    assert all(one.advice for one in found if one.severity is not Severity.OK)
    return found


async def test_machine_classes_need_permissions_for_bootstrap_tokens(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.secret("plain", userData="nothing")
    world.machine_class("plain")
    asked: list[str] = []

    async def allowed(_client: Any, need: Any, user: str) -> bool:
        asked.append(f"{need} {user}".strip())
        return False

    monkeypatch.setattr(permissions, "is_allowed", allowed)

    found = await machines.classes(case(world))
    none = await machines.classes(case(world, CONTROLLERS, "--target-kubeconfig=none"))

    assert (found.severity, found.message) == (Severity.FAIL, "no VM can be created from small")
    assert found.details == (f"small: the daemon may not write bootstrap tokens; {GRANT}",)
    assert asked == [f"{verb} secrets in kube-system" for verb in ("create", "patch", "delete")]
    assert none.severity is Severity.OK


async def test_machine_checks_pass_when_the_controller_is_disabled(world: World) -> None:
    for one in await each(world, "--controllers=*"):
        assert (one.severity, one.message) == (
            Severity.OK,
            "the machine controller is disabled; see the finding controllers",
        )
    assert world.driver.calls.total() == 0


async def test_crd_that_is_being_deleted_is_a_failure(world: World) -> None:
    settled(world)
    world.server.drop(CRD)

    found = await machines.crds(case(world))

    assert (found.severity, "machines.machine.sapcloud.io" in found.message) == (
        Severity.FAIL,
        True,
    )
    assert "manifests/README.md" in found.advice[0]


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        (
            {"annotations": {"kube-ccm/allow-deletion": "true"}},
            "because of the annotation kube-ccm/allow-deletion, deleting the CRD",
        ),
        ({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, "helm uninstall would delete CRDs"),
    ],
)
async def test_crd_whose_deletion_would_delete_vms_is_a_warning(
    world: World, metadata: dict[str, Any], told: str
) -> None:
    world.server.patch(CRD, {"metadata": metadata})

    found = await machines.crds(case(world))

    assert (found.severity, told in found.message) == (Severity.WARN, True)


async def test_missing_machine_crds_are_a_failure() -> None:
    world = World()
    for name in ("machines", "machineclasses", "machinesets", "machinedeployments"):
        world.server.drop(f"{DEFINITIONS}/{name}.{names.GROUP}")

    found = await machines.machines(case(world))

    assert (found.severity, found.message) == (
        Severity.FAIL,
        "CRDs not installed: machines and machineclasses of machine.sapcloud.io/v1alpha1",
    )


async def test_failing_machine_deletion_is_a_warning(world: World) -> None:
    settled(world)
    world.server.drop(f"{BASE}/machines/m0")
    status = {"lastOperation": {"state": "Failed", "description": "protected"}}
    world.server.patch(f"{BASE}/machines/m0/status", {"status": status})

    assert (await machines.machines(case(world))).severity is Severity.WARN


async def test_machine_class_of_another_provider_is_a_failure_without_driver_call(
    world: World,
) -> None:
    world.server.patch(f"{BASE}/machineclasses/small", {"provider": "other"})
    settled(world)

    classes, vms = await machines.classes(case(world)), await machines.vms(case(world))

    assert classes.severity is Severity.FAIL
    assert "'other'" in classes.details[0]
    assert vms.severity is Severity.OK
    assert world.driver.calls.total() == 0


async def test_machine_without_its_vm_is_a_failure(world: World) -> None:
    settled(world)
    world.driver.vms.clear()

    found = await machines.vms(case(world))

    assert (found.severity, found.message) == (
        Severity.FAIL,
        "1 Machine without a VM: default/m0 (fake:///m0)",
    )


@pytest.mark.parametrize(
    ("namespace", "refused", "owned", "said"),
    [
        ("default", True, False, "1 VM of this cluster without a Machine: fake:///x (x)"),
        ("theirs", False, False, ""),
        ("", False, True, ""),
        ("", False, False, "1 VM of this cluster without a Machine: fake:///x (x)"),
        (
            "",
            True,
            True,
            (
                "1 VM of this cluster without a namespace tag, and without a Machine in default: "
                "fake:///x (x)"
            ),
        ),
    ],
)
async def test_vm_without_a_machine_is_judged_by_its_namespace(
    world: World, namespace: str, refused: bool, owned: bool, said: str
) -> None:
    world.driver.add(
        Identity(cluster=CLUSTER, namespace=namespace, pool="small", name="x", uid="u")
    )
    if owned:
        where = BASE.replace("namespaces/default", "namespaces/kube-system")
        body = {"metadata": {"name": "x"}, "spec": {"providerID": "fake:///x"}}
        world.server.put(f"{where}/machines", body)
    every = f"/apis/{names.GROUP}/{names.VERSION}/machines"
    no = Forbidden(status=403, reason="Forbidden", message="no")
    world.server.refuse = lambda _, path: no if refused and path == every else None

    found = await machines.vms(case(world))

    assert found.severity is (Severity.WARN if said else Severity.OK)
    assert not said or found.message == said


async def test_machine_class_whose_vms_cannot_be_listed_is_a_failure(world: World) -> None:
    settled(world)
    world.driver.faults["list_machines"] = errors.Unauthenticated("401 token=hunter2 expired")

    found = await machines.vms(case(world))

    assert (found.severity, found.message) == (Severity.FAIL, "not all VMs can be listed")
    assert "VMs of class small cannot be listed" in found.details[0]
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("target", "namespace"),
    [("own", "kube-system"), ("theirs", "kube-system"), ("none", "default")],
)
async def test_cluster_id_is_that_of_the_target_cluster(
    world: World, target: str, namespace: str
) -> None:
    other = World()
    where = other.server if target == "theirs" else world.server
    namespaces = {one["metadata"]["name"]: one for one in where.list("/api/v1/namespaces")}
    marker = namespaces[namespace]["metadata"]["uid"]
    world.driver.add(Identity(cluster=marker, pool="small", name="x", uid="u"))
    files = ["--kubeconfig=own", "--control-kubeconfig=own", f"--target-kubeconfig={target}"]
    examined = case(world, CONTROLLERS, "--cluster-id=", *files)
    examined.role_clients["target"] = other.server.client()

    found = await machines.vms(examined)

    assert "1 VM of this cluster without a Machine" in found.message


async def test_machines_are_read_from_the_control_cluster(world: World) -> None:
    other = World()
    other.machine("m1")
    files = ["--kubeconfig=own", "--control-kubeconfig=theirs", "--target-kubeconfig=own"]
    examined = case(world, CONTROLLERS, *files)
    examined.role_clients["control"] = other.server.client()

    assert (await machines.machines(examined)).message == "1 Machine, none is unhealthy"


async def test_missing_control_kubeconfig_error_names_the_flag(
    world: World, tmp_path: Path
) -> None:
    file = tmp_path / "none.yaml"
    examined = case(world, CONTROLLERS, f"--control-kubeconfig={file}", "--target-kubeconfig=own")
    with pytest.raises(KubeError, match=r"--control-kubeconfig=.*none\.yaml"):
        await machines.machines(examined)
