"""The provider of the simulated cloud, beyond its contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from ccm.model import Node, Service, ServicePort
from ccm.testing import builders
from ccm.testing.fake_api import Fault
from providers import sim
from providers.sim import balancers, client, routes, server, state, world, world_balancers
from tests.support.transfers import check_transfer


@pytest.fixture
def instances(provider: cloud.Cloud) -> sim.instances.SimInstances:
    assert isinstance(provider.instances, sim.instances.SimInstances)
    return provider.instances


def node(name: str = "a", provider_id: str = "") -> Node:
    return builders.node(name, provider_id=provider_id)


async def test_instance_metadata_is_translated_to_kubernetes_values(
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
        world.Instance(
            name="a",
            type="2 vCPU, 4 GB",
            zone="z1",
            region="r1",
            addresses=tuple(world.Address(kind=kind, value=value) for kind, value in kinds),
            labels={"example.com/rack": "7", "note": "not a label!", "/": "x", "kube-ccm/uid": "u"},
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


async def test_query_by_name_takes_one_request_and_refuses_ambiguous_names(
    service: server.Service, instances: sim.instances.SimInstances
) -> None:
    _, twin = (service.world.put(world.Instance(name="a")).id for _ in range(2))
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

    assert service.calls.total() == 8


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


async def test_load_balancers_are_listed_in_small_pages_with_the_digests_of_their_services(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    """A page of hundreds with thousands of members each would exceed the limit of a response."""
    webs = [builders.service(name=f"web-{n}", uid=f"u{n}") for n in range(45)]
    nodes = tuple(map(numbered, range(1, 4)))
    for web in webs:
        await load_balancers.ensure_load_balancer(CLUSTER, web, nodes)
    service.calls.clear()

    listed = await load_balancers.list_load_balancers(CLUSTER)

    assert service.calls == {"list_balancers": 3}
    assert [record.digest for record in listed] == [
        load_balancers.load_balancer_digest(CLUSTER, web, nodes) for web in webs
    ]
    assert load_balancers.load_balancer_digest(CLUSTER, webs[0], nodes[:2]) != listed[0].digest


@pytest.mark.parametrize("call", ["ensure_load_balancer", "update_load_balancer"])
async def test_refused_member_does_not_exclude_the_others(
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


@pytest.mark.row("journal-06")
async def test_another_service_takes_over_a_load_balancer(
    load_balancers: balancers.SimBalancers,
) -> None:
    former, heir = builders.service(uid="uid-1"), builders.service(uid="uid-2")
    await check_transfer(load_balancers, former, heir)


@pytest.fixture
def table(provider: cloud.Cloud) -> routes.SimRoutes:
    assert isinstance(provider.routes, routes.SimRoutes)
    return provider.routes


def put(service: server.Service, name: str, *ips: str) -> None:
    addresses = tuple(world.Address(kind="private", value=ip) for ip in ips)
    service.world.put(world.Instance(id=name, name=name, addresses=addresses))


def route(target: str, cidr: str = "10.120.0.0/24", *ips: str) -> cloud.Route:
    return cloud.Route(
        destination_cidr=cidr,
        target_node=target,
        target_addresses=[cloud.address("InternalIP", ip) for ip in ips],
    )


async def test_invalid_routes_raise_the_matching_error(
    service: server.Service, table: routes.SimRoutes
) -> None:
    service.change_settings(state.Settings(route_quota=1))
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


async def test_route_follows_its_gateway_address_to_another_node(
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


PREFIX = balancers.PREFIX
HTTP = ServicePort(name="http", port=80, node_port=30080)
DNS = ServicePort(name="dns", protocol="UDP", port=53, node_port=30053)


def test_service_with_all_options_becomes_a_load_balancer_spec() -> None:
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

    assert balancers.desired_spec(service) == client.BalancerSpec(
        listeners=(client.Listener("TCP", 80, 30080), client.Listener("UDP", 53, 30053)),
        health_check=client.HealthCheck(31000, "/healthz", 60.0),
        source_ranges=("10.0.0.0/8", "fd00::/64"),
        families=("IPv4", "IPv6"),
        internal=True,
        size="large",
        sticky_s=10800,
    )


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (builders.service(ports=[ServicePort(protocol="SCTP", port=9)]), "port 9: .*SCTP"),
        (builders.service(annotations={PREFIX + "internal": "yes"}), "internal: 'yes'"),
        (builders.service(annotations={PREFIX + "size": "huge"}), "small or large"),
        (builders.service(annotations={PREFIX + "health-check-interval": "1h"}), "1s to 5m"),
        (builders.service(load_balancer_source_ranges=["all"]), "'all' is not a CIDR"),
    ],
)
def test_unsupported_service_options_are_refused(service: Service, said: str) -> None:
    with pytest.raises(cloud.InvalidArgument, match=said):
        balancers.desired_spec(service)


@pytest_asyncio.fixture
async def api(url: str) -> AsyncIterator[client.Client]:
    wanted = client.Config(url=url, token="a-tokens-text", timeout=timedelta(seconds=1))
    async with client.open_client(wanted) as api:
        yield api


@pytest.fixture
def instance(service: server.Service) -> str:
    return service.world.put(world.Instance(name="a")).id


def body(**fields: object) -> Fault:
    return Fault(kind="garbage", body=msgspec.json.encode(fields).decode())


@pytest.mark.parametrize(
    "answer",
    [
        {"instances": []},
        {"instances": [], "next_cursor": "again"},
        {"id": "i-other", "name": "a", "state": "running"},
    ],
    ids=["no cursor field", "the same cursor for ever", "another instance"],
)
async def test_response_that_does_not_match_the_request_is_refused(
    service: server.Service, api: client.Client, instance: str, answer: dict[str, object]
) -> None:
    service.script.add(body(**answer))

    with pytest.raises(cloud.Unknown):
        await (api.server(instance) if "id" in answer else api.servers())


@pytest.mark.parametrize(
    ("fault", "promised"),
    [
        (Fault(status=404, code="not_found"), cloud.NotFound),
        (Fault(status=404, code="no_such_path"), cloud.Unknown),
        (Fault(status=409, code="busy"), cloud.RetryAfter),
        (Fault(status=409, code="conflict"), cloud.AlreadyExists),
        (Fault(status=409, code="protected"), cloud.FailedPrecondition),
        (Fault(kind="garbage", status=404), cloud.Unknown),
        (Fault(kind="garbage", body="{}"), cloud.Unknown),
        (Fault(kind="latency", delay_s=5.0), cloud.DeadlineExceeded),
    ],
    ids=lambda value: f"{value.kind}-{value.code}" if isinstance(value, Fault) else "",
)
async def test_cloud_fault_raises_its_error_class(
    service: server.Service, api: client.Client, instance: str, fault: Fault, promised: type
) -> None:
    """Only a 404 with the cloud's error code becomes NotFound."""
    service.script.add(fault)

    for question in (api.server(instance), api.servers("a"), api.servers()):
        with pytest.raises(promised) as caught:
            await question
        assert caught.type is promised


async def test_error_on_a_later_page_fails_the_whole_listing(
    service: server.Service, api: client.Client
) -> None:
    service.world.put_all([world.Instance(name=f"n{index}") for index in range(5)])
    service.change_settings(state.Settings(page_size=2))
    service.script.add(Fault(skip=2))

    with pytest.raises(cloud.Unavailable):
        await api.servers()


def read(text: str) -> client.Config:
    return cloud.Context(config=text.encode()).settings(client.Config)


@pytest.mark.parametrize("url", ["localhost:8080", "http://", "http://x:port", "https://[::1"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(cloud.ConfigError, match="url is"):
        read(f"url: '{url}'\ntoken: t")
