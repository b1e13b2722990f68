"""A plan matches the changes and blocked deletions of the daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.cloud import default_load_balancer_name
from ccm.kube.resources import NODES, SERVICES
from ccm.model import Taint, names
from ccm.planning.forecast import FakeTracker
from ccm.testing import builders
from tests.unit.planning.world import OWNER, F, Town, actions, holds

CIDRS = [f"10.244.{number}.0/24" for number in range(20)]
SHOP, WEB = "default/shop", "default/web"


def settled(town: Town | None = None) -> Town:
    """Return five nodes with routes and three Services, all settled."""
    town = town or Town()
    for number in range(5):
        town.node(f"n{number}", cidr=CIDRS[number])
    for name in ("web", "shop", "mail"):
        town.served(name)
    return town


# --- events of a node and of a Service ---------------------------------------------------------

Strike = Callable[[Town, str], object]
TAINT = {"key": names.TAINT_UNINITIALIZED, "value": "true", "effect": "NoSchedule"}
DOWN = {"key": names.TAINT_SHUTDOWN, "effect": "NoSchedule"}
ALLOWED = {names.ANNOTATION_ALLOW_DELETION: "true"}


def after(first: Strike, kind: Any, prefix: str, patch: Mapping[str, Any]) -> Strike:
    """Return a strike: something happens to an object, then another writer changes it."""

    def strike(town: Town, name: str) -> None:
        first(town, name)
        town.change(kind, f"{prefix}{name}", patch)

    return strike


def on_node(patch: Mapping[str, Any], first: Strike = lambda *_: None) -> Strike:
    return after(first, NODES, "", patch)


def on_service(patch: Mapping[str, Any], first: Strike = lambda *_: None) -> Strike:
    return after(first, SERVICES, "default/", patch)


def _stopped(town: Town, name: str) -> None:
    machine = next(one for one in town.api.instances.values() if one.name == name)
    machine.state = "stopped"
    town.silent(name)


def _without_route(town: Town, name: str) -> None:
    town.api.routes = {key: one for key, one in town.api.routes.items() if one.target != name}


def _denied_though_ready(town: Town, name: str) -> None:
    town.gone(name)
    town.conditions(name, names.CONDITION_READY, "True")


# It has just registered.
_new = on_node(
    {
        "metadata": {"labels": None},
        "status": {"addresses": None},
        "spec": {"providerID": None, "taints": [TAINT]},
    }
)
TO_NODES: tuple[Strike, ...] = (
    lambda *_: None,
    Town.gone,
    Town.silent,
    _stopped,
    on_node({"spec": {"taints": [DOWN]}}),
    on_node({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}}),
    on_node({"metadata": {"labels": {names.LABEL_ZONE_BETA: "elsewhere"}}}),
    on_node({"metadata": {"labels": {names.LABEL_EXCLUDE_BALANCERS: ""}}}),
    _without_route,
    on_node({"spec": {"podCIDRs": None}}),
    # The owner is unknown, and the cloud has no instance; the second is not initialised yet.
    on_node({"spec": {"providerID": None}}, Town.gone),
    on_node({"spec": {"providerID": None, "taints": [TAINT]}}, Town.gone),
    on_node({"spec": {"providerID": "other://i-1"}}, Town.gone),
    _new,
    # An annotation allows the deletion, regardless of the other nodes.
    on_node({"metadata": {"annotations": ALLOWED}}, Town.gone),
    _denied_though_ready,
)


def _balancer(town: Town, name: str) -> str:
    return default_load_balancer_name(town.services[f"default/{name}"])


def _lost_balancer(town: Town, name: str) -> None:
    town.api.balancers.pop(_balancer(town, name))


def _changed_balancer(town: Town, name: str) -> None:
    town.api.balancers[_balancer(town, name)].members = ("somebody",)


GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
NO_STATUS = {"status": {"loadBalancer": {"ingress": None}}}
TO_SERVICES: tuple[Strike, ...] = (
    lambda *_: None,
    on_service({"spec": {"ports": [{"name": "https", "port": 443, "nodePort": 30443}]}}),
    on_service({"spec": {"type": "ClusterIP"}}),
    on_service({"metadata": GOING}),
    on_service({"spec": {"loadBalancerClass": "example.com/other"}}),
    on_service(NO_STATUS),
    on_service({"metadata": {"finalizers": None}}),
    on_service({"metadata": {"finalizers": None}, **NO_STATUS}, _lost_balancer),
    _lost_balancer,
    _changed_balancer,
    on_service({"metadata": {**GOING, "finalizers": ["example.com/keep", F]}}),
)


def test_recorded_deletions_count_and_the_plan_writes_no_record() -> None:
    town = settled()
    town.flags = ["--node-deletion-limit=1"]
    moment = "2025-12-31T23:59:00.000000Z"
    town.record = {f"{OWNER}.Node.deletions": f'["{moment}"]', "foreign": "kept"}
    town.gone("n1")

    planned = town.plan()

    assert [one.subject.name for one in planned.blocked] == ["n1"]
    assert not [one for one in planned.changes if one.what == "Node"]
    assert actions(planned) == actions(town.live())


def test_undecodable_services_are_skipped_with_a_warning() -> None:
    town = settled()
    town.malformed = ["default/odd", ""]

    found = town.plan()

    assert [str(one.subject) for one in found.warnings] == [
        "Service without a name",
        "Service default/odd",
    ]
    assert list(found.changes) == []


def test_failing_cloud_calls_are_reported_as_failures_of_the_plan() -> None:
    town = settled()
    town.node("n5")
    town.api.fault = 503

    found = town.plan()

    assert "list_routes: status 503" in found.failures
    assert "instance_metadata of n0, n1, n2, n3, n4 and 1 more: status 503" in found.failures
    assert town.api.requests < 50  # each query is sent once, however often it is needed


FLAGS = [
    (),
    # This policy deletes at once: whether others see the node before is a race.
    ("--node-deletion-policy=reference", "--controllers=cloud-node-lifecycle"),
    ("--node-selector=!foreign",),
    ("--enable-leader-migration",),
    ("--load-balancer-classes=example.com/other",),
    ("--controllers=*,-cloud-node",),
    ("--node-monitor-period=20s", "--route-grace-period=2m"),
]


@st.composite
def towns(draw: st.DrawFn) -> Town:
    """Return a strategy for small clusters in which several things happened."""
    town = Town(
        flags=draw(st.sampled_from(FLAGS)),
        blind=draw(st.booleans()),
        listing=draw(st.booleans()),
    )
    nodes = draw(st.lists(st.sampled_from(TO_NODES), max_size=6))
    # While a node is initialised, the members of a load balancer depend on a race.
    most = 0 if _new in nodes else 3
    services = draw(st.lists(st.sampled_from(TO_SERVICES), max_size=most))
    for number, _ in enumerate(nodes):
        town.node(f"n{number}", cidr=draw(st.sampled_from(["", CIDRS[number]])))
    for number, _ in enumerate(services):
        town.served(f"s{number}")
    if draw(st.booleans()):
        town.route("10.244.99.0/24", "n0")
    for number, strike in enumerate(nodes):
        strike(town, f"n{number}")
    for number, strike in enumerate(services):
        strike(town, f"s{number}")
    return town


@given(towns())
def test_plan_matches_what_the_daemon_does_then(town: Town) -> None:
    planned, done = town.plan(), town.live()

    assert actions(planned) == actions(done)
    assert holds(planned) == holds(done)


# --- confirmed deletions ------------------------------------------------------------------------

QUICK = ["--node-monitor-period=100ms", "--configure-cloud-routes=false"]


def test_waiting_plan_includes_the_confirmed_deletion() -> None:
    town = settled()
    town.flags = QUICK
    town.gone("n1")

    (gone,) = [one for one in town.plan(wait=True, really=True).changes if one.what == "Node"]

    assert (gone.subject.name, gone.after_s, gone.note) == ("n1", 0, "")


def test_waiting_plan_deletes_nothing_when_the_instance_returns() -> None:
    town = settled()
    town.flags = QUICK
    machine = town.gone("n1")

    found = town.plan(wait=True, really=True, meanwhile=lambda: town.returns(machine))

    assert list(found.changes) == []


# --- the fake tracker ---------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_plan_keeps_malformed_values_of_real_objects() -> None:
    copy = FakeTracker()
    copy.load(
        NODES,
        {"a": builders.node("a", taints=[Taint(key="k", effect="NoExecute", time_added="odd")])},
    )

    (read,) = copy.objects(NODES).current.values()

    assert read.taints[0].time_added == "odd"
