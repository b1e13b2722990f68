"""Decisions about Services, per row of the conformance table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ccm.cloud import Ingress, PortStatus, Service, Status, address
from ccm.controllers.service import plan
from ccm.controllers.service.members import (
    SNAPSHOT_S,
    MemberPool,
    affects_members,
    format_names,
    is_member,
)
from ccm.controllers.service.plan import BalancerState, ServiceAction, ServiceRecord, ServiceRules
from ccm.model import Taint, names
from ccm.model.patches import StaleObject
from ccm.testing.builders import node
from ccm.testing.clock import advance
from tests.support.services import F, autoscaler_taint

pytestmark = pytest.mark.virtual_time

EXCLUDE = names.LABEL_EXCLUDE_BALANCERS


def service(
    type_: str = "LoadBalancer",
    *,
    finalizers: list[str] | None = None,
    deleting: bool = False,
    annotations: dict[str, str] | None = None,
    uid: str = "u",
    ingress: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> Service:
    metadata: dict[str, Any] = {
        "name": "web",
        "namespace": "default",
        "uid": uid,
        "resourceVersion": "7",
        "finalizers": finalizers,
        "annotations": annotations,
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"type": type_, "ports": [port()], **spec}
    body = {"metadata": metadata, "spec": spec, "status": {"loadBalancer": {"ingress": ingress}}}
    return msgspec.convert(body, Service)


def port(**fields: Any) -> dict[str, Any]:
    return {"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30080, **fields}


@pytest.mark.row("service-wants-01")
@pytest.mark.parametrize(
    ("given", "wants"),
    [
        (service(), True),
        (service("ClusterIP"), False),
        (service("NodePort"), False),
        (service("ExternalName"), False),
        (service(loadBalancerClass="theirs"), False),
        (service(loadBalancerClass=""), False),
        (service(loadBalancerClass="mine"), True),
        (service("ClusterIP", loadBalancerClass="mine"), False),
    ],
)
def test_balancer_is_wanted_depending_on_type_and_class(given: Service, wants: bool) -> None:
    assert plan.wants_balancer(given, {"mine"}) is wants


@pytest.mark.row("service-cleanup-01")
@pytest.mark.parametrize(
    ("given", "needs"),
    [
        (service(), False),
        (service("NodePort"), False),
        (service(deleting=True), False),
        (service("NodePort", finalizers=[F]), True),
        (service(finalizers=[F]), False),
        (service("", finalizers=[F], deleting=True), True),
        (service(finalizers=[F], deleting=True), True),
        (service(finalizers=["foo"], deleting=True), False),
        (service(finalizers=[F], deleting=True, loadBalancerClass="theirs"), False),
        (service(finalizers=[F], deleting=True, loadBalancerClass="mine"), True),
    ],
)
def test_cleanup_is_needed_only_with_our_finalizer_and_a_managed_class(
    given: Service, needs: bool
) -> None:
    assert plan.needs_cleanup(given, {"mine"}) is needs


def record(state: BalancerState, applied: Service | None = None) -> ServiceRecord:
    return ServiceRecord(applied=applied or service(finalizers=[F]), state=state)


MARKED, CLUSTER_IP = service(finalizers=[F]), service("ClusterIP")
DYING, OTHERS = service(finalizers=[F], deleting=True), service(finalizers=["foo"], deleting=True)
THEIRS = service(loadBalancerClass="theirs", finalizers=[F])
THEIRS_DYING = service(loadBalancerClass="theirs", finalizers=[F], deleting=True)


@pytest.mark.row("service-deleting-01")
@pytest.mark.parametrize(
    ("now", "known", "members_due", "action"),
    [
        (None, None, False, ServiceAction.NOTHING),
        (None, record(BalancerState.PENDING), False, ServiceAction.REMOVE_VANISHED),
        (None, record(BalancerState.REMOVED), False, ServiceAction.FORGET),
        (service(uid="other"), record(BalancerState.APPLIED), False, ServiceAction.REMOVE_VANISHED),
        (service(), None, False, ServiceAction.ENSURE),
        (MARKED, record(BalancerState.UNVERIFIED), True, ServiceAction.VERIFY),
        (MARKED, record(BalancerState.PENDING), True, ServiceAction.ENSURE),
        (MARKED, record(BalancerState.REMOVED), False, ServiceAction.ENSURE),
        (MARKED, record(BalancerState.APPLIED), True, ServiceAction.UPDATE),
        (MARKED, record(BalancerState.APPLIED), False, ServiceAction.NOTHING),
        (service(), record(BalancerState.APPLIED), False, ServiceAction.REPAIR),
        (
            service(loadBalancerIP="192.0.2.9"),
            record(BalancerState.APPLIED),
            True,
            ServiceAction.ENSURE,
        ),
        (CLUSTER_IP, None, False, ServiceAction.NOTHING),
        (CLUSTER_IP, record(BalancerState.PENDING, CLUSTER_IP), False, ServiceAction.REMOVE),
        (service("ClusterIP", finalizers=[F]), None, False, ServiceAction.REMOVE),
        (DYING, None, False, ServiceAction.REMOVE),
        (DYING, record(BalancerState.APPLIED), True, ServiceAction.REMOVE),
        (OTHERS, None, False, ServiceAction.NOTHING),
        (OTHERS, record(BalancerState.PENDING, OTHERS), False, ServiceAction.REMOVE),
        (THEIRS, None, False, ServiceAction.NOTHING),
        (THEIRS_DYING, None, False, ServiceAction.NOTHING),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, ServiceAction) else "",
)
def test_decide_maps_service_and_record_to_one_action(
    now: Service | None, known: ServiceRecord | None, members_due: bool, action: ServiceAction
) -> None:
    assert plan.decide(now, known, ServiceRules(), members_due=members_due) is action


CHANGES = [
    (service("ClusterIP"), True, "type"),
    (service(ports=[port(port=81)]), True, "port"),
    (service(ports=[port(), port(port=81)]), True, "one port more"),
    (service(ports=[port(name="http")]), True, "name of a port"),
    (service(ports=[port(protocol="UDP")]), True, "protocol"),
    (service(ports=[port(nodePort=30081)]), True, "node port"),
    (service(ports=[port(targetPort=81)]), True, "target port"),
    (service(ports=[port(targetPort="80")]), True, "target port as text"),
    (service(ports=[port(appProtocol="http")]), True, "application protocol"),
    (service(sessionAffinity="ClientIP"), True, "session affinity"),
    (
        service(sessionAffinityConfig={"clientIP": {"timeoutSeconds": 5}}),
        True,
        "session affinity's time",
    ),
    (service(loadBalancerIP="192.0.2.1"), True, "address"),
    (service(loadBalancerSourceRanges=["10.0.0.0/8"]), True, "source ranges"),
    (service(externalIPs=["192.0.2.1"]), True, "external IPs"),
    (service(annotations={"a": "b"}), True, "annotation"),
    (service(uid="other"), True, "UID"),
    (service(externalTrafficPolicy="Local"), True, "traffic policy"),
    (service(healthCheckNodePort=30090), True, "health check port"),
    (service(ipFamilies=["IPv4", "IPv6"]), True, "IP families"),
    (service(loadBalancerSourceRanges=[]), False, "empty list"),
    (service(clusterIP="10.0.0.1", clusterIPs=["10.0.0.1"]), False, "cluster IP"),
    (service(ipFamilyPolicy="PreferDualStack"), False, "IP family policy"),
    (service(internalTrafficPolicy="Local"), False, "internal traffic policy"),
    (service(allocateLoadBalancerNodePorts=False), False, "allocation of node ports"),
    (service(finalizers=[F]), False, "finalizers"),
    (service(deleting=True), False, "deletion"),
    (service(ingress=[{"ip": "192.0.2.1"}]), False, "status"),
]


@pytest.mark.row("service-change-01")
@pytest.mark.parametrize(
    ("changed", "needs"), [row[:2] for row in CHANGES], ids=[row[2] for row in CHANGES]
)
def test_service_changes_that_need_an_ensure(changed: Service, needs: bool) -> None:
    assert plan.needs_ensure(service(), changed, None) is needs
    assert plan.needs_ensure(changed, service(), None) is needs
    assert not plan.needs_ensure(changed, changed, None)


@pytest.mark.row("service-change-01")
@pytest.mark.parametrize(
    ("field", "old", "new", "needs"),
    [
        ("ports", [port(), port(port=81)], [port(port=81), port()], True),
        ("externalIPs", ["a", "b"], ["b", "a"], True),
        ("ipFamilies", ["IPv4", "IPv6"], ["IPv6", "IPv4"], False),
    ],
)
def test_list_order_needs_an_ensure_except_for_ip_families(
    field: str, old: Any, new: Any, needs: bool
) -> None:
    before, after = (service(**spec) for spec in ({field: old}, {field: new}))
    assert plan.needs_ensure(before, after, None) is needs


@pytest.mark.row("service-annotations-01")
@pytest.mark.parametrize(
    ("key", "counts"),
    [("lb.sim.io/a", True), (names.ANNOTATION_SOURCE_RANGES, True), ("kubectl/last", False)],
)
def test_annotation_changes_that_need_an_ensure(key: str, counts: bool) -> None:
    changed = service(annotations={key: "x"})

    assert plan.needs_ensure(service(), changed, ("lb.sim.io/",)) is counts


@pytest.mark.row("service-finalizer-01")
def test_finalizer_patches_are_bound_to_the_resource_version() -> None:
    bound = {"resourceVersion": "7"}

    assert plan.finalizer_patch(service()) == {"metadata": {**bound, "finalizers": [F]}}
    assert plan.finalizer_patch(service(finalizers=["foo"])) == {
        "metadata": {**bound, "$setElementOrder/finalizers": ["foo", F], "finalizers": [F]}
    }
    assert plan.finalizer_patch(service(finalizers=["foo", F])) is None
    assert plan.removal_patch(service(finalizers=["foo"])) is None
    assert plan.removal_patch(service(finalizers=[F])) == {
        "metadata": {**bound, "$deleteFromPrimitiveList/finalizers": [F]}
    }
    assert plan.removal_patch(service(finalizers=["a", F, "b"])) == {
        "metadata": {
            **bound,
            "$deleteFromPrimitiveList/finalizers": [F],
            "$setElementOrder/finalizers": ["a", "b"],
        }
    }


@pytest.mark.row("service-finalizer-01")
@pytest.mark.parametrize("given", [service(deleting=True), service("ClusterIP")])
def test_finalizer_patch_raises_for_deleting_or_retyped_services(given: Service) -> None:
    with pytest.raises(StaleObject):
        plan.finalizer_patch(given)


IP, VIP = {"ip": "192.0.2.1"}, {"ip": "192.0.2.1", "ipMode": "VIP"}
PROXY = {"ip": "192.0.2.1", "ipMode": "Proxy"}
NAMED: Any = {"hostname": "lb.example"}
BROKEN = [PortStatus(port=80), PortStatus(port=53, protocol="UDP", error="Busy")]
BROKEN_WIRE = [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP", "error": "Busy"}]


@pytest.mark.row("service-status-01")
@pytest.mark.parametrize(
    ("present", "wanted", "written"),
    [
        (None, None, None),
        ([], None, None),
        (None, Ingress(ip="192.0.2.1"), IP),
        ([IP], Ingress(ip="192.0.2.1"), None),
        ([VIP], Ingress(ip="192.0.2.1"), None),
        ([VIP], Ingress(ip="192.0.2.1", ip_mode="Proxy"), PROXY),
        ([IP], Ingress(**NAMED, ports=BROKEN), {**NAMED, "ports": BROKEN_WIRE}),
    ],
)
def test_status_patch_writes_only_a_changed_ingress(
    present: list[dict[str, Any]] | None, wanted: Ingress | None, written: dict[str, Any] | None
) -> None:
    patch = plan.status_patch(service(ingress=present), Status(ingress=[wanted] if wanted else ()))

    bound = {"metadata": {"resourceVersion": "7"}}
    expected = {**bound, "status": {"loadBalancer": {"ingress": [written]}}}
    assert patch == (expected if written else None)


@pytest.mark.row("service-status-01")
def test_unwanted_ingress_status_is_cleared() -> None:
    given = service(ingress=[{"ip": "192.0.2.1"}])
    cleared = {"loadBalancer": {"ingress": None}}

    assert (plan.status_patch(given, Status()) or {})["status"] == cleared
    assert (plan.removal_patch(given) or {})["status"] == cleared
    with pytest.raises(StaleObject):
        plan.status_patch(service("ClusterIP"), Status())


@pytest.mark.row("service-nodes-01")
@pytest.mark.parametrize(
    ("given", "member"),
    [
        (node(ready=None), True),
        (node(ready="False"), True),
        (node(provider_id="fake://1"), True),
        (node(provider_id=""), True),
        *[(node(labels={EXCLUDE: value}), False) for value in ("", "true", "1", "T", "foo")],
        *[(node(labels={EXCLUDE: value}), True) for value in ("false", "0", "F", "False", "f")],
        (node(taints=[autoscaler_taint()]), False),
        (node(taints=[Taint(key="other", effect="NoSchedule")]), True),
    ],
)
def test_node_is_a_member_unless_excluded_by_label_or_autoscaler_taint(
    given: Any, member: bool
) -> None:
    assert is_member(given) is member


TAINTED = [autoscaler_taint()]


@pytest.mark.row("service-nodes-02")
@pytest.mark.parametrize("around", [{}, {"taints": TAINTED}, {"ready": "False"}])
@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ({}, {"labels": {EXCLUDE: ""}}, True),
        ({"labels": {EXCLUDE: ""}}, {}, True),
        ({"labels": {EXCLUDE: ""}}, {"labels": {EXCLUDE: "foo"}}, False),
        ({"provider_id": ""}, {"provider_id": "fake://1"}, True),
        ({"provider_id": "fake://1"}, {"provider_id": ""}, True),
        ({"provider_id": "fake://1"}, {"provider_id": "fake://2"}, True),
        ({}, {}, False),
        ({}, {"labels": {"a": "b"}}, False),
    ],
)
def test_exclusion_label_and_provider_id_changes_affect_members(
    old: dict[str, Any], new: dict[str, Any], counts: bool, around: dict[str, Any]
) -> None:
    assert affects_members(node(**old, **around), node(**new, **around)) is counts


@pytest.mark.row("service-nodes-02")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"ready": "False"}, {"ready": "True"}),
        ({"ready": "True"}, {"ready": None}),
        ({}, {"taints": TAINTED}),
        ({"taints": TAINTED}, {}),
        ({}, {"taints": [Taint(key="other", effect="NoSchedule")]}),
    ],
)
def test_readiness_and_taint_changes_do_not_affect_members(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert not affects_members(node(**old), node(**new))


async def test_members_are_copied_once_a_second_while_nodes_join_and_anew_at_the_end() -> None:
    pool = MemberPool()
    pool.put(node("a"))
    first = pool.snapshot
    pool.put(node("b"))
    await advance(0.9)
    assert pool.snapshot is first
    assert first.fingerprint != pool.fingerprint
    assert pool.needs_update(first.fingerprint, first.burst) is False

    pool.end_burst()
    assert [each.name for each in pool.snapshot.nodes] == ["a", "b"]
    assert pool.needs_update(first.fingerprint, first.burst)

    pool.remove("a")
    await advance(1)
    assert [each.name for each in pool.snapshot.nodes] == ["b"]


async def test_members_copied_for_each_new_node_do_not_grow_with_their_number() -> None:
    costs = []
    for size in (2_000, 8_000):
        pool, copied, last = MemberPool(), 0, None
        for number in range(size):
            pool.put(node(str(number)))
            if number % 20 == 0:
                await advance(1)
                if pool.snapshot is not last:
                    last = pool.snapshot
                    copied += len(last.nodes)
        costs.append(copied / size)
    assert costs[1] <= 2 * costs[0]


@pytest.mark.parametrize(
    ("new", "is_copied"),
    [
        ({"ready": "True", "resource_version": "2"}, False),
        ({"ready": "False"}, True),
        ({"taints": TAINTED}, True),
        ({"labels": {"x": "y"}}, True),
        ({"ready": "True", "uid": "another"}, True),
    ],
    ids=["heartbeat", "condition", "taint", "label", "another node of the name"],
)
async def test_heartbeat_of_a_node_causes_no_copy_of_the_members(
    new: dict[str, Any], is_copied: bool
) -> None:
    """Providers keep their results for a copy of the members."""
    pool = MemberPool()
    pool.put(node("a", ready="True"))
    first = pool.snapshot
    await advance(SNAPSHOT_S)

    pool.put(node("a", **new))

    assert (pool.snapshot is not first) is is_copied


async def test_nodes_that_are_being_initialised_cause_no_copy_for_each_change() -> None:
    pool = MemberPool()
    pool.put(node("a"))
    first = pool.snapshot
    taints = [Taint(key=names.TAINT_UNINITIALIZED, effect="NoSchedule")]

    for ip in ("10.0.0.1", "10.0.0.2"):
        pool.put(node("a", taints=taints, addresses=[address("InternalIP", ip)]))
        assert pool.snapshot is first

    pool.put(node("a", addresses=[address("InternalIP", "10.0.0.2")]))
    assert [each.address for each in pool.snapshot.nodes[0].addresses] == ["10.0.0.2"]


@pytest.mark.row("service-nodes-03")
def test_member_fingerprint_covers_names_and_provider_ids_only() -> None:
    pool = MemberPool()
    for name in ("b", "a"):
        pool.put(node(name))
    first = pool.fingerprint
    assert [each.name for each in pool.snapshot.nodes] == ["a", "b"]

    pool.put(node("a", labels={"x": "y"}, ready="False"))
    assert pool.fingerprint == first
    assert pool.snapshot.nodes[0].labels == {"x": "y"}
    pool.put(node("a", provider_id="fake://1"))
    second = pool.fingerprint
    pool.put(node("a", provider_id="fake://2"))
    assert len({first, second, pool.fingerprint}) == 3
    pool.put(node("a"))
    assert pool.fingerprint == first
    pool.remove("b")
    pool.remove("never there")
    assert pool.fingerprint != first


def test_format_names_truncates_after_20_names() -> None:
    text = format_names([node(f"n{number:02}") for number in range(23)])

    assert (text.startswith("[n00 n01 "), text.endswith(" n19 <3 more>]")) == (True, True)


def test_finalizer_of_a_formerly_foreign_service_stays_without_a_record() -> None:
    given = service("ClusterIP", finalizers=[F])
    for known, action in (
        (None, ServiceAction.NOTHING),
        (record(BalancerState.APPLIED), ServiceAction.REMOVE),
    ):
        found = plan.decide(given, known, ServiceRules(), members_due=False, was_foreign=True)
        assert found is action
