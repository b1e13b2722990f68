"""Load balancers of OpenStack on the fake: calls, floating IPs, sharing, groups, deletion."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from ccm.base.clock import monotonic
from ccm.cloud.journal import PART_RECORDER
from ccm.testing.builders import DEFAULT_PORT
from ccm.testing.contract_balancers import HTTPS, UDP, updated
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER
from providers.openstack import balancers, floating_ips, security_groups
from providers.openstack import service_annotations as ann
from providers.openstack.testing import balancers as fake_balancers
from providers.openstack.testing import floating, network, server
from providers.openstack.testing.state import Call
from tests.openstack.balancing import NAME, OTHER, UID, Project, annotated, service

PORTS = {"ports": [DEFAULT_PORT, HTTPS]}
LOCAL = {"external_traffic_policy": "Local", "health_check_node_port": 31000}
CREATION = "POST /load-balancer/v2/lbaas/loadbalancers"
IP_TEXT = f"Floating IP for Kubernetes external service default/web from cluster {CLUSTER}"


@pytest_asyncio.fixture
async def project() -> AsyncIterator[Project]:
    """The provider with a subnet and without any other setting."""
    fake = server.Service()
    async with server.serve(fake) as url:
        made = Project(fake, url)
        async with made.open() as made.balancer:
            yield made


def reads(calls: list[str]) -> int:
    return sum(call.startswith("GET") for call in calls)


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.row("openstack-call-01")
async def test_a_service_takes_at_most_twelve_calls(project: Project) -> None:
    project.settings.balancer_s = 60.0
    nodes = project.nodes(2)
    project.calls()
    for _ in range(2):
        with pytest.raises(cloud.RetryAfter, match="PENDING_CREATE"):
            await project.balancer.ensure_load_balancer(CLUSTER, service(), nodes)
    project.world.settle(all_of_them=True)

    status = await project.ensured(service(), nodes)

    calls = project.calls()
    assert Counter(calls) == {
        "GET /load-balancer/v2/lbaas/loadbalancers": 3,
        "POST /load-balancer/v2/lbaas/loadbalancers": 1,
        "GET /load-balancer/v2/lbaas/listeners": 1,
        "GET /load-balancer/v2/lbaas/pools": 1,
        "GET /load-balancer/v2/lbaas/pools/{id}/members": 1,
        "GET /network/v2.0/floatingips": 1,
        "GET /network/v2.0/networks": 1,
        "POST /network/v2.0/floatingips": 1,
        "GET /network/v2.0/security-groups": 1,
    }
    assert len(calls) <= 12
    assert status == cloud.Status(ingress=(cloud.Ingress(ip=project.ips[0][0], ip_mode="VIP"),))
    await project.in_vain(service(), nodes)
    assert len(project.calls()) == 4


@pytest.mark.row("openstack-call-01")
async def test_a_second_port_takes_at_most_eight_calls(project: Project) -> None:
    nodes = project.nodes(2)
    await project.ensured(service(), nodes)
    asked = annotated(service(spec=PORTS), load_balancer_id=project.only["id"])
    project.calls()

    await project.ensured(asked, nodes)

    calls = project.calls()
    assert [call for call in calls if not call.startswith("GET")] == [
        "POST /load-balancer/v2/lbaas/listeners",
        "POST /load-balancer/v2/lbaas/pools",
        "PUT /load-balancer/v2/lbaas/pools/{id}/members",
    ]
    assert len(calls) <= 8
    assert len(project.world.listeners) == 2
    await project.in_vain(asked, nodes)


async def test_a_deletion_leaves_nothing(project: Project) -> None:
    await project.ensured(service(spec=PORTS, enable_health_monitor="true"), project.nodes(1))
    assert project.left_over()
    project.calls()

    await project.deleted(service())

    calls = project.calls()
    assert project.left_over() == []
    assert len(calls) <= 10
    assert [call for call in calls if not call.startswith("GET")] == [
        "DELETE /network/v2.0/floatingips/{id}",
        "DELETE /load-balancer/v2/lbaas/loadbalancers/{id}",
    ]
    await project.deleted(service())


async def test_parts_are_deleted_first_without_cascade(project: Project) -> None:
    async with project.open(cascade_delete="false") as project.balancer:
        await project.ensured(service(spec=PORTS), project.nodes(1))
        await project.deleted(service())

    assert project.left_over() == []


async def test_serial_providers_get_one_part_at_a_time(project: Project) -> None:
    nodes = project.nodes(2)
    asked = service(enable_health_monitor="true")
    async with project.open(provider_requires_serial_api_calls="true") as project.balancer:
        await project.ensured(asked, nodes)
        await project.in_vain(asked, nodes)

    assert len(project.world.members[project.pool["id"]]) == 2
    assert project.monitor["type"] == "TCP"
    async with project.open() as project.balancer:
        await project.in_vain(asked, nodes)


async def test_members_change_with_one_request_for_each_pool(project: Project) -> None:
    nodes = project.nodes(3)
    asked = service(spec=PORTS)
    await project.ensured(asked, nodes[:1])
    project.calls()

    await updated(project.balancer, asked, nodes)

    assert Counter(call for call in project.calls() if call.startswith("PUT")) == {
        "PUT /load-balancer/v2/lbaas/pools/{id}/members": 2
    }
    assert [len(members) for members in project.world.members.values()] == [3, 3]
    await updated(project.balancer, asked, nodes)
    assert reads(calls := project.calls()) == len(calls)
    wrong = service(spec=PORTS, lb_method="NONE", node_selector="(", subnet_id="x")
    await updated(project.balancer, wrong, nodes[:1])
    assert [len(members) for members in project.world.members.values()] == [1, 1]


# --- changes --------------------------------------------------------------------------------------

CHANGES: list[tuple[cloud.Service, str, str, Any]] = [
    (service(connection_limit="7"), "listener", "connection_limit", 7),
    (service(timeout_client_data="9"), "listener", "timeout_client_data", 9),
    (service(proxy_protocol="v2"), "pool", "protocol", "PROXYV2"),
    (service(x_forwarded_for="true"), "listener", "protocol", "HTTP"),
    (service(default_tls_container_ref="ref"), "listener", "protocol", "TERMINATED_HTTPS"),
    (service(lb_method="SOURCE_IP"), "pool", "lb_algorithm", "SOURCE_IP"),
    (service(enable_health_monitor="true"), "monitor", "delay", 5),
    (
        service(enable_health_monitor="true", health_monitor_delay="9"),
        "monitor",
        "delay",
        9,
    ),
    (service(enable_health_monitor="true", spec=LOCAL), "monitor", "type", "HTTP"),
    (
        service(spec={"session_affinity": "ClientIP"}),
        "pool",
        "session_persistence",
        {"type": "SOURCE_IP"},
    ),
    (
        service(spec={"load_balancer_source_ranges": ["192.0.2.0/24"]}),
        "listener",
        "allowed_cidrs",
        ["192.0.2.0/24"],
    ),
    (service(spec={"ports": [UDP]}), "listener", "protocol", "UDP"),
    (service(spec={"ports": [HTTPS]}), "listener", "protocol_port", 443),
]


@pytest.mark.parametrize(("changed", "place", "field", "value"), CHANGES)
@pytest.mark.row("openstack-balancer-04")
async def test_a_change_is_applied_and_undone(
    project: Project, changed: cloud.Service, place: str, field: str, value: Any
) -> None:
    nodes = project.nodes(2)
    await project.ensured(service(), nodes)
    number = project.only["id"]
    before = [shape(project, "listeners"), shape(project, "pools"), shape(project, "monitors")]

    await project.ensured(changed, nodes)
    assert getattr(project, place)[field] == value
    await project.in_vain(changed, nodes)
    await project.ensured(service(), nodes)

    assert [shape(project, one) for one in ("listeners", "pools", "monitors")] == before
    await project.in_vain(service(), nodes)
    assert project.only["id"] == number
    assert [len(members) for members in project.world.members.values()] == [2]


def shape(project: Project, table: str) -> list[Any]:
    """Parts without their IDs and times."""
    hidden = {"id", "default_pool_id", "listeners", "members", "created_at", "updated_at"}
    return [
        {key: value for key, value in one.items() if key not in hidden and value}
        for one in getattr(project.world, table).values()
    ]


@pytest.mark.row("openstack-balancer-04")
async def test_a_toggled_health_check_moves_its_port(project: Project) -> None:
    nodes = project.nodes(1)
    for spec, port in (({}, None), (LOCAL, 31000), ({}, None)):
        asked = service(enable_health_monitor="true", spec=spec)
        await project.ensured(asked, nodes)
        (member,) = project.world.members[project.pool["id"]]
        assert member["monitor_port"] == port
        await project.in_vain(asked, nodes)


async def test_a_removed_port_is_deleted_last(project: Project) -> None:
    nodes = project.nodes(1)
    await project.ensured(service(spec=PORTS), nodes)
    project.calls()

    await project.ensured(service(spec={"ports": [HTTPS]}), nodes)

    assert [call.split()[0] for call in project.calls() if call[0] != "G"] == ["DELETE"] * 2
    assert project.listener["name"] == f"listener_1_{NAME}"
    await project.in_vain(service(spec={"ports": [HTTPS]}), nodes)


async def test_parts_of_a_user_are_left_alone(project: Project) -> None:
    await project.ensured(service(), project.nodes(1))
    order = {"name": "mine", "protocol": "TCP", "protocol_port": 443}
    fake_balancers.new_listener(project.world, project.only, order)

    await project.ensured(service())
    assert sorted(one["protocol_port"] for one in project.world.listeners.values()) == [80, 443]
    with pytest.raises(cloud.FailedPrecondition, match="port 443"):
        await project.ensured(service(spec=PORTS))


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.row("openstack-balancer-05")
async def test_a_floating_ip_is_created_in_the_only_external_network(project: Project) -> None:
    await project.ensured(service())

    ((address, port, text),) = project.ips
    assert (port, text) == (project.only["vip_port_id"], IP_TEXT)
    assert address.startswith("203.0.113.")
    assert await project.balancer.get_load_balancer(CLUSTER, service()) == cloud.Status(
        ingress=(cloud.Ingress(ip=address, ip_mode="VIP"),)
    )


async def test_an_internal_service_has_no_floating_ip(project: Project) -> None:
    status = await project.ensured(service(internal="true"))

    assert project.ips == []
    assert [entry.ip for entry in status.ingress] == [project.only["vip_address"]]
    async with project.open(internal_lb="true") as project.balancer:
        await project.in_vain(service())


@pytest.mark.parametrize("keep", ["false", "true"])
async def test_a_service_that_becomes_internal_loses_its_floating_ip(
    project: Project, keep: str
) -> None:
    await project.ensured(service(keep_floatingip=keep))
    await project.ensured(service(internal="true", keep_floatingip=keep))

    assert [port for _, port, _ in project.ips] == ([None] if keep == "true" else [])
    await project.in_vain(service(internal="true", keep_floatingip=keep))


@pytest.mark.row("openstack-balancer-05")
async def test_a_floating_ip_of_a_user_is_only_dissociated(project: Project) -> None:
    theirs = floating.new_floating_ip(project.world, project.external["id"])
    asked = {"load_balancer_ip": theirs["floating_ip_address"]}
    status = await project.ensured(service(spec=asked))
    assert [entry.ip for entry in status.ingress] == [theirs["floating_ip_address"]]

    await project.ensured(service(internal="true"))
    assert theirs["port_id"] is None
    await project.ensured(service(spec=asked))
    await project.deleted(service())

    assert [port for _, port, _ in project.ips] == [None]


@pytest.mark.row("openstack-balancer-05")
async def test_a_kept_floating_ip_survives_the_deletion(project: Project) -> None:
    await project.ensured(service(keep_floatingip="true"))
    await project.deleted(service(keep_floatingip="true"))

    assert [(port, text) for _, port, text in project.ips] == [(None, IP_TEXT)]
    assert project.world.balancers == {}


@pytest.mark.row("openstack-balancer-05")
async def test_an_address_in_use_is_refused(project: Project) -> None:
    port = network.new_port(project.world, project.internal["id"])
    theirs = floating.new_floating_ip(project.world, project.external["id"], port_id=port["id"])
    asked = service(spec={"load_balancer_ip": theirs["floating_ip_address"]})

    with pytest.raises(cloud.FailedPrecondition, match=port["id"]):
        await project.ensured(asked)
    unused = service(spec={"load_balancer_ip": "203.0.113.77"})
    assert (await project.ensured(unused)).ingress[0].ip == "203.0.113.77"


async def test_an_internal_address_can_be_chosen(project: Project) -> None:
    asked = service(internal="true", spec={"load_balancer_ip": "10.0.0.99"})

    assert (await project.ensured(asked)).ingress[0].ip == "10.0.0.99"


@pytest.mark.row("openstack-balancer-06")
async def test_without_external_network_the_load_balancer_is_internal(project: Project) -> None:
    del project.world.networks[project.external["id"]]

    status = await project.ensured(service())

    assert [entry.ip for entry in status.ingress] == [project.only["vip_address"]]
    assert project.recorder.reasons == [floating_ips.FORCED_INTERNAL]


@pytest.mark.row("openstack-balancer-06")
async def test_of_several_external_networks_one_must_be_chosen(project: Project) -> None:
    other = network.new_network(project.world, "other", ["198.51.100.0/24"], external=True)

    await project.ensured(service())
    assert project.recorder.reasons == [floating_ips.SEARCH_FAILED, floating_ips.FORCED_INTERNAL]
    assert "public" in project.recorder.events[0][1]
    status = await project.ensured(service(floating_network_id=other["id"]))
    assert status.ingress[0].ip.startswith("198.51.100.")


@pytest.mark.row("openstack-balancer-05")
async def test_the_next_matching_subnet_is_tried(project: Project) -> None:
    many = network.new_network(
        project.world, "many", ["198.51.100.0/28", "192.0.2.0/24"], external=True
    )
    first, second = (project.world.subnets[number] for number in many["subnets"])
    first.update(name="web-a", tags=["web"])
    second.update(name="web-b", tags=["web", "b"])
    for _ in range(5):
        floating.new_floating_ip(project.world, many["id"], subnet_id=first["id"])

    async def address(**given: str) -> str:
        asked = service(floating_network_id=many["id"], **given)
        await project.ensured(asked)
        status = await project.balancer.get_load_balancer(CLUSTER, asked)
        await project.deleted(asked)
        return str(status.ingress[0].ip)

    assert (await address(floating_subnet="web-*")).startswith("192.0.2.")
    assert (await address(floating_subnet_tags="&web,b")).startswith("192.0.2.")
    assert (await address(floating_subnet_id=second["id"])).startswith("192.0.2.")
    with pytest.raises(cloud.ResourceExhausted, match="No more IP addresses available"):
        await address(floating_subnet="web-a")
    with pytest.raises(cloud.InvalidArgument, match="no subnet that matches"):
        await address(floating_subnet="nowhere")


@pytest.mark.row("openstack-balancer-06")
async def test_an_ipv6_address_needs_no_floating_ip(project: Project) -> None:
    six = network.new_network(project.world, "six", ["2001:db8::/64"])
    asked = service(subnet_id=six["subnets"][0], spec={"ip_families": ["IPv6"]})

    status = await project.ensured(asked)

    assert [entry.ip for entry in status.ingress] == [project.only["vip_address"]]
    assert project.recorder.reasons == [floating_ips.SKIPPED]
    assert project.listener["allowed_cidrs"] == ["::/0"]
    with pytest.raises(cloud.InvalidArgument, match=r"spec\.ipFamilies"):
        await project.ensured(service(subnet_id=six["subnets"][0]))


async def test_the_subnet_is_that_of_the_nodes_unless_configured(project: Project) -> None:
    async with project.open(subnet_id="") as project.balancer:
        with pytest.raises(cloud.FailedPrecondition, match="subnet-id"):
            await project.ensured(service())
        nodes = project.nodes(1)
        await project.ensured(service(), nodes)
        assert project.only["vip_subnet_id"] == project.subnet
        (member,) = project.world.members[project.pool["id"]]
        assert member["subnet_id"] == project.subnet
        await project.in_vain(service(), nodes)


@pytest.mark.parametrize("kind", ["network_id", "port_id"])
async def test_network_and_port_are_given_by_annotation(project: Project, kind: str) -> None:
    port = network.new_port(project.world, project.internal["id"])
    asked = service(**{kind: project.internal["id"] if kind == "network_id" else port["id"]})
    async with project.open(subnet_id="") as project.balancer:
        await project.ensured(asked)

    assert (project.only["vip_port_id"] == port["id"]) is (kind == "port_id")


# --- annotations ----------------------------------------------------------------------------------


async def test_id_and_address_are_written_to_the_service_once(project: Project) -> None:
    await project.ensured(service())

    ((path, body),) = project.recorder.patches
    assert path == "/api/v1/namespaces/default/services/web/status"
    written = {
        ann.BALANCER_ID.name: project.only["id"],
        ann.BALANCER_ADDRESS.name: project.ips[0][0],
    }
    assert body == {"metadata": {"uid": UID, "annotations": written}}
    asked = annotated(
        service(), load_balancer_id=project.only["id"], load_balancer_address=project.ips[0][0]
    )
    await project.in_vain(asked)
    assert len(project.recorder.patches) == 1
    assert not set(written) & set(ann.RELEVANT)


async def test_a_failed_write_of_annotations_is_retried(project: Project) -> None:
    project.recorder.error = RuntimeError("conflict")
    with pytest.raises(cloud.Unavailable, match="annotations of default/web"):
        await project.ensured(service())
    project.recorder.error = None
    await project.ensured(service())
    assert len(project.recorder.patches) == 1


async def test_an_unknown_load_balancer_is_refused_unless_we_wrote_its_id(
    project: Project,
) -> None:
    with pytest.raises(cloud.InvalidArgument, match=f"load balancer {OTHER} does not exist"):
        await project.ensured(service(load_balancer_id=OTHER))
    await project.ensured(service(load_balancer_id=OTHER, load_balancer_address="192.0.2.1"))
    assert project.only["name"] == NAME


# --- sharing --------------------------------------------------------------------------------------

SECOND = f"kube_service_{CLUSTER}_default_api"


def second(project: Project, /, **given: Any) -> cloud.Service:
    """Another Service on the first one's load balancer."""
    number = next(iter(project.world.balancers))
    spec = given.pop("spec", {"ports": [HTTPS]})
    return service("api", uid="uid-api", load_balancer_id=number, spec=spec, **given)


@pytest.mark.parametrize("first_goes_first", [True, False])
@pytest.mark.row("openstack-balancer-07")
async def test_services_share_a_load_balancer(project: Project, first_goes_first: bool) -> None:
    nodes = project.nodes(1)
    status = await project.ensured(service(), nodes)
    other = second(project)

    assert await project.ensured(other, nodes) == status
    assert project.only["tags"] == [NAME, SECOND]
    assert {one["protocol_port"]: one["tags"] for one in project.world.listeners.values()} == {
        80: [NAME],
        443: [SECOND],
    }
    await project.in_vain(service(), nodes)
    await project.in_vain(other, nodes)
    order = [service(), other] if first_goes_first else [other, service()]
    await project.deleted(order[0])
    assert project.only["tags"] == [SECOND if first_goes_first else NAME]
    assert project.listener["protocol_port"] == (443 if first_goes_first else 80)
    assert len(project.ips) == 1
    await project.in_vain(order[1], nodes)
    (record,) = await project.balancer.list_load_balancers(CLUSTER)
    assert record.name == (SECOND if first_goes_first else NAME)  # the other one is no orphan
    await project.deleted(order[1])
    assert project.left_over() == []


async def test_services_that_share_a_load_balancer_may_be_changed_at_once(
    project: Project,
) -> None:
    """Each change of the tags contains the changes of the others: no load balancer is left over."""
    await project.ensured(service())
    third = service(
        "third", uid="uid-3", load_balancer_id=project.only["id"], spec={"ports": [UDP]}
    )
    async with project.open(max_shared_lb="3") as project.balancer:
        await asyncio.gather(project.ensured(second(project)), project.ensured(third))
        assert len(project.only["tags"]) == 3

        sharing = (service(), second(project), third)
        await asyncio.gather(*map(project.deleted, sharing))

    assert project.left_over() == []


async def test_a_load_balancer_that_a_service_joins_is_not_deleted_with_the_other(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Service joins while the deletion has decided to delete the load balancer as well."""
    await project.ensured(service())
    asked = second(project)
    release, lock, waits = project.balancer._ips.release, project.balancer._lock, asyncio.Event()
    joining: list[asyncio.Task[Any]] = []

    async def join(*args: Any, **more: Any) -> None:
        monkeypatch.setattr(project.balancer, "_lock", wait)
        ensure = project.balancer.ensure_load_balancer(CLUSTER, asked, [])
        joining.append(asyncio.create_task(ensure))
        until = [*joining, asyncio.create_task(waits.wait())]
        await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        await release(*args, **more)

    def wait(held: Any) -> Any:
        waits.set()
        return lock(held)

    monkeypatch.setattr(project.balancer._ips, "release", join)
    await project.deleted(service())

    with pytest.raises(cloud.CloudError):  # the deletion was first
        await joining[0]
    assert project.left_over() == []


@pytest.mark.parametrize("kept", [NAME, SECOND])
async def test_a_lost_tag_is_added_again(project: Project, kept: str) -> None:
    """Another client, which has read the tags before, replaced them after the Service joined."""
    await project.ensured(service())
    other = second(project)
    await project.ensured(other)
    project.only["tags"] = [kept]

    (record,) = await project.balancer.list_load_balancers(CLUSTER)
    assert record.name == kept  # so that the next resync ensures the other Service
    await project.ensured(other if kept == NAME else service())

    assert sorted(project.only["tags"]) == sorted([NAME, SECOND])


@pytest.mark.parametrize("then", ["delete", "delete the other"])
async def test_nothing_is_lost_or_left_over_for_a_lost_tag(project: Project, then: str) -> None:
    """The listeners show their Services, too."""
    await project.ensured(service())
    other = second(project)
    await project.ensured(other)
    project.only["tags"] = [NAME]

    if then == "delete":
        await project.deleted(other)
        assert project.listener["tags"] == [NAME]
    else:
        await project.deleted(service())
        assert project.listener["tags"] == [SECOND]
        await project.ensured(other)
        assert project.only["tags"] == [SECOND]
    for asked in (service(), other):
        await project.deleted(asked)
    assert project.left_over() == []


@pytest.mark.row("openstack-balancer-07")
async def test_sharing_has_limits(project: Project) -> None:
    await project.ensured(service())
    with pytest.raises(cloud.FailedPrecondition, match="port 80"):
        await project.ensured(second(project, spec={"ports": [DEFAULT_PORT]}))
    with pytest.raises(cloud.InvalidArgument, match="internal"):
        await project.ensured(second(project, internal="true"))
    await project.ensured(second(project))
    third = service(
        "third", uid="uid-3", load_balancer_id=project.only["id"], spec={"ports": [UDP]}
    )
    with pytest.raises(cloud.FailedPrecondition, match="max-shared-lb"):
        await project.ensured(third)
    await project.deleted(third)
    assert len(project.world.listeners) == 2
    async with project.open(max_shared_lb="3") as project.balancer:
        await project.ensured(third)
    assert len(project.world.listeners) == 3


async def test_only_the_owner_makes_a_load_balancer_public(project: Project) -> None:
    await project.ensured(service(internal="true"))
    with pytest.raises(cloud.FailedPrecondition, match="only the Service that owns it"):
        await project.ensured(second(project))
    assert project.ips == []


@pytest.mark.row("openstack-balancer-07")
async def test_a_load_balancer_of_a_user_is_released(project: Project) -> None:
    order = {"name": "theirs", "vip_subnet_id": project.subnet}
    fake_balancers.create(project.world, Call(body={"loadbalancer": order}))
    floating.new_floating_ip(
        project.world, project.external["id"], port_id=project.only["vip_port_id"]
    )

    await project.ensured(service(load_balancer_id=project.only["id"]))
    assert project.listener["tags"] == project.only["tags"] == [NAME]
    await project.deleted(service())

    assert (project.only["tags"], project.world.listeners) == ([], {})
    assert project.only["name"] == "theirs"
    assert len(project.ips) == 1


@pytest.mark.row("openstack-balancer-12")
async def test_an_old_octavia_shares_nothing(project: Project) -> None:
    project.settings.octavia_minor = 4
    await project.ensured(service())
    with pytest.raises(cloud.InvalidArgument, match="no tags"):
        await project.ensured(second(project))
    await project.in_vain(service())
    await project.deleted(service())
    assert project.left_over() == []


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.row("openstack-balancer-09")
async def test_a_load_balancer_without_marks_is_left_alone(project: Project) -> None:
    order = {"name": NAME, "vip_subnet_id": project.subnet}
    fake_balancers.create(project.world, Call(body={"loadbalancer": order}))

    with pytest.raises(cloud.FailedPrecondition, match=project.only["id"]):
        await project.ensured(service())
    assert await project.balancer.get_load_balancer(CLUSTER, service()) is None
    assert await project.balancer.list_load_balancers(CLUSTER) == []
    await project.deleted(service())
    assert project.only["name"] == NAME


@pytest.mark.row("openstack-balancer-09")
async def test_two_of_one_name_are_refused(project: Project) -> None:
    await project.ensured(service())
    order = {"name": NAME, "vip_subnet_id": project.subnet}
    fake_balancers.create(project.world, Call(body={"loadbalancer": order}))
    with pytest.raises(cloud.FailedPrecondition, match="same name"):
        await project.ensured(service())


UNCLEAR = [
    Fault(kind="drop"),
    Fault(kind="empty"),
    Fault(kind="garbage", status=504),
    Fault(kind="hang", delay_s=60.0),
]
"""Ends of a creation that say nothing about it; the last one is cancelled."""


@pytest.mark.parametrize("fault", UNCLEAR, ids=lambda fault: fault.kind)
@pytest.mark.parametrize("then", ["ensure", "delete"])
@pytest.mark.row("openstack-balancer-09")
async def test_a_creation_without_clear_response_is_not_repeated_at_once(
    project: Project, fault: Fault, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overloaded Octavia lists the load balancer only after the request has timed out."""
    now = monotonic()
    monkeypatch.setattr("providers.openstack.balancers.monotonic", lambda: now)
    project.fake.script.add(msgspec.structs.replace(fault, operation=CREATION, count=1))
    await fail_creation(project)
    now += balancers.SETTLED_S * 0.9
    project.calls()
    async with project.open() as project.balancer:  # as after a change of the settings
        calls = {
            "ensure": lambda: project.balancer.ensure_load_balancer(CLUSTER, service(), []),
            "delete": lambda: project.balancer.ensure_load_balancer_deleted(CLUSTER, service()),
        }
        with pytest.raises(cloud.RetryAfter, match="may still appear"):
            await calls[then]()
        assert CREATION not in project.calls()

        number = appear(project)
        if then == "ensure":
            await project.ensured(service())
            assert project.only["id"] == number
        await project.deleted(service())
        assert project.left_over() == []
        await project.ensured(service())  # a later creation does not wait
        assert project.only["id"] != number


async def fail_creation(project: Project) -> None:
    """Call `ensure_load_balancer` until it fails, or for a second after its request has arrived."""
    ensuring = asyncio.create_task(project.balancer.ensure_load_balancer(CLUSTER, service(), []))
    while not ensuring.done() and CREATION not in project.calls():
        await asyncio.sleep(0.01)
    await asyncio.wait([ensuring], timeout=1.0)
    ensuring.cancel()
    with pytest.raises((cloud.CloudError, asyncio.CancelledError)) as failed:
        await ensuring
    assert not isinstance(failed.value, cloud.RetryAfter)


def appear(project: Project) -> str:
    """Complete the creation; return the ID of the load balancer."""
    order = {"name": NAME, "vip_subnet_id": project.subnet, "tags": [NAME]}
    fake_balancers.create(project.world, Call(body={"loadbalancer": order}))
    return str(project.only["id"])


async def test_only_the_awaited_load_balancer_ends_the_wait(project: Project) -> None:
    await project.ensured(service("other", uid=OTHER))
    project.fake.script.add(Fault(kind="drop", operation=CREATION, count=1))
    await fail_creation(project)
    shared = service(load_balancer_id=project.only["id"], spec={"ports": [HTTPS]})
    await project.ensured(shared)
    with pytest.raises(cloud.RetryAfter, match="may still appear"):
        await project.balancer.ensure_load_balancer_deleted(CLUSTER, service())


async def test_a_creation_without_clear_response_is_repeated_later(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = monotonic()
    monkeypatch.setattr("providers.openstack.balancers.monotonic", lambda: now)
    project.fake.script.add(Fault(kind="drop", operation=CREATION, count=1))
    await fail_creation(project)
    now += balancers.SETTLED_S * 1.1
    await project.deleted(service())
    await project.ensured(service())
    assert project.only["name"] == NAME


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_a_refused_creation_is_repeated_at_once(project: Project, status: int) -> None:
    project.fake.script.add(Fault(status=status, operation=CREATION, count=1))
    await fail_creation(project)
    await project.ensured(service())
    assert project.only["name"] == NAME


@pytest.mark.parametrize("then", ["ensure", "delete"])
@pytest.mark.row("openstack-balancer-08")
async def test_a_renamed_cluster_keeps_its_load_balancers(project: Project, then: str) -> None:
    nodes = project.nodes(1)
    asked = service(enable_health_monitor="true")
    await project.ensured(asked, nodes, cluster="old")
    number = project.only["id"]
    asked = annotated(asked, load_balancer_id=number, load_balancer_address="x")
    if then == "delete":
        # The mark may also be that of an equally named Service of another cluster.
        await project.deleted(asked)
        assert (project.only["id"], len(project.world.listeners)) == (number, 1)
        assert project.recorder.reasons == [balancers.KEPT]
        return

    await project.ensured(asked, nodes)

    assert (project.only["id"], project.only["name"], project.only["tags"]) == (
        number,
        NAME,
        [NAME],
    )
    assert project.only["description"].endswith(f"from cluster {CLUSTER}")
    assert (project.listener["name"], project.listener["tags"]) == (f"listener_0_{NAME}", [NAME])
    assert project.pool["name"] == f"pool_0_{NAME}"
    assert project.monitor["name"] == f"monitor_0_{NAME}"
    assert project.recorder.reasons == [balancers.RENAMED]
    await project.in_vain(asked, nodes)


@pytest.mark.parametrize("then", ["ensure", "delete"])
@pytest.mark.parametrize("first_goes_first", [True, False])
@pytest.mark.row("openstack-balancer-08")
async def test_services_of_a_renamed_cluster_go_on_sharing(
    project: Project, then: str, first_goes_first: bool
) -> None:
    nodes = project.nodes(1)
    await project.ensured(service(), nodes, cluster="old")
    await project.ensured(second(project), nodes, cluster="old")
    marks = {"load_balancer_id": project.only["id"], "load_balancer_address": "x"}
    sharing = [annotated(service(), **marks), annotated(second(project), **marks)]
    ordered = sharing if first_goes_first else sharing[::-1]

    if then == "ensure":
        for asked in ordered:
            await project.ensured(asked, nodes)
        assert project.only["name"] == NAME
        assert sorted(project.only["tags"]) == sorted([NAME, SECOND])
        tags = [one["tags"] for one in project.world.listeners.values()]
        assert sorted(tags) == sorted([[NAME], [SECOND]])
        assert project.recorder.reasons == [balancers.RENAMED] * 2
        for asked in sharing:
            await project.in_vain(asked, nodes)
    for asked in ordered:
        await project.deleted(asked)
    if then == "ensure":
        assert project.left_over() == []
    else:
        assert len(project.only["tags"]) == len(project.world.listeners) == 2
        assert project.recorder.reasons == [balancers.KEPT] * 2


async def test_a_renaming_that_was_interrupted_goes_on(project: Project) -> None:
    nodes = project.nodes(1)
    await project.ensured(service(), nodes, cluster="old")
    await project.ensured(second(project), nodes, cluster="old")
    marks = {"load_balancer_id": project.only["id"], "load_balancer_address": "x"}
    other = annotated(second(project), **marks)
    fault = Fault(code="unavailable", operation="PUT /load-balancer/v2/lbaas/loadbalancers/{id}")
    project.fake.script.add(fault)
    with pytest.raises(cloud.Unavailable):
        await project.balancer.ensure_load_balancer(CLUSTER, other, nodes)
    project.fake.heal()

    await project.ensured(other, nodes)
    await project.ensured(annotated(service(), **marks), nodes)

    assert sorted(project.only["tags"]) == sorted([NAME, SECOND])
    assert len(project.world.listeners) == 2


async def test_equally_named_services_of_two_clusters_share_a_load_balancer(
    project: Project,
) -> None:
    """It stays that of the cluster which has created it."""
    nodes = project.nodes(1)
    await project.ensured(service(), nodes, cluster="blue")
    created = {**project.only}
    marks = {"load_balancer_id": created["id"], "load_balancer_address": "x"}
    first = annotated(service(), **marks)
    joined = service(load_balancer_id=created["id"], spec={"ports": [HTTPS]})
    await project.ensured(joined, nodes)
    joined = annotated(joined, **marks)

    await project.ensured(joined, nodes)
    await project.ensured(first, nodes, cluster="blue")

    assert project.only["name"] == created["name"]
    assert sorted(project.only["tags"]) == sorted([created["name"], NAME])
    assert project.recorder.reasons == []
    await project.deleted(joined)
    assert (project.only["tags"], project.listener["protocol_port"]) == ([created["name"]], 80)


async def test_a_copied_service_deletes_nothing_of_another_cluster(project: Project) -> None:
    """A backup was restored into another cluster, with all annotations of the Service."""
    nodes = project.nodes(1)
    await project.ensured(service(), nodes, cluster="blue")
    before = [{**project.only}, {**project.listener}, {**project.pool}]

    copied = annotated(service(), load_balancer_id=project.only["id"], load_balancer_address="x")
    await project.deleted(copied)

    assert [project.only, project.listener, project.pool] == before
    assert project.recorder.reasons == [balancers.KEPT]


# --- states and errors ----------------------------------------------------------------------------


@pytest.mark.row("openstack-balancer-10")
async def test_changes_wait_for_each_other_and_then_for_the_next_call(project: Project) -> None:
    nodes = project.nodes(1)
    await project.ensured(service(), nodes)
    project.settings.balancer_change_s = 600.0

    with pytest.raises(cloud.RetryAfter):
        await project.balancer.ensure_load_balancer(CLUSTER, service(spec=PORTS), nodes)
    with pytest.raises(cloud.RetryAfter):
        await project.balancer.update_load_balancer(CLUSTER, service(), [])
    with pytest.raises(cloud.RetryAfter):
        await project.balancer.ensure_load_balancer_deleted(CLUSTER, service())
    project.settings.balancer_change_s = 0.0
    project.world.settle(all_of_them=True)
    await project.ensured(service(spec=PORTS), nodes)

    assert len(project.world.listeners) == 2


@pytest.mark.row("openstack-balancer-10")
async def test_a_failed_creation_is_deleted_and_repeated(project: Project) -> None:
    project.settings.balancer_s = 60.0
    with pytest.raises(cloud.RetryAfter):
        await project.balancer.ensure_load_balancer(CLUSTER, service(), [])
    first = project.only["id"]
    project.only.update(provisioning_status="ERROR", operating_status="no host left")

    with pytest.raises(cloud.Aborted, match=r"ERROR.*no host left.*created again"):
        await project.balancer.ensure_load_balancer(CLUSTER, service(), [])
    assert project.left_over() == []
    project.settings.balancer_s = 0.0
    await project.ensured(service())
    assert project.only["id"] != first


@pytest.mark.row("openstack-balancer-10")
async def test_a_failed_load_balancer_that_was_in_use_is_kept(project: Project) -> None:
    await project.ensured(service())
    project.only["provisioning_status"] = "ERROR"
    entry = cloud.LoadBalancerIngress(ip="203.0.113.10")
    in_use = msgspec.structs.replace(
        service(),
        status=cloud.ServiceStatus(load_balancer=cloud.LoadBalancerStatus(ingress=[entry])),
    )

    with pytest.raises(cloud.Aborted, match="administrator"):
        await project.ensured(in_use)
    with pytest.raises(cloud.Aborted, match="ERROR after a change"):
        await updated(project.balancer, in_use, project.nodes(1))
    assert project.only["name"] == NAME
    await project.deleted(in_use)
    assert project.left_over() == []


@pytest.mark.parametrize(
    ("setting", "kind", "text"),
    [
        ("balancers", cloud.ResourceExhausted, "Quota has been met for resources: Load Balancer"),
        ("floating_ips", cloud.ResourceExhausted, "Quota exceeded for resources"),
    ],
)
async def test_a_quota_is_named(
    project: Project, setting: str, kind: type[cloud.CloudError], text: str
) -> None:
    setattr(project.settings, setting, 0)
    with pytest.raises(kind, match=text):
        await project.ensured(service())


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(kind="rate_limit", operation="GET /load-balancer/v2*"), cloud.RetryAfter),
        (Fault(code="unavailable", operation="GET /load-balancer/v2*"), cloud.Unavailable),
        (Fault(kind="empty", operation="GET /load-balancer/v2*"), cloud.Unknown),
    ],
)
async def test_an_error_never_means_absence(
    project: Project, fault: Fault, kind: type[cloud.CloudError]
) -> None:
    await project.ensured(service())
    project.fake.script.add(fault)
    for call in (project.balancer.get_load_balancer, project.balancer.ensure_load_balancer_deleted):
        with pytest.raises(kind):
            await call(CLUSTER, service())
    assert project.only["name"] == NAME


async def test_a_missing_endpoint_is_named(project: Project) -> None:
    project.settings.services = ("compute", "network")
    with pytest.raises(cloud.FailedPrecondition, match="load-balancer"):
        await project.ensured(service())


@pytest.mark.parametrize("what", ["create", "delete"])
@pytest.mark.row("openstack-balancer-13")
async def test_a_kill_at_each_call_leaks_nothing(project: Project, what: str) -> None:
    nodes = project.nodes(2)
    asked = service(enable_health_monitor="true", spec=PORTS)
    keys = {"manage_security_groups": "true"}
    for number in range(1, 40):
        async with project.open(**keys) as project.balancer:
            if what == "delete":
                await project.ensured(asked, nodes)
        write = Fault(kind="drop", operation="[!G]* /[!i]*", skip=number - 1, count=1, applied=True)
        project.fake.script.add(write)
        async with project.open(**keys) as project.balancer:
            try:
                await (
                    project.deleted(asked) if what == "delete" else project.ensured(asked, nodes)
                )
            except cloud.CloudError:
                is_done = False
            else:
                is_done = True
        project.fake.heal()
        async with project.open(**keys) as project.balancer:
            if what == "create":
                await project.ensured(asked, nodes)
                assert len(project.world.balancers) == len(project.ips) == 1
                assert len(project.world.security_groups) == 1
            await project.deleted(asked)
        assert project.left_over() == [], f"after write {number}"
        assert not any(port["security_groups"] for port in project.world.ports.values())
        if is_done:
            return
    pytest.fail("more writes than expected")


async def test_floating_ip_and_security_group_are_announced_to_the_journal(
    project: Project,
) -> None:
    """The intent precedes the creation; existing ones are announced again after a restart."""
    noted: list[tuple[str, str, str]] = []
    existed: list[bool] = []
    tables = {
        "floatingip": project.world.floating_ips,
        "securitygroup": project.world.security_groups,
    }

    @asynccontextmanager
    async def recorder(kind: str, name: str, ephemeral: bool) -> AsyncIterator[Any]:
        assert not ephemeral
        existed.append(bool(tables[kind]))
        part = SimpleNamespace(created=lambda number: noted.append((kind, name, number)))
        yield part

    asked = service()
    token = PART_RECORDER.set(recorder)
    try:
        async with project.open(manage_security_groups="true") as project.balancer:
            await project.ensured(asked, project.nodes(1))
            await project.ensured(asked)
        async with project.open(manage_security_groups="true") as project.balancer:
            await project.ensured(asked)  # an interrupted call may have recorded nothing
    finally:
        PART_RECORDER.reset(token)

    (ip,), (group,) = project.world.floating_ips, project.world.security_groups
    parts = [
        ("floatingip", NAME, ip),
        ("securitygroup", f"lb-sg-{UID}-default-web", group),
    ]
    assert noted == [*parts, parts[1], *parts]
    assert existed == [False, False, True, True, True]


# --- security groups ------------------------------------------------------------------------------


@pytest.mark.row("openstack-balancer-11")
async def test_a_security_group_opens_the_node_ports(project: Project) -> None:
    nodes = project.nodes(3)
    open_port = next(p for p in project.world.ports.values() if p["device_id"])
    open_port["port_security_enabled"] = False
    asked = service(enable_health_monitor="true", spec={**PORTS, **LOCAL})
    async with project.open(manage_security_groups="true") as project.balancer:
        await project.ensured(asked, nodes[:2])
        (group,) = project.world.security_groups.values()
        assert group["name"] == f"lb-sg-{UID}-default-web"
        opened = {
            (rule["protocol"], rule["port_range_min"], rule["remote_ip_prefix"])
            for rule in group["security_group_rules"]
        }
        assert opened == {("tcp", port, "10.0.0.0/24") for port in (30080, 30443, 31000)}
        assert holders(project, group) == ["node-2"]
        await project.in_vain(asked, nodes[:2])

        await updated(project.balancer, asked, nodes[2:])
        assert holders(project, group) == ["node-3"]
        await project.ensured(service(), nodes)
        assert len(group["security_group_rules"]) == 1
        assert holders(project, group) == ["node-2", "node-3"]
        (record,) = await project.balancer.list_load_balancers(CLUSTER)
        assert record.digest == project.balancer.load_balancer_digest(CLUSTER, service(), nodes)
    async with project.open() as project.balancer:
        (record,) = await project.balancer.list_load_balancers(CLUSTER)
        assert record.digest != project.balancer.load_balancer_digest(CLUSTER, service(), nodes)
        ports = [p for p in project.world.ports.values() if group["id"] in p["security_groups"]]
        for port in ports:
            port["tags"] = [group["id"], "theirs"]  # as older Go managers leave it
        await project.ensured(service(), nodes)
    assert project.world.security_groups == {}
    assert [port["tags"] for port in ports] == [["theirs"]] * 2


async def test_a_second_group_of_a_late_creation_goes(project: Project) -> None:
    nodes = project.nodes(1)
    async with project.open(manage_security_groups="true") as project.balancer:
        await project.ensured(service(), nodes)
        (group,) = project.world.security_groups.values()
        late = floating.new_security_group(project.world, group["name"], group["description"])
        groups = {late["id"]: group, group["id"]: late}  # the late one is found first
        for number, held in groups.items():
            held["id"] = number
        for port in project.world.ports.values():
            port["security_groups"] = [group["id"]] if port["security_groups"] else []
        project.world.security_groups = groups
        project.calls()
        await project.ensured(service(), nodes)
        assert [call for call in project.calls() if not call.startswith("GET")] == [
            "POST /network/v2.0/security-group-rules",
            *["DELETE /network/v2.0/security-group-rules/{id}"] * 2,
            *["PUT /network/v2.0/ports/{id}"] * 2,  # a group comes before the other goes
            "DELETE /network/v2.0/security-groups/{id}",
        ]
        (kept,) = project.world.security_groups.values()
        assert holders(project, kept) == ["node-1"]
        floating.new_security_group(project.world, group["name"], group["description"])
        await project.deleted(service())
    assert project.left_over() == []


async def test_load_balancer_and_group_of_an_older_manager_are_kept(project: Project) -> None:
    """Its group lets all traffic out, it tags ports, and its load balancers have no tags."""
    nodes = project.nodes(1)
    async with project.open(manage_security_groups="true") as project.balancer:
        await project.ensured(service(), nodes)
        (group,) = project.world.security_groups.values()
        (port,) = (p for p in project.world.ports.values() if p["security_groups"])
        rules = [{"direction": "egress", "ethertype": family} for family in ("IPv4", "IPv6")]
        group["security_group_rules"] += [
            {**rule, "id": project.world.new_id(), "security_group_id": group["id"]}
            for rule in rules
        ]
        port["tags"] = [group["id"], "theirs"]
        project.only["tags"] = []
        (record,) = await project.balancer.list_load_balancers(CLUSTER)
        project.calls()
        assert record.digest == project.balancer.load_balancer_digest(CLUSTER, service(), nodes)

        await project.ensured(service(), nodes)

        assert [call for call in project.calls() if call[0] != "G"] == [
            "PUT /load-balancer/v2/lbaas/loadbalancers/{id}",
            *["DELETE /network/v2.0/security-group-rules/{id}"] * 2,
        ]
        assert (project.only["tags"], port["tags"]) == ([NAME], [group["id"], "theirs"])
        assert holders(project, group) == ["node-1"]
        await project.in_vain(service(), nodes)
        await project.deleted(service())
    assert (project.left_over(), port["tags"]) == ([], ["theirs"])


def holders(project: Project, group: dict[str, Any]) -> list[str]:
    """Names of the servers with the group."""
    ports = [p for p in project.world.ports.values() if group["id"] in p["security_groups"]]
    return sorted(project.world.servers[port["device_id"]]["name"] for port in ports)


@pytest.mark.row("openstack-balancer-11")
async def test_ovn_opens_node_ports_for_the_source_ranges(project: Project) -> None:
    asked = service(spec={"load_balancer_source_ranges": ["192.0.2.0/24"]})
    keys = {"lb_provider": "ovn", "manage_security_groups": "true"}
    async with project.open(**keys) as project.balancer:
        await project.ensured(asked, project.nodes(1))
    (group,) = project.world.security_groups.values()
    rules = group["security_group_rules"]
    assert [rule["remote_ip_prefix"] for rule in rules] == ["192.0.2.0/24"]
    assert project.recorder.reasons == []


@pytest.mark.row("openstack-balancer-12")
async def test_ignored_settings_are_told(project: Project) -> None:
    asked = service(availability_zone="az1", spec={"load_balancer_source_ranges": ["192.0.2.0/24"]})
    async with project.open(lb_provider="ovn") as project.balancer:
        await project.ensured(asked)
    assert project.recorder.reasons == [balancers.RANGES_IGNORED, balancers.ZONES_IGNORED]


def test_groups_are_named_as_those_of_the_other_manager() -> None:
    assert security_groups.group_name(service()) == f"lb-sg-{UID}-default-web"
    rules = security_groups.wanted_rules([("UDP", 1), ("TCP", 2)], ["10.0.0.0/8", "2001:db8::/32"])
    assert len(rules) == 4
    assert {rule.ethertype for rule in rules} == {"IPv4", "IPv6"}


# --- listings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changed", "place", "field", "value"), CHANGES)
@pytest.mark.row("openstack-balancer-14")
async def test_a_digest_tells_whether_ensure_would_write(
    project: Project, changed: cloud.Service, place: str, field: str, value: Any
) -> None:
    nodes = project.nodes(2)

    async def digests(asked: cloud.Service) -> tuple[str, str]:
        (record,) = await project.balancer.list_load_balancers(CLUSTER)
        return record.digest, project.balancer.load_balancer_digest(CLUSTER, asked, nodes)

    await project.ensured(service(), nodes)
    actual, wanted = await digests(service())
    assert actual == wanted
    actual, wanted = await digests(changed)
    assert actual != wanted
    await project.ensured(changed, nodes)
    actual, wanted = await digests(changed)
    assert actual == wanted
    assert getattr(project, place)[field] == value


@pytest.mark.row("openstack-balancer-14")
async def test_a_listing_shows_what_ensure_returns(project: Project) -> None:
    nodes = project.nodes(1)
    await project.ensured(service(), nodes)
    shared = second(project)
    others = [
        service("proxy", uid="p", proxy_protocol="true"),
        service("inner", uid="i", internal="true"),
    ]
    expected = {
        project.balancer.get_load_balancer_name(CLUSTER, each): (
            await project.ensured(each, nodes),
            project.balancer.load_balancer_digest(CLUSTER, each, nodes),
            False,
        )
        for each in (service(), shared, *others)
    }
    await project.ensured(service("theirs", uid="t"), nodes, cluster="other")

    records = await project.balancer.list_load_balancers(CLUSTER)

    assert {r.name: (r.status, r.digest, r.adopted) for r in records} == expected
    project.calls()
    await project.balancer.list_load_balancers(CLUSTER)
    assert len(project.calls()) == 5 + len(expected)


async def test_a_service_with_a_hostname_is_always_ensured(project: Project) -> None:
    asked = service(hostname="a.example")
    assert (await project.ensured(asked)).ingress[0].hostname == "a.example"
    (record,) = await project.balancer.list_load_balancers(CLUSTER)
    assert record.digest != project.balancer.load_balancer_digest(CLUSTER, asked, [])


async def test_a_removed_floating_ip_is_seen_by_the_listing(project: Project) -> None:
    await project.ensured(service())
    project.world.floating_ips.clear()

    (record,) = await project.balancer.list_load_balancers(CLUSTER)
    assert record.digest != project.balancer.load_balancer_digest(CLUSTER, service(), [])
    await project.ensured(service())
    assert len(project.ips) == 1


async def test_an_orphan_is_deleted_by_name(project: Project) -> None:
    async with project.open(manage_security_groups="true") as project.balancer:
        await project.ensured(service(), project.nodes(1))
        for cluster, name in (("other", NAME), (CLUSTER, f"{NAME}2"), (CLUSTER, "mine")):
            await project.balancer.delete_load_balancer(cluster, name)
        assert project.only["name"] == NAME
        with pytest.raises(cloud.RetryAfter):
            await project.balancer.delete_load_balancer(CLUSTER, NAME)
        await project.balancer.delete_load_balancer(CLUSTER, NAME)
    assert project.left_over() == []
