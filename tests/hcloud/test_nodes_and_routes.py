"""Nodes and routes, rare answers, and events for the user."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm import cloud
from ccm.cloud.settings import table
from ccm.testing import machine_probes
from ccm.testing.builders import node
from ccm.testing.contract_balancers import deleted, ensured
from ccm.testing.contract_routes import CIDR, created
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER
from ccm.testing.probes import nodes as make_nodes
from providers.hcloud import client, config, networks, routes
from providers.hcloud import machines as driver
from tests.hcloud.balancing import UID, only, service, settled
from tests.hcloud.harness import HcloudHarness, Told, in_cluster, opened
from tests.support.vendor import balancer_of


@pytest.mark.row("hcloud-node-05")
@pytest.mark.parametrize("provider_id", ["hcloud://bm-42", "hrobot://42", "hcloud://4x"])
async def test_dedicated_servers_are_refused_without_an_api_call(
    harness: HcloudHarness, provider_id: str
) -> None:
    found = node("bm", provider_id=provider_id)
    questions: list[Any] = [
        harness.project.instances.instance_exists,
        harness.project.instances.instance_shutdown,
        harness.project.instances.instance_metadata,
    ]
    for ask in questions:
        with pytest.raises(cloud.InvalidArgument, match=provider_id):
            await ask(found)

    assert harness.service.calls.total() == 0
    assert cloud.is_foreign("hrobot://42", harness.project.provider_schemes)


@pytest.mark.row("hcloud-node-06")
@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("ipv4", ["Hostname", "ExternalIP", "InternalIP"]),
        ("ipv6", ["Hostname", "ExternalIP", "InternalIP"]),
        ("dualstack", ["Hostname", "ExternalIP", "ExternalIP", "InternalIP"]),
    ],
)
async def test_node_addresses_follow_the_configured_address_family(
    harness: HcloudHarness, family: str, kinds: list[str]
) -> None:
    made = await harness.create()
    settings = {
        "HCLOUD_INSTANCES_ADDRESS_FAMILY": family,
        "HCLOUD_INSTANCES_ZONE_LABEL_ENABLED": "false",
    }
    async with opened(harness, **settings) as project:
        assert project.instances is not None
        found = await project.instances.instance_metadata(node(made.name))

    assert found is not None
    assert [one.type for one in found.addresses] == kinds
    assert (":" in found.addresses[1].address) == (family == "ipv6")
    assert (found.zone, found.region) == ("", "hel1")


@pytest.mark.row("hcloud-config-05")
@pytest.mark.parametrize("name", ["nowhere", "404404"])
async def test_a_missing_network_is_reported_with_its_setting(
    harness: HcloudHarness, name: str
) -> None:
    async with opened(harness, HCLOUD_NETWORK=name) as project:
        assert project.inventory is not None
        with pytest.raises(cloud.FailedPrecondition, match=f"HCLOUD_NETWORK.*{name}"):
            await project.inventory.list_instances()


@pytest.mark.row("hcloud-route-02")
async def test_a_route_to_an_unknown_gateway_is_replaced(harness: HcloudHarness) -> None:
    one, other = await harness.nodes(2)
    harness.network["routes"].append({"destination": CIDR, "gateway": "10.0.0.200"})
    (nowhere,) = await harness.project.routes.list_routes(CLUSTER)
    assert [one.address for one in nowhere.target_addresses] == ["10.0.0.200"]

    await created(harness.project.routes, one, CIDR)
    with pytest.raises(cloud.AlreadyExists, match=one.name):
        await created(harness.project.routes, other, CIDR)

    (listed,) = await harness.project.routes.list_routes(CLUSTER)
    assert (listed.target_node, listed.blackhole) == (one.name, False)


@pytest.mark.row("hcloud-route-04")
async def test_route_creation_fails_without_quota_address_or_ipv4(harness: HcloudHarness) -> None:
    (one,) = await harness.nodes(1)
    harness.service.settings.network_routes = 0

    with pytest.raises(cloud.ResourceExhausted):
        await created(harness.project.routes, one, CIDR)
    with pytest.raises(cloud.Unavailable, match="bare"):
        await created(harness.project.routes, node("bare"), CIDR)
    harness.service.cloud.servers[int(one.provider_id[9:])]["private_net"] = []
    async with harness.open() as again:
        assert again.routes is not None
        with pytest.raises(cloud.FailedPrecondition, match=one.name):
            await created(again.routes, node(one.name), CIDR)
    with pytest.raises(cloud.InvalidArgument, match="IPv4"):
        await created(harness.project.routes, one, "fd00::/64")


@pytest.mark.row("hcloud-route-04")
async def test_the_route_gateway_is_the_node_address_inside_the_network(
    harness: HcloudHarness,
) -> None:
    (one,) = await harness.nodes(1)
    wrong = cloud.address("InternalIP", "192.168.7.7")
    route = cloud.Route(
        destination_cidr=CIDR, target_node=one.name, target_addresses=(wrong, *one.addresses)
    )

    await harness.project.routes.create_route(CLUSTER, "hint", route)

    assert harness.network["routes"][0]["gateway"].startswith("10.0.0.")


async def test_a_failed_route_action_is_raised(harness: HcloudHarness) -> None:
    (one,) = await harness.nodes(1)
    harness.service.cloud.failing_actions["network", harness.network["id"]] = "no way"

    with pytest.raises(cloud.Aborted, match="no way"):
        await created(harness.project.routes, one, CIDR)


@pytest.mark.row("hcloud-route-05")
async def test_routes_of_uninitialized_nodes_use_the_address_of_the_server(
    harness: HcloudHarness,
) -> None:
    """Five nodes without addresses cost one listing of servers."""
    made = [await harness.create() for _ in range(5)]
    for number, each in enumerate(made):
        await created(harness.project.routes, node(each.name), f"10.120.{number}.0/24")

    assert len(harness.network["routes"]) == 5
    assert harness.service.calls["GET /servers"] == 1


@pytest.fixture
def machines(harness: HcloudHarness) -> machine_probes.Machines:
    """Machines of the plainest spec."""
    found = machine_probes.machines_of(harness.project, harness)
    found.spec = {"serverType": "cx23", "location": "fsn1"}
    return found


# --- answers ------------------------------------------------------------------------------------


async def test_an_answer_about_another_server_is_an_error(
    harness: HcloudHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not even prove that the requested server exists."""
    one, other = await harness.nodes(2)
    held = harness.service.cloud.servers
    monkeypatch.setitem(held, int(one.provider_id[9:]), held[int(other.provider_id[9:])])

    with pytest.raises(cloud.Unknown, match=r"requested .*, got ID"):
        await harness.project.instances.instance_exists(one)


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
def test_api_error_codes_map_to_cloud_errors(kind: type[cloud.CloudError], codes: str) -> None:
    assert all(issubclass(client.CODES[code], kind) for code in codes.split())


@pytest.mark.row("hcloud-call-04")
async def test_zero_and_malformed_rate_limits_are_ignored() -> None:
    limiter = client.HeaderQuota()

    limiter.hear(429, {"RateLimit-Limit": "0", "RateLimit-Remaining": "0"})
    for text in ("9" * 400, "9" * 5000, "²", "-1"):
        limiter.hear(429, {"RateLimit-Limit": text, "RateLimit-Remaining": "0"})
    await limiter.acquire()

    assert limiter._next_at == 0.0


# --- settings, networks and routes --------------------------------------------------------------


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="-5s"):
        config.parse_duration("-5s")


async def test_deletion_of_a_route_with_a_malformed_name_is_refused(harness: HcloudHarness) -> None:
    with pytest.raises(cloud.InvalidArgument, match="no valid ID"):
        await harness.project.routes.delete_route(
            CLUSTER, cloud.Route(destination_cidr=CIDR, target_node="n", name="what")
        )


@pytest.mark.row("hcloud-route-01")
async def test_creation_of_an_existing_route_succeeds(harness: HcloudHarness) -> None:
    """The API has no error code for it. An overlapping range is still refused."""
    (one,) = await harness.nodes(1)
    for _ in range(2):
        await created(harness.project.routes, one, CIDR)
    assert len(harness.network["routes"]) == 1

    with pytest.raises(cloud.InvalidArgument, match="overlaps"):
        await created(harness.project.routes, one, "10.0.0.128/25")


@pytest.mark.row("hcloud-route-03")
@pytest.mark.virtual_time
async def test_changes_of_a_network_are_spaced() -> None:
    """The API refuses a change that follows another one too closely."""
    calls: list[str] = []

    class Api:
        async def start_action(self, path: str, _order: object) -> client.Action:
            calls.append(path)
            return client.Action(id=1, status="running")

        async def find_by_name(self, *_: object) -> client.Network:
            return client.Network(id=7, name="k8s", ip_range="10.0.0.0/16")

        async def resolve(self, *_: object) -> client.Network:
            return await self.find_by_name()

    api: Any = Api()
    made = routes.HcloudRoutes(api, networks.ClusterNetwork(api, "k8s"), (), lambda *_: None)
    began = asyncio.get_running_loop().time()
    for number in range(2):
        route = cloud.Route(
            destination_cidr=f"10.244.{number}.0/24",
            target_node="n",
            target_addresses=[cloud.address("InternalIP", "10.0.0.2")],
        )
        await made.create_route(CLUSTER, "", route)

    assert len(calls) == 2
    assert asyncio.get_running_loop().time() - began == pytest.approx(2 * routes.CHANGE_INTERVAL_S)


# --- machines -----------------------------------------------------------------------------------


@pytest.mark.row("hcloud-machine-03")
def test_undecodable_secrets_are_refused_without_quoting_them() -> None:
    checks: list[Callable[[], Any]] = [
        lambda: driver.token(cloud.Credentials({"token": b"\xff-s3cret"})),
        lambda: driver.user_data(b"\xff-s3cret"),
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
def test_spec_validation_names_the_invalid_field(wrong: dict[str, Any], field: str) -> None:
    good = cloud.Credentials({"token": b"t"})

    (found,) = driver.problems({"serverType": "cx23", **wrong}, good)

    assert found.field == field


@pytest.mark.row("hcloud-machine-03")
async def test_a_legacy_datacenter_is_read_as_its_location(
    harness: HcloudHarness, machines: machine_probes.Machines
) -> None:
    machines.spec = {"serverType": "cx23", "datacenter": "hel1-dc2", "networks": None}

    await machines.create(machines.identity())

    (made,) = harness.service.cloud.servers.values()
    assert made["location"]["name"] == "hel1"


@pytest.mark.row("hcloud-machine-01")
async def test_an_invalid_identity_owns_nothing_and_costs_no_call(
    machines: machine_probes.Machines, harness: HcloudHarness
) -> None:
    """No label can hold the name of its pool or cluster."""
    driver: Any = harness.project.machines
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
async def test_a_taken_server_name_is_waited_for_while_its_server_is_deleted(
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
async def test_machine_deletion_ends_only_when_the_server_is_gone(
    harness: HcloudHarness, machines: machine_probes.Machines
) -> None:
    """A malformed creation time of the server is ignored."""
    who = machines.identity()
    made = await machines.create(who)
    (server,) = harness.service.cloud.servers.values()
    server["created"] = "some day"
    (record,) = await machines.list_vms()
    harness.service.settings.removal_s = 60.0

    request = machines.request(who, made.provider_id)
    with pytest.raises(cloud.RetryAfter):
        await machines.driver.delete_machine(request)

    assert record.created is None
    harness.service.cloud.settle(all_of_them=True)
    await machines.delete(who, made.provider_id)
    assert (harness.service.cloud.servers, await harness.beside_vms()) == ({}, [])


UNCONFIGURED, DEPRECATED, FULL = (
    "LoadBalancerTypeUnconfigured",
    "LoadBalancerTypeDeprecated",
    "MaxTargetsReached",
)


@pytest.mark.row("hcloud-balancer-08")
async def test_a_new_load_balancer_of_the_default_type_emits_one_event(
    harness: HcloudHarness,
) -> None:
    told = Told()
    async with in_cluster(harness, told, {}) as project:
        for wanted in (service("uid-1"), service("uid-1"), service("uid-2", type="lb11")):
            await ensured(balancer_of(project), wanted, [])
        assert told.events == [("Service", service("uid-1").name, UNCONFIGURED)]
        assert "lb11" in told.messages[0]
        await deleted(balancer_of(project), service("uid-1"))
        await deleted(balancer_of(project), service("uid-2"))
        settled(harness, labels={UID: "uid-3"})
        await ensured(balancer_of(project), service("uid-3"), [])  # the type was chosen elsewhere
    async with in_cluster(harness, told, {"HCLOUD_LOAD_BALANCERS_TYPE": "lb21"}) as project:
        await ensured(balancer_of(project), service("uid-4"), [])

    assert len(told.events) == 1


@pytest.mark.row("hcloud-balancer-08")
async def test_a_deprecated_load_balancer_type_emits_an_event(harness: HcloudHarness) -> None:
    told, made = Told(), settled(harness, labels={UID: "uid-1"})
    made["load_balancer_type"] = {
        **made["load_balancer_type"],
        "deprecation": {"announced": "2026-01-30T23:50:00Z", "unavailable_after": "2026-06-01"},
    }
    async with in_cluster(harness, told, {}) as project:
        for _ in range(2):
            await ensured(balancer_of(project), service("uid-1"), [])

    assert [reason for _, _, reason in told.events] == [DEPRECATED]
    assert "lb11 is deprecated, and unavailable after 2026-06-01" in told.messages[0]


@pytest.mark.row("hcloud-balancer-12")
async def test_nodes_beyond_the_target_limit_emit_an_event(harness: HcloudHarness) -> None:
    told = Told()
    async with in_cluster(harness, told, {"HCLOUD_LOAD_BALANCERS_TYPE": "lb11"}) as project:
        nodes = await make_nodes(project, harness, 26)
        await ensured(balancer_of(project), service(), nodes)
        only(harness)["load_balancer_type"] = {
            **only(harness)["load_balancer_type"],
            "max_targets": 20,
        }
        members = only(harness)["targets"]
        only(harness)["targets"] = members[5:]
        del told.events[:]
        await balancer_of(project).update_load_balancer(CLUSTER, service(), nodes[:20])
        assert told.events == []
        uncounted = {"type": "label_selector", "label_selector": {"selector": "a=b"}}
        only(harness)["targets"] = [uncounted, *members[:19]]
        await balancer_of(project).update_load_balancer(CLUSTER, service(), nodes[:20])

    assert told.events == [("Service", service().name, FULL)]
    assert "too many targets" in told.messages[-1]  # the cloud's word, for we left room
    assert "26 nodes" in told.messages[0]


# --- routes -------------------------------------------------------------------------------------


@pytest.mark.row("hcloud-route-06")
async def test_routes_outside_of_the_cluster_cidr_are_never_changed(harness: HcloudHarness) -> None:
    """Routes of another cluster in the same network are listed, and never changed."""
    told, theirs = Told(), {"destination": "10.99.0.0/24", "gateway": "10.0.0.200"}
    harness.network["routes"].append(theirs)
    async with in_cluster(harness, told, {}, pods="10.120.0.0/16") as project:
        assert project.routes is not None
        (one,) = await make_nodes(project, harness, 1)
        (listed,) = await project.routes.list_routes(CLUSTER)
        before = harness.service.writes
        with pytest.raises(
            cloud.FailedPrecondition, match="was not changed: it is outside of --cluster-cidr"
        ):
            await project.routes.delete_route(CLUSTER, listed)
        assert harness.service.writes == before
        with pytest.raises(
            cloud.AlreadyExists, match="was not changed: it is outside of --cluster-cidr"
        ):
            await created(project.routes, one, theirs["destination"])
        assert told.events == [("Node", one.name, "ClusterCIDRMisconfigured")]
        await created(project.routes, one, CIDR)
        mine = next(
            one for one in await project.routes.list_routes(CLUSTER) if one.destination_cidr == CIDR
        )
        await project.routes.delete_route(CLUSTER, mine)

    assert harness.network["routes"] == [theirs]
    assert len(told.events) == 1


@pytest.mark.row("hcloud-route-06")
@pytest.mark.parametrize(
    ("pods", "switched", "said"),
    [
        ("10.244.0.0/16", {}, "10.244.0.0/16"),
        ("10.0.0.0/15, fd00::/48", {}, "10.0.0.0/15"),
        ("10.0.128.0/17, fd00::/48", {}, ""),
        ("10.244.0.0/16", {"HCLOUD_NETWORK_ROUTES_ENABLED": "false"}, ""),
        ("", {}, ""),
    ],
    ids=["elsewhere", "wider", "within", "no routes", "no range"],
)
async def test_a_cluster_cidr_outside_of_the_network_is_logged_once(
    harness: HcloudHarness, pods: str, switched: dict[str, str], said: str
) -> None:
    with capture_logs() as lines:
        async with in_cluster(harness, Told(), switched, pods=pods) as project:
            assert project.inventory is not None
            await project.inventory.list_instances()
            await project.inventory.list_instances()

    found = [line["cluster_cidr"] for line in lines if "cluster_cidr" in line]
    assert found == ([said] if said else [])


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.row("hcloud-config-04")
@pytest.mark.parametrize(
    ("given", "level", "said"),
    [
        ({}, "", []),
        ({"HCLOUD_SERVER_CACHE_MODE": "all"}, "", []),
        (
            {
                "HCLOUD_SERVER_CACHE_MODE": "off",
                "HCLOUD_SERVER_CACHE_MAX_AGE": "1m",
                "HCLOUD_DEBUG": "1",
            },
            "info",
            ["HCLOUD_DEBUG", "HCLOUD_SERVER_CACHE_MODE", "HCLOUD_SERVER_CACHE_MAX_AGE"],
        ),
        (
            {"ROBOT_USER": "me", "ROBOT_PASSWORD": "s3cret"},
            "info",
            ["ROBOT_USER", "ROBOT_PASSWORD"],
        ),
        ({"HCLOUD_TOKEN": "s3cret"}, "warning", []),
    ],
    ids=["nothing", "as it is anyway", "modes of a cache", "Robot", "a short token"],
)
async def test_settings_without_effect_are_logged(
    harness: HcloudHarness, given: dict[str, str], level: str, said: list[str]
) -> None:
    with capture_logs() as lines:
        async with opened(harness, **given):
            pass

    ours: list[Any] = [line for line in lines if {"settings", "length"} & line.keys()]
    assert [line["log_level"] for line in ours] == ([level] if level else [])
    assert [line.get("settings", []) for line in ours] == ([said] if level else [])
    assert "s3cret" not in str(lines)


@pytest.mark.row("hcloud-config-04")
def test_the_settings_table_marks_those_without_effect() -> None:
    words = {one.name for one in table(config.Config) if one.help.startswith("No effect")}
    robot = {
        "ROBOT_ENDPOINT": "http://robot.example.com",
        "ROBOT_USER": "me",
        "ROBOT_PASSWORD": "s3cret",
        "ROBOT_CACHE_TIMEOUT": "1s",
        "ROBOT_RATE_LIMIT_WAIT_TIME": "1s",
        "ROBOT_FORWARD_INTERNAL_IPS": "false",
    }
    changed = dict.fromkeys(words, "true") | {
        "HCLOUD_SERVER_CACHE_MODE": "one",
        "HCLOUD_SERVER_CACHE_MAX_AGE": "1s",
        "HCLOUD_METRICS_ENABLED": "false",
        **robot,
    }
    for enabled, without in (("false", words | robot.keys()), ("true", words)):
        environ = {"HCLOUD_TOKEN": "t", "ROBOT_ENABLED": enabled, **changed}
        given = cloud.Context(environ=environ).settings(config.Config, environment=True)
        assert set(config.settings_without_effect(given)) == without
