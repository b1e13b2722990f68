"""What is planned is what the daemon then does, and what it holds back then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.app import options
from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import default_load_balancer_name
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.informer import Informers
from ccm.kube.resources import NODES, SERVICES
from ccm.kube.transport import MAX_RETRIES
from ccm.model import Service, Taint, names
from ccm.planning import forecast
from ccm.planning.changes import Forecast
from ccm.planning.forecast import ANSWER_S, ClusterCopy, copied
from ccm.runtime import deletions
from ccm.runtime.deletions import Held, HeldBack
from ccm.testing import builders
from ccm.testing.clock import settle
from tests.contract.memory import MemoryNetworkApi
from tests.unit.planning.world import OWNER, F, Town, actions, holds

CIDRS = [f"10.244.{number}.0/24" for number in range(20)]
SHOP, WEB = "default/shop", "default/web"


class SlowApi(MemoryNetworkApi):
    """Each request takes its time."""

    async def request(self, token: str) -> None:
        await asyncio.sleep(40.0)
        await super().request(token)


def settled(town: Town | None = None) -> Town:
    """Five nodes with routes and three Services, all as they should be."""
    town = town or Town()
    for number in range(5):
        town.node(f"n{number}", cidr=CIDRS[number])
    for name in ("web", "shop", "mail"):
        town.served(name)
    return town


def test_where_all_is_as_it_should_be_there_is_nothing_to_do() -> None:
    found = settled().plan()

    assert (list(found.changes), list(found.held), list(found.warnings)) == ([], [], [])
    assert (list(found.failures), dict(found.left_out)) == ([], {})


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


CHANGES: tuple[Callable[[Town], object], ...] = (
    *(lambda town, strike=strike: strike(town, "n1") for strike in TO_NODES[1:]),
    *(lambda town, strike=strike: strike(town, "shop") for strike in TO_SERVICES[1:]),
    lambda town: town.route("10.244.99.0/24", "n0"),
    lambda town: town.service("new"),
)


@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change_it_is_planned_what_the_daemon_then_does(
    change: Callable[[Town], object],
) -> None:
    town = settled()
    change(town)

    planned, done = town.plan(), town.live()

    assert actions(planned) == actions(done)
    assert holds(planned) == holds(done)


def test_what_the_brake_lets_through_is_planned_though_not_for_whom() -> None:
    """Which of several nodes comes first is a matter of luck."""
    town = settled()
    town.flags = ["--node-deletion-limit=1", "--controllers=cloud-node-lifecycle"]
    town.gone("n1")
    town.gone("n2")

    planned, done = town.plan(), town.live()

    for found in (planned, done):
        (deleted,), (held,) = found.changes, found.held
        assert {deleted.subject.name, held.subject.name} == {"n1", "n2"}
        assert "as many nodes as may be were deleted lately" in held.message


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


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_held_no_more_is_not_told(kept: bool) -> None:
    events = forecast._Events()
    about = builders.node("n1").reference
    events.event(about, "Warning", names.REASON_DELETION_HELD, "why")
    events.event(about, "Normal", names.REASON_SYNCED, "fine")
    on_record = {"Node": HeldBack(count=1, objects=[Held(name="n1" if kept else "n2")])}

    found = forecast._with_events(Forecast(), events, on_record)

    assert [one.message for one in found.held] == ["why"] * kept
    assert list(found.warnings) == []


def test_what_a_controller_lacks_is_told_and_what_is_wrong_is_a_failure() -> None:
    town = settled()
    town.flags = ["--cluster-cidr=", "--controllers=*,-cloud-node"]
    (left_out,) = town.plan().left_out
    (failure,) = town.plan().failures

    assert left_out == "node-route-controller"
    assert failure.startswith("node-route-controller cannot start: --cluster-cidr")


def test_a_slow_cloud_is_waited_for() -> None:
    """What is planned does not end before the last question was answered, and its time after."""
    town = settled(Town(api=SlowApi()))
    for name in ("n1", "n2", "n3", "n4"):
        _moved(town, name)

    found = town.plan()

    assert {one.subject.name for one in found.changes} == {"n1", "n2", "n3", "n4"}


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


def test_a_denial_that_is_taken_back_meanwhile_deletes_nothing() -> None:
    town = settled()
    town.flags = QUICK
    machine = town.gone("n1")

    found = town.plan(wait=True, really=True, meanwhile=lambda: town.returns(machine))

    assert list(found.changes) == []


# --- the copy of the cluster --------------------------------------------------------------------


def cluster(*services: Service) -> ClusterCopy:
    copy = ClusterCopy()
    copy.load(NODES, {"a": builders.node("a", resource_version="7")}, malformed=["broken"])
    copy.load(SERVICES, {one.key: one for one in services})
    return copy


def nodes_of(copy: ClusterCopy) -> Any:
    return copy.named("somebody").resource(NODES)


@pytest.mark.virtual_time
async def test_a_cache_follows_it() -> None:
    copy = cluster()
    informers = Informers(copy.named("informers"))
    cache = informers.of(NODES)
    running = spawn(informers.run(), name="informers")
    await informers.wait_synced(1.0)
    assert (list(cache.store.keys()), list(cache.undecodable)) == (["a"], ["broken"])

    await nodes_of(copy).patch_strategic("a", {"spec": {"providerID": "x://1"}})
    await settle()
    assert [one.provider_id for one in cache.store.list()] == ["x://1"]
    await nodes_of(copy).delete("a", uid="uid-a")
    await settle()

    assert len(cache.store) == 0
    await cancel_and_join(running)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "metadata", [{"resourceVersion": "6"}, {"uid": "another"}], ids=["version", "uid"]
)
async def test_a_patch_for_another_state_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises((errors.Conflict, errors.Invalid)):
        await nodes_of(cluster()).patch_strategic("a", {"metadata": metadata, "spec": {"x": 1}})


class Hesitating(Client):
    """A client of an API server that asks to be asked again, and again."""

    def __init__(self, answers: Collection[str]) -> None:
        self._answers = answers

    async def raw(self, method: str, path: str, **_: Any) -> bytes:
        if path.rpartition("/")[2] not in self._answers:
            await asyncio.sleep(9.0 * MAX_RETRIES)
        return b'{"items": []}'


@pytest.mark.virtual_time
@pytest.mark.parametrize("answers", [(), ("nodes", "services")], ids=["nodes", deletions.NAME])
async def test_a_cluster_is_read_in_time_or_not_at_all(answers: Collection[str]) -> None:
    flags, began = options.parse(["--cloud-provider=fake"]), clock.monotonic()

    with pytest.raises(errors.Unreachable, match="gave no answer within 30 s"):
        await copied(flags, Hesitating(answers))

    assert clock.monotonic() - began == ANSWER_S


@pytest.mark.virtual_time
async def test_an_odd_value_of_a_real_object_stays() -> None:
    copy = ClusterCopy()
    copy.load(
        NODES,
        {"a": builders.node("a", taints=[Taint(key="k", effect="NoExecute", time_added="odd")])},
    )

    (read,) = copy.of(NODES).now.values()

    assert read.taints[0].time_added == "odd"


@pytest.mark.virtual_time
async def test_a_patch_that_changes_nothing_is_no_new_state() -> None:
    copy = cluster()

    same = await nodes_of(copy).patch_strategic("a", {"metadata": {"uid": "uid-a"}})

    assert (same.resource_version, dict(copy.of(NODES).touched)) == ("7", {})


@pytest.mark.virtual_time
async def test_what_its_finalizers_hold_goes_with_the_last_of_them() -> None:
    copy = cluster(builders.service("web", finalizers=["f"]))
    api = copy.named("somebody").resource(SERVICES)
    await api.delete("web", namespace="default")
    assert (await api.get("web", namespace="default")).is_deleting

    lifted = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f"]}}
    await api.patch_strategic("web", lifted, namespace="default", subresource="status")

    found = copy.of(SERVICES)
    assert (found.now, [*found.last]) == ({}, ["default/web"])
