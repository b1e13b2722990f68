"""What seldom happens: answers that make no sense, somebody else's hands, things half done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ccm import cloud
from ccm.testing import machine_probes
from ccm.testing.contract_routes import CIDR, created
from ccm.testing.fake_faults import Fault
from ccm.testing.network_probes import CLUSTER
from ccm.testing.network_probes import nodes as make_nodes
from providers.hcloud import client, config, machine_specs, networks, quota, routes
from tests.hcloud.balancing import settled
from tests.hcloud.conftest import opened
from tests.hcloud.harness import HcloudHarness


@pytest.fixture
def machines(project: cloud.Cloud, harness: HcloudHarness) -> machine_probes.Machines:
    """Machines of the plainest spec."""
    found = machine_probes.machines_of(project, harness)
    found.spec = {"serverType": "cx23", "location": "fsn1"}
    return found


# --- answers ------------------------------------------------------------------------------------


async def test_the_answer_is_about_something_else(
    harness: HcloudHarness, project: cloud.Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing follows from it: not even that the one that was asked about is there."""
    one, other = await make_nodes(project, harness, 2)
    held = harness.service.cloud.servers
    monkeypatch.setitem(held, int(one.provider_id[9:]), held[int(other.provider_id[9:])])
    assert project.instances is not None

    with pytest.raises(cloud.Unknown, match="asked for"):
        await project.instances.instance_exists(one)


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        (cloud.InvalidArgument, "invalid_input json_error invalid_server_type unsupported_error"),
        (cloud.InvalidArgument, "incompatible_network_type invalid_load_balancer_type"),
        (cloud.NotFound, "not_found"),
        (cloud.AlreadyExists, "uniqueness_error source_port_used target_already_defined"),
        (cloud.PermissionDenied, "forbidden token_readonly"),
        (cloud.ResourceExhausted, "resource_limit_exceeded resource_unavailable placement_error"),
        (cloud.ResourceExhausted, "no_subnet_available ip_not_available"),
        (cloud.FailedPrecondition, "protected server_not_stopped resource_locked"),
        (cloud.FailedPrecondition, "server_not_attached_to_network"),
        (cloud.FailedPrecondition, "load_balancer_not_attached_to_network"),
        (cloud.FailedPrecondition, "targets_without_use_private_ip"),
        (cloud.RetryAfter, "conflict locked resource_in_use rate_limit_exceeded"),
        (cloud.DeadlineExceeded, "timeout"),
        (cloud.Unavailable, "server_error service_error bad_gateway maintenance robot_unavailable"),
        (cloud.Unauthenticated, "unauthorized"),
        (cloud.Unknown, "unknown_error"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_the_words_of_the_api(kind: type[cloud.CloudError], codes: str) -> None:
    assert all(issubclass(client.CODES[code], kind) for code in codes.split())


async def test_fields_that_were_wrong_are_named(
    harness: HcloudHarness, machines: machine_probes.Machines
) -> None:
    """An error of the API without them would say nothing."""
    machines.spec = {"serverType": "cx23", "location": "mars"}

    with pytest.raises(cloud.InvalidArgument, match="location: location not found"):
        await machines.create_once(machines.identity())

    assert harness.service.cloud.servers == {}


@pytest.mark.row("hcloud-config-05")
async def test_a_network_by_an_id_of_nothing(harness: HcloudHarness) -> None:
    async with opened(harness, HCLOUD_NETWORK="404404") as project:
        assert project.inventory is not None
        with pytest.raises(cloud.FailedPrecondition, match=r"HCLOUD_NETWORK.*404404"):
            await project.inventory.list_instances()


async def test_a_deletion_that_says_nothing_that_can_be_read(harness: HcloudHarness) -> None:
    made = settled(harness)
    harness.service.script.add(Fault(kind="garbage", operation="DELETE *"))
    async with client.open_client(harness.environ()["HCLOUD_ENDPOINT"], harness.service.token) as c:
        with pytest.raises(cloud.Unknown, match="unreadable"):
            await c.delete(f"/load_balancers/{made['id']}")


@pytest.mark.row("hcloud-call-04")
async def test_a_limit_of_nothing_is_none() -> None:
    limiter = quota.HeaderQuota()

    limiter.hear(429, {"RateLimit-Limit": "0", "RateLimit-Remaining": "0"})
    for text in ("9" * 400, "9" * 5000, "²", "-1"):
        limiter.hear(429, {"RateLimit-Limit": text, "RateLimit-Remaining": "0"})
    await limiter.acquire()

    assert limiter._next_at == 0.0


# --- settings, networks and routes --------------------------------------------------------------


def test_a_duration_below_zero_is_none() -> None:
    with pytest.raises(ValueError, match="-5s"):
        config.parse_duration("-5s")


async def test_a_route_that_was_never_listed(project: cloud.Cloud) -> None:
    assert project.routes is not None
    with pytest.raises(cloud.InvalidArgument, match="never listed"):
        await project.routes.delete_route(
            CLUSTER, cloud.Route(destination_cidr=CIDR, target_node="n", name="what")
        )


@pytest.mark.row("hcloud-route-01")
async def test_the_same_route_was_made_meanwhile(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    """The API has no word of its own for it; another refusal stays one."""
    assert project.routes is not None
    (one,) = await make_nodes(project, harness, 1)
    for _ in range(2):
        await created(project.routes, one, CIDR)
    assert len(harness.network["routes"]) == 1

    with pytest.raises(cloud.InvalidArgument, match="overlaps"):
        await created(project.routes, one, "10.0.0.128/25")


@pytest.mark.row("hcloud-route-03")
@pytest.mark.virtual_time
async def test_a_network_is_given_time_after_a_change() -> None:
    """The next change of it would be refused, and cost a call."""
    calls: list[str] = []

    class Api:
        async def act(self, path: str, _order: object) -> client.Action:
            calls.append(path)
            return client.Action(id=1, status="running")

        async def named(self, *_: object) -> client.Network:
            return client.Network(id=7, name="k8s", ip_range="10.0.0.0/16")

        async def resolved(self, *_: object) -> client.Network:
            return await self.named()

    api: Any = Api()
    made = routes.HcloudRoutes(api, networks.Network(api, "k8s"), (), lambda *_: None)
    began = asyncio.get_running_loop().time()
    for number in range(2):
        route = cloud.Route(
            destination_cidr=f"10.244.{number}.0/24",
            target_node="n",
            target_addresses=[cloud.address("InternalIP", "10.0.0.2")],
        )
        await made.create_route(CLUSTER, "", route)

    assert len(calls) == 2
    assert asyncio.get_running_loop().time() - began == pytest.approx(2 * routes.SETTLE_S)


# --- machines -----------------------------------------------------------------------------------


@pytest.mark.row("hcloud-machine-03")
def test_what_is_no_text_is_told_without_its_value() -> None:
    checks: list[Callable[[], Any]] = [
        lambda: machine_specs.token(cloud.Credentials({"token": b"\xff-s3cret"})),
        lambda: machine_specs.user_data(b"\xff-s3cret"),
    ]
    for check in checks:
        with pytest.raises(cloud.InvalidArgument) as caught:
            check()
        assert "s3cret" not in str(caught.value)


@pytest.mark.row("hcloud-machine-03")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"volumes": [10]}, "location"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"labels": {"a": "b c"}}, "labels"),
        ({"datacenter": "7"}, "datacenter"),
    ],
)
def test_faults_of_a_spec(wrong: dict[str, Any], field: str) -> None:
    good = cloud.Credentials({"token": b"t"})

    (found,) = machine_specs.problems({"serverType": "cx23", **wrong}, good)

    assert found.field == field


@pytest.mark.row("hcloud-machine-03")
async def test_a_datacenter_of_old_is_its_location(
    harness: HcloudHarness, machines: machine_probes.Machines
) -> None:
    machines.spec = {"serverType": "cx23", "datacenter": "hel1-dc2", "networks": None}

    await machines.create(machines.identity())

    (made,) = harness.service.cloud.servers.values()
    assert made["location"]["name"] == "hel1"


@pytest.mark.row("hcloud-machine-01")
async def test_what_bears_no_identity_is_nobodys(
    project: cloud.Cloud, machines: machine_probes.Machines, harness: HcloudHarness
) -> None:
    """A pool or a cluster whose name no label could hold has nothing; nothing is asked."""
    driver: Any = project.machines
    request = cloud.ListMachinesRequest(
        cluster="c",
        pool="p" * 64,
        provider_spec={},
        credentials=cloud.Credentials(harness.machine_credentials()),
    )

    listed = await driver.list_machines(request)
    nobody = cloud.Identity(cluster="", pool="", name="n", uid="")
    await driver.delete_machine(machines.request(nobody))

    assert (listed, harness.service.calls.total()) == ([], 0)


@pytest.mark.row("hcloud-machine-01")
@pytest.mark.parametrize("found", ["nobody", "on its way out"])
async def test_a_name_is_taken_for_a_moment(
    harness: HcloudHarness, machines: machine_probes.Machines, found: str
) -> None:
    who = machines.identity()
    expected: type[cloud.CloudError] = cloud.AlreadyExists
    if found == "on its way out":
        await machines.create(who)
        (made,) = harness.service.cloud.servers.values()
        made["status"], expected = "deleting", cloud.RetryAfter
    fault = Fault(operation="POST /servers", code="uniqueness_error", status=409, count=1)
    harness.service.script.add(fault)

    with pytest.raises(expected):
        await machines.create_once(who)


@pytest.mark.row("hcloud-machine-01")
async def test_a_deletion_that_takes_its_time(
    harness: HcloudHarness, machines: machine_probes.Machines
) -> None:
    """It is not over before the server is gone, and its creation time may be any text."""
    who = machines.identity()
    made = await machines.create(who)
    (server,) = harness.service.cloud.servers.values()
    server["created"] = "some day"
    (record,) = await machines.listed()
    harness.service.settings.removal_s = 60.0

    request = machines.request(who, made.provider_id)
    with pytest.raises(cloud.RetryAfter):
        await machines.driver.delete_machine(request)

    assert record.created is None
    harness.service.cloud.settle(all_of_them=True)
    await machines.delete(who, made.provider_id)
    assert (harness.service.cloud.servers, await harness.beside_vms()) == ({}, [])
