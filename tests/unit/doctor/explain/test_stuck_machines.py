"""What `kube-ccm explain` says first of a Machine that is stuck: the cause, and when it goes on."""

from __future__ import annotations

import pytest

from ccm.cloud import errors
from ccm.cloud.machines import Identity
from ccm.doctor.explain import verdict
from ccm.gardener import names
from ccm.kube.errors import Forbidden
from ccm.testing.clock import advance
from tests.unit.controllers.machines import BASE, DEFINITIONS
from tests.unit.doctor.explain.stuck_machines import M0, StuckMachines

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def stuck() -> StuckMachines:
    found = StuckMachines()
    found.ready_class()
    return found


async def test_its_class_is_missing(stuck: StuckMachines) -> None:
    stuck.server.patch(f"{BASE}/machineclasses/small", {"metadata": {"finalizers": []}})
    stuck.server.drop(f"{BASE}/machineclasses/small")
    stuck.machine()
    async with stuck.leading():
        await advance(60)

        assert stuck.says() == (
            "default/m0 has no VM: MachineClass default/small does not exist; create it, or "
            "correct spec.class.name"
        )
        assert "tried again at once" in stuck.advice()


async def test_its_secret_is_missing() -> None:
    stuck = StuckMachines()
    stuck.machine_class()
    stuck.machine()
    async with stuck.leading():
        await advance(60)

        assert stuck.says() == (
            "default/m0 has no VM: Secret default/small, to which MachineClass small refers, does "
            "not exist; create it"
        )


async def test_its_class_is_of_another_provider(stuck: StuckMachines) -> None:
    stuck.server.patch(f"{BASE}/machineclasses/small", {"provider": "other"})
    stuck.machine()
    going = stuck.machine("m1", providerID="fake:///m1", metadata={"finalizers": [names.FINALIZER]})
    stuck.server.drop(going)
    stuck.driver.faults["delete_machine"] = errors.Unavailable("503 no backend")
    async with stuck.leading():
        await advance(60)

        assert "provider is 'other'" in stuck.says()
        assert "503 no backend" in stuck.says("default/m1")


async def test_the_driver_refuses_its_class(stuck: StuckMachines) -> None:
    refusal = {"type": names.CONDITION_SPEC_VALID, "status": "False", "message": "no such size"}
    stuck.server.patch(f"{BASE}/machineclasses/small", {"status": {"conditions": [refusal]}})
    stuck.driver.faults["create_machine"] = errors.InvalidArgument("400 size")
    stuck.machine()
    async with stuck.leading(controllers="machine"):
        await advance(60)

        assert stuck.says() == "default/m0 has no VM: no such size"
        assert "correct the class" in stuck.advice()


async def test_it_was_deleted_with_its_crd(stuck: StuckMachines) -> None:
    stuck.lived()
    async with stuck.leading():
        await advance(5)
        stuck.server.drop(f"{DEFINITIONS}/machines.{names.GROUP}")
        await advance(60)

        assert "deleted together with their CustomResourceDefinition" in stuck.says()
        assert "kube-ccm/allow-deletion=true" in stuck.advice()


async def test_its_class_is_held_by_nobody(stuck: StuckMachines) -> None:
    stuck.server.patch(f"{BASE}/machineclasses/small", {"metadata": {"finalizers": []}})
    stuck.machine()
    async with stuck.leading(controllers="machine"):
        await advance(60)

        assert "its class small does not carry the finalizer" in stuck.says()
        assert "--controllers=*,machine,machineclass,machinesafety" in stuck.advice()


async def test_the_quota_is_used_up(stuck: StuckMachines) -> None:
    stuck.driver.faults["create_machine"] = errors.ResourceExhausted("403 10 of 10 instances")
    stuck.machine()
    async with stuck.leading():
        await advance(60)

        said = stuck.says()
        assert said.startswith(
            "default/m0 has no VM: a quota or limit of the cloud is reached (403 10 of 10 "
            "instances) 60 s ago; next try in 9 min"
        )
        assert "raise the quota" in stuck.advice()


async def test_the_credentials_are_wrong(stuck: StuckMachines) -> None:
    stuck.driver.faults["list_machines"] = errors.Unauthenticated("401 token expired")
    stuck.machine()
    async with stuck.leading():
        await advance(60)

        assert stuck.says().startswith(
            "default/m0 has no VM: the cloud refused the credentials (401 token expired) 60 s ago; "
            "next try in "
        )
        assert "the Secret of its MachineClass" in stuck.advice()


async def test_the_driver_is_deaf(stuck: StuckMachines) -> None:
    stuck.driver.deaf.add("create_machine")
    stuck.machine()
    async with stuck.leading():
        await advance(45)

        assert stuck.says() == (
            "default/m0 has no VM: the cloud has not answered create_machine for 45 s; given up "
            "after 5 min"
        )
        await advance(300)
        assert "create_machine" in stuck.says()


async def test_the_cloud_is_in_trouble(stuck: StuckMachines) -> None:
    stuck.driver.faults["create_machine"] = errors.Unavailable("503 no backend")
    stuck.machine()
    async with stuck.leading():
        await advance(120)

        said = stuck.says()
        assert "the cloud cannot be reached, or is in trouble (503 no backend)" in said
        assert "times in a row" in said


async def test_the_spec_is_refused(stuck: StuckMachines) -> None:
    stuck.driver.faults["create_machine"] = errors.InvalidArgument("machineType: 'huge' is none")
    stuck.machine()
    async with stuck.leading():
        await advance(60)

        assert "the cloud refuses what it asks for (machineType: 'huge' is none)" in stuck.says()
        assert "providerSpec" in stuck.advice()


async def test_its_vm_never_joins(stuck: StuckMachines) -> None:
    stuck.machine()
    async with stuck.leading():
        await advance(60)

        assert stuck.says() == (
            "default/m0 has not joined: VM fake:///0 is there, and no Node m0 is there; unless it "
            "joins, the Machine fails in 19m0s"
        )
        await advance(25 * 60)
        assert stuck.says() == (
            "default/m0 has failed: Machine m0 failed to join the cluster in 20m0s; no Node m0 is "
            "there"
        )
        assert "kubectl -n default delete machine m0" in stuck.advice()


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"ready": "False"}, "Node m0: Ready is False"),
        (
            {"taints": [{"key": names.TAINT_CRITICAL, "effect": "NoSchedule"}]},
            f"Node m0 still has the taint {names.TAINT_CRITICAL}",
        ),
    ],
    ids=["not-ready", "critical"],
)
async def test_its_node_is_not_fit(stuck: StuckMachines, node: dict[str, str], said: str) -> None:
    stuck.machine()
    async with stuck.leading():
        await advance(1)
        stuck.node(providerID="fake:///0", **node)
        await advance(10)

        assert said in stuck.says()


async def test_the_provider_id_was_written_by_hand(stuck: StuckMachines) -> None:
    stuck.machine(providerID="fake:///nowhere")
    async with stuck.leading():
        await advance(60)

        said = stuck.says()
        assert said == (
            "default/m0 is not set up: spec.providerID names fake:///nowhere, and the cloud knows "
            "no VM of that ID"
        )
        assert "spec.providerID" in stuck.advice()


async def test_a_vm_has_its_name(stuck: StuckMachines) -> None:
    stuck.driver.add(Identity(cluster="", pool="small", name="m0", uid=""))
    stuck.machine()
    async with stuck.leading():
        await advance(60)

        said = stuck.says()
        assert "something else has its place in the cloud (VM fake:///m0 has the name" in said
        assert "--adopt-unmarked-machines" in said


async def test_two_machines_claim_one_node(stuck: StuckMachines) -> None:
    for name in ("m0", "m1"):
        stuck.machine(
            name,
            providerID=f"fake:///{name}",
            metadata={"labels": {"node": "n"}},
            status={"currentStatus": {"phase": "Pending"}},
        )
    async with stuck.leading():
        await advance(10)

        assert "Node n is claimed by m1 too" in stuck.says()


@pytest.mark.parametrize(
    ("phase", "said", "advice"),
    [
        ("InPlaceUpdating", "Node n is empty, and waits for your agent", "or the value failed"),
        ("InPlaceUpdateFailed", "no space", "mend the node"),
    ],
)
async def test_an_update_in_place(stuck: StuckMachines, phase: str, said: str, advice: str) -> None:
    status = {"currentStatus": {"phase": phase}, "lastOperation": {"description": "no space"}}
    labels = {"labels": {"node": "n"}}
    stuck.machine("m0", providerID="fake:///m0", metadata=labels, status=status)
    async with stuck.leading():
        await advance(10)

        assert said in stuck.says()
        assert advice in stuck.advice()
        assert f"label node n --overwrite {names.LABEL_UPDATE_RESULT}=successful" in stuck.advice()


async def test_a_deletion_fails(stuck: StuckMachines) -> None:
    path = stuck.machine()
    async with stuck.leading():
        await advance(10)
        stuck.driver.faults["delete_machine"] = errors.FailedPrecondition("409 it is protected")
        stuck.server.drop(path)
        await advance(60)

        assert stuck.says().startswith(
            "default/m0 cannot be deleted yet: something has to be changed first (409 it is "
            "protected) 60 s ago; next try in "
        )


async def test_the_api_server_refuses_the_token(stuck: StuckMachines) -> None:
    stuck.server.refuse = lambda method, path: (
        Forbidden(status=403, reason="Forbidden", message="no secrets for you")
        if method == "POST" and "kube-system" in path
        else None
    )
    stuck.machine()
    async with stuck.leading():
        await advance(60)

        assert "the daemon lacks a right at the API server" in stuck.says()


async def test_the_definitions_are_missing(stuck: StuckMachines) -> None:
    stuck = StuckMachines()
    for name in ("machines", "machineclasses", "machinesets", "machinedeployments"):
        stuck.server.drop(f"{DEFINITIONS}/{name}.{names.GROUP}")
    async with stuck.leading():
        await advance(60)

        account = stuck.case().answer
        assert account is not None
        (told, *_) = account.accounts
        assert "apply manifests/crds.yaml" in told.blocked
        found = verdict.judge(stuck.case(is_served=False))
        assert found.said == (
            "machine default/m0 does not exist: the API server knows no machines, their "
            "definitions are missing"
        )


async def test_it_is_in_another_namespace(stuck: StuckMachines) -> None:
    stuck.machine()
    async with stuck.leading("--namespace=shoot"):
        await advance(60)

        assert stuck.says() == (
            "default/m0 is not this daemon's: it is in namespace default, and this daemon looks "
            "after those in shoot (--namespace)"
        )


@pytest.mark.parametrize("has_machines", [True, False])
async def test_its_controller_does_not_run(stuck: StuckMachines, has_machines: bool) -> None:
    stuck.has_machines = has_machines
    stuck.machine()
    async with stuck.leading(controllers="machineclass" if has_machines else "machine"):
        why = "the provider offers no machines"
        if has_machines:
            why = "it is turned off by --controllers"
        assert stuck.says() == (
            f"default/m0 has no VM: controller machine-controller is not running: {why}"
        )
        assert "machine,machineclass,machinesafety" in stuck.advice()


async def test_all_is_well(stuck: StuckMachines) -> None:
    stuck.machine()
    async with stuck.leading():
        await advance(1)
        stuck.node(providerID="fake:///0")
        await advance(10)

        assert stuck.says() == (
            "default/m0 runs as node m0, and nothing is to be done (runs as node m0, VM fake:///0)"
        )
        assert verdict.judge(stuck.case()).is_well
        assert {call.verb for call in stuck.case().answer.calls} == {  # type: ignore[union-attr]
            "list_machines",
            "create_machine",
            "initialize_machine",
        }


async def test_a_machine_that_is_gone(stuck: StuckMachines) -> None:
    async with stuck.leading():
        assert (
            stuck.says() == "machine default/m0 does not exist, and nothing is left to do about it"
        )
        assert verdict.judge(stuck.case(M0)).is_well
