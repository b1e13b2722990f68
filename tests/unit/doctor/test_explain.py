"""Causes that `kube-ccm explain` finds, and the daemon that it queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ccm.app import options
from ccm.base.lease_guard import LeaseGuard
from ccm.cloud import Rate, address, errors
from ccm.doctor import daemons, explain_facts
from ccm.doctor.case import CheckFinding, ok, warn
from ccm.doctor.explain import DEPLOYMENT, SET, NoAnswer, ObjectFacts, document, find_cause, lines
from ccm.doctor.explain_facts import DaemonRequest
from ccm.gardener import names
from ccm.gardener.codec import MACHINE_SETS
from ccm.kube import errors as kube
from ccm.kube.credentials import TlsSettings
from ccm.machines import reasons
from ccm.model import Event, Node, ServicePort
from ccm.model.meta import ObjectMeta
from ccm.model.service import LoadBalancerIngress, LoadBalancerStatus, ServiceStatus
from ccm.runtime.deletions import BlockedDeletion
from ccm.runtime.object_status import ControllerStatus, ExplainResponse, LastReconcile, error_text
from ccm.testing.apiserver import kinds
from ccm.testing.builders import node, service, shutdown_taint, uninitialized_taint
from ccm.testing.clock import advance
from tests.unit.controllers.memory_server import FragileServer
from tests.unit.doctor.stuck import Stuck

WAITS = node("n1", taints=[uninitialized_taint()])
WORKS = ControllerStatus(controller="cloud-node-controller", plan="initialise it")
LEADS = ExplainResponse(kind="node", name="n1", provider="sim", leads=True, accounts=[WORKS])
M0, WEB = "default/m0", "default/web"


# --- the rules, without a daemon ----------------------------------------------------------------


def answering(**answer: Any) -> ExplainResponse:
    return ExplainResponse(kind="node", name="n1", **answer)


def of_n1(answer: ExplainResponse, found: Node | None = WAITS) -> ObjectFacts:
    return ObjectFacts(kind="node", name="n1", obj=found, answer=answer)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"opening": "the provider cannot be opened: 401 no"}, "cannot be opened: 401"),
        ({}, "is on standby"),
        ({"leads": True, "lease": "lease x could not be renewed"}, "could not be renewed"),
        ({"leads": True, "api": "watch of nodes has failed for 40 s"}, "failed for 40 s"),
        (
            {"leads": True, "absent": {"cloud-node-controller": "not running: no instances"}},
            "cloud-node-controller is not running: no instances",
        ),
    ],
    ids=["not open", "standby", "fenced", "deaf", "lacking"],
)
def test_cause_is_a_daemon_that_cannot_work(answer: Mapping[str, Any], cause: str) -> None:
    found = find_cause(of_n1(answering(**answer)))

    assert cause in found.cause
    assert not found.is_healthy
    assert found.advice


def test_unanswering_leader_is_distinguished_from_no_leader() -> None:
    silence = NoAnswer(why="403", advice="do it")
    subject = ObjectFacts(kind="node", name="n1", obj=WAITS, no_answer=silence)
    leaderless = replace(subject, no_answer=replace(silence, is_leaderless=True))

    assert "querying the leader failed: 403" in find_cause(subject).cause
    assert find_cause(subject).advice == ("do it",)
    assert "there is no leader: 403" in find_cause(leaderless).cause
    assert document(subject, find_cause(subject))["silence"] == "403"
    unserved = ObjectFacts(kind=SET, name=WEB, obj=None, is_served=False, no_answer=silence)
    assert "the CRD of machinesets is not installed" in find_cause(unserved).cause


@pytest.mark.parametrize(
    ("account", "cause", "then"),
    [
        (
            {"last": LastReconcile(ago_s=3.0, not_yet=True), "next_s": 2.0},
            "waiting for the cloud or for caches",
            "in 2 s",
        ),
        (
            {"last": LastReconcile(ago_s=9.0, kind="Unavailable", text="503")},
            "503, 9 s ago",
            "when the object chan",
        ),
        (
            {
                "last": LastReconcile(ago_s=9.0, kind="X", text="503"),
                "in_work_s": 1.0,
                "failures": 4,
            },
            "X: 503, 9 s ago, 4 times in a row",
            "; reconciling now",
        ),
        ({"next_s": 0.0}, "about to initialise it", "next try now"),
    ],
    ids=["not yet", "given up", "in work", "planned"],
)
def test_cause_is_taken_from_the_controller_status(
    account: Mapping[str, Any], cause: str, then: str
) -> None:
    works = msgspec.structs.replace(WORKS, **account)

    said = find_cause(of_n1(answering(leads=True, accounts=[works]))).cause

    assert cause in said
    assert then in said


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({}, "nothing is left to clean up"),
        (
            {"held": [BlockedDeletion(name="n1", reason="nodes_missing", since="2026")]},
            "nodes_missing",
        ),
        ({"accounts": [WORKS]}, "about to initialise it"),
        (
            {
                "accounts": [
                    ControllerStatus(
                        controller="c", plan="p", last=LastReconcile(ago_s=9.0, kind="X")
                    )
                ]
            },
            "X: , 9 s ago",
        ),
    ],
)
def test_deleted_object_is_explained_by_its_remaining_work(
    answer: Mapping[str, Any], cause: str
) -> None:
    subject = of_n1(answering(leads=True, **answer), None)

    assert cause in "\n".join(lines(subject, find_cause(subject)))


def test_node_whose_vm_is_switched_off_is_explained_by_it() -> None:
    off = node("n1", ready="False", taints=[shutdown_taint()])

    found = find_cause(of_n1(answering(leads=True), off))

    assert found.cause.startswith("n1 is not ready, its VM is switched off, and the daemon")


def test_served_service_whose_change_fails_is_explained_by_both() -> None:
    status = ServiceStatus(
        load_balancer=LoadBalancerStatus(ingress=[LoadBalancerIngress(ip="192.0.2.1")])
    )
    served = msgspec.structs.replace(service("web"), status=status)
    failing = LastReconcile(ago_s=9.0, kind="InvalidArgument", text="'huge' is no size")
    account = ControllerStatus(controller="service-lb-controller", last=failing)
    subject = of_n1(answering(leads=True, accounts=[account]))

    found = find_cause(replace(subject, kind="service", name=WEB, obj=served))

    said = "is served at 192.0.2.1, but its last change failed: InvalidArgument: 'huge' is no size"
    assert f"{WEB} {said}" in found.cause


def test_error_text_is_one_short_line() -> None:
    assert error_text(errors.Unavailable("<html>\n\tBad\x1b[31m")) == "<html> Bad?[31m"
    assert len(error_text(errors.Unavailable("x" * 1000))) == 300


def test_explain_table_shows_the_last_reconcile_and_newest_warning() -> None:
    answer = answering(
        leads=True,
        accounts=[msgspec.structs.replace(WORKS, last=LastReconcile(ago_s=0.5))],
        absent={"node-route-controller": "not running"},
    )
    warnings = [
        Event(metadata=ObjectMeta(name=text), reason="Failed", message=text) for text in "ab"
    ]
    subject = replace(of_n1(answer), warnings=warnings)

    said = "\n".join(lines(subject, find_cause(subject)))

    for part in (
        "last reconcile: just now, succeeded",
        "node-route-controller: not running",
        "Failed: b",
    ):
        assert part in said
    assert document(subject, find_cause(subject))["daemon"] is answer


def test_explain_table_names_the_route_controller_for_nodes_only() -> None:
    absent = {"node-route-controller": "not running", "service-lb-controller": "not running: off"}
    subject = replace(of_n1(answering(absent=absent)), kind="service", name=WEB, obj=service("web"))

    said = "\n".join(lines(subject, find_cause(subject)))

    assert "service-lb-controller: not running: off" in said
    assert "node-route-controller" not in said


# --- the queried daemon -------------------------------------------------------------------------

LEADER, OTHER = (
    daemons.ManagerPod(pod=f"ccm-{host}", host=host, image="i", provider="sim") for host in "ab"
)
HELD = ok("kube-system/ccm is held by a_1")
SILENT = warn("held by a_1, not renewed for 40 s", "look at its log")


@dataclass
class Leaders:
    """The Lease holder, the Pods and their responses; `asked` records the queried Pod."""

    holder: str = "a_1"
    lease: CheckFinding = HELD
    pods: Sequence[daemons.ManagerPod] | None = (OTHER, LEADER)
    answer: ExplainResponse | Exception = LEADS
    asked: str = ""

    async def ask(
        self, monkeypatch: pytest.MonkeyPatch, to: str = ""
    ) -> ExplainResponse | NoAnswer:
        async def lease(case: Any) -> CheckFinding:
            case.lease_holder = self.holder
            return self.lease

        async def managers_of(_case: Any, _namespace: str) -> Any:
            return self.pods

        async def asked(_case: Any, whom: str, *_: Any) -> ExplainResponse:
            self.asked = whom
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        async def ask_pod(
            _case: Any, _space: str, pod: daemons.ManagerPod, *_: Any
        ) -> ExplainResponse:
            return await asked(None, pod.pod)

        monkeypatch.setattr(daemons, "lease", lease)
        monkeypatch.setattr(daemons, "managers_of", managers_of)
        monkeypatch.setattr(explain_facts, "_ask_pod", ask_pod)
        monkeypatch.setattr(explain_facts, "_send", asked)
        cluster = SimpleNamespace(source="/somewhere/config")
        case: Any = SimpleNamespace(options=options.parse([]), lease_holder=None, cluster=cluster)
        return await explain_facts.ask_daemon(case, EXPLAIN, to, TlsSettings())


EXPLAIN = DaemonRequest(
    path="/explain", response=ExplainResponse, query={"kind": "node", "name": "n1"}
)
FREE = ok("kube-system/ccm has no holder")


@pytest.mark.parametrize(
    ("leaders", "asked", "why", "is_leaderless"),
    [
        (Leaders(), "ccm-a", "", False),
        # Without a leader, any Pod can report why it does not lead.
        (Leaders("", FREE, answer=answering(opening="401")), "ccm-b", "", False),
        (Leaders("", SILENT, answer=answering()), "ccm-b", SILENT.message, True),
        (Leaders("", FREE, None), "", FREE.message, True),
        (
            Leaders(pods=(OTHER,)),
            "",
            "kube-system/ccm is held by a_1; no Pod of the holder was found",
            False,
        ),
    ],
    ids=["leader", "any", "standby", "no Pods", "no Pod of it"],
)
async def test_explain_queries_the_leader_or_any_pod_without_one(
    leaders: Leaders,
    asked: str,
    why: str,
    is_leaderless: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = await leaders.ask(monkeypatch)

    assert leaders.asked == asked
    if why:
        assert isinstance(told, NoAnswer)
        assert (told.why, told.is_leaderless) == (why, is_leaderless)
    else:
        assert told == leaders.answer


@pytest.mark.parametrize(
    ("error", "why", "advice"),
    [
        (
            kube.Unauthorized(status=401, reason="Unauthorized", message="no"),
            "the daemon rejects your credentials (401)",
            "use credentials of this cluster (the daemon rejects those of config",
        ),
        (
            kube.Forbidden(status=403, reason="Forbidden", message="not you"),
            "no permission (403: ",
            "grant your user `get` of the path /explain: kubectl create clusterrole",
        ),
        (
            kube.NotFound(status=404, reason="NotFound", message="404 page not found"),
            "the daemon has no endpoint /explain",
            "upgrade the daemon",
        ),
        (kube.Unreachable("nothing listens", kind="refused"), "nothing listens", "check"),
    ],
    ids=["401", "403", "404", "unreachable"],
)
@pytest.mark.parametrize("address", ["", "far:1"])
async def test_refused_query_gives_advice(
    address: str, error: Exception, why: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await Leaders(answer=error).ask(monkeypatch, address)

    assert isinstance(told, NoAnswer)
    assert told.why.startswith(why)
    assert told.advice.startswith(advice)
    assert not told.is_leaderless


# --- whole daemons, in virtual time -------------------------------------------------------------


def routed(name: str, **more: Any) -> Node:
    """Return a node that can be the target of a route."""
    given: dict[str, Any] = {"ready": "True", "pod_cidrs": ["10.120.1.0/24"], **more}
    addresses = [address("InternalIP", "10.0.0.1")]
    return node(name, provider_id=f"fake://{name}", addresses=addresses, **given)


def five(stuck: Stuck) -> None:
    """Add five nodes, one of them unreachable and without an instance."""
    for number in range(5):
        cidr = f"10.120.{number}.0/24"
        ready = "Unknown" if number == 0 else "True"
        stuck.add(routed(f"n{number}", ready=ready, pod_cidrs=[cidr]))
    stuck.instances.there = {f"n{number}" for number in range(1, 5)}


def all_gone(stuck: Stuck) -> None:
    for number in range(5):
        stuck.add(node(f"n{number}", provider_id=f"fake://n{number}", ready="Unknown"))


def throttled(stuck: Stuck) -> None:
    stuck.rate = Rate(qps=0.01, burst=1)
    for name in ("n1", "n2"):
        stuck.add(node(name, taints=[uninitialized_taint()]))
        stuck.instances.there.add(name)


def refused(operation: str, fault: errors.CloudError) -> Any:
    def arrange(stuck: Stuck) -> None:
        stuck.add(service("web"))
        stuck.balancers.faults[operation] = fault

    return arrange


def no_route(stuck: Stuck) -> None:
    stuck.add(node("n0", provider_id="fake://n0", ready="True"), routed("n1"))
    stuck.routes.faults["create"] = errors.ResourceExhausted("403 50 routes are the limit")


def unaccepted(stuck: Stuck) -> None:
    stuck.add(WAITS)
    stuck.instances.faults["*"] = errors.Unauthenticated("401 no")


def hanging(stuck: Stuck) -> None:
    stuck.add(WAITS)
    stuck.instances.hangs.add("n1")


def vm_refused(call: str, fault: errors.CloudError) -> Any:
    def arrange(stuck: Stuck) -> None:
        stuck.ready_class()
        stuck.machine()
        stuck.driver.faults[call] = fault

    return arrange


def fenced(stuck: Stuck) -> None:
    stuck.add(service("web"))
    LeaseGuard().activate()


def fleet(stuck: Stuck) -> None:
    stuck.ready_class()
    stuck.driver.faults["create_machine"] = errors.ResourceExhausted("403 10 of 10")
    stuck.deployment(replicas=2)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("arrange", "asked", "cause"),
    [
        (unaccepted, "12 node n1", "Unauthenticated: 401 no, 12 s ago; next try in 18 s"),
        (lambda s: s.add(WAITS), "12 node n1", "NotFound: no instance is named n1, "),
        (hanging, "45 node n1", "reconciling for 45 s: "),
        (
            throttled,
            "20 node n2 --concurrent-node-syncs=2 --controllers=cloud-node",
            "reconciling for 20 s: ",
        ),
        (all_gone, "60 node n3", "its deletion is blocked: "),
        (
            five,
            "45 node n0 --controllers=cloud-node-lifecycle --node-monitor-period=1m",
            "the daemon is about to delete it: the cloud must report",
        ),
        (all_gone, "10 node n1 --node-selector=mine=yes", "not managed by this daemon: its labels"),
        (no_route, "12 node n0", "no Pod range"),
        (no_route, "12 node n1", "retry the failed creation of its route; next try in 18 s"),
        (
            lambda s: s.add(service("web", load_balancer_class="metallb")),
            "1 service default/web --load-balancer-classes=example.com/ours",
            "its loadBalancerClass is metallb",
        ),
        (
            refused("ensure", errors.ResourceExhausted("422 3 of 3")),
            "10 service default/web",
            "ResourceExhausted: 422 3 of 3, 10 s ago; next try in 20 s",
        ),
        (
            refused("ensure", errors.InvalidArgument("'huge' is no size")),
            "10 service default/web",
            "InvalidArgument: 'huge' is no size, 10 s ago; next try in 10 min",
        ),
        (
            refused("ensure", errors.RetryAfter("it is being made", seconds=30)),
            "10 service default/web",
            "RetryAfter: it is being made, 10 s ago; next try in ",
        ),
        (fenced, "3 service default/web", ", 3 s ago; next try in "),
        (
            vm_refused("create_machine", errors.ResourceExhausted("403 10 of 10")),
            "60 machine default/m0",
            "[ResourceExhausted] message = [403 10 of 10]",
        ),
        (
            vm_refused("list_machines", errors.Unauthenticated("401 expired")),
            "60 machine default/m0",
            "[Unauthenticated] message = [401 expired]",
        ),
        (
            lambda s: (s.machine_class(), s.machine()),
            "60 machine default/m0",
            "Secret default/small of MachineClass small does not exist",
        ),
        (
            lambda s: (s.ready_class(), s.machine()),
            "60 machine default/m0",
            f"{M0} has VM fake:///0, phase Pending: its node has not joined, or is not ready",
        ),
        (
            lambda s: (s.ready_class(), s.machine()),
            "1560 machine default/m0",
            "failed to join the cluster in 20m0s",
        ),
        (
            lambda s: (s.ready_class(), s.machine()),
            "60 machine default/m0 --namespace=shoot",
            "it is in namespace default",
        ),
        (fleet, "5 machinedeployment default/web", "0 of 2 new machines are available"),
    ],
)
async def test_explain_finds_the_cause_of_a_stuck_object(
    arrange: Any, asked: str, cause: str
) -> None:
    """`asked` has the seconds to wait, the object, and the flags."""
    after_s, kind, name, *flags = asked.split()
    stuck = Stuck()
    arrange(stuck)
    async with stuck.leading(*flags):
        await advance(float(after_s))

        assert cause in await stuck.says(kind, name)


@pytest.mark.virtual_time
async def test_explain_shows_a_failing_load_balancer_deletion() -> None:
    stuck = Stuck()
    stuck.add(service("web"))
    async with stuck.leading():
        await advance(5)
        stuck.balancers.faults["delete"] = errors.FailedPrecondition("409 the IP is protected")
        stuck.server.drop("/api/v1/namespaces/default/services/web")
        await advance(30)

        said = await stuck.says("service", WEB)
        assert "is being deleted: FailedPrecondition: 409 the IP is protected, 30 s" in said


@pytest.mark.virtual_time
async def test_explain_shows_a_deletion_blocked_by_many_missing_services() -> None:
    server = FragileServer()
    stuck = Stuck(server)
    shops = [f"shop-{number}" for number in range(9)]
    stuck.add(*(service(name, ports=[ServicePort(port=80)]) for name in shops))
    async with stuck.leading():
        await advance(10)
        server.goes()
        for name in shops:
            path = f"/api/v1/namespaces/default/services/{name}"
            server.patch(path, {"metadata": {"finalizers": None}})
            server.drop(path)
        server.store.collection(kinds.SERVICES).floor = server.store.revision
        server.returns()
        await advance(60)

        said = await stuck.says("service", "default/shop-3")
        assert "deletion of its cloud resources blocked: services_missing" in said


@pytest.mark.virtual_time
async def test_explain_reports_healthy_objects() -> None:
    stuck = Stuck()
    stuck.add(routed("n1", taints=[uninitialized_taint()]), service("web"))
    stuck.add(service("inner", type="ClusterIP"))
    stuck.instances.there.add("n1")
    stuck.ready_class()
    stuck.deployment(replicas=1)
    async with stuck.leading():
        await advance(5)
        stuck.all_become("Running")
        await advance(30)

        (of,) = (one["metadata"]["name"] for one in stuck.server.list(f"{SETS}"))
        for kind, name in (
            ("node", "n1"),
            ("service", WEB),
            ("service", "default/inner"),
            (DEPLOYMENT, WEB),
            (SET, f"default/{of}"),
        ):
            assert (await stuck.says(kind, name)).endswith("all is well")


SETS = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/default/machinesets"


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("condition", "advice"),
    [
        (reasons.CONDITION_FROZEN, names.ANNOTATION_UNFREEZE),
        (reasons.CONDITION_SLOWED, names.ANNOTATION_UNFREEZE),
        (reasons.CONDITION_REPLICA_FAILURE, "fix the problem"),
    ],
)
async def test_condition_of_a_machine_set_is_the_cause(condition: str, advice: str) -> None:
    stuck = Stuck()
    told = {"type": condition, "status": "True", "message": "9 are there"}
    stuck.set(replicas=1)
    stuck.server.patch(f"{SETS}/web/status", {"status": {"machineSetCondition": [told]}})
    found = await stuck.server.client().resource(MACHINE_SETS).get("web", namespace="default")
    account = ControllerStatus(controller="machine-set-controller")
    answer = ExplainResponse(kind=SET, name=WEB, leads=True, accounts=[account])

    verdict = find_cause(ObjectFacts(kind=SET, name=WEB, obj=found, answer=answer))

    assert f"{condition}: 9 are there" in verdict.cause
    assert advice in verdict.advice[0]
