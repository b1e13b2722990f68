"""Load balancers beyond the contract: every annotation, whose they are, what the API refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.testing.builders import DEFAULT_PORT, node
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import deleted, ensured
from ccm.testing.network_probes import CLUSTER
from ccm.testing.network_probes import nodes as make_nodes
from providers.hcloud import service_annotations as ann
from providers.hcloud.testing import balancers as fake_balancers
from providers.hcloud.testing import extras
from providers.hcloud.testing.answers import Call
from providers.hcloud.testing.faults import Fault
from tests.hcloud.conftest import opened
from tests.hcloud.harness import HcloudHarness

UID = "hcloud-ccm/service-uid"


def service(uid: str | None = None, **annotations: str) -> cloud.Service:
    """A Service; `use_private_ip="true"` is the annotation `…/use-private-ip`."""
    given = {f"{ann.PREFIX}{key.replace('_', '-')}": text for key, text in annotations.items()}
    return build_service(uid=uid, annotations=given)


def balancer_of(project: cloud.Cloud) -> Any:
    assert project.load_balancer is not None
    return project.load_balancer


def only(harness: HcloudHarness) -> dict[str, Any]:
    (found,) = harness.service.cloud.load_balancers.values()
    return found


def settled(harness: HcloudHarness, **fields: Any) -> dict[str, Any]:
    """A load balancer that somebody made."""
    order = {"name": "theirs", "load_balancer_type": "lb11", "location": "fsn1", **fields}
    _, made = fake_balancers.create(harness.service.cloud, Call(body=order))
    assert made is not None
    found: dict[str, Any] = made["load_balancer"]
    return found


async def in_vain(harness: HcloudHarness, project: cloud.Cloud, *args: Any) -> None:
    """Ensuring once more writes nothing."""
    before = harness.service.writes
    await ensured(balancer_of(project), *args)
    assert harness.service.writes == before


CHECK = {"protocol": "tcp", "port": 30080, "interval": 15, "timeout": 10, "retries": 3}

EFFECTS: list[tuple[dict[str, str], str, Any]] = [
    ({"name": "mine"}, "name", "mine"),
    ({"location": "hel1"}, "location.name", "hel1"),
    ({"type": "lb21"}, "load_balancer_type.name", "lb21"),
    ({"algorithm_type": "LEAST_CONNECTIONS"}, "algorithm.type", "least_connections"),
    ({"disable_public_network": "true"}, "public_net.enabled", False),
    ({"use_private_ip": "true"}, "targets.0.use_private_ip", True),
    ({"private_ipv4": "10.0.0.99"}, "private_net.0.ip", "10.0.0.99"),
    ({"private_subnet_ip_range": "10.0.0.0/24"}, "private_net.0.ip", "10.0.0.3"),
    ({"ipv4_rdns": "web.example.com"}, "public_net.ipv4.dns_ptr", "web.example.com"),
    ({"ipv6_rdns": "web.example.com"}, "public_net.ipv6.dns_ptr", "web.example.com"),
    ({"node_selector": "pool=none"}, "targets", []),
    ({"protocol": "http"}, "services.0.protocol", "http"),
    ({"uses_proxyprotocol": "true"}, "services.0.proxyprotocol", True),
    ({"protocol": "http", "http_cookie_name": "C"}, "services.0.http.cookie_name", "C"),
    ({"protocol": "http", "http_cookie_lifetime": "5m"}, "services.0.http.cookie_lifetime", 300),
    ({"protocol": "http", "http_cookie_lifetime": "60"}, "services.0.http.cookie_lifetime", 60),
    ({"protocol": "http", "http_timeout_idle": "40s"}, "services.0.http.timeout_idle", 40),
    ({"protocol": "http", "http_sticky_sessions": "1"}, "services.0.http.sticky_sessions", True),
    ({"health_check_protocol": "http"}, "services.0.health_check.protocol", "http"),
    ({"health_check_port": "8080"}, "services.0.health_check.port", 8080),
    ({"health_check_interval": "7s"}, "services.0.health_check.interval", 7),
    ({"health_check_timeout": "5"}, "services.0.health_check.timeout", 5),
    ({"health_check_retries": "4"}, "services.0.health_check.retries", 4),
    (
        {"health_check_protocol": "http", "health_check_http_path": "/healthz"},
        "services.0.health_check.http.path",
        "/healthz",
    ),
    (
        {"health_check_protocol": "https", "health_check_http_domain": "a.example.com"},
        "services.0.health_check.http",
        {"domain": "a.example.com", "path": "/", "tls": True},
    ),
    (
        {"health_check_protocol": "http", "health_check_http_validate_certificate": "true"},
        "services.0.health_check.http.tls",
        True,
    ),
]


def at(thing: Any, path: str) -> Any:
    for word in path.split("."):
        thing = thing[int(word)] if word.isdigit() else thing[word]
    return thing


@pytest.mark.row("hcloud-balancer-17")
@pytest.mark.parametrize(("asked", "path", "value"), EFFECTS, ids=lambda one: str(one)[:60])
@pytest.mark.parametrize("when", ["new", "changed"])
async def test_an_annotation_has_its_effect(
    harness: HcloudHarness,
    project: cloud.Cloud,
    asked: dict[str, str],
    path: str,
    value: Any,
    when: str,
) -> None:
    nodes = await make_nodes(project, harness, 1)
    if when == "changed" and "location" in asked:
        pytest.skip("a location is for ever")
    if when == "changed":
        await ensured(balancer_of(project), service(), nodes)

    await ensured(balancer_of(project), service(**asked), nodes)

    assert at(only(harness), path) == value
    await in_vain(harness, project, service(**asked), nodes)


@pytest.mark.row("hcloud-balancer-17")
def test_the_schema_refuses_what_is_no_value() -> None:
    wrong = {
        "algorithm-type": "best",
        "use-private-ip": "perhaps",
        "private-ipv4": "::1",
        "private-subnet-ip-range": "10.0.0.0/x",
        "node-selector": "a in b",
        "protocol": "udp",
        "http-timeout-idle": "5s",
        "http-cookie-lifetime": "long",
        "certificate-type": "own",
        "health-check-port": "70000",
        "health-check-retries": "-1",
    }
    by_name = {one.name: one for one in ann.SCHEMA}

    told = [name for name, text in wrong.items() if not by_name[ann.PREFIX + name].fault(text)]

    assert told == []
    assert len(by_name) == 38
    assert all(f"| `{name}` |" in ann.table() for name in by_name)


@pytest.mark.row("hcloud-balancer-16")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ["v4", "v6", "10.0.0.3"]),
        ({"ipv6_disabled": "true"}, ["v4", "10.0.0.3"]),
        ({"disable_private_ingress": "true"}, ["v4", "v6"]),
        ({"disable_public_network": "true"}, ["10.0.0.3"]),
        ({"hostname": "web.example.com"}, ["web.example.com"]),
    ],
)
async def test_the_status(
    harness: HcloudHarness, project: cloud.Cloud, asked: dict[str, str], expected: list[str]
) -> None:
    nodes = await make_nodes(project, harness, 1)
    status = await ensured(balancer_of(project), service(**asked), nodes)

    public = only(harness)["public_net"]
    named = {"v4": public["ipv4"]["ip"], "v6": public["ipv6"]["ip"]}
    assert [one.ip or one.hostname for one in status.ingress] == [named.get(e, e) for e in expected]
    modes = {one.ip_mode for one in status.ingress}
    assert modes == ({None} if "hostname" in asked else {"VIP"})
    proxied = await ensured(
        balancer_of(project), service(uses_proxyprotocol="true", **asked), nodes
    )
    assert {one.ip_mode for one in proxied.ingress} == (
        {None} if "hostname" in asked else {"Proxy"}
    )


@pytest.mark.row("hcloud-balancer-05")
async def test_two_clusters_in_one_project(harness: HcloudHarness, project: cloud.Cloud) -> None:
    balancer = balancer_of(project)
    ours, theirs = service("uid-1"), service("uid-2")
    await ensured(balancer, ours, [])
    await ensured(balancer, theirs, [], cluster="other")

    listed = [one.name for one in await balancer.list_load_balancers(CLUSTER)]
    await balancer.delete_load_balancer(CLUSTER, balancer.get_load_balancer_name("other", theirs))
    await deleted(balancer, ours)

    assert listed == [balancer.get_load_balancer_name(CLUSTER, ours)]
    assert only(harness)["labels"][UID] == "uid-2"


@pytest.mark.row("hcloud-balancer-06")
async def test_one_without_label_is_adopted_by_name(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    made = settled(harness, labels={"env": "prod"}, load_balancer_type="lb31")

    await ensured(balancer_of(project), service("uid-1"), [])
    assert len(harness.service.cloud.load_balancers) == 2  # it was not asked for by its name
    await deleted(balancer_of(project), service("uid-1"))
    wanted = build_service(uid="uid-1", annotations={ann.NAME.name: "theirs"})
    await ensured(balancer_of(project), wanted, [])

    assert only(harness)["id"] == made["id"]
    assert made["labels"] == {"env": "prod", UID: "uid-1", "kube-ccm/cluster": CLUSTER}
    assert made["load_balancer_type"]["name"] == "lb31"


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("place", ["fsn1", ""])
async def test_one_of_another_service_is_never_adopted(harness: HcloudHarness, place: str) -> None:
    made = settled(harness, name="taken", labels={UID: "uid-of-another"})
    wanted = build_service(uid="uid-1", annotations={ann.NAME.name: "taken"})
    async with opened(harness, HCLOUD_LOAD_BALANCERS_LOCATION=place) as project:
        before = harness.service.writes
        with pytest.raises(cloud.FailedPrecondition, match="uid-of-another"):
            await ensured(balancer_of(project), wanted, [])
        with pytest.raises(cloud.NotFound):
            await balancer_of(project).update_load_balancer(CLUSTER, wanted, [])
        await deleted(balancer_of(project), wanted)

    assert harness.service.writes == before
    assert only(harness) is made


@pytest.mark.row("hcloud-balancer-07")
async def test_two_with_one_label(harness: HcloudHarness, project: cloud.Cloud) -> None:
    settled(harness, name="one", labels={UID: "uid-1"})
    settled(harness, name="two", labels={UID: "uid-1"})

    with pytest.raises(cloud.FailedPrecondition, match="one, two"):
        await ensured(balancer_of(project), service("uid-1"), [])
    await deleted(balancer_of(project), service("uid-1"))
    assert harness.service.cloud.load_balancers == {}


@pytest.mark.row("hcloud-balancer-08")
async def test_the_type(harness: HcloudHarness, project: cloud.Cloud) -> None:
    async def type_of(**asked: str) -> str:
        await ensured(balancer_of(project), service(**asked), [])
        return str(only(harness)["load_balancer_type"]["name"])

    assert await type_of() == "lb11"
    assert await type_of(type="lb31") == "lb31"
    assert await type_of() == "lb31"  # nobody asked for less
    with pytest.raises(cloud.InvalidArgument, match="load balancer type not found"):
        await type_of(type="lb99")
    harness.service.script.add(
        Fault(operation="*change_type", code="unsupported_error", status=422, message="deprecated")
    )
    with pytest.raises(cloud.CloudError, match="deprecated"):
        await type_of(type="lb21")


@pytest.mark.row("hcloud-balancer-09")
async def test_where_it_is_made(harness: HcloudHarness, project: cloud.Cloud) -> None:
    with pytest.raises(cloud.InvalidArgument, match="HCLOUD_LOAD_BALANCERS_LOCATION"):
        await ensured(balancer_of(project), service(location=""), [])

    await ensured(balancer_of(project), service(location="", network_zone="us-east"), [])

    assert only(harness)["location"]["name"] == "ash"


@pytest.mark.row("hcloud-balancer-10")
@pytest.mark.parametrize("code", ["conflict", "locked"])
async def test_a_locked_one_is_tried_again(
    harness: HcloudHarness, project: cloud.Cloud, code: str
) -> None:
    settled(harness, labels={UID: "uid-1"})
    harness.service.script.add(Fault(operation="*attach_to_network", code=code, count=2))
    with pytest.raises(cloud.RetryAfter):
        await balancer_of(project).ensure_load_balancer(CLUSTER, service("uid-1"), [])

    await ensured(balancer_of(project), service("uid-1"), [])

    assert only(harness)["private_net"][0]["network"] == harness.network["id"]


@pytest.mark.row("hcloud-balancer-03")
async def test_actions_that_take_time_are_asked_about(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 1)
    await ensured(balancer, service(), [])
    world = harness.service.cloud
    harness.service.settings.action_s = 60.0
    world.doomed["load_balancer", only(harness)["id"]] = "unreachable"

    with pytest.raises(cloud.RetryAfter):
        await balancer.update_load_balancer(CLUSTER, service(), nodes)
    before = harness.service.calls.total()
    with pytest.raises(cloud.RetryAfter):
        await balancer.ensure_load_balancer(CLUSTER, service(), nodes)
    assert harness.service.calls.total() == before + 1
    world.settle(all_of_them=True)
    with pytest.raises(cloud.Aborted, match="unreachable"):
        await balancer.ensure_load_balancer(CLUSTER, service(), nodes)
    world.doomed.clear()
    harness.service.settings.action_s = 0.05
    await ensured(balancer, service(), nodes)
    assert len(only(harness)["targets"]) == 1


@pytest.mark.row("hcloud-balancer-11")
async def test_the_way_to_targets_changes(harness: HcloudHarness, project: cloud.Cloud) -> None:
    nodes = await make_nodes(project, harness, 2)
    await ensured(balancer_of(project), service(), nodes)
    harness.service.log.clear()

    await ensured(balancer_of(project), service(use_private_ip="true"), nodes)

    words = [line.rpartition("/")[2] for line in harness.service.log if line.startswith("POST")]
    assert words == ["remove_target", "remove_target", "add_target", "add_target"]
    assert all(one["use_private_ip"] for one in only(harness)["targets"])


@pytest.mark.row("hcloud-balancer-11")
async def test_private_targets_need_a_network(harness: HcloudHarness) -> None:
    async with opened(harness, HCLOUD_NETWORK="") as project:
        with pytest.raises(cloud.InvalidArgument, match="HCLOUD_NETWORK"):
            await ensured(balancer_of(project), service(use_private_ip="true"), [])
        assert project.routes is None


@pytest.mark.row("hcloud-balancer-12")
async def test_more_nodes_than_targets(harness: HcloudHarness, project: cloud.Cloud) -> None:
    nodes = await make_nodes(project, harness, 28)
    await ensured(balancer_of(project), service(), nodes[::-1])

    kept = [one["server"]["id"] for one in only(harness)["targets"]]
    await in_vain(harness, project, service(), nodes)
    await balancer_of(project).update_load_balancer(CLUSTER, service(), nodes[1:])
    await ensured(balancer_of(project), service(type="lb21"), nodes)

    assert kept == sorted(int(one.provider_id[9:]) for one in nodes)[:25]
    assert len(only(harness)["targets"]) == 28


IP = {"type": "ip", "ip": {"ip": "192.0.2.7"}}


@pytest.mark.row("hcloud-balancer-13", "hcloud-node-05")
@pytest.mark.parametrize("kept", ["nobody", "robot_enabled", "robot_node"])
async def test_ip_targets(harness: HcloudHarness, kept: str) -> None:
    settled(harness, labels={UID: "uid-1"}, targets=[IP])
    robot = node("bm", provider_id="hcloud://bm-42")
    switches = {"ROBOT_ENABLED": "true", "HCLOUD_NETWORK_ROUTES_ENABLED": "false"}
    async with opened(harness, **(switches if kept == "robot_enabled" else {})) as project:
        members = [robot] if kept == "robot_node" else []
        await ensured(balancer_of(project), service("uid-1"), members)

    assert len(only(harness)["targets"]) == int(kept != "nobody")


@pytest.mark.row("hcloud-balancer-14")
async def test_health_checks_from_the_environment(harness: HcloudHarness) -> None:
    checks = {"INTERVAL": "6s", "TIMEOUT": "0s", "RETRIES": "2"}
    given = {f"HCLOUD_LOAD_BALANCERS_HEALTH_CHECK_{key}": text for key, text in checks.items()}
    async with opened(harness, **given) as project:
        await ensured(balancer_of(project), service(), [])
        check = only(harness)["services"][0]["health_check"]
        assert check == {**CHECK, "interval": 6, "retries": 2}
        await ensured(balancer_of(project), service(protocol="http"), [])
        assert only(harness)["services"][0]["health_check"]["protocol"] == "http"


def certificate(harness: HcloudHarness, name: str) -> int:
    body = {"name": name, "type": "uploaded", "certificate": "x", "private_key": "y"}
    _, made = extras.create_certificate(harness.service.cloud, Call(body=body))
    assert made is not None
    return int(made["certificate"]["id"])


@pytest.mark.row("hcloud-balancer-15", "hcloud-balancer-17")
async def test_certificates_that_are_there(harness: HcloudHarness, project: cloud.Cloud) -> None:
    one, two = certificate(harness, "one"), certificate(harness, "two")
    asked = service(protocol="https", http_certificates=f"one, {two}", http_redirect_http="true")

    await ensured(balancer_of(project), asked, [])

    http = only(harness)["services"][0]["http"]
    assert (sorted(http["certificates"]), http["redirect_http"]) == ([one, two], True)
    await in_vain(harness, project, asked, [])
    with pytest.raises(cloud.InvalidArgument, match="three"):
        await ensured(
            balancer_of(project), service(protocol="https", http_certificates="three"), []
        )
    await deleted(balancer_of(project), asked)
    assert len(harness.service.cloud.certificates) == 2


@pytest.mark.row("hcloud-balancer-15", "hcloud-balancer-17")
async def test_managed_certificates(harness: HcloudHarness, project: cloud.Cloud) -> None:
    asked = {
        "protocol": "https",
        "certificate_type": "managed",
        "http_managed_certificate_acme_staging": "true",
    }
    with pytest.raises(cloud.InvalidArgument, match="domains"):
        await ensured(balancer_of(project), service("uid-1", **asked), [])
    asked["http_managed_certificate_domains"] = "example.com, www.example.com"
    await harness.lose_answer(1)
    with pytest.raises(cloud.CloudError):
        await ensured(balancer_of(project), service("uid-1", **asked), [])

    await ensured(balancer_of(project), service("uid-1", **asked), [])

    (made,) = harness.service.cloud.certificates.values()
    assert made["name"] == "ccm-managed-certificate-uid-1"
    assert made["domain_names"] == ["example.com", "www.example.com"]
    assert made["labels"] == {UID: "uid-1", "HC-Use-Staging-CA": "true"}
    assert only(harness)["services"][0]["http"]["certificates"] == [made["id"]]
    named = {**asked, "http_managed_certificate_name": "mine"}
    await ensured(balancer_of(project), service("uid-1", **named), [])
    assert len(harness.service.cloud.certificates) == 2
    await deleted(balancer_of(project), service("uid-1", **asked))
    assert harness.service.cloud.certificates == {}


@pytest.mark.row("hcloud-balancer-18")
@pytest.mark.parametrize("asked", [{}, {"use_private_ip": "true", "protocol": "http"}])
async def test_what_the_vendors_manager_settled_is_taken_over(
    harness: HcloudHarness, project: cloud.Cloud, asked: dict[str, str]
) -> None:
    """Its name, its label, its health check without times, and a type that nobody asked for."""
    nodes = await make_nodes(project, harness, 2)
    wanted = service("0b6dbe96-bb3c-4d4c-b1e0-4c0ed8a21f0d", **asked)
    protocol = asked.get("protocol", "tcp")
    private = "use_private_ip" in asked
    settled(
        harness,
        name="a0b6dbe96bb3c4d4cb1e04c0ed8a21f0",
        labels={UID: wanted.uid},
        load_balancer_type="lb21",
        algorithm={"type": "least_connections"},
        network=harness.network["id"],
        services=[
            {
                "protocol": protocol,
                "listen_port": 80,
                "destination_port": 30080,
                "health_check": {**CHECK, "interval": 30, "retries": 5},
            }
        ],
        targets=[
            {
                "type": "server",
                "server": {"id": int(one.provider_id[9:])},
                "use_private_ip": private,
            }
            for one in nodes
        ],
    )
    robot = node("bm", provider_id="hcloud://bm-42")

    status = await ensured(balancer_of(project), wanted, [*nodes, robot])
    await balancer_of(project).update_load_balancer(CLUSTER, wanted, [*nodes, robot])

    assert harness.service.writes == 0
    assert len(status.ingress) == 3


@pytest.mark.row("hcloud-balancer-19")
@pytest.mark.parametrize(("field", "value"), [("protocol", "UDP"), ("node_port", 0)])
async def test_what_cannot_be_had_is_refused(
    harness: HcloudHarness, project: cloud.Cloud, field: str, value: Any
) -> None:
    port = msgspec.structs.replace(DEFAULT_PORT, **{field: value})
    with pytest.raises(cloud.InvalidArgument, match="port 80"):
        await ensured(balancer_of(project), build_service(ports=[port]), [])
    assert harness.service.writes == 0


@pytest.mark.row("hcloud-balancer-02")
async def test_a_deletion_with_an_action(harness: HcloudHarness, project: cloud.Cloud) -> None:
    """As the vendor's client of today wants it: over when the action is over."""
    settings = harness.service.settings
    await ensured(balancer_of(project), service(), [])
    settings.told_deletions, settings.action_s = True, 0.05

    with pytest.raises(cloud.RetryAfter):
        await balancer_of(project).ensure_load_balancer_deleted(CLUSTER, service())
    await deleted(balancer_of(project), service())

    assert harness.service.cloud.load_balancers == {}


@pytest.mark.row("hcloud-balancer-20")
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"name": "mine"},
        {"type": "lb21", "algorithm_type": "least_connections"},
        {"use_private_ip": "true", "disable_public_network": "true"},
        {"protocol": "http", "health_check_http_path": "/healthz"},
        {"protocol": "http", "http_cookie_lifetime": "60"},
        {"uses_proxyprotocol": "true", "health_check_interval": "7s"},
        {"node_selector": "pool=none"},
    ],
    ids=str,
)
async def test_digests_make_a_start_cheap(
    harness: HcloudHarness, project: cloud.Cloud, asked: dict[str, str]
) -> None:
    nodes: Sequence[cloud.Node] = await make_nodes(project, harness, 2)
    await ensured(balancer_of(project), service(**asked), nodes)
    async with harness.open() as again:
        (listed,) = await balancer_of(again).list_load_balancers(CLUSTER)

        wanted = balancer_of(again).load_balancer_digest(CLUSTER, service(**asked), nodes)

    assert listed.digest == wanted
    other = balancer_of(project).load_balancer_digest(CLUSTER, service(type="lb31"), nodes)
    assert listed.digest != other
