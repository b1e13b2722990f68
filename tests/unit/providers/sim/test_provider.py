"""The provider of the simulated cloud, beyond its contract."""

from __future__ import annotations

import msgspec
import pytest

from ccm import cloud
from ccm.model import Node, Service, ServicePort
from ccm.testing import builders
from providers import sim
from providers.sim import (
    balancers,
    client,
    recipes,
    routes,
    server,
    service_annotations,
    traffic,
    world,
    world_balancers,
)


@pytest.fixture
def instances(provider: cloud.Cloud) -> sim.instances.SimInstances:
    assert isinstance(provider.instances, sim.instances.SimInstances)
    return provider.instances


def node(name: str = "a", provider_id: str = "") -> Node:
    return builders.node(name, provider_id=provider_id)


async def test_the_cloud_offers_all_there_is(provider: cloud.Cloud) -> None:
    assert provider.name == "sim"
    offered: tuple[object, object] = (provider.instances, provider.inventory)
    assert isinstance(offered[0], cloud.InstanceStates)
    assert offered[0] is offered[1]
    balancers: object = provider.load_balancer
    assert isinstance(balancers, cloud.LoadBalancerDigests)
    assert provider.routes is not None
    machines: object = provider.machines
    assert isinstance(machines, cloud.SpecValidation)
    assert isinstance(machines, cloud.MachineMetrics)


async def test_metadata_is_complete_and_in_kubernetes_words(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    kinds: tuple[tuple[world.AddressKind, str], ...] = (
        ("public", "1.2.3.4"),
        ("private", "10.0.0.9"),
        ("private", "fd00::9"),
        ("private", "10.0.0.9"),
        ("private_dns", "a.internal"),
        ("public_dns", "a.example"),
        ("hostname", "a"),
    )
    made = service.world.put(
        world.GivenInstance(
            name="a",
            type="2 vCPU, 4 GB",
            zone="z1",
            region="r1",
            addresses=tuple(world.Address(kind=kind, value=value) for kind, value in kinds),
            labels={"example.com/rack": "7", "note": "not a label!", "/": "x"},
        )
    )

    found = await instances.instance_metadata(node())

    assert found == cloud.InstanceMetadata(
        provider_id=f"sim://{made.id}",
        instance_type="2-vCPU-4-GB",
        zone="z1",
        region="r1",
        addresses=(
            cloud.address("ExternalIP", "1.2.3.4"),
            cloud.address("InternalIP", "10.0.0.9"),
            cloud.address("InternalIP", "fd00::9"),
            cloud.address("InternalDNS", "a.internal"),
            cloud.address("ExternalDNS", "a.example"),
            cloud.address("Hostname", "a"),
        ),
        additional_labels={"example.com/rack": "7"},
    )
    assert await instances.instance_metadata(node(provider_id=f"sim://{made.id}")) == found


@pytest.mark.parametrize(
    "provider_id",
    ["aws:///zone/i-1", "i-1", "sim://", "sim:///i-1", "sim://i-1/../x", "sim://i 1", "SIM://i-1"],
)
async def test_an_odd_provider_id_is_refused_without_a_call(
    service: server.Service, instances: sim.instances.SimInstances, provider_id: str
) -> None:
    with pytest.raises(cloud.InvalidArgument):
        await instances.instance_state(node(provider_id=provider_id))

    assert service.calls.counts.total() == 0


async def test_a_question_is_one_request_and_a_name_that_is_not_unique_decides_nothing(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    _, twin = (service.world.put(world.GivenInstance(name="a")).id for _ in range(2))
    questions = (
        *(instances.instance_exists, instances.instance_state),
        *(instances.instance_shutdown, instances.instance_metadata),
    )

    for question in questions:
        with pytest.raises(cloud.FailedPrecondition):
            await question(node())
    service.world.delete(twin)
    for question in questions:
        assert await question(node()) is not None

    assert service.calls.counts.total() == 8


CLUSTER = "kubernetes"
WEB = builders.service()


@pytest.fixture
def load_balancers(provider: cloud.Cloud) -> balancers.SimBalancers:
    assert isinstance(provider.load_balancer, balancers.SimBalancers)
    return provider.load_balancer


def numbered(number: int) -> Node:
    addresses = [cloud.address("InternalIP", f"10.0.0.{number}")]
    return builders.node(f"n{number}", addresses=addresses)


def only(service: server.Service) -> world_balancers.Balancer:
    (found,) = service.worlds.balancers.list()
    return found


async def test_it_looks_once_and_then_makes_one_call_for_each_difference(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    changed = builders.service(ports=[ServicePort(port=443, node_port=30443)])
    with pytest.raises(cloud.NotFound):
        await load_balancers.update_load_balancer(CLUSTER, WEB, [numbered(1)])
    calls = []
    for wanted, nodes in (
        (WEB, [numbered(2), numbered(1)]),
        (WEB, [numbered(1), numbered(2)]),
        (changed, []),
    ):
        service.calls.clear()
        await load_balancers.ensure_load_balancer(CLUSTER, wanted, nodes)
        calls.append(list(service.calls.counts))
    for nodes in ([numbered(1), numbered(2)], [numbered(2), numbered(1)]):
        service.calls.clear()
        await load_balancers.update_load_balancer(CLUSTER, WEB, nodes)
        calls.append(list(service.calls.counts))

    assert calls == [
        ["list_balancers", "create_balancer", "set_members"],
        ["list_balancers"],
        ["list_balancers", "change_balancer", "set_members"],
        ["list_balancers", "set_members"],
        ["list_balancers"],
    ]
    made = only(service)
    assert (made.name, made.cluster) == (cloud.default_load_balancer_name(WEB), CLUSTER)
    assert made.members == ("10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize("call", ["ensure_load_balancer", "update_load_balancer"])
async def test_a_refused_member_keeps_out_no_other(
    service: server.Service, load_balancers: balancers.SimBalancers, call: str
) -> None:
    bad = builders.node("bad", addresses=[cloud.address("InternalIP", "10.0.0.1/24")])
    await load_balancers.ensure_load_balancer(CLUSTER, WEB, [numbered(1)])
    ask = getattr(load_balancers, call)

    for _ in range(2):
        with pytest.raises(cloud.Aborted, match=r"10\.0\.0\.1/24") as caught:
            await ask(CLUSTER, WEB, [bad, numbered(2)])
        assert isinstance(caught.value.partial, cloud.Status)

    assert only(service).members == ("10.0.0.2",)


async def test_while_the_cloud_works_it_says_for_how_long(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    service.change_settings(traffic.Settings(provision_s=20.0))

    with pytest.raises(cloud.RetryAfter) as raised:
        await load_balancers.ensure_load_balancer(CLUSTER, WEB, [])

    assert 19 < raised.value.seconds <= 20
    assert await load_balancers.get_load_balancer(CLUSTER, WEB) == cloud.Status()
    assert [one.digest for one in await load_balancers.list_load_balancers(CLUSTER)] == [""]


async def test_a_used_up_quota(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    service.change_settings(traffic.Settings(balancer_quota=1))
    await load_balancers.ensure_load_balancer(CLUSTER, WEB, [])

    with pytest.raises(cloud.ResourceExhausted, match="quota of 1"):
        await load_balancers.ensure_load_balancer(CLUSTER, builders.service("other"), [])


async def test_the_balancer_of_another_cluster_is_out_of_reach(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    await load_balancers.ensure_load_balancer("other", WEB, [])

    assert await load_balancers.get_load_balancer(CLUSTER, WEB) is None
    await load_balancers.ensure_load_balancer_deleted(CLUSTER, WEB)
    with pytest.raises(cloud.FailedPrecondition, match="another cluster"):
        await load_balancers.ensure_load_balancer(CLUSTER, WEB, [])

    assert only(service).cluster == "other"


@pytest.fixture
def table(provider: cloud.Cloud) -> routes.SimRoutes:
    assert isinstance(provider.routes, routes.SimRoutes)
    return provider.routes


def put(service: server.Service, name: str, *ips: str) -> None:
    addresses = tuple(world.Address(kind="private", value=ip) for ip in ips)
    service.world.put(world.GivenInstance(id=name, name=name, addresses=addresses))


def route(target: str, cidr: str = "10.120.0.0/24", *ips: str) -> cloud.Route:
    return cloud.Route(
        destination_cidr=cidr,
        target_node=target,
        target_addresses=[cloud.address("InternalIP", ip) for ip in ips],
    )


async def test_a_node_without_addresses_is_looked_up(
    service: server.Service, table: routes.SimRoutes
) -> None:
    put(service, "a", "10.0.0.1", "fd00::1")

    await table.create_route(CLUSTER, "uid", route("a"))
    await table.create_route(CLUSTER, "uid", route("a", "fd00:1::/64"))

    gateways = [one.gateway for one in service.worlds.routes.list()]
    assert gateways == ["10.0.0.1", "fd00::1"]


async def test_impossible_routes(service: server.Service, table: routes.SimRoutes) -> None:
    service.change_settings(traffic.Settings(route_quota=1))
    await table.create_route(CLUSTER, "uid", route("a", "10.120.0.0/24", "10.0.0.1"))

    refusals: dict[type[cloud.CloudError], list[cloud.Route]] = {
        cloud.InvalidArgument: [route("a", "nonsense", "10.0.0.1")],
        cloud.FailedPrecondition: [route("nobody"), route("a", "fd00::/64", "10.0.0.1")],
        cloud.AlreadyExists: [route("b", "10.120.0.0/24", "10.0.0.2")],
        cloud.ResourceExhausted: [route("a", "10.120.1.0/24", "10.0.0.1")],
    }
    for error, several in refusals.items():
        for wanted in several:
            with pytest.raises(error):
                await table.create_route(CLUSTER, "uid", wanted)


async def test_a_gateway_that_went_over_to_another_leads_there(
    service: server.Service, table: routes.SimRoutes
) -> None:
    put(service, "a", "10.0.0.1")
    await table.create_route(CLUSTER, "uid", route("a"))
    service.world.delete("a")
    (nowhere,) = await table.list_routes(CLUSTER)
    put(service, "b", "10.0.0.1")

    (moved,) = await table.list_routes(CLUSTER)

    assert (nowhere.target_node, nowhere.blackhole) == ("", True)
    assert [one.address for one in nowhere.target_addresses] == ["10.0.0.1"]
    assert (moved.target_node, moved.blackhole) == ("b", False)


PREFIX = service_annotations.PREFIX
HTTP = ServicePort(name="http", port=80, node_port=30080)
DNS = ServicePort(name="dns", protocol="UDP", port=53, node_port=30053)


def test_a_plain_service() -> None:
    assert recipes.wanted(builders.service()) == client.Recipe(
        listeners=(client.Listener("TCP", 80, 30080),),
        health_check=client.HealthCheck(30080, "", 10.0),
        families=("IPv4",),
        size="small",
    )


def test_everything_a_service_can_ask_for() -> None:
    service = builders.service(
        ports=[HTTP, DNS],
        annotations={
            PREFIX + "internal": "T",
            PREFIX + "size": "large",
            PREFIX + "health-check-interval": "1m",
        },
        ip_families=["IPv6", "IPv4"],
        session_affinity="ClientIP",
        external_traffic_policy="Local",
        health_check_node_port=31000,
        load_balancer_source_ranges=["010.1.2.3/8", "fd00::/64"],
    )

    assert recipes.wanted(service) == client.Recipe(
        listeners=(client.Listener("TCP", 80, 30080), client.Listener("UDP", 53, 30053)),
        health_check=client.HealthCheck(31000, "/healthz", 60.0),
        source_ranges=("10.0.0.0/8", "fd00::/64"),
        families=("IPv4", "IPv6"),
        internal=True,
        size="large",
        sticky_s=10800,
    )


def test_order_and_names_of_ports_do_not_matter() -> None:
    renamed = msgspec.structs.replace(HTTP, name="web")
    one, other = (builders.service(ports=ports) for ports in ([HTTP, DNS], [DNS, renamed]))

    assert recipes.wanted(one) == recipes.wanted(other)


def test_without_a_node_port_traffic_keeps_its_port_and_udp_alone_has_no_check() -> None:
    found = recipes.wanted(builders.service(ports=[ServicePort(protocol="UDP", port=80)]))

    assert found.listeners == (client.Listener("UDP", 80, 80),)
    assert found.health_check is None


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (builders.service(ports=[ServicePort(protocol="SCTP", port=9)]), "port 9: .*SCTP"),
        (builders.service(annotations={PREFIX + "internal": "yes"}), "internal: 'yes'"),
        (builders.service(annotations={PREFIX + "size": "huge"}), "small or large"),
        (builders.service(annotations={PREFIX + "health-check-interval": "1h"}), "1s to 5m"),
        (builders.service(load_balancer_source_ranges=["all"]), "'all' is no CIDR"),
    ],
)
def test_what_the_cloud_does_not_have_is_refused(service: Service, said: str) -> None:
    with pytest.raises(cloud.InvalidArgument, match=said):
        recipes.wanted(service)


def test_members_are_internal_addresses_of_the_families() -> None:
    nodes = [
        builders.node(
            "a",
            addresses=[
                cloud.address("ExternalIP", "192.0.2.1"),
                cloud.address("InternalIP", "10.0.0.1"),
                cloud.address("InternalIP", "10.0.0.9"),
                cloud.address("InternalIP", "fd00::1"),
            ],
        ),
        builders.node("b", addresses=[cloud.address("ExternalIP", "192.0.2.2")]),
    ]

    assert recipes.members(nodes, ["IPv4"]) == ("10.0.0.1",)
    assert recipes.members(nodes, ["IPv4", "IPv6"]) == ("10.0.0.1", "fd00::1")


def test_the_digest_tells_every_difference() -> None:
    recipe = recipes.wanted(builders.service())
    changes: list[dict[str, object]] = [
        {"listeners": ()},
        {"health_check": None},
        {"source_ranges": ("10.0.0.0/8",)},
        {"families": ("IPv6",)},
        {"internal": True},
        {"size": "large"},
        {"sticky_s": 1},
    ]
    others = [msgspec.structs.replace(recipe, **change) for change in changes]

    digests = {recipes.digest(each, ["10.0.0.1"]) for each in [recipe, *others]}

    assert {key for change in changes for key in change} == set(client.Recipe.__struct_fields__)
    assert len(digests) == len(others) + 1
    assert recipes.digest(recipe, ["a", "b"]) == recipes.digest(recipe, ["b", "a"])
    assert recipes.digest(recipe, []) not in digests


def test_the_table_of_annotations_names_each() -> None:
    table = service_annotations.table()

    assert len(service_annotations.SCHEMA) == 3
    for one in service_annotations.SCHEMA:
        assert f"| `{one.name}` |" in table
        assert one.parse(one.shown) == one.default
