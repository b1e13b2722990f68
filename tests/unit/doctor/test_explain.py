"""What `kube-ccm explain` takes for the cause, and when the daemon goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ccm.base.lease_guard import LeaseGuard
from ccm.cloud import (
    CloudError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Rate,
    ResourceExhausted,
    RetryAfter,
    Unauthenticated,
    address,
    errors,
)
from ccm.doctor.asking import Silence
from ccm.doctor.explain import DEPLOYMENT, MACHINE, SET, Subject, document, judge, lines
from ccm.gardener import names
from ccm.gardener.sets import MachineDeployment, MachineSet
from ccm.model import Event, Node
from ccm.model.machines import Machine
from ccm.model.meta import ObjectMeta
from ccm.runtime.account import Account, Answer, CallSaid, Last
from ccm.runtime.deletions import Held
from ccm.testing.builders import node, uninitialized_taint
from ccm.testing.clock import advance
from tests.unit.controllers.machines import DEFINITIONS
from tests.unit.controllers.machinesets import Sets
from tests.unit.doctor.stuck_machines import M0, StuckMachines
from tests.unit.doctor.stuck_world import Stuck

WAITS = node("n1", taints=[uninitialized_taint()])
WORKS = Account(controller="cloud-node-controller", plan="initialise it")
LEADS = Answer(kind="node", name="n1", provider="sim", leads=True, accounts=[WORKS])
WEB = "default/web"


# --- the rules, without a daemon ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"opening": "the provider cannot be opened: 401 no"}, "cannot be opened: 401"),
        ({}, "stands by"),
        ({"leads": True, "lease": "lease x could not be renewed"}, "could not be renewed"),
        ({"leads": True, "api": "nodes cannot be followed for 40 s"}, "followed for 40 s"),
        (
            {"leads": True, "absent": {"cloud-node-controller": "not running: no instances"}},
            "cloud-node-controller is not running: no instances",
        ),
    ],
    ids=["not open", "standby", "fenced", "deaf", "lacking"],
)
def test_a_daemon_that_cannot_work_is_the_cause(answer: Mapping[str, Any], cause: str) -> None:
    told = Answer(kind="node", name="n1", **answer)

    found = judge(Subject(kind="node", name="n1", found=WAITS, answer=told))

    assert cause in found.said
    assert not found.is_well
    assert found.advice


def test_a_silent_daemon_is_told_apart_from_none() -> None:
    silence = Silence(why="403", advice="do it")
    subject = Subject(kind="node", name="n1", found=WAITS, silence=silence)

    asked = judge(subject)
    leaderless = judge(replace(subject, silence=replace(silence, is_leaderless=True)))

    assert "cannot be asked: 403" in asked.said
    assert asked.advice == ("do it",)
    assert "no daemon leads: 403" in leaderless.said
    assert document(subject, asked).silence == "403"


@pytest.mark.parametrize(
    ("account", "cause", "then"),
    [
        ({"last": Last(ago_s=3.0, not_yet=True), "next_s": 2.0}, "nothing to say", "in 2 s"),
        ({"last": Last(ago_s=9.0, kind="Unavailable", text="503")}, "503, 9 s ago", "when it chan"),
        (
            {"last": Last(ago_s=9.0, kind="X", text="503"), "in_work": True, "failures": 4},
            "X: 503, 9 s ago, 4 times in a row",
            "being tried now",
        ),
        ({"next_s": 0.0}, "about to initialise it", "next try at once"),
    ],
    ids=["not yet", "given up", "in work", "planned"],
)
def test_the_controllers_state_is_the_cause(
    account: Mapping[str, Any], cause: str, then: str
) -> None:
    told = Account(controller="cloud-node-controller", plan="initialise it", **account)
    begun = CallSaid(verb="instance_metadata", state="running", ago_s=0.2, deadline_s=60.0)
    answer = Answer(kind="node", name="n1", leads=True, accounts=[told], calls=[begun])

    said = judge(Subject(kind="node", name="n1", found=WAITS, answer=answer)).said

    assert cause in said
    assert then in said


@pytest.mark.parametrize("kind", [*errors.POLICY, errors.CloudError, KeyError])
def test_each_class_of_error_has_advice(kind: type[Exception]) -> None:
    last = Last(ago_s=9.0, kind=kind.__name__, text="why")
    answer = Answer(kind="node", name="n1", leads=True, accounts=[replace_last(WORKS, last)])

    assert judge(Subject(kind="node", name="n1", found=WAITS, answer=answer)).advice


def replace_last(account: Account, last: Last) -> Account:
    return Account(controller=account.controller, plan=account.plan, last=last)


def test_what_does_not_exist_any_more() -> None:
    held = Held(name="n1", reason="nodes_missing", since="2026-01-01T00:00:00Z")
    failing = replace_last(WORKS, Last(ago_s=9.0, kind="Unavailable", text="503"))

    def of(answer: Answer) -> str:
        subject = Subject(kind="node", name="n1", found=None, answer=answer)
        return "\n".join(lines(subject, judge(subject)))

    base = Answer(kind="node", name="n1", leads=True)
    assert "nothing is left to do" in of(base)
    assert "nodes_missing" in of(Answer(kind="node", name="n1", leads=True, held=[held]))
    assert "about to initialise it" in of(LEADS)
    assert "503" in of(Answer(kind="node", name="n1", leads=True, accounts=[failing]))


def test_the_table_has_calls_and_the_newest_warning() -> None:
    calls = [
        CallSaid(verb="instance_exists", state="ok", ago_s=8000.0, took_s=0.2, answer="yes"),
        CallSaid(verb="list_instances", state="Unavailable", ago_s=200.0, times=3, text="503"),
    ]
    known = Answer(
        kind="node",
        name="n1",
        leads=True,
        accounts=[replace_last(WORKS, Last(ago_s=0.5))],
        absent={"node-route-controller": "not running"},
        calls=calls,
    )
    warnings = [
        Event(metadata=ObjectMeta(name=text), reason="Failed", message=text) for text in "ab"
    ]
    subject = Subject(kind="node", name="n1", found=WAITS, answer=known, warnings=warnings)

    said = "\n".join(lines(subject, judge(subject)))

    assert "2 h ago  instance_exists  ok (yes), took 200 ms" in said
    assert "3 min ago  list_instances x3  Unavailable: 503" in said
    assert "last look: just now, done" in said
    assert "node-route-controller: not running" in said
    assert "Failed: b" in said
    assert document(subject, judge(subject)).daemon is known


def of_machines(kind: str, found: Machine | MachineSet | MachineDeployment) -> Any:
    controllers = {MACHINE: "machine", SET: "machine-set", DEPLOYMENT: "machine-deployment"}
    account = Account(controller=f"{controllers[kind]}-controller")
    answer = Answer(kind=kind, name=WEB, leads=True, accounts=[account])
    return judge(Subject(kind=kind, name=WEB, found=found, answer=answer))


@pytest.mark.parametrize(
    ("condition", "advice"),
    [
        (names.CONDITION_FROZEN, names.ANNOTATION_UNFREEZE),
        (names.CONDITION_SLOWED, names.ANNOTATION_UNFREEZE),
        (names.CONDITION_REPLICA_FAILURE, "correct"),
    ],
)
def test_a_condition_keeps_a_set_from_its_work(condition: str, advice: str) -> None:
    stuck = StuckSets()
    told = {"type": condition, "status": "True", "message": "9 are there"}
    stuck.set(replicas=1)
    found = stuck.found(SET, status={"machineSetCondition": [told]})

    verdict = of_machines(SET, found)

    assert f"{condition}: 9 are there" in verdict.said
    assert advice in verdict.advice[0]


def test_a_definition_that_is_missing_is_the_cause() -> None:
    silence = Silence(why="x", advice="y")
    subject = Subject(kind=SET, name=WEB, found=None, is_served=False, silence=silence)

    assert "definitions are missing" in judge(subject).said


# --- whole daemons, in virtual time -------------------------------------------------------------


class StuckSets(StuckMachines, Sets):
    """Asked about sets and deployments too."""

    def found(self, kind: str, **changed: Any) -> Any:
        """Return an object as the cluster has it, with some fields replaced."""
        import msgspec

        plural, of = {
            SET: ("machinesets", MachineSet),
            DEPLOYMENT: ("machinedeployments", MachineDeployment),
        }[kind]
        path = f"/apis/machine.sapcloud.io/v1alpha1/namespaces/default/{plural}/web"
        return msgspec.convert({**(self.server.get(path) or {}), **changed}, of)


@pytest.fixture
def stuck() -> Stuck:
    return Stuck()


@pytest.fixture
def machines() -> StuckSets:
    found = StuckSets()
    found.ready_class()
    return found


def routed(name: str, **more: Any) -> Node:
    """A node that a route can lead to."""
    given: dict[str, Any] = {"ready": "True", "pod_cidrs": ["10.120.1.0/24"], **more}
    addresses = [address("InternalIP", "10.0.0.1")]
    return node(name, provider_id=f"fake://{name}", addresses=addresses, **given)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Unauthenticated("401 no"), "Unauthenticated: 401 no, 12 s ago; next try in 18 s"),
        (None, "NotFound: no instance is named n1, "),
    ],
    ids=["credentials", "no instance"],
)
async def test_a_node_that_cannot_be_initialised(
    stuck: Stuck, fault: CloudError | None, cause: str
) -> None:
    stuck.nodes.put(WAITS)
    if fault is not None:
        stuck.instances.faults["*"] = fault
    async with stuck.leading():
        await stuck.pass_time(12)

        assert stuck.says("node", "n1").startswith(f"n1 is not initialised: {cause}")


@pytest.mark.virtual_time
async def test_the_cloud_does_not_answer(stuck: Stuck) -> None:
    stuck.nodes.put(WAITS)
    stuck.instances.hangs.add("n1")
    async with stuck.leading():
        await stuck.pass_time(45)

        assert "not answered instance_metadata for 45 s; given" in stuck.says("node", "n1")


@pytest.mark.virtual_time
async def test_the_limit_of_calls_is_used_up(stuck: Stuck) -> None:
    stuck.rate = Rate(qps=0.01, burst=1)
    for name in ("n1", "n2"):
        stuck.nodes.put(node(name, taints=[uninitialized_taint()]))
        stuck.instances.there.add(name)
    async with stuck.leading("--concurrent-node-syncs=2", "--controllers=cloud-node"):
        await stuck.pass_time(20)

        assert "instance_metadata has waited 20 s for its turn" in stuck.says("node", "n2")


@pytest.mark.virtual_time
async def test_a_deletion_that_is_held_says_why(stuck: Stuck) -> None:
    for number in range(5):
        stuck.nodes.put(node(f"n{number}", provider_id=f"fake://n{number}", ready="Unknown"))
    async with stuck.leading():
        await stuck.pass_time(60)

        assert "its deletion is held: " in stuck.says("node", "n3")


@pytest.mark.virtual_time
async def test_a_node_that_is_denied_is_about_to_go(stuck: Stuck) -> None:
    for number in range(5):
        ready = "Unknown" if number == 0 else "True"
        stuck.nodes.put(routed(f"n{number}", ready=ready))
        stuck.instances.there.add(f"n{number}")
    stuck.instances.there.remove("n0")
    async with stuck.leading("--controllers=cloud-node-lifecycle", "--node-monitor-period=1m"):
        await stuck.pass_time(61)

        said = stuck.says("node", "n0")
        assert "the daemon is about to delete it" in said
        assert "; next try " in said


@pytest.mark.virtual_time
async def test_a_node_of_another_cloud(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", provider_id="fake://n1", ready="Unknown"))
    async with stuck.leading("--own-nodes=mine=yes"):
        await stuck.pass_time(10)

        assert "is not ready: it is not this daemon's: its labels" in stuck.says("node", "n1")


@pytest.mark.virtual_time
async def test_a_route_that_is_missing(stuck: Stuck) -> None:
    stuck.nodes.put(node("n0", provider_id="fake://n0", ready="True"))
    stuck.nodes.put(routed("n1"))
    stuck.routes.faults["create"] = ResourceExhausted("403 50 routes are the limit")
    async with stuck.leading():
        await stuck.pass_time(12)

        assert "no Pod range" in stuck.says("node", "n0")
        said = stuck.says("node", "n1")
        assert "ResourceExhausted: 403 50 routes are the limit, 12 s ago; next try in 18 s" in said


@pytest.mark.virtual_time
async def test_the_class_is_another_controllers(stuck: Stuck) -> None:
    stuck.services.service(loadBalancerClass="metallb")
    async with stuck.leading("--load-balancer-classes=example.com/ours"):
        assert "it asks for a load balancer of class metallb" in stuck.says("service", WEB)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("fault", "then"),
    [
        (ResourceExhausted("422 floating IPs: 3 of 3"), "10 s ago; next try in 20 s"),
        (InvalidArgument("'huge' is no size"), "10 s ago; next try in 10 min"),
        (RetryAfter("the balancer is being made", seconds=30), "10 s ago; next try in "),
    ],
    ids=["quota", "annotation", "later"],
)
async def test_a_load_balancer_that_is_refused(stuck: Stuck, fault: CloudError, then: str) -> None:
    stuck.services.service()
    stuck.balancers.faults["ensure"] = fault
    async with stuck.leading():
        await stuck.pass_time(10)

        said = stuck.says("service", WEB)
        assert f"{WEB} has no load balancer: {type(fault).__name__}: {fault}, {then}" in said


@pytest.mark.virtual_time
async def test_the_lease_may_have_run_out(stuck: Stuck) -> None:
    stuck.services.service()
    LeaseGuard().govern()
    async with stuck.leading():
        await stuck.pass_time(3)

        assert ", 3 s ago; next try in " in stuck.says("service", WEB)


@pytest.mark.virtual_time
async def test_a_deletion_fails(stuck: Stuck) -> None:
    stuck.services.service()
    async with stuck.leading():
        await stuck.pass_time(5)
        stuck.balancers.faults["delete"] = FailedPrecondition("409 the IP is protected")
        stuck.services.delete()
        await stuck.pass_time(30)

        said = stuck.says("service", WEB)
        assert "cannot be deleted yet: FailedPrecondition: 409 the IP is protected, 30 s" in said


@pytest.mark.virtual_time
async def test_many_services_are_missing(stuck: Stuck) -> None:
    shops = [f"shop-{number}" for number in range(9)]
    for name in shops:
        stuck.services.service(name)
    async with stuck.leading():
        await stuck.pass_time(10)
        for name in shops:
            stuck.services.vanish(f"default/{name}")
        await stuck.pass_time(30)

        assert "services_missing" in stuck.says("service", "default/shop-3")


@pytest.mark.virtual_time
async def test_all_is_well(stuck: Stuck) -> None:
    stuck.nodes.put(routed("n1", taints=[uninitialized_taint()]))
    stuck.instances.there.add("n1")
    stuck.services.service()
    stuck.services.service("inner", type="ClusterIP")
    async with stuck.leading():
        await stuck.pass_time(30)

        for kind, name in (("node", "n1"), ("service", WEB), ("service", "default/inner")):
            assert judge(stuck.case(kind, name)).is_well


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("call", "fault", "cause"),
    [
        ("create_machine", errors.ResourceExhausted("403 10 of 10"), "403 10 of 10"),
        ("list_machines", errors.Unauthenticated("401 expired"), "401 expired"),
        ("create_machine", errors.Unavailable("503 no backend"), "503 no backend"),
    ],
    ids=["quota", "credentials", "trouble"],
)
async def test_a_machine_without_vm(
    machines: StuckSets, call: str, fault: CloudError, cause: str
) -> None:
    machines.driver.faults[call] = fault
    machines.machine()
    async with machines.leading():
        await advance(60)

        said = machines.says()
        assert f"{M0} has no VM, phase " in said
        assert f"{type(fault).__name__}: {cause}" in said
        assert "; next try in " in said


@pytest.mark.virtual_time
async def test_a_class_of_which_no_vm_can_be_created() -> None:
    stuck = StuckMachines()
    stuck.machine_class()
    stuck.machine()
    async with stuck.leading():
        await advance(60)

        assert "Secret default/small, to which MachineClass small refers" in stuck.says()


@pytest.mark.virtual_time
async def test_a_machine_joins_or_fails(machines: StuckSets) -> None:
    machines.machine()
    async with machines.leading():
        await advance(60)
        assert machines.says().startswith(f"{M0} has VM fake:///0, phase Pending: ")

        await advance(25 * 60)
        assert "phase Failed: " in machines.says()
        assert "failed to join the cluster in 20m0s" in machines.says()


@pytest.mark.virtual_time
async def test_a_machine_that_runs_is_well(machines: StuckSets) -> None:
    machines.machine()
    async with machines.leading():
        await advance(1)
        machines.node(providerID="fake:///0")
        await advance(10)

        assert judge(machines.case()).is_well


@pytest.mark.virtual_time
async def test_a_machine_that_was_deleted_with_its_crd(machines: StuckSets) -> None:
    machines.lived()
    async with machines.leading():
        await advance(5)
        machines.server.drop(f"{DEFINITIONS}/machines.{names.GROUP}")
        await advance(60)

        assert "deleted together with their CustomResourceDefinition" in machines.says()
        assert "kube-ccm/allow-deletion=true" in machines.advice()


@pytest.mark.virtual_time
async def test_a_machine_in_another_namespace_is_another_daemons(machines: StuckSets) -> None:
    machines.machine()
    async with machines.leading("--namespace=shoot"):
        await advance(60)

        assert "it is in namespace default" in machines.says()


@pytest.mark.virtual_time
async def test_before_its_definitions_there_is_no_controller(machines: StuckSets) -> None:
    for name in ("machines", "machineclasses"):
        machines.server.drop(f"{DEFINITIONS}/{name}.{names.GROUP}")
    async with machines.leading():
        await advance(60)

        answer = machines.case().answer
        assert answer is not None
        assert answer.accounts == []


@pytest.mark.virtual_time
async def test_a_deployment_and_its_set_say_how_far_they_are(machines: StuckSets) -> None:
    machines.deployment(replicas=2)
    async with machines.leading(controllers="machineset,machinedeployment"):
        await advance(5)
        said = of_machines(DEPLOYMENT, machines.found(DEPLOYMENT)).said
        assert "0 of 2 new machines are available" in said

        machines.all_become("Running")
        await advance(5)
        assert of_machines(DEPLOYMENT, machines.found(DEPLOYMENT)).is_well


@pytest.mark.virtual_time
async def test_a_set_is_well_once_all_run(machines: StuckSets) -> None:
    machines.set(replicas=1)
    async with machines.leading(controllers="machineset"):
        await advance(5)
        assert "0 of 1 machines run" in of_machines(SET, machines.found(SET)).said

        machines.all_become("Running")
        await advance(5)
        assert of_machines(SET, machines.found(SET)).is_well


def test_a_verdict_names_what_the_cloud_denies() -> None:
    call = CallSaid(verb="create_route", state=NotFound.__name__, ago_s=5.0, text="no subnet")
    works = Account(controller="cloud-node-lifecycle-controller")
    answer = Answer(kind="node", name="n1", leads=True, accounts=[works], calls=[call])

    found = judge(Subject(kind="node", name="n1", found=routed("n1"), answer=answer))

    assert "NotFound: no subnet, 5 s ago" in found.said
