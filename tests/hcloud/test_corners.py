"""What seldom happens: answers that make no sense, somebody else's hands, things half done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from ccm import cloud
from ccm.testing import machine_probes
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import deleted, ensured
from ccm.testing.contract_routes import CIDR, created
from ccm.testing.fake_faults import Fault
from ccm.testing.network_probes import CLUSTER
from ccm.testing.network_probes import nodes as make_nodes
from providers.hcloud import client, config, machine_specs, networks, quota, routes
from providers.hcloud import service_annotations as ann
from providers.hcloud.testing import catalog
from providers.hcloud.testing import networks as fake_networks
from providers.hcloud.testing.answers import Call
from providers.hcloud.testing.settings import Settings
from tests.hcloud.balancing import UID, balancer_of, in_vain, only, service, settled
from tests.hcloud.conftest import opened
from tests.hcloud.harness import HcloudHarness


@pytest.fixture
def machines(project: cloud.Cloud, harness: HcloudHarness) -> machine_probes.Machines:
    """Machines of the plainest spec."""
    found = machine_probes.machines_of(project, harness)
    found.spec = {"serverType": "cx23", "location": "fsn1"}
    return found


# --- load balancers -----------------------------------------------------------------------------


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("owner", ["", "uid-of-another"])
async def test_somebody_took_the_name_that_nobody_asked_for(
    harness: HcloudHarness, project: cloud.Cloud, owner: str
) -> None:
    """The name by default, which is looked for only when it turns out to be taken."""
    wanted = service("uid-1")
    name = balancer_of(project).get_load_balancer_name(CLUSTER, wanted)
    made = settled(harness, name=name, labels={UID: owner} if owner else {})

    if owner:
        with pytest.raises(cloud.FailedPrecondition, match=owner):
            await ensured(balancer_of(project), wanted, [])
    else:
        await ensured(balancer_of(project), wanted, [])

    assert only(harness) is made
    assert made["labels"][UID] == (owner or "uid-1")


async def test_a_name_that_is_taken_by_nobody(harness: HcloudHarness, project: cloud.Cloud) -> None:
    """It was given up again between the refusal and the look."""
    fault = Fault(operation="POST /load_balancers", code="uniqueness_error", status=409, count=1)
    harness.service.script.add(fault)

    with pytest.raises(cloud.AlreadyExists):
        await ensured(balancer_of(project), service(), [])
    await ensured(balancer_of(project), service(), [])


@pytest.mark.row("hcloud-balancer-21")
async def test_one_in_another_network(harness: HcloudHarness, project: cloud.Cloud) -> None:
    """It comes into ours; without one of ours it stays where somebody put it."""
    body = {"name": "other", "ip_range": "10.9.0.0/16", "subnets": [{"ip_range": "10.9.0.0/24"}]}
    _, answer = fake_networks.create(harness.service.cloud, Call(body=body))
    assert answer is not None
    other = answer["network"]["id"]
    settled(harness, labels={UID: "uid-1"}, network=other)

    async with opened(harness, HCLOUD_NETWORK="") as without:
        await ensured(balancer_of(without), service("uid-1"), [])
        assert [one["network"] for one in only(harness)["private_net"]] == [other]
        await in_vain(harness, without, service("uid-1"), [])
    await ensured(balancer_of(project), service("uid-1"), [])

    assert [one["network"] for one in only(harness)["private_net"]] == [harness.network["id"]]


@pytest.mark.row("hcloud-balancer-22")
@pytest.mark.parametrize("when", ["new", "changed", "by hand"])
async def test_one_that_nobody_could_reach_is_refused(harness: HcloudHarness, when: str) -> None:
    """Nothing is made, and it is not asked every second whether it has an address by now."""
    wanted = service("uid-1", disable_public_network="true")
    async with opened(harness, HCLOUD_NETWORK="") as project:
        if when != "new":
            settled(harness, labels={UID: "uid-1"}, public_interface=when != "by hand")
        wanted = service("uid-1") if when == "by hand" else wanted
        before = harness.service.writes
        with pytest.raises(cloud.InvalidArgument, match="HCLOUD_NETWORK"):
            await balancer_of(project).ensure_load_balancer(CLUSTER, wanted, [])

    assert harness.service.writes == before + 2 * (when == "by hand")  # name, listener


async def test_a_member_goes_by_somebody_elses_hand_meanwhile(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    nodes = await make_nodes(project, harness, 2)
    await ensured(balancer_of(project), service(), nodes)
    fault = Fault(operation="*remove_target", code="not_found", status=404, count=1, applied=True)
    harness.service.script.add(fault)

    await balancer_of(project).update_load_balancer(CLUSTER, service(), nodes[:1])

    assert len(only(harness)["targets"]) == 1
    harness.service.script.add(Fault(operation="*add_target", code="not_found", status=404))
    with pytest.raises(cloud.NotFound):
        await balancer_of(project).update_load_balancer(CLUSTER, service(), nodes)


async def test_a_quota_that_no_member_uses_is_an_error(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    settled(harness, labels={UID: "uid-1"})
    fault = Fault(operation="*add_service", code="resource_limit_exceeded")
    harness.service.script.add(fault)

    with pytest.raises(cloud.ResourceExhausted):
        await ensured(balancer_of(project), service("uid-1"), [])


async def test_one_that_has_no_address_yet(harness: HcloudHarness, project: cloud.Cloud) -> None:
    """As after a restart in the middle of its making: no action of ours is known."""
    harness.service.settings.balancer_s = 60.0
    with pytest.raises(cloud.RetryAfter):
        await balancer_of(project).ensure_load_balancer(CLUSTER, service(), [])
    async with harness.open() as again:
        with pytest.raises(cloud.RetryAfter, match="no address yet"):
            await balancer_of(again).ensure_load_balancer(CLUSTER, service(), [])


async def test_an_orphan_goes_once(harness: HcloudHarness, project: cloud.Cloud) -> None:
    await ensured(balancer_of(project), service(), [])
    name = only(harness)["name"]

    for _ in range(2):
        await balancer_of(project).delete_load_balancer(CLUSTER, name)

    assert harness.service.cloud.load_balancers == {}


@pytest.mark.parametrize("code", ["failed", "gone"])
async def test_a_deletion_that_fails(
    harness: HcloudHarness, project: cloud.Cloud, code: str
) -> None:
    """Its action fails; or somebody else was faster."""
    await ensured(balancer_of(project), service(), [])
    number = only(harness)["id"]
    if code == "failed":
        harness.service.settings.told_deletions = True
        harness.service.cloud.doomed["load_balancer", number] = "no way"
        with pytest.raises(cloud.Aborted, match="no way"):
            await deleted(balancer_of(project), service())
    else:
        fault = Fault(operation="DELETE /load_balancers/*", code="not_found", status=404)
        harness.service.script.add(fault)
        await deleted(balancer_of(project), service())


@pytest.mark.row("hcloud-balancer-17")
@pytest.mark.parametrize("private", ["true", "false"])
async def test_a_place_of_its_own_in_the_network_comes_first(
    harness: HcloudHarness, project: cloud.Cloud, private: str
) -> None:
    nodes = await make_nodes(project, harness, 1)
    wanted = service(private_ipv4="10.0.0.99", use_private_ip=private)

    await ensured(balancer_of(project), wanted, nodes)

    assert only(harness)["private_net"][0]["ip"] == "10.0.0.99"
    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [private == "true"]


@pytest.mark.row("hcloud-balancer-20")
async def test_a_digest_with_a_certificate_that_is_to_be_made(project: cloud.Cloud) -> None:
    """Which one it will be nobody knows: such a Service is looked at after each start."""
    managed = {"protocol": "https", "certificate_type": "managed"}
    wanted = [service(**managed), service(**managed, http_managed_certificate_name="mine")]

    one, other = (balancer_of(project).load_balancer_digest(CLUSTER, each, []) for each in wanted)

    assert one != other


async def test_somebody_else_makes_the_certificate_meanwhile(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    fault = Fault(
        operation="POST /certificates", code="uniqueness_error", status=409, applied=True, count=1
    )
    harness.service.script.add(fault)
    asked = {
        "protocol": "https",
        "certificate_type": "managed",
        "http_managed_certificate_domains": "example.com",
    }

    await ensured(balancer_of(project), service(**asked), [])

    assert len(harness.service.cloud.certificates) == 1


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


# --- the fake -----------------------------------------------------------------------------------


async def test_the_fake_has_the_limits_of_the_real_thing(
    harness: HcloudHarness, project: cloud.Cloud, machines: machine_probes.Machines
) -> None:
    """100 servers and 100 routes a network, and so many targets of each type."""
    assert project.routes is not None
    (one,) = await make_nodes(project, harness, 1)
    full = [{"destination": f"10.7.{each}.0/24", "gateway": "10.0.0.2"} for each in range(100)]
    harness.network["routes"][:] = full
    with pytest.raises(cloud.ResourceExhausted):
        await created(project.routes, one, CIDR)
    harness.network["routes"].pop()
    await created(project.routes, one, CIDR)
    machines.spec = {"serverType": "cx23", "networks": ["k8s"]}
    harness.network["servers"] += range(90000, 90099)
    with pytest.raises(cloud.ResourceExhausted):
        await machines.create(machines.identity())

    assert {one["name"]: one["max_targets"] for one in catalog.BALANCER_TYPES} == {
        "lb11": 25,
        "lb21": 75,
        "lb31": 150,
    }
    assert (Settings().requests, Settings().group_servers) == (3600, 10)


@pytest.mark.parametrize("asked", ["unknown", "method"])
async def test_what_the_fake_does_not_know(harness: HcloudHarness, asked: str) -> None:
    """It says so in the API's words."""
    url = harness.environ()["HCLOUD_ENDPOINT"]
    headers = {"Authorization": f"Bearer {harness.service.token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        ask: Awaitable[Any] = (
            session.get(f"{url}/isos") if asked == "unknown" else session.put(f"{url}/servers")
        )
        response = await ask
        body = await response.json()

    assert body["error"]["code"] == ("not_found" if asked == "unknown" else "method_not_allowed")


async def test_the_fake_may_be_slow(harness: HcloudHarness, project: cloud.Cloud) -> None:
    harness.service.settings.latency_s = 0.05
    assert project.inventory is not None
    began = asyncio.get_running_loop().time()

    await project.inventory.list_instances()

    assert asyncio.get_running_loop().time() - began >= 0.05


@pytest.mark.row("hcloud-balancer-17")
def test_a_name_by_annotation_is_the_name(project: cloud.Cloud) -> None:
    wanted = build_service(uid="0b6dbe96-bb3c-4d4c-b1e0-4c0ed8a21f0d")
    named = build_service(annotations={ann.NAME.name: "mine"})
    name = balancer_of(project).get_load_balancer_name

    assert name(CLUSTER, wanted) == "a0b6dbe96bb3c4d4cb1e04c0ed8a21f0"
    assert name(CLUSTER, named) == "mine"
