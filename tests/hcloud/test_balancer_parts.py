"""Parts of load balancers: targets, health checks, certificates, and rare answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.testing.builders import DEFAULT_PORT, node
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import HTTPS, deleted, ensured
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER, retry_after_hints
from providers.hcloud import client
from providers.hcloud import service_annotations as ann
from providers.hcloud.testing import extras
from providers.hcloud.testing import networks as fake_networks
from providers.hcloud.testing.state import Call
from tests.hcloud.balancing import CHECK, UID, only, service, settled
from tests.hcloud.harness import HcloudHarness, Told, in_cluster, opened
from tests.support.vendor import balancer_of


@pytest.mark.row("hcloud-balancer-11")
async def test_targets_are_replaced_when_use_private_ip_changes(harness: HcloudHarness) -> None:
    nodes = await harness.nodes(2)
    await ensured(harness.balancer, service(), nodes)
    harness.service.log.clear()

    await ensured(harness.balancer, service(use_private_ip="true"), nodes)

    words = [line.rpartition("/")[2] for line in harness.service.log if line.startswith("POST")]
    assert words == ["remove_target", "add_target", "remove_target", "add_target"]
    assert all(one["use_private_ip"] for one in only(harness)["targets"])


async def fewest_targets(
    harness: HcloudHarness, wanted: cloud.Service, nodes: Sequence[cloud.Node]
) -> int:
    """Ensure, and return the lowest number of targets after any of the calls."""
    counts = []

    async def ensure() -> None:
        try:
            await harness.balancer.ensure_load_balancer(CLUSTER, wanted, nodes)
        finally:
            counts.append(len(only(harness)["targets"]))

    await retry_after_hints(ensure)
    return min(counts)


PRIVATE = {"use_private_ip": "true", "disable_public_network": "true"}


@pytest.mark.row("hcloud-balancer-11")
@pytest.mark.parametrize("action_s", [0.0, 0.02])
async def test_a_live_change_to_private_and_back_converges_with_targets_all_the_time(
    harness: HcloudHarness, action_s: float
) -> None:
    """The API disables no public interface that targets need, and refuses changes meanwhile."""
    nodes = await harness.nodes(3)
    await ensured(harness.balancer, service(), nodes)
    harness.service.settings.action_s = action_s
    for asked, private in ((PRIVATE, True), ({"disable_public_network": "false"}, False)):
        assert await fewest_targets(harness, service(**asked), nodes) >= 2
        ways = [one["use_private_ip"] for one in only(harness)["targets"]]
        assert ways == [private] * 3
        await harness.in_vain(service(**asked), nodes)
    assert only(harness)["public_net"]["enabled"]


@pytest.mark.row("hcloud-balancer-11", "hcloud-balancer-24")
async def test_a_change_to_private_stops_at_the_first_server_outside_of_the_network(
    harness: HcloudHarness,
) -> None:
    """The servers would all be refused, one after the other, and the Service get no traffic."""
    nodes = await harness.nodes(3)
    await ensured(harness.balancer, service(), nodes)
    for made in harness.service.cloud.servers.values():
        made["private_net"] = []
    for _ in range(3):
        with pytest.raises(cloud.Aborted, match="share no network"):
            await ensured(harness.balancer, service(**PRIVATE), nodes)
        assert len(only(harness)["targets"]) == 2
    assert only(harness)["public_net"]["enabled"]

    await ensured(harness.balancer, service(), nodes)
    assert len(only(harness)["targets"]) == 3


@pytest.mark.row("hcloud-balancer-11")
async def test_the_public_interface_is_not_disabled_while_targets_need_it(
    harness: HcloudHarness,
) -> None:
    nodes, asked = await harness.nodes(1), service(disable_public_network="true")
    await ensured(harness.balancer, service(), nodes)
    before = harness.service.writes

    with pytest.raises(cloud.InvalidArgument, match=r"set \S+/use-private-ip to true"):
        await ensured(harness.balancer, asked, nodes)

    assert harness.service.writes == before


@pytest.mark.row("hcloud-balancer-23", "hcloud-node-05")
async def test_a_node_of_another_cloud_is_no_target_and_has_one_event(
    harness: HcloudHarness,
) -> None:
    others = [
        node("theirs", provider_id="kind://a/b"),
        node("broken", provider_id="hcloud://x"),
        node("bm", provider_id="hrobot://42"),
        node("new"),
    ]
    told, nodes = Told(), [*await harness.nodes(1), *others]
    async with in_cluster(harness, told, {"HCLOUD_LOAD_BALANCERS_TYPE": "lb11"}) as project:
        for _ in range(2):
            await ensured(balancer_of(project), service(), nodes)
            await balancer_of(project).update_load_balancer(CLUSTER, service(), nodes)

    assert len(only(harness)["targets"]) == 1
    reason = "UnknownProviderIDPrefix"
    assert told.events == [("Node", "theirs", reason), ("Node", "broken", reason)]


@pytest.mark.row("hcloud-balancer-11")
async def test_private_targets_are_refused_without_a_network(harness: HcloudHarness) -> None:
    async with opened(harness, HCLOUD_NETWORK="") as project:
        with pytest.raises(cloud.InvalidArgument, match="HCLOUD_NETWORK"):
            await ensured(balancer_of(project), service(use_private_ip="true"), [])
        assert project.routes is None


@pytest.mark.row("hcloud-balancer-12")
async def test_targets_are_capped_at_the_limit_of_the_load_balancer_type(
    harness: HcloudHarness,
) -> None:
    nodes = await harness.nodes(28)
    await ensured(harness.balancer, service(), nodes[::-1])

    kept = [one["server"]["id"] for one in only(harness)["targets"]]
    await harness.in_vain(service(), nodes)
    await harness.balancer.update_load_balancer(CLUSTER, service(), nodes[1:])
    await ensured(harness.balancer, service(type="lb21"), nodes)

    assert kept == sorted(int(one.provider_id[9:]) for one in nodes)[:25]
    assert len(only(harness)["targets"]) == 28


@pytest.mark.row("hcloud-balancer-12", "hcloud-balancer-18", "hcloud-balancer-20")
async def test_a_full_load_balancer_keeps_its_targets_and_is_filled_up(
    harness: HcloudHarness,
) -> None:
    """The vendor's manager added the targets in another order."""
    nodes = await harness.nodes(29)
    await ensured(harness.balancer, service("uid-1"), nodes[4:])
    kept = [one["server"]["id"] for one in only(harness)["targets"]]
    async with harness.open() as again:
        balancer = balancer_of(again)
        (listed,) = await balancer.list_load_balancers(CLUSTER)
        assert listed.digest == balancer.load_balancer_digest(CLUSTER, service("uid-1"), nodes)
        await harness.in_vain(service("uid-1"), nodes, project=again)
        assert [one["server"]["id"] for one in only(harness)["targets"]] == kept
        before = harness.service.writes
        await ensured(balancer, service("uid-1"), [*nodes[:4], *nodes[6:]])

    assert harness.service.writes == before + 4
    first = [int(one.provider_id[9:]) for one in nodes[:2]]
    assert [one["server"]["id"] for one in only(harness)["targets"]] == [*kept[2:], *first]


IP = {"type": "ip", "ip": {"ip": "192.0.2.7"}}


@pytest.mark.row("hcloud-balancer-13", "hcloud-node-05")
@pytest.mark.parametrize("kept", ["nobody", "robot_node"])
async def test_ip_targets_are_kept_only_where_robot_servers_are_in_use(
    harness: HcloudHarness, kept: str
) -> None:
    settled(harness, labels={UID: "uid-1"}, targets=[IP])
    robot = node("bm", provider_id="hcloud://bm-42")
    members = [robot] if kept == "robot_node" else []
    await ensured(harness.balancer, service("uid-1"), members)

    assert len(only(harness)["targets"]) == int(kept != "nobody")


@pytest.mark.row("hcloud-balancer-14")
async def test_health_check_defaults_come_from_the_environment(harness: HcloudHarness) -> None:
    checks = {"INTERVAL": "6s", "TIMEOUT": "0s", "RETRIES": "2"}
    given = {f"HCLOUD_LOAD_BALANCERS_HEALTH_CHECK_{key}": text for key, text in checks.items()}
    async with opened(harness, **given) as project:
        await ensured(balancer_of(project), service(), [])
        check = only(harness)["services"][0]["health_check"]
        assert check == {**CHECK, "interval": 6, "retries": 2}
        await ensured(balancer_of(project), service(protocol="http"), [])
        assert only(harness)["services"][0]["health_check"]["protocol"] == "http"


@pytest.mark.row("hcloud-balancer-14", "hcloud-balancer-18")
async def test_health_check_fields_without_an_annotation_are_kept(harness: HcloudHarness) -> None:
    """Set by hand or by the vendor's manager. Only annotated fields change."""
    http = {"domain": "a.example.com", "path": "/ready", "tls": False, "status_codes": ["200"]}
    check = {**CHECK, "interval": 30, "retries": 5, "protocol": "http", "http": http}
    port = {"protocol": "tcp", "listen_port": 80, "destination_port": 30080, "health_check": check}
    least = {"type": "least_connections"}
    settled(harness, labels={UID: "uid-1"}, name="auid1", services=[port], algorithm=least)
    asked = service("uid-1", health_check_protocol="http")
    await ensured(harness.balancer, asked, [])
    assert (only(harness)["services"][0]["health_check"], only(harness)["algorithm"]) == (
        check,
        least,
    )
    asked = service("uid-1", health_check_protocol="http", health_check_http_path="/live")
    await ensured(harness.balancer, asked, [])

    held = only(harness)["services"][0]["health_check"]
    assert held == {**check, "http": {**http, "path": "/live"}}


@pytest.mark.row("hcloud-balancer-14", "hcloud-balancer-18")
@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, "tcp"),
        ({"health_check_port": "30080"}, "http"),
        ({"health_check_interval": "15s"}, "http"),
        ({"health_check_timeout": "10"}, "http"),
        ({"health_check_retries": "3"}, "http"),
        ({"health_check_protocol": "http"}, "http"),
    ],
    ids=str,
)
async def test_http_settings_alone_make_no_http_check(
    harness: HcloudHarness, more: dict[str, str], kind: str
) -> None:
    http = {
        "health_check_http_path": "/healthz",
        "health_check_http_domain": "a.example.com",
        "health_check_http_validate_certificate": "true",
        "http_status_codes": "200",
    }
    await ensured(harness.balancer, service(protocol="http", **http, **more), [])

    check = only(harness)["services"][0]["health_check"]
    assert (check["protocol"], "http" in check) == (kind, kind == "http")


@pytest.mark.row("hcloud-balancer-14")
async def test_health_check_tls_follows_the_protocol(harness: HcloudHarness) -> None:
    """From https back to http, without an annotation about TLS."""
    found = []
    for protocol in ("https", "http"):
        await ensured(harness.balancer, service(health_check_protocol=protocol), [])
        found.append(only(harness)["services"][0]["health_check"]["http"]["tls"])

    assert found == [True, False]


@pytest.mark.row("hcloud-balancer-14")
async def test_an_empty_health_check_annotation_resets_its_field(harness: HcloudHarness) -> None:
    """The API accepts no empty text, and the former value must not stay."""
    for domain, path in (("a.example.com", "/ready"), ("", "")):
        asked = service(
            health_check_protocol="http",
            health_check_http_domain=domain,
            health_check_http_path=path,
        )
        await ensured(harness.balancer, asked, [])

    held = only(harness)["services"][0]["health_check"]["http"]
    assert (held["domain"], held["path"]) == (None, "/")
    await harness.in_vain(asked, [])


def certificate(harness: HcloudHarness, name: str) -> int:
    body = {"name": name, "type": "uploaded", "certificate": "x", "private_key": "y"}
    _, made = extras.create_certificate(harness.service.cloud, Call(body=body))
    assert made is not None
    return int(made["certificate"]["id"])


@pytest.mark.row("hcloud-balancer-15", "hcloud-balancer-17")
async def test_existing_certificates_are_referenced_and_never_deleted(
    harness: HcloudHarness,
) -> None:
    one, two = certificate(harness, "one"), certificate(harness, "two")
    asked = service(protocol="https", http_certificates=f"one, {two}", http_redirect_http="true")

    await ensured(harness.balancer, asked, [])

    http = only(harness)["services"][0]["http"]
    assert (sorted(http["certificates"]), http["redirect_http"]) == ([one, two], True)
    await harness.in_vain(asked, [])
    with pytest.raises(cloud.InvalidArgument, match="three"):
        await ensured(harness.balancer, service(protocol="https", http_certificates="three"), [])
    await deleted(harness.balancer, asked)
    assert len(harness.service.cloud.certificates) == 2


@pytest.mark.row("hcloud-balancer-15", "hcloud-balancer-17")
async def test_managed_certificates_are_created_and_deleted_with_the_service(
    harness: HcloudHarness,
) -> None:
    asked = {
        "protocol": "https",
        "certificate_type": "managed",
        "http_managed_certificate_acme_staging": "true",
    }
    with pytest.raises(cloud.InvalidArgument, match="domains"):
        await ensured(harness.balancer, service("uid-1", **asked), [])
    asked["http_managed_certificate_domains"] = "example.com, www.example.com"
    await harness.lose_answer(1)
    with pytest.raises(cloud.CloudError):
        await ensured(harness.balancer, service("uid-1", **asked), [])

    await ensured(harness.balancer, service("uid-1", **asked), [])

    (made,) = harness.service.cloud.certificates.values()
    assert made["name"] == "ccm-managed-certificate-uid-1"
    assert made["domain_names"] == ["example.com", "www.example.com"]
    assert made["labels"] == {UID: "uid-1", "HC-Use-Staging-CA": "true"}
    assert only(harness)["services"][0]["http"]["certificates"] == [made["id"]]
    named = {**asked, "http_managed_certificate_name": "mine"}
    await ensured(harness.balancer, service("uid-1", **named), [])
    assert len(harness.service.cloud.certificates) == 2
    await deleted(harness.balancer, service("uid-1", **asked))
    assert harness.service.cloud.certificates == {}


@pytest.mark.row("hcloud-balancer-15")
async def test_a_managed_certificate_is_deleted_even_without_its_annotations(
    harness: HcloudHarness,
) -> None:
    """The Service lost its annotations; certificates of others stay."""
    asked = {
        "protocol": "https",
        "certificate_type": "managed",
        "http_managed_certificate_domains": "example.com",
    }
    certificate(harness, "theirs")
    for uid in ("uid-1", "uid-2"):
        await ensured(harness.balancer, service(uid, **asked), [])
    await ensured(harness.balancer, service("uid-1"), [])
    made = harness.service.cloud.load_balancers
    gone = [one["id"] for one in made.values() if one["labels"][UID] == "uid-1"]
    made.pop(*gone)  # as after a crash in the middle

    await deleted(harness.balancer, service("uid-1"))

    left = [one["name"] for one in harness.service.cloud.certificates.values()]
    assert left == ["theirs", "ccm-managed-certificate-uid-2"]


MANAGED = {
    "protocol": "https",
    "certificate_type": "managed",
    "http_managed_certificate_domains": "example.com",
}


@pytest.mark.row("hcloud-balancer-15")
@pytest.mark.parametrize("user", ["another Service", "the deleted load balancer"])
async def test_a_managed_certificate_is_kept_while_another_load_balancer_uses_it(
    harness: HcloudHarness, user: str
) -> None:
    told = Told()
    borrowed = {"http_certificates": "ccm-managed-certificate-uid-1", "protocol": "https"}
    async with in_cluster(harness, told, {"HCLOUD_LOAD_BALANCERS_TYPE": "lb11"}) as project:
        balancer, world = balancer_of(project), harness.service.cloud
        await ensured(balancer, service("uid-1", **MANAGED), [])
        if user == "another Service":
            await ensured(balancer, service("uid-2", **borrowed), [])
        else:
            gone, world.load_balancers = world.load_balancers, {}
            harness.service.script.add(
                Fault(
                    operation="DELETE /certificates/*",
                    code="resource_in_use",
                    status=422,
                    count=1,
                )
            )
            with pytest.raises(cloud.RetryAfter):
                await balancer.ensure_load_balancer_deleted(CLUSTER, service("uid-1"))
            assert gone
        await deleted(balancer, service("uid-1", **MANAGED))

    is_kept = user == "another Service"
    assert [one["labels"][UID] for one in world.load_balancers.values()] == ["uid-2"] * is_kept
    assert len(world.certificates) == is_kept
    assert [reason for _, _, reason in told.events] == ["CertificateInUse"] * is_kept
    assert all("ccm-managed-certificate-uid-1" in message for message in told.messages)


@pytest.mark.row("hcloud-balancer-17")
@pytest.mark.parametrize("when", ["new", "changed"])
@pytest.mark.parametrize(
    ("asked", "value"),
    [
        ({"private_ipv4": "192.0.2.1"}, "192.0.2.1"),
        ({"private_subnet_ip_range": "10.0.1.0/24"}, "10.0.1.0/24"),
    ],
    ids=str,
)
async def test_a_private_address_outside_of_the_network_is_refused_before_any_write(
    harness: HcloudHarness, asked: dict[str, str], value: str, when: str
) -> None:
    nodes = await harness.nodes(1)
    private = {"use_private_ip": "true"}
    if when == "changed":
        await ensured(harness.balancer, service(**private), nodes)
        only(harness)["private_net"] *= "private_ipv4" in asked
    before = harness.service.writes

    with pytest.raises(cloud.InvalidArgument, match=f"{value} is not in the network k8s; .*10.0.0"):
        await ensured(harness.balancer, service(**private, **asked), nodes)

    assert harness.service.writes == before


@pytest.mark.row("hcloud-balancer-17")
@pytest.mark.parametrize(
    ("asked", "ignored"),
    [
        ({"http_status_codes": "2xx", "health_check_port": "80"}, "http-status-codes"),
        ({"http_cookie_lifetime": "long"}, "http-cookie-lifetime"),
        ({"protocol": "http", "health_check_http_path": "/x"}, "health-check-http-path"),
        ({"protocol": "http", "http_redirect_http": "perhaps"}, "http-redirect-http"),
        ({"certificate_type": "own", "http_certificates": "gone"}, "certificate-type, .*certif"),
    ],
    ids=str,
)
async def test_values_that_the_protocol_does_not_use_are_ignored_with_one_event(
    harness: HcloudHarness, asked: dict[str, str], ignored: str
) -> None:
    told = Told()
    async with in_cluster(harness, told, {"HCLOUD_LOAD_BALANCERS_TYPE": "lb11"}) as project:
        for _ in range(2):
            await ensured(balancer_of(project), service(**asked), [])
        assert [reason for _, _, reason in told.events] == ["AnnotationIgnored"]
        assert re.search(f"{ann.PREFIX}{ignored}", told.messages[0])
        used = service(protocol="http", health_check_protocol="http", http_status_codes="2??")
        await ensured(balancer_of(project), used, [])
    assert len(told.events) == 1


@pytest.mark.row("hcloud-balancer-01")
async def test_targets_that_were_emptied_by_hand_are_repaired_when_the_service_changes(
    harness: HcloudHarness,
) -> None:
    nodes = await harness.nodes(2)
    await ensured(harness.balancer, service(), nodes)
    only(harness)["targets"] = []

    await ensured(harness.balancer, service(algorithm_type="least_connections"), nodes)

    assert len(only(harness)["targets"]) == 2


@pytest.mark.row("hcloud-balancer-03")
async def test_all_pending_actions_are_read_whatever_their_number(harness: HcloudHarness) -> None:
    world, settings = harness.service.cloud, harness.service.settings
    settings.action_s = 60.0
    ids = [world.act("x", [], lambda: None)["id"] for _ in range(60)]
    world.actions[ids[-1]]["status"] = "error"
    async with client.open_client(harness.url, harness.service.token) as api:
        before = harness.service.calls.total()
        found = await api.get_actions(ids)

    assert [one.id for one in found] == ids
    assert found[-1].status == "error"
    assert harness.service.calls.total() == before + 2


@pytest.mark.row("hcloud-balancer-19")
@pytest.mark.parametrize(("field", "value"), [("protocol", "UDP"), ("node_port", 0)])
async def test_udp_and_missing_node_ports_are_refused_before_any_write(
    harness: HcloudHarness, field: str, value: Any
) -> None:
    port = msgspec.structs.replace(DEFAULT_PORT, **{field: value})
    with pytest.raises(cloud.InvalidArgument, match="port 80"):
        await ensured(harness.balancer, build_service(ports=[port]), [])
    assert harness.service.writes == 0


@pytest.mark.row("hcloud-balancer-19")
async def test_tcp_ports_are_served_beside_udp_with_one_event_per_change(
    harness: HcloudHarness,
) -> None:
    """As HTTP/3 needs it: one port number with both protocols."""
    told, nodes = Told(), await harness.nodes(2)
    tcp, udp = HTTPS, msgspec.structs.replace(HTTPS, protocol="UDP", node_port=30444)
    plain = build_service(ports=[tcp])
    mixed = build_service(ports=[tcp, udp])
    async with in_cluster(harness, told, {"HCLOUD_LOAD_BALANCERS_TYPE": "lb11"}) as project:
        balancer = balancer_of(project)
        for _ in range(2):
            await ensured(balancer, mixed, nodes[:1])
        assert [one["destination_port"] for one in only(harness)["services"]] == [30443]
        assert told.events == [("Service", mixed.name, "UnsupportedProtocolConfigured")]
        assert "port 443/UDP left out" in told.messages[0]
        await balancer.update_load_balancer(CLUSTER, mixed, nodes)
        assert len(only(harness)["targets"]) == 2
        await harness.in_vain(mixed, nodes, project=project)

        (listed,) = await balancer.list_load_balancers(CLUSTER)
        assert listed.digest == balancer.load_balancer_digest(CLUSTER, mixed, nodes)
        await ensured(balancer, plain, nodes)
        await ensured(balancer, mixed, nodes)
    assert len(told.events) == 2


@pytest.mark.row("hcloud-balancer-19", "hcloud-balancer-06")
async def test_a_release_removes_the_listener_of_a_port_with_both_protocols(
    harness: HcloudHarness,
) -> None:
    made = settled(harness)
    udp = msgspec.structs.replace(HTTPS, protocol="UDP", node_port=30444)
    named = {ann.NAME.name: "theirs"}
    mixed = build_service(uid="uid-1", annotations=named, ports=[HTTPS, udp])
    await ensured(harness.balancer, mixed, [])

    await deleted(harness.balancer, mixed)

    assert (made["services"], made["labels"]) == ([], {})


@pytest.mark.row("hcloud-balancer-02")
async def test_deletion_waits_for_its_action(harness: HcloudHarness) -> None:
    """The API may answer with an action, which the vendor's current client awaits."""
    settings = harness.service.settings
    await ensured(harness.balancer, service(), [])
    settings.deletion_actions, settings.action_s = True, 0.05

    with pytest.raises(cloud.RetryAfter):
        await harness.balancer.ensure_load_balancer_deleted(CLUSTER, service())
    await deleted(harness.balancer, service())

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
        {"health_check_protocol": "http", "http_status_codes": "404,2??"},
        {"protocol": "http", "http_cookie_lifetime": "60"},
        {"uses_proxyprotocol": "true", "health_check_interval": "7s"},
        {"node_selector": "pool=none"},
    ],
    ids=str,
)
async def test_the_listed_digest_matches_the_wanted_one_after_a_restart(
    harness: HcloudHarness, asked: dict[str, str]
) -> None:
    nodes: Sequence[cloud.Node] = await harness.nodes(2)
    await ensured(harness.balancer, service(**asked), nodes)
    async with harness.open() as again:
        (listed,) = await balancer_of(again).list_load_balancers(CLUSTER)

        wanted = balancer_of(again).load_balancer_digest(CLUSTER, service(**asked), nodes)

    assert listed.digest == wanted
    other = harness.balancer.load_balancer_digest(CLUSTER, service(type="lb31"), nodes)
    assert listed.digest != other


@pytest.mark.row("hcloud-balancer-17")
async def test_private_targets_survive_a_change_of_the_private_address(
    harness: HcloudHarness,
) -> None:
    nodes = await harness.nodes(2)
    await ensured(harness.balancer, service(use_private_ip="true"), nodes)

    moved = service(use_private_ip="true", private_ipv4="10.0.0.99")
    await ensured(harness.balancer, moved, nodes)

    assert only(harness)["private_net"][0]["ip"] == "10.0.0.99"
    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [True, True]


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("owner", ["", "uid-of-another"])
async def test_a_taken_default_name_is_adopted_unless_another_service_owns_it(
    harness: HcloudHarness, owner: str
) -> None:
    """The default name is looked up only when the API reports it as taken."""
    wanted = service("uid-1")
    name = harness.balancer.get_load_balancer_name(CLUSTER, wanted)
    made = settled(harness, name=name, labels={UID: owner} if owner else {})

    if owner:
        with pytest.raises(cloud.FailedPrecondition, match=owner):
            await ensured(harness.balancer, wanted, [])
    else:
        await ensured(harness.balancer, wanted, [])

    assert only(harness) is made
    assert made["labels"][UID] == (owner or "uid-1")


async def test_a_name_conflict_without_a_load_balancer_is_raised_and_retried(
    harness: HcloudHarness,
) -> None:
    """The name was freed between the refusal and the look-up."""
    fault = Fault(operation="POST /load_balancers", code="uniqueness_error", status=409, count=1)
    harness.service.script.add(fault)

    with pytest.raises(cloud.AlreadyExists):
        await ensured(harness.balancer, service(), [])
    await ensured(harness.balancer, service(), [])


@pytest.mark.row("hcloud-balancer-21")
async def test_a_load_balancer_in_another_network_moves_to_the_configured_one(
    harness: HcloudHarness,
) -> None:
    """Without a configured network it stays where it is."""
    body = {"name": "other", "ip_range": "10.9.0.0/16", "subnets": [{"ip_range": "10.9.0.0/24"}]}
    _, answer = fake_networks.create(harness.service.cloud, Call(body=body))
    assert answer is not None
    other = answer["network"]["id"]
    settled(harness, labels={UID: "uid-1"}, network=other)

    async with opened(harness, HCLOUD_NETWORK="") as without:
        await ensured(balancer_of(without), service("uid-1"), [])
        assert [one["network"] for one in only(harness)["private_net"]] == [other]
        await harness.in_vain(service("uid-1"), [], project=without)
    await ensured(harness.balancer, service("uid-1"), [])

    assert [one["network"] for one in only(harness)["private_net"]] == [harness.network["id"]]


@pytest.mark.row("hcloud-balancer-22")
@pytest.mark.parametrize("when", ["new", "changed", "by hand"])
async def test_a_load_balancer_without_any_reachable_address_is_refused(
    harness: HcloudHarness, when: str
) -> None:
    """An error instead of a wait for an address that will never come."""
    wanted = service("uid-1", disable_public_network="true")
    async with opened(harness, HCLOUD_NETWORK="") as project:
        if when != "new":
            settled(harness, labels={UID: "uid-1"}, public_interface=when != "by hand")
        wanted = service("uid-1") if when == "by hand" else wanted
        before = harness.service.writes
        with pytest.raises(cloud.InvalidArgument, match="HCLOUD_NETWORK"):
            await balancer_of(project).ensure_load_balancer(CLUSTER, wanted, [])

    assert harness.service.writes == before + (when == "by hand")  # the listener


async def test_target_removal_ignores_not_found_and_addition_aborts(harness: HcloudHarness) -> None:
    nodes = await harness.nodes(2)
    await ensured(harness.balancer, service(), nodes)
    fault = Fault(operation="*remove_target", code="not_found", status=404, count=1, applied=True)
    harness.service.script.add(fault)

    await harness.balancer.update_load_balancer(CLUSTER, service(), nodes[:1])

    assert len(only(harness)["targets"]) == 1
    harness.service.script.add(Fault(operation="*add_target", code="not_found", status=404))
    with pytest.raises(cloud.Aborted, match=nodes[1].name):  # NotFound: there is no load balancer
        await harness.balancer.update_load_balancer(CLUSTER, service(), nodes)


async def test_a_quota_error_about_a_listener_is_raised(harness: HcloudHarness) -> None:
    settled(harness, labels={UID: "uid-1"})
    fault = Fault(operation="*add_service", code="resource_limit_exceeded")
    harness.service.script.add(fault)

    with pytest.raises(cloud.ResourceExhausted):
        await ensured(harness.balancer, service("uid-1"), [])


async def test_a_missing_address_is_waited_for_after_a_restart(harness: HcloudHarness) -> None:
    """The daemon restarted during the creation, so it knows no action to wait for."""
    harness.service.settings.balancer_s = 60.0
    with pytest.raises(cloud.RetryAfter):
        await harness.balancer.ensure_load_balancer(CLUSTER, service(), [])
    async with harness.open() as again:
        with pytest.raises(cloud.RetryAfter, match="no address yet"):
            await balancer_of(again).ensure_load_balancer(CLUSTER, service(), [])


@pytest.mark.parametrize("code", ["failed", "gone", "garbage"])
async def test_failed_deletions_are_raised_and_not_found_counts_as_deleted(
    harness: HcloudHarness, code: str
) -> None:
    """The action fails, the answer cannot be read, or the load balancer is gone already."""
    await ensured(harness.balancer, service(), [])
    number = only(harness)["id"]
    if code == "failed":
        harness.service.settings.deletion_actions = True
        harness.service.cloud.failing_actions["load_balancer", number] = "no way"
        with pytest.raises(cloud.Aborted, match="no way"):
            await deleted(harness.balancer, service())
    elif code == "garbage":
        harness.service.script.add(Fault(kind="garbage", operation="DELETE *"))
        with pytest.raises(cloud.Unknown):
            await deleted(harness.balancer, service())
    else:
        fault = Fault(operation="DELETE /load_balancers/*", code="not_found", status=404)
        harness.service.script.add(fault)
        await deleted(harness.balancer, service())


@pytest.mark.row("hcloud-balancer-17")
@pytest.mark.parametrize("private", ["true", "false"])
async def test_a_new_load_balancer_gets_the_requested_private_address(
    harness: HcloudHarness, private: str
) -> None:
    nodes = await harness.nodes(1)
    wanted = service(private_ipv4="10.0.0.99", use_private_ip=private)

    await ensured(harness.balancer, wanted, nodes)

    assert only(harness)["private_net"][0]["ip"] == "10.0.0.99"
    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [private == "true"]


@pytest.mark.row("hcloud-balancer-20")
async def test_digests_differ_while_managed_certificates_do_not_exist(
    harness: HcloudHarness,
) -> None:
    """The ID of the certificate is unknown, so the Service is ensured after each start."""
    managed = {"protocol": "https", "certificate_type": "managed"}
    wanted = [service(**managed), service(**managed, http_managed_certificate_name="mine")]

    one, other = (harness.balancer.load_balancer_digest(CLUSTER, each, []) for each in wanted)

    assert one != other


async def test_a_managed_certificate_created_concurrently_is_reused(harness: HcloudHarness) -> None:
    fault = Fault(
        operation="POST /certificates", code="uniqueness_error", status=409, applied=True, count=1
    )
    harness.service.script.add(fault)
    asked = {
        "protocol": "https",
        "certificate_type": "managed",
        "http_managed_certificate_domains": "example.com",
    }

    await ensured(harness.balancer, service(**asked), [])

    assert len(harness.service.cloud.certificates) == 1


@pytest.mark.row("hcloud-balancer-17")
def test_the_name_annotation_replaces_the_name_from_the_uid(harness: HcloudHarness) -> None:
    wanted = build_service(uid="0b6dbe96-bb3c-4d4c-b1e0-4c0ed8a21f0d")
    named = build_service(annotations={ann.NAME.name: "mine"})
    name = harness.balancer.get_load_balancer_name

    assert name(CLUSTER, wanted) == "a0b6dbe96bb3c4d4cb1e04c0ed8a21f0"
    assert name(CLUSTER, named) == "mine"
