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
from providers.sim import balancers, client, routes, server, world, world_balancers, worlds


@pytest.fixture
def instances(provider: cloud.Cloud) -> sim.instances.SimInstances:
    assert isinstance(provider.instances, sim.instances.SimInstances)
    return provider.instances


def node(name: str = "a", provider_id: str = "") -> Node:
    return builders.node(name, provider_id=provider_id)


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
        calls.append(list(service.calls))
    for nodes in ([numbered(1), numbered(2)], [numbered(2), numbered(1)]):
        service.calls.clear()
        await load_balancers.update_load_balancer(CLUSTER, WEB, nodes)
        calls.append(list(service.calls))

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


async def test_a_used_up_quota(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    service.change_settings(worlds.Settings(balancer_quota=1))
    await load_balancers.ensure_load_balancer(CLUSTER, WEB, [])

    with pytest.raises(cloud.ResourceExhausted, match="quota of 1"):
        await load_balancers.ensure_load_balancer(CLUSTER, builders.service("other"), [])


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
    service.change_settings(worlds.Settings(route_quota=1))
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


PREFIX = balancers.PREFIX
HTTP = ServicePort(name="http", port=80, node_port=30080)
DNS = ServicePort(name="dns", protocol="UDP", port=53, node_port=30053)


def test_a_plain_service() -> None:
    assert balancers.wanted(builders.service()) == client.Recipe(
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

    assert balancers.wanted(service) == client.Recipe(
        listeners=(client.Listener("TCP", 80, 30080), client.Listener("UDP", 53, 30053)),
        health_check=client.HealthCheck(31000, "/healthz", 60.0),
        source_ranges=("10.0.0.0/8", "fd00::/64"),
        families=("IPv4", "IPv6"),
        internal=True,
        size="large",
        sticky_s=10800,
    )


def test_without_a_node_port_traffic_keeps_its_port_and_udp_alone_has_no_check() -> None:
    found = balancers.wanted(builders.service(ports=[ServicePort(protocol="UDP", port=80)]))

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
        balancers.wanted(service)


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

    assert balancers.members(nodes, ["IPv4"]) == ("10.0.0.1",)
    assert balancers.members(nodes, ["IPv4", "IPv6"]) == ("10.0.0.1", "fd00::1")


def test_the_digest_tells_every_difference() -> None:
    recipe = balancers.wanted(builders.service())
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

    digests = {balancers.digest(each, ["10.0.0.1"]) for each in [recipe, *others]}

    assert {key for change in changes for key in change} == set(client.Recipe.__struct_fields__)
    assert len(digests) == len(others) + 1
    assert balancers.digest(recipe, ["a", "b"]) == balancers.digest(recipe, ["b", "a"])
    assert balancers.digest(recipe, []) not in digests


@pytest_asyncio.fixture
async def api(url: str) -> AsyncIterator[client.Client]:
    wanted = client.Config(url=url, token="a-tokens-text", timeout=timedelta(seconds=1))
    async with client.open_client(wanted) as api:
        yield api


@pytest.fixture
def instance(service: server.Service) -> str:
    return service.world.put(world.GivenInstance(name="a")).id


def body(**fields: object) -> Fault:
    return Fault(kind="garbage", body=msgspec.json.encode(fields).decode())


@pytest.mark.parametrize(
    ("fault", "promised"),
    [
        (Fault(kind="error", status=404, code="not_found"), cloud.NotFound),
        (Fault(kind="error", status=404, code="no_such_path"), cloud.Unknown),
        (Fault(kind="error", status=409, code="busy"), cloud.RetryAfter),
        (Fault(kind="error", status=409, code="conflict"), cloud.AlreadyExists),
        (Fault(kind="error", status=409, code="protected"), cloud.FailedPrecondition),
        (Fault(kind="garbage", status=404), cloud.Unknown),
        (Fault(kind="garbage", body="{}"), cloud.Unknown),
        (Fault(kind="latency", delay_s=5.0), cloud.DeadlineExceeded),
    ],
    ids=lambda value: f"{value.kind}-{value.code}" if isinstance(value, Fault) else "",
)
async def test_each_fault_arrives_as_the_promised_class_and_then_it_goes_on(
    service: server.Service,
    api: client.Client,
    instance: str,
    fault: Fault,
    promised: type[cloud.CloudError],
) -> None:
    service.script.add(fault)

    for question in (api.server(instance), api.servers("a"), api.servers()):
        with pytest.raises(cloud.CloudError) as caught:
            await question
        assert type(caught.value) is promised

    service.script.clear()
    assert (await api.server(instance)).name == "a"


async def test_a_message_holds_the_clouds_words(
    service: server.Service, api: client.Client, instance: str
) -> None:
    service.script.add(Fault(kind="error", status=500, code="oops", message="disk on fire"))

    with pytest.raises(cloud.Unavailable) as caught:
        await api.server(instance)

    assert "HTTP 500 oops: disk on fire (req-1)" in str(caught.value)


async def test_a_fault_on_a_later_page_is_never_a_short_listing(
    service: server.Service, api: client.Client
) -> None:
    service.world.put_all([world.GivenInstance(name=f"n{index}") for index in range(5)])
    service.change_settings(worlds.Settings(page_size=2))
    service.script.add(Fault(kind="error", skip=2))

    with pytest.raises(cloud.Unavailable):
        await api.servers()


@pytest.mark.parametrize(
    "answer",
    [
        {"instances": []},
        {"instances": [], "next_cursor": "again"},
        {"id": "i-other", "name": "a", "state": "running"},
    ],
    ids=["no cursor field", "the same cursor for ever", "another instance"],
)
async def test_an_answer_to_another_question_is_refused(
    service: server.Service, api: client.Client, instance: str, answer: dict[str, object]
) -> None:
    service.script.add(body(**answer))

    with pytest.raises(cloud.Unknown):
        await (api.server(instance) if "id" in answer else api.servers())


def read(text: str) -> client.Config:
    return cloud.Context(config=text.encode()).settings(client.Config)


def test_two_fields_are_enough_and_timeouts_are_durations() -> None:
    found = read("url: http://localhost:1/\ntoken: a-tokens-text")
    assert found == client.Config(url="http://localhost:1", token="a-tokens-text")
    assert "a-tokens-text" not in repr(found)

    found = read("url: http://x\ntoken: t\ntimeout: 1m\nconnect_timeout: 500ms")
    given = (found.timeout, found.connect_timeout)
    assert given == (timedelta(minutes=1), timedelta(seconds=0.5))


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(cloud.ConfigError) as caught:
        read("url: ftp://x\ntimeout: soon\nconnect_timeout: 0s\ncolour: red")

    for name in ("url", "token", "timeout", "connect_timeout", "colour"):
        assert any(fault.startswith(f"{name} is") for fault in caught.value.faults), name
    assert len(caught.value.faults) == 5


@pytest.mark.parametrize("url", ["localhost:8080", "http://", "http://x:port", "https://[::1"])
def test_an_odd_url_is_refused(url: str) -> None:
    with pytest.raises(cloud.ConfigError, match="url is"):
        read(f"url: '{url}'\ntoken: t")
