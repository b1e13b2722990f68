"""What is planned is what the daemon then does, and what it holds back then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.cloud import default_load_balancer_name
from ccm.kube.resources import NODES, SERVICES
from ccm.model import Service, Taint, names
from ccm.planning.forecast import ClusterCopy
from ccm.testing import builders
from tests.unit.planning.world import OWNER, F, Town, actions, holds

CIDRS = [f"10.244.{number}.0/24" for number in range(20)]
SHOP, WEB = "default/shop", "default/web"


def settled(town: Town | None = None) -> Town:
    """Five nodes with routes and three Services, all as they should be."""
    town = town or Town()
    for number in range(5):
        town.node(f"n{number}", cidr=CIDRS[number])
    for name in ("web", "shop", "mail"):
        town.served(name)
    return town


# --- what can happen to a node ----------------------------------------------------------------


def _stopped(town: Town, name: str) -> None:
    machine = next(one for one in town.api.instances.values() if one.name == name)
    machine.state = "stopped"
    town.silent(name)


def _runs_again(town: Town, name: str) -> None:
    _node(town, name, {"spec": {"taints": [{"key": names.TAINT_SHUTDOWN, "effect": "NoSchedule"}]}})


def _moved(town: Town, name: str) -> None:
    _node(town, name, {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}})


def _relabelled(town: Town, name: str) -> None:
    _node(town, name, {"metadata": {"labels": {names.LABEL_ZONE_BETA: "elsewhere"}}})


def _excluded(town: Town, name: str) -> None:
    _node(town, name, {"metadata": {"labels": {names.LABEL_EXCLUDE_BALANCERS: ""}}})


def _without_route(town: Town, name: str) -> None:
    town.api.routes = {key: one for key, one in town.api.routes.items() if one.target != name}


def _without_range(town: Town, name: str) -> None:
    _node(town, name, {"spec": {"podCIDRs": None}})


def _never_ours(town: Town, name: str) -> None:
    """Nothing says whose it is, and the cloud does not know it."""
    town.gone(name)
    _node(town, name, {"spec": {"providerID": None}})


def _of_another_cloud(town: Town, name: str) -> None:
    town.gone(name)
    _node(town, name, {"spec": {"providerID": "other://i-1"}})


def _unknown_and_new(town: Town, name: str) -> None:
    _never_ours(town, name)
    taint = {"key": names.TAINT_UNINITIALIZED, "value": "true", "effect": "NoSchedule"}
    _node(town, name, {"spec": {"taints": [taint]}})


def _new(town: Town, name: str) -> None:
    """It has just registered."""
    taint = {"key": names.TAINT_UNINITIALIZED, "value": "true", "effect": "NoSchedule"}
    bare = {"metadata": {"labels": None}, "status": {"addresses": None}}
    _node(town, name, {**bare, "spec": {"providerID": None, "taints": [taint]}})


def _allowed(town: Town, name: str) -> None:
    """A person lets it go, whatever the cloud says of others."""
    town.gone(name)
    _node(town, name, {"metadata": {"annotations": {names.ANNOTATION_ALLOW_DELETION: "true"}}})


def _denied_though_ready(town: Town, name: str) -> None:
    town.gone(name)
    town.conditions(name, names.CONDITION_READY, "True")


def _node(town: Town, name: str, patch: Mapping[str, Any]) -> None:
    town.change(NODES, name, patch)


TO_NODES: tuple[Callable[[Town, str], object], ...] = (
    lambda _town, _name: None,
    Town.gone,
    Town.silent,
    _stopped,
    _runs_again,
    _moved,
    _relabelled,
    _excluded,
    _without_route,
    _without_range,
    _never_ours,
    _of_another_cloud,
    _unknown_and_new,
    _new,
    _allowed,
    _denied_though_ready,
)

# --- what can happen to a Service ---------------------------------------------------------------


def _other_ports(town: Town, name: str) -> None:
    ports = [{"name": "https", "port": 443, "nodePort": 30443}]
    _service(town, name, {"spec": {"ports": ports}})


def _no_type(town: Town, name: str) -> None:
    _service(town, name, {"spec": {"type": "ClusterIP"}})


def _leaving(town: Town, name: str) -> None:
    _service(town, name, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})


def _other_class(town: Town, name: str) -> None:
    _service(town, name, {"spec": {"loadBalancerClass": "example.com/other"}})


def _without_status(town: Town, name: str) -> None:
    _service(town, name, {"status": {"loadBalancer": {"ingress": None}}})


def _without_finalizer(town: Town, name: str) -> None:
    _service(town, name, {"metadata": {"finalizers": None}})


def _never_served(town: Town, name: str) -> None:
    _without_finalizer(town, name)
    _without_status(town, name)
    _lost_balancer(town, name)


def _lost_balancer(town: Town, name: str) -> None:
    town.api.balancers.pop(_balancer(town, name))


def _changed_balancer(town: Town, name: str) -> None:
    town.api.balancers[_balancer(town, name)].members = ("somebody",)


def _kept_by_another(town: Town, name: str) -> None:
    _leaving(town, name)
    _service(town, name, {"metadata": {"finalizers": ["example.com/keep", F]}})


def _balancer(town: Town, name: str) -> str:
    return default_load_balancer_name(town.services[f"default/{name}"])


def _service(town: Town, name: str, patch: Mapping[str, Any]) -> None:
    town.change(SERVICES, f"default/{name}", patch)


TO_SERVICES: tuple[Callable[[Town, str], object], ...] = (
    lambda _town, _name: None,
    _other_ports,
    _no_type,
    _leaving,
    _other_class,
    _without_status,
    _without_finalizer,
    _never_served,
    _lost_balancer,
    _changed_balancer,
    _kept_by_another,
)


def test_deletions_on_record_count_and_the_record_is_not_written() -> None:
    town = settled()
    town.flags = ["--node-deletion-limit=1"]
    moment = "2025-12-31T23:59:00.000000Z"
    town.record = {f"{OWNER}.Node.deletions": f'["{moment}"]', "foreign": "kept"}
    town.gone("n1")

    planned = town.plan()

    assert [one.subject.name for one in planned.held] == ["n1"]
    assert not [one for one in planned.changes if one.what == "Node"]
    assert actions(planned) == actions(town.live())


def test_what_cannot_be_decoded_is_left_alone_and_told() -> None:
    town = settled()
    town.malformed = ["default/odd", ""]

    found = town.plan()

    assert [str(one.subject) for one in found.warnings] == [
        "Service without a name",
        "Service default/odd",
    ]
    assert list(found.changes) == []


def test_a_cloud_that_does_not_answer_leaves_it_open_what_would_be_done() -> None:
    town = settled()
    town.node("n5")
    town.api.fault = 503

    found = town.plan()

    assert "list_routes: status 503" in found.failures
    assert "instance_metadata of n0, n1, n2, n3, n4 and 1 more: status 503" in found.failures
    assert town.api.requests < 50  # each question once, however often it would be put


@st.composite
def towns(draw: st.DrawFn) -> Town:
    """Small towns in which some things happened."""
    town = Town(
        flags=draw(
            st.sampled_from(
                [
                    (),
                    # It deletes at once: whether others see the node before is a matter of luck.
                    ("--node-deletion-policy=reference", "--controllers=cloud-node-lifecycle"),
                    ("--own-nodes=!foreign",),
                    ("--enable-leader-migration",),
                    ("--load-balancer-classes=example.com/other",),
                    ("--controllers=*,-cloud-node",),
                    ("--node-monitor-period=20s", "--route-grace-period=2m"),
                ]
            )
        ),
        blind=draw(st.booleans()),
        listing=draw(st.booleans()),
    )
    nodes = draw(st.lists(st.sampled_from(TO_NODES), max_size=6))
    # While a node is initialised, who is a member when a balancer is looked at is a matter of luck.
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
def test_whatever_happened_it_is_planned_what_the_daemon_then_does(town: Town) -> None:
    planned, done = town.plan(), town.live()

    assert actions(planned) == actions(done)
    assert holds(planned) == holds(done)


# --- waiting for the second answer --------------------------------------------------------------

QUICK = ["--node-monitor-period=100ms", "--configure-cloud-routes=false"]


def test_who_waits_hears_the_second_answer() -> None:
    town = settled()
    town.flags = QUICK
    town.gone("n1")

    (gone,) = [one for one in town.plan(wait=True, really=True).changes if one.what == "Node"]

    assert (gone.subject.name, gone.after_s, gone.note) == ("n1", 0, "")


# --- the copy of the cluster --------------------------------------------------------------------


def cluster(*services: Service) -> ClusterCopy:
    copy = ClusterCopy()
    copy.load(NODES, {"a": builders.node("a", resource_version="7")}, malformed=["broken"])
    copy.load(SERVICES, {one.key: one for one in services})
    return copy


@pytest.mark.virtual_time
async def test_an_odd_value_of_a_real_object_stays() -> None:
    copy = ClusterCopy()
    copy.load(
        NODES,
        {"a": builders.node("a", taints=[Taint(key="k", effect="NoExecute", time_added="odd")])},
    )

    (read,) = copy.of(NODES).now.values()

    assert read.taints[0].time_added == "odd"
