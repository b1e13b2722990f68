"""Load balancers of the Hetzner Cloud: annotations, members, and adoption by name."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.testing.builders import DEFAULT_PORT, node
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import HTTPS, deleted, ensured
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER
from ccm.testing.probes import nodes as make_nodes
from providers.hcloud import service_annotations as ann
from tests.hcloud.balancing import CHECK, EFFECTS, UID, only, service, settled
from tests.hcloud.harness import HcloudHarness, Told, in_cluster, opened
from tests.support.transfers import check_transfer
from tests.support.vendor import balancer_of


def at(thing: Any, path: str) -> Any:
    for word in path.split("."):
        thing = thing[int(word)] if word.isdigit() else thing[word]
    return thing


@pytest.mark.row("hcloud-balancer-17")
@pytest.mark.parametrize(("asked", "path", "value"), EFFECTS, ids=lambda one: str(one)[:60])
@pytest.mark.parametrize("when", ["new", "changed"])
async def test_an_annotation_has_its_effect(
    harness: HcloudHarness,
    asked: dict[str, str],
    path: str,
    value: Any,
    when: str,
) -> None:
    nodes = await harness.nodes(1)
    if when == "changed" and "location" in asked:
        pytest.skip("a location is for ever")
    if when == "changed":
        await ensured(harness.balancer, service(), nodes)

    await ensured(harness.balancer, service(**asked), nodes)

    assert at(only(harness), path) == value
    # The daemon leaves it to them which members are well.
    assert all(one["health_check"]["protocol"] for one in only(harness)["services"])
    assert harness.project.load_balancers_check_health
    await harness.in_vain(service(**asked), nodes)


@pytest.mark.row("hcloud-balancer-17")
def test_the_annotation_schema_refuses_malformed_values() -> None:
    wrong = [
        *TYPED.items(),
        (ann.COOKIE_LIFETIME, "9" * 14),
        (ann.COOKIE_LIFETIME, "-5m"),
        (ann.CHECK_INTERVAL, "-15s"),
        (ann.CHECK_TIMEOUT, "-1"),
        (ann.CERTIFICATES, "mine, ²"),
        (ann.CHECK_RETRIES, "٣"),
    ]
    by_name = {one.name: one for one in ann.SCHEMA}

    told = [one.name for one, text in wrong if not one.fault(text)]

    assert told == []
    assert len(by_name) == 39
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
async def test_the_status_lists_the_addresses_that_the_annotations_allow(
    harness: HcloudHarness, asked: dict[str, str], expected: list[str]
) -> None:
    nodes = await harness.nodes(1)
    status = await ensured(harness.balancer, service(**asked), nodes)

    public = only(harness)["public_net"]
    named = {"v4": public["ipv4"]["ip"], "v6": public["ipv6"]["ip"]}
    assert [one.ip or one.hostname for one in status.ingress] == [named.get(e, e) for e in expected]
    modes = {one.ip_mode for one in status.ingress}
    assert modes == ({None} if "hostname" in asked else {"VIP"})
    proxied = await ensured(harness.balancer, service(uses_proxyprotocol="true", **asked), nodes)
    assert {one.ip_mode for one in proxied.ingress} == (
        {None} if "hostname" in asked else {"Proxy"}
    )


@pytest.mark.row("hcloud-balancer-06")
async def test_a_load_balancer_without_label_is_adopted_by_the_name_annotation(
    harness: HcloudHarness,
) -> None:
    made = settled(harness, labels={"env": "prod"}, load_balancer_type="lb31")

    await ensured(harness.balancer, service("uid-1"), [])
    assert len(harness.service.cloud.load_balancers) == 2  # it was not asked for by its name
    await deleted(harness.balancer, service("uid-1"))
    wanted = build_service(uid="uid-1", annotations={ann.NAME.name: "theirs"})
    await ensured(harness.balancer, wanted, [])

    assert only(harness)["id"] == made["id"]
    assert made["labels"] == {
        "env": "prod",
        UID: "uid-1",
        "kube-ccm/cluster": CLUSTER,
        "kube-ccm/adopted": "true",
    }
    assert made["load_balancer_type"]["name"] == "lb31"


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("place", ["fsn1", ""])
async def test_a_load_balancer_of_another_service_is_never_adopted(
    harness: HcloudHarness, place: str
) -> None:
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


@pytest.mark.row("hcloud-balancer-02")
@pytest.mark.parametrize("since", ["always", "the deletion"])
async def test_a_protected_load_balancer_is_kept_and_lets_its_service_go(
    harness: HcloudHarness, since: str
) -> None:
    told, made = Told(), settled(harness, labels={UID: "uid-1", "kube-ccm/cluster": CLUSTER})
    made["protection"] = {"delete": since == "always"}
    if since != "always":
        harness.service.script.add(Fault(operation="DELETE *", code="protected", status=423))
    async with in_cluster(harness, told, {}) as project:
        before = dict(made)
        await deleted(balancer_of(project), service("uid-1"))
        (listed,) = await balancer_of(project).list_load_balancers(CLUSTER)
        with pytest.raises(cloud.FailedPrecondition, match="protect"):
            await balancer_of(project).delete_load_balancer(CLUSTER, listed.name)

    assert (only(harness), before) == (made, made)
    assert [reason for _, _, reason in told.events] == ["LoadBalancerProtected"]
    assert "load balancer theirs is protected" in told.messages[0]
    assert harness.service.writes == 2 * (since != "always")


@pytest.mark.row("hcloud-balancer-02")
@pytest.mark.parametrize("is_adopted", [False, True])
async def test_a_renamed_cluster_corrects_the_label_and_keeps_its_load_balancers(
    harness: HcloudHarness, is_adopted: bool
) -> None:
    told, wanted = Told(), service("uid-1", name="theirs")
    if is_adopted:
        settled(harness)
    await ensured(harness.balancer, wanted, [], cluster="former")
    labels = dict(only(harness)["labels"])
    async with in_cluster(harness, told, {"HCLOUD_LOAD_BALANCERS_TYPE": "lb11"}) as project:
        balancer = balancer_of(project)
        assert await balancer.list_load_balancers(CLUSTER) == []
        for _ in range(2):
            await ensured(balancer, wanted, [])

        assert only(harness)["labels"] == {**labels, "kube-ccm/cluster": CLUSTER}
        assert [one.name for one in await balancer.list_load_balancers(CLUSTER)] == ["theirs"]
        assert [reason for _, _, reason in told.events] == ["LoadBalancerRename"]
        assert f"from 'former' to '{CLUSTER}'" in told.messages[0]
        await deleted(balancer, wanted)

    left = [one["labels"] for one in harness.service.cloud.load_balancers.values()]
    assert left == [{}] * is_adopted


@pytest.mark.row("hcloud-balancer-02")
@pytest.mark.parametrize("is_adopted", [False, True])
async def test_a_load_balancer_of_a_copied_cluster_is_kept_with_an_event(
    harness: HcloudHarness, is_adopted: bool
) -> None:
    """Load balancers of the vendor's manager have no cluster label, and are deleted."""
    told, wanted = Told(), service("uid-1", name="theirs")
    if is_adopted:
        settled(harness)
    await ensured(harness.balancer, wanted, await harness.nodes(1), cluster="other")
    kept = only(harness)
    before = msgspec.json.encode(kept)
    settled(harness, name="unlabelled", labels={UID: "uid-1"})
    async with in_cluster(harness, told, {}) as project:
        await deleted(balancer_of(project), wanted)

    assert only(harness) is kept
    assert msgspec.json.encode(kept) == before
    assert [reason for _, _, reason in told.events] == ["LoadBalancerKept"]
    assert "theirs was kept" in told.messages[0]
    assert "'other'" in told.messages[0]


@pytest.mark.row("hcloud-balancer-07")
async def test_two_load_balancers_of_one_service_are_refused_and_both_deleted(
    harness: HcloudHarness,
) -> None:
    settled(harness, name="one", labels={UID: "uid-1"})
    settled(harness, name="two", labels={UID: "uid-1"})

    with pytest.raises(cloud.FailedPrecondition, match="one, two"):
        await ensured(harness.balancer, service("uid-1"), [])
    await deleted(harness.balancer, service("uid-1"))
    assert harness.service.cloud.load_balancers == {}


@pytest.mark.row("hcloud-balancer-08")
async def test_the_type_changes_only_when_requested(harness: HcloudHarness) -> None:
    async def type_of(**asked: str) -> str:
        await ensured(harness.balancer, service(**asked), [])
        return str(only(harness)["load_balancer_type"]["name"])

    assert await type_of() == "lb11"
    assert await type_of(type="lb31") == "lb31"
    assert await type_of() == "lb31"  # no annotation asks for a smaller one
    with pytest.raises(cloud.InvalidArgument, match="load balancer type not found"):
        await type_of(type="lb99")
    harness.service.script.add(
        Fault(operation="*change_type", code="unsupported_error", status=422, message="deprecated")
    )
    with pytest.raises(cloud.CloudError, match="deprecated"):
        await type_of(type="lb21")


@pytest.mark.row("hcloud-balancer-09")
async def test_a_new_load_balancer_needs_a_location_or_network_zone(harness: HcloudHarness) -> None:
    with pytest.raises(cloud.InvalidArgument, match="HCLOUD_LOAD_BALANCERS_LOCATION"):
        await ensured(harness.balancer, service(location=""), [])

    await ensured(harness.balancer, service(location="", network_zone="us-east"), [])

    assert only(harness)["location"]["name"] == "ash"


@pytest.mark.row("hcloud-balancer-10")
@pytest.mark.parametrize("code", ["conflict", "locked"])
async def test_a_locked_load_balancer_is_retried(harness: HcloudHarness, code: str) -> None:
    settled(harness, labels={UID: "uid-1"})
    harness.service.script.add(Fault(operation="*attach_to_network", code=code, count=2))
    with pytest.raises(cloud.RetryAfter):
        await harness.balancer.ensure_load_balancer(CLUSTER, service("uid-1"), [])

    await ensured(harness.balancer, service("uid-1"), [])

    assert only(harness)["private_net"][0]["network"] == harness.network["id"]


@pytest.mark.row("hcloud-balancer-03")
async def test_running_actions_are_polled_before_further_changes(harness: HcloudHarness) -> None:
    balancer, nodes = harness.balancer, await harness.nodes(1)
    await ensured(balancer, service(), [])
    world = harness.service.cloud
    harness.service.settings.action_s = 60.0
    world.failing_actions["load_balancer", only(harness)["id"]] = "unreachable"

    with pytest.raises(cloud.RetryAfter):
        await balancer.update_load_balancer(CLUSTER, service(), nodes)
    before = harness.service.calls.total()
    with pytest.raises(cloud.RetryAfter):
        await balancer.ensure_load_balancer(CLUSTER, service(), nodes)
    assert harness.service.calls.total() == before + 1
    world.settle(all_of_them=True)
    with pytest.raises(cloud.Aborted, match="unreachable"):
        await balancer.ensure_load_balancer(CLUSTER, service(), nodes)
    world.failing_actions.clear()
    harness.service.settings.action_s = 0.05
    await ensured(balancer, service(), nodes)
    assert len(only(harness)["targets"]) == 1


TYPED = {
    ann.ALGORITHM: "best",
    ann.DISABLE_PUBLIC_NETWORK: "perhaps",
    ann.IPV6_DISABLED: "perhaps",
    ann.DISABLE_PRIVATE_INGRESS: "perhaps",
    ann.USE_PRIVATE_IP: "perhaps",
    ann.PRIVATE_IPV4: "::1",
    ann.PRIVATE_SUBNET: "10.0.0.0/x",
    ann.NODE_SELECTOR: "a in b",
    ann.PROTOCOL: "udp",
    ann.PROXYPROTOCOL: "perhaps",
    ann.COOKIE_LIFETIME: "long",
    ann.TIMEOUT_IDLE: "5s",
    ann.STICKY: "perhaps",
    ann.REDIRECT: "perhaps",
    ann.CERTIFICATE_TYPE: "own",
    ann.CHECK_PROTOCOL: "udp",
    ann.CHECK_PORT: "70000",
    ann.CHECK_INTERVAL: "often",
    ann.CHECK_TIMEOUT: "long",
    ann.CHECK_RETRIES: "-1",
    ann.CHECK_TLS: "perhaps",
    ann.STATUS_CODES: "2xx",
}
"""Annotations with a form -> a text that does not have it."""

PORTLESS = msgspec.structs.replace(HTTPS, node_port=0)
"""A port that no load balancer can serve."""

BY_HTTPS = {ann.PROTOCOL.name: "https"}

ASKED = [
    *({one.name: TYPED.get(one, "no such thing")} for one in ann.SCHEMA),
    {ann.TYPE.name: "lb99"},
    {ann.USE_PRIVATE_IP.name: "true"},
    {ann.PRIVATE_IPV4.name: "192.0.2.1"},
    {ann.NODE_SELECTOR.name: "a=b=c"},
    *({**BY_HTTPS, one.name: TYPED.get(one, "no such thing")} for one in ann.SCHEMA),
    {**BY_HTTPS, ann.CERTIFICATE_TYPE.name: "managed"},
]


def members(harness: HcloudHarness) -> set[int]:
    return {one["server"]["id"] for one in only(harness)["targets"]}


def ids(nodes: Sequence[cloud.Node]) -> set[int]:
    return {int(one.provider_id[9:]) for one in nodes}


@pytest.mark.row("hcloud-balancer-23")
@pytest.mark.parametrize(
    "asked", ASKED, ids=lambda one: ",".join(f"{k}={one[k]}" for k in one)[30:]
)
async def test_members_follow_the_nodes_while_ensure_fails(
    harness: HcloudHarness, asked: dict[str, str]
) -> None:
    """A bad annotation fails; where it is accepted, a bad port does."""
    balancer, nodes = harness.balancer, await harness.nodes(3)
    await ensured(balancer, build_service(), nodes[:2])
    wanted = build_service(annotations=asked)
    try:
        await ensured(balancer, wanted, nodes[:2])
    except cloud.CloudError:
        pass
    else:
        wanted = build_service(annotations=asked, ports=[DEFAULT_PORT, PORTLESS])
        with pytest.raises(cloud.InvalidArgument):
            await ensured(balancer, wanted, nodes[:2])

    await balancer.update_load_balancer(CLUSTER, wanted, nodes[1:])

    assert members(harness) == ids(nodes[1:])
    assert await balancer.get_load_balancer(CLUSTER, wanted) is not None


@pytest.mark.row("hcloud-balancer-23")
async def test_members_stay_when_the_node_selector_is_malformed(harness: HcloudHarness) -> None:
    balancer, nodes = harness.balancer, await harness.nodes(26)
    await ensured(balancer, service(), nodes[1:])
    held = members(harness)

    await balancer.update_load_balancer(CLUSTER, service(node_selector="a in b"), nodes)

    assert members(harness) == held == ids(nodes[1:])


@pytest.mark.row("hcloud-balancer-23")
@pytest.mark.parametrize("text", ["true", "perhaps"])
async def test_an_update_keeps_use_private_ip_of_existing_targets(
    harness: HcloudHarness, text: str
) -> None:
    """A load balancer may not be in the network yet, and would lose all targets."""
    balancer, nodes = harness.balancer, await harness.nodes(3)
    await ensured(balancer, service(), nodes[:2])

    await balancer.update_load_balancer(CLUSTER, service(use_private_ip=text), nodes[1:])

    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [False, False]
    await ensured(balancer, service(use_private_ip="true"), nodes)
    await balancer.update_load_balancer(CLUSTER, service(use_private_ip="perhaps"), nodes[1:])
    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [True, True]


@pytest.mark.row("hcloud-balancer-23")
async def test_the_first_targets_have_use_private_ip_as_annotated(harness: HcloudHarness) -> None:
    balancer, nodes = harness.balancer, await harness.nodes(1)
    await ensured(balancer, service(use_private_ip="true"), [])

    await balancer.update_load_balancer(CLUSTER, service(use_private_ip="true"), nodes)

    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [True]


@pytest.mark.row("hcloud-balancer-23")
async def test_members_follow_the_nodes_when_the_configured_network_is_missing(
    harness: HcloudHarness,
) -> None:
    settled(harness, labels={UID: "uid-1"})
    nodes = await harness.nodes(1)
    async with opened(harness, HCLOUD_NETWORK="gone") as lost:
        await balancer_of(lost).update_load_balancer(CLUSTER, service("uid-1"), nodes)

    assert members(harness) == ids(nodes)


# --- one target is refused ----------------------------------------------------------------------


STALE = node("stale", provider_id="hcloud://999")


async def refused(
    harness: HcloudHarness, project: cloud.Cloud, why: str
) -> tuple[cloud.Node, dict[str, str], str]:
    """Return a node that the API refuses as target, annotations of its Service, and the error."""
    if why == "stale":
        return STALE, {}, "'999' not found"
    (outside,) = await make_nodes(project, harness, 1)
    (number,) = ids([outside])
    harness.service.cloud.servers[number]["private_net"] = []
    return outside, {"use_private_ip": "true"}, "share no network"


@pytest.mark.row("hcloud-balancer-24")
@pytest.mark.parametrize("why", ["stale", "outside"])
async def test_a_refused_target_does_not_block_the_others(harness: HcloudHarness, why: str) -> None:
    bad, asked, reason = await refused(harness, harness.project, why)
    balancer, nodes = harness.balancer, await harness.nodes(3)
    await ensured(balancer, service(**asked), nodes[:1])

    with pytest.raises(cloud.Aborted, match=f"{bad.name}.*{reason}"):
        await balancer.update_load_balancer(CLUSTER, service(**asked), [bad, *nodes[1:]])

    assert members(harness) == ids(nodes[1:])


@pytest.mark.row("hcloud-balancer-24")
async def test_a_target_whose_action_fails_does_not_block_the_others(
    harness: HcloudHarness,
) -> None:
    """Its action delays those of other targets, and then fails, each time."""
    balancer, nodes = harness.balancer, await harness.nodes(2)
    await ensured(balancer, service(), [])
    world, held = harness.service.cloud, only(harness)
    harness.service.settings.action_s = 60.0
    world.failing_actions["load_balancer", held["id"]] = "no route"
    with pytest.raises(cloud.RetryAfter):
        await balancer.update_load_balancer(CLUSTER, service(), nodes)
    world.settle(all_of_them=True)
    world.failing_actions.clear()
    harness.service.settings.action_s = 0.0

    with pytest.raises(cloud.Aborted, match=f"{nodes[0].name} .*no route"):
        await balancer.update_load_balancer(CLUSTER, service(), nodes)

    assert members(harness) == ids(nodes[1:])


@pytest.mark.row("hcloud-balancer-24")
async def test_a_target_that_cannot_be_removed_does_not_block_other_removals(
    harness: HcloudHarness,
) -> None:
    balancer, nodes = harness.balancer, await harness.nodes(3)
    await ensured(balancer, service(), nodes)
    fault = Fault(operation="*remove_target", code="protected", status=423, count=1)
    harness.service.script.add(fault)

    with pytest.raises(cloud.Aborted):
        await balancer.update_load_balancer(CLUSTER, service(), nodes[2:])

    assert len(members(harness) - ids(nodes[2:])) == 1


async def test_an_already_defined_target_counts_as_added(harness: HcloudHarness) -> None:
    """Added by a call whose answer was lost."""
    balancer, nodes = harness.balancer, await harness.nodes(1)
    await ensured(balancer, service(), [])
    code = "target_already_defined"
    harness.service.script.add(Fault(operation="*add_target", code=code, status=409, count=1))

    await balancer.update_load_balancer(CLUSTER, service(), nodes)


ADOPTED, RELEASED = "LoadBalancerAdopted", "LoadBalancerReleased"
OWN: dict[str, Any] = {"env": "prod"}
"""Labels of the load balancer that was there before."""


def listener(port: int, node_port: int) -> dict[str, Any]:
    return {
        "protocol": "tcp",
        "listen_port": port,
        "destination_port": node_port,
        "health_check": {**CHECK, "port": node_port},
    }


@pytest.mark.row("hcloud-balancer-06")
async def test_an_adopted_load_balancer_is_released_when_its_service_is_deleted(
    harness: HcloudHarness,
) -> None:
    made, told = settled(harness, labels=OWN), Told()
    wanted = service("uid-1", name="theirs")
    async with in_cluster(harness, told, {}) as project:
        nodes = await make_nodes(project, harness, 2)
        await ensured(balancer_of(project), wanted, nodes)
        assert (len(made["services"]), len(made["targets"])) == (1, 2)

        await deleted(balancer_of(project), wanted)

        assert only(harness) is made
        assert made["labels"] == OWN
        assert (made["services"], made["targets"]) == ([], [])
        assert [reason for _, _, reason in told.events] == [ADOPTED, RELEASED]
        assert all("theirs" in message for message in told.messages)
        assert await balancer_of(project).get_load_balancer(CLUSTER, wanted) is None
        await ensured(balancer_of(project), service("uid-2", name="theirs"), nodes)

    assert made["labels"][UID] == "uid-2"


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("number", range(1, 7))
async def test_a_release_survives_a_crash_after_any_write(
    harness: HcloudHarness, number: int
) -> None:
    made, wanted = settled(harness, labels=OWN), service("uid-1", name="theirs")
    async with harness.open() as project:
        nodes = await make_nodes(project, harness, 2)
        await ensured(balancer_of(project), wanted, nodes)
        await harness.lose_answer(number)
        with contextlib.suppress(cloud.CloudError):
            await deleted(balancer_of(project), wanted)
        await harness.heal()
    async with harness.open() as project:
        await deleted(balancer_of(project), wanted)

    assert (made["labels"], made["services"], made["targets"]) == (OWN, [], [])


@pytest.mark.row("hcloud-balancer-06")
async def test_a_release_waits_for_running_actions(harness: HcloudHarness) -> None:
    made, wanted = settled(harness, labels=OWN), service("uid-1", name="theirs")
    await ensured(harness.balancer, wanted, await harness.nodes(1))
    harness.service.settings.action_s = 60.0
    for _ in range(2):
        with pytest.raises(cloud.RetryAfter):
            await harness.balancer.ensure_load_balancer_deleted(CLUSTER, wanted)
        assert made["labels"][UID] == "uid-1"
    harness.service.settings.action_s = 0.0
    harness.service.cloud.settle(all_of_them=True)
    await deleted(harness.balancer, wanted)

    assert (made["labels"], made["services"]) == (OWN, [])


@pytest.mark.row("hcloud-balancer-06")
async def test_a_release_keeps_listeners_and_targets_that_it_did_not_add(
    harness: HcloudHarness,
) -> None:
    """The Service is deleted before its load balancer could be changed."""
    theirs = [listener(443, 8443), listener(8080, 8080)]
    made, told = settled(harness, labels=OWN, services=theirs), Told()
    wanted = build_service(
        uid="uid-1",
        annotations={ann.NAME.name: "theirs", ann.TYPE.name: "lb99"},
        ports=[DEFAULT_PORT, HTTPS],
    )
    async with in_cluster(harness, told, {}) as project:
        (one,) = await make_nodes(project, harness, 1)
        number = int(one.provider_id.removeprefix("hcloud://"))
        made["targets"] = [{"type": "server", "server": {"id": number}, "use_private_ip": False}]
        before = [dict(one) for one in made["services"]]
        with pytest.raises(cloud.InvalidArgument, match="load balancer type not found"):
            await ensured(balancer_of(project), wanted, [one])
        assert made["labels"][UID] == "uid-1"

        await deleted(balancer_of(project), wanted)

    assert (made["labels"], made["services"]) == (OWN, before)
    assert len(made["targets"]) == 1
    assert "still listens on 443, 8080" in told.messages[-1]


@pytest.mark.row("hcloud-balancer-06")
async def test_a_release_also_works_after_the_service_changed_its_type(
    harness: HcloudHarness,
) -> None:
    """By then it is a ClusterIP Service without node ports."""
    made, wanted = settled(harness, labels=OWN), service("uid-1", name="theirs")
    await ensured(harness.balancer, wanted, await harness.nodes(1))
    plain = cloud.ServicePort(name="http", port=80, target_port=80)
    internal = build_service(uid="uid-1", type="ClusterIP", ports=[plain])
    await deleted(harness.balancer, internal)

    assert (made["labels"], made["services"], made["targets"]) == (OWN, [], [])


@pytest.mark.row("hcloud-balancer-06")
async def test_adopted_and_foreign_orphans_are_not_deleted_by_name(
    harness: HcloudHarness,
) -> None:
    made = settled(harness)
    balancer = harness.balancer
    await ensured(balancer, service("uid-1", name="theirs"), [])
    await ensured(balancer, service("uid-2"), [])
    listed = {one.name: one.adopted for one in await balancer.list_load_balancers(CLUSTER)}
    with pytest.raises(cloud.FailedPrecondition, match="theirs was adopted and is never deleted"):
        await balancer.delete_load_balancer(CLUSTER, "theirs")
    for name in listed:
        with pytest.raises(cloud.FailedPrecondition, match="lacks the label kube-ccm/cluster"):
            await balancer.delete_load_balancer("another-cluster", name)

    assert len(harness.service.cloud.load_balancers) == 2
    assert sorted(listed.values()) == [False, True]
    assert listed["theirs"]
    assert made["id"] in harness.service.cloud.load_balancers


@pytest.mark.row("hcloud-balancer-06")
async def test_a_load_balancer_without_the_label_of_the_cluster_is_not_deleted_by_name(
    harness: HcloudHarness,
) -> None:
    """Hetzner's own manager sets no such label: the load balancer may be of another cluster."""
    made = settled(harness, name="old", labels={UID: "uid-1"})
    balancer = harness.balancer
    await ensured(balancer, service("uid-2"), [])

    records = await balancer.list_load_balancers(CLUSTER)

    assert {record.name == "old": record.marked for record in records} == {True: False, False: True}
    with pytest.raises(cloud.FailedPrecondition, match="may belong to another cluster; delete it"):
        await balancer.delete_load_balancer(CLUSTER, "old")
    assert made["id"] in harness.service.cloud.load_balancers


@pytest.mark.row("journal-06")
async def test_another_service_takes_over_a_load_balancer(harness: HcloudHarness) -> None:
    await check_transfer(harness.balancer, service("uid-1"), service("uid-2"))


@pytest.mark.row("journal-06")
async def test_an_adopted_load_balancer_keeps_name_and_label_with_another_service(
    harness: HcloudHarness,
) -> None:
    settled(harness)
    former, heir = service("uid-1", name="theirs"), service("uid-2", name="theirs")
    await ensured(harness.balancer, former, [])

    await harness.balancer.transfer_load_balancer(CLUSTER, former, heir)
    await ensured(harness.balancer, heir, [])

    (listed,) = await harness.balancer.list_load_balancers(CLUSTER)
    assert (listed.name, listed.adopted) == ("theirs", True)


@pytest.mark.row("hcloud-balancer-06")
async def test_an_adopted_load_balancer_is_never_renamed(harness: HcloudHarness) -> None:
    made = settled(harness, labels=OWN)
    await ensured(harness.balancer, service("uid-1", name="theirs"), [])

    await harness.in_vain(service("uid-1"), [])
    with pytest.raises(cloud.FailedPrecondition, match="theirs was adopted and is never renamed"):
        await ensured(harness.balancer, service("uid-1", name="another"), [])
    await deleted(harness.balancer, service("uid-1", name="another"))

    assert (only(harness) is made, made["name"], made["labels"]) == (True, "theirs", OWN)


@pytest.mark.row("hcloud-balancer-18", "hcloud-balancer-20")
async def test_a_load_balancer_is_renamed_by_a_changed_annotation_only(
    harness: HcloudHarness,
) -> None:
    """Its name was changed in the console, or is that of an annotation that was removed."""
    wanted, named = service("uid-1"), service("uid-1", name="mine")
    made = settled(harness, labels={UID: "uid-1"}, name="renamed")
    await ensured(harness.balancer, wanted, [])
    assert made["name"] == "renamed"
    async with harness.open() as again:
        balancer = balancer_of(again)
        (listed,) = await balancer.list_load_balancers(CLUSTER)
        assert listed.name == balancer.get_load_balancer_name(CLUSTER, wanted)
        assert listed.digest == balancer.load_balancer_digest(CLUSTER, wanted, [])
        assert listed.digest != balancer.load_balancer_digest(CLUSTER, named, [])
        assert balancer.get_load_balancer_name(CLUSTER, named) == "renamed"  # so far
        await harness.in_vain(wanted, [], project=again)

        await ensured(balancer, named, [])
        assert made["name"] == "mine"
        await harness.in_vain(wanted, [], project=again)
        await deleted(balancer, wanted)
        await ensured(balancer, wanted, [])

    assert only(harness)["name"] == "auid1"


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("place", ["fsn1", ""])
async def test_adoption_by_name_can_be_switched_off(harness: HcloudHarness, place: str) -> None:
    made = settled(harness, labels=OWN)
    variables = {
        "HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME": "false",
        "HCLOUD_LOAD_BALANCERS_LOCATION": place,
    }
    wanted = service("uid-1", name="theirs")
    async with opened(harness, **variables) as project:
        before = harness.service.writes
        with pytest.raises(cloud.FailedPrecondition) as caught:
            await ensured(balancer_of(project), wanted, [])
        await deleted(balancer_of(project), wanted)
        assert harness.service.writes == before

    assert "load balancer theirs " in str(caught.value)
    assert "HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME" in str(caught.value)
    assert made["labels"] == OWN


@pytest.mark.row("hcloud-balancer-06")
async def test_a_taken_default_name_is_not_adopted_when_adoption_is_off(
    harness: HcloudHarness,
) -> None:
    """The default name is derived from the UID."""
    async with opened(harness, HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME="false") as project:
        balancer = balancer_of(project)
        made = settled(harness, name=balancer.get_load_balancer_name(CLUSTER, service("uid-1")))
        with pytest.raises(cloud.FailedPrecondition, match="ADOPT_BY_NAME"):
            await ensured(balancer, service("uid-1"), [])

    assert made["labels"] == {}


@pytest.mark.row("hcloud-balancer-18")
@pytest.mark.parametrize("allowed", ["true", "false"])
async def test_a_load_balancer_created_for_its_service_is_deleted_with_it(
    harness: HcloudHarness, allowed: str
) -> None:
    """Created by the vendor's manager, or by a call whose answer was lost."""
    settled(harness, labels={UID: "uid-1"})
    async with opened(harness, HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME=allowed) as project:
        await ensured(balancer_of(project), service("uid-1", name="theirs"), [])
        harness.service.script.add(Fault(kind="drop", operation="POST *", count=1, applied=True))
        with pytest.raises(cloud.CloudError):
            await ensured(balancer_of(project), service("uid-2", name="ours"), [])
        harness.service.heal()
        await ensured(balancer_of(project), service("uid-2", name="ours"), [])
        assert len(harness.service.cloud.load_balancers) == 2

        for uid in ("uid-1", "uid-2"):
            await deleted(balancer_of(project), service(uid))

    assert harness.service.cloud.load_balancers == {}
