"""Changes, metrics, digests and deletion of load balancers, and rare answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.testing import machine_probes
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import HTTPS, deleted, ensured, updated
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER
from providers.stackit import auth, balancer_specs, balancers, config, machines
from providers.stackit.marks import BALANCER_CLUSTER
from providers.stackit.testing import balancers as fake_balancers
from providers.stackit.testing.server import NETWORK
from tests.stackit.balancing import METRICS, NAME, OTHER_NETWORK, UID, only, service
from tests.stackit.harness import StackitHarness
from tests.stackit.test_machines import SERVER, of
from tests.support.vendor import balancer_of


@asynccontextmanager
async def opened(harness: StackitHarness, **variables: str) -> AsyncIterator[cloud.Cloud]:
    """The provider with other variables."""
    harness.variables = variables
    async with harness.open() as found:
        yield found


@pytest.mark.row("stackit-balancer-13")
@pytest.mark.parametrize(
    ("before", "after", "field", "annotation"),
    [
        ({}, {"internal_lb": "true"}, ".options.privateNetworkOnly", "internal-lb"),
        (
            {"external_address": "192.0.2.7"},
            {"external_address": "192.0.2.8"},
            ".externalAddress",
            "external-address",
        ),
        ({"external_address": "192.0.2.7"}, {}, ".options.ephemeralAddress", "external-address"),
        ({}, {"listener_network": OTHER_NETWORK}, "len(.networks)", "listener-network"),
        (
            {"listener_network": OTHER_NETWORK},
            {"listener_network": NETWORK},
            ".networks[1].networkId",
            "listener-network",
        ),
    ],
)
async def test_immutable_fields_are_refused_with_field_and_annotation(
    harness: StackitHarness,
    before: dict[str, str],
    after: dict[str, str],
    field: str,
    annotation: str,
) -> None:
    await ensured(harness.balancer, service(**before), [])
    writes = harness.service.writes

    with pytest.raises(cloud.FailedPrecondition) as caught:
        await ensured(harness.balancer, service(**after), [])

    assert field in str(caught.value)
    assert annotation in str(caught.value)
    assert harness.service.writes == writes
    await harness.in_vain(service(**before), [])


@pytest.mark.row("stackit-balancer-13")
async def test_a_changed_network_role_is_refused(harness: StackitHarness) -> None:
    await ensured(harness.balancer, service(), [])
    only(harness)["networks"][0]["role"] = "ROLE_TARGETS"
    with pytest.raises(cloud.FailedPrecondition, match=r"networks\[0\]\.role"):
        await ensured(harness.balancer, service(), [])


@pytest.mark.row("stackit-balancer-14")
async def test_an_ephemeral_address_is_promoted(harness: StackitHarness) -> None:
    status = await ensured(harness.balancer, service(), [])
    ip = status.ingress[0].ip

    await ensured(harness.balancer, service(external_address=ip), [])

    assert only(harness)["externalAddress"] == ip
    assert only(harness)["options"]["ephemeralAddress"] is False
    await harness.in_vain(service(external_address=ip), [])
    with pytest.raises(cloud.FailedPrecondition, match="ephemeralAddress"):
        await ensured(harness.balancer, service(), [])


@pytest.mark.row("stackit-balancer-15")
async def test_an_update_keeps_fields_that_no_annotation_sets(harness: StackitHarness) -> None:
    harness.extra = {"loadBalancer": {"extraLabels": {"team": "a"}}}
    check = {"interval": "3s", "healthyThreshold": 2}
    async with harness.open() as again:
        await ensured(balancer_of(again), service(), [])
        held = only(harness)
        assert held["disableTargetSecurityGroupAssignment"]
        held["disableTargetSecurityGroupAssignment"] = False
        held["labels"]["theirs"] = "x"
        held["targetPools"][0]["activeHealthCheck"] = check
        version = held["version"]

        await harness.in_vain(service(), [], project=again)
        await ensured(balancer_of(again), service(service_plan_id="p50"), [])

    assert held["planId"] == "p50"
    assert not held["disableTargetSecurityGroupAssignment"]
    assert held["labels"] == {"team": "a", "theirs": "x", "kube-ccm.cluster": CLUSTER}
    assert held["targetPools"][0]["activeHealthCheck"] == check
    assert held["version"] != version


@pytest.mark.row("stackit-balancer-15")
async def test_a_version_conflict_aborts_and_the_next_ensure_succeeds(
    harness: StackitHarness,
) -> None:
    await ensured(harness.balancer, service(), [])
    harness.service.script.add(Fault(code="conflict", operation="PUT*", count=1))

    with pytest.raises(cloud.Aborted):
        await ensured(harness.balancer, service(service_plan_id="p50"), [])
    await ensured(harness.balancer, service(service_plan_id="p50"), [])

    assert only(harness)["planId"] == "p50"


@pytest.mark.row("stackit-balancer-16")
async def test_an_update_writes_only_target_pools_that_differ(harness: StackitHarness) -> None:
    nodes = await harness.nodes(3)
    two = build_service(uid=UID, ports=[service().ports[0], HTTPS])
    await ensured(harness.balancer, two, nodes[:2])
    held = only(harness)
    held["targetPools"][1]["targets"] = [
        {"displayName": one.name, "ip": one.status.addresses[0].address}  # type: ignore[index]
        for one in nodes
    ]
    held["targetPools"][0]["activeHealthCheck"] = {"interval": "3s"}
    moving = ("version", "targetPools")
    before = deepcopy({key: value for key, value in held.items() if key not in moving})
    harness.service.log.clear()

    await updated(harness.balancer, two, nodes)
    await updated(harness.balancer, two, nodes[::-1])

    wrote = [line for line in harness.service.log if not line.startswith("GET")]
    assert [line.rpartition("/")[2] for line in wrote] == ["http"]
    assert [len(pool["targets"]) for pool in held["targetPools"]] == [3, 3]
    assert held["targetPools"][0]["activeHealthCheck"] == {"interval": "3s"}
    assert {key: held[key] for key in before} == before


@pytest.mark.row("stackit-balancer-03")
async def test_the_state_of_a_load_balancer_decides_between_wait_and_error(
    harness: StackitHarness,
) -> None:
    harness.service.settings.balancer_s = 60.0
    ensure = harness.balancer.ensure_load_balancer
    with pytest.raises(cloud.RetryAfter) as caught:
        await ensure(CLUSTER, service(), [])
    assert caught.value.seconds == balancers.RETRY_S
    held = only(harness)
    held["status"] = "STATUS_ERROR"
    held["errors"] = [
        {"type": "TYPE_FIP_NOT_FOUND", "description": "no such address"},
        {"type": "TYPE_INTERNAL", "description": "and more"},
    ]
    with pytest.raises(cloud.Aborted) as failed:
        await ensure(CLUSTER, service(), [])
    assert "[TYPE_FIP_NOT_FOUND] no such address; [TYPE_INTERNAL] and more" in str(failed.value)
    held["status"] = "STATUS_TERMINATING"
    with pytest.raises(cloud.RetryAfter):
        await ensure(CLUSTER, service(), [])
    held["status"] = "STATUS_OF_THE_FUTURE"
    with pytest.raises(cloud.RetryAfter):
        await ensure(CLUSTER, service(), [])


@pytest.mark.row("stackit-balancer-24")
async def test_an_exhausted_quota_is_raised_and_a_rate_limit_is_retried(
    harness: StackitHarness,
) -> None:
    harness.service.settings.balancers = 0
    with pytest.raises(cloud.ResourceExhausted, match="quota"):
        await harness.balancer.ensure_load_balancer(CLUSTER, service(), [])
    harness.service.script.add(Fault(code="too_many_requests", operation="POST*", count=1))
    with pytest.raises(cloud.RetryAfter):
        await harness.balancer.ensure_load_balancer(CLUSTER, service(), [])


@pytest.mark.row("stackit-balancer-02")
async def test_deletion_waits_until_the_load_balancer_is_gone(harness: StackitHarness) -> None:
    await ensured(harness.balancer, service(), [])
    harness.service.settings.balancer_removal_s = 60.0
    for _ in range(2):
        with pytest.raises(cloud.RetryAfter):
            await harness.balancer.ensure_load_balancer_deleted(CLUSTER, service())
    wrote = [line for line in harness.service.log if line.startswith("DELETE")]
    harness.service.cloud.settle(all_of_them=True)
    await deleted(harness.balancer, service())

    assert (len(wrote), harness.service.cloud.balancers) == (1, {})


@pytest.mark.row("stackit-balancer-05")
async def test_a_load_balancer_of_a_copied_cluster_is_left_alone(harness: StackitHarness) -> None:
    """UIDs and names are the same, the cluster name differs.

    The cluster may also have been renamed. Therefore an event reports what is left.
    """
    balancer = harness.balancer
    await ensured(balancer, service(), [], cluster="other")
    before = harness.service.writes
    for ask in (balancer.ensure_load_balancer, balancer.update_load_balancer):
        with pytest.raises(cloud.FailedPrecondition, match=r"'other'.* restore --cluster-name"):
            await ask(CLUSTER, service(), [])
    with pytest.raises(cloud.FailedPrecondition, match="lacks the label"):
        await balancer.delete_load_balancer(CLUSTER, NAME)
    assert harness.events == []
    await deleted(balancer, service())

    ((about, reason, message),) = harness.events
    assert (about, reason) == ("web", balancers.KEPT)
    assert f"{NAME} was kept, because its label names cluster 'other'" in message
    assert await balancer.list_load_balancers(CLUSTER) == []
    assert harness.service.writes == before
    assert only(harness)["name"] == NAME


@pytest.mark.row("stackit-balancer-05")
async def test_a_load_balancer_without_the_label_of_the_cluster_is_not_deleted_by_name(
    harness: StackitHarness,
) -> None:
    """It may belong to another cluster of the same project."""
    balancer = harness.balancer
    await ensured(balancer, service(), [])
    (before,) = await balancer.list_load_balancers(CLUSTER)
    del only(harness)["labels"][BALANCER_CLUSTER]
    (after,) = await balancer.list_load_balancers(CLUSTER)

    assert (before.marked, after.marked) == (True, False)
    with pytest.raises(cloud.FailedPrecondition, match="may belong to another cluster; delete"):
        await balancer.delete_load_balancer(CLUSTER, NAME)
    assert only(harness)["name"] == NAME


# --- metrics ------------------------------------------------------------------------------------


def held_credentials(harness: StackitHarness) -> list[tuple[str, str, str]]:
    world = harness.service.cloud
    return [
        (one["displayName"], one["username"], world.passwords[ref])
        for ref, one in world.credentials.items()
    ]


@pytest.mark.row("stackit-balancer-17")
async def test_metrics_credentials_follow_the_settings(harness: StackitHarness) -> None:
    async with opened(harness, **METRICS) as project:
        await ensured(balancer_of(project), service(), [])
        await harness.in_vain(service(), [], project=project)
    assert held_credentials(harness) == [(NAME, "me", "hush-hush-hush")]
    metrics = only(harness)["options"]["observability"]["metrics"]
    assert metrics["pushUrl"] == "https://push.example.com"

    renewed = {**METRICS, "STACKIT_REMOTEWRITE_PASSWORD": "another-one"}
    async with opened(harness, **renewed) as project:
        await ensured(balancer_of(project), service(), [])
        await harness.in_vain(service(), [], project=project)
    assert held_credentials(harness) == [(NAME, "me", "another-one")]
    assert only(harness)["options"]["observability"]["metrics"] == metrics

    async with opened(harness) as project:
        await ensured(balancer_of(project), service(), [])
        await harness.in_vain(service(), [], project=project)
    assert held_credentials(harness) == []
    assert "observability" not in only(harness)["options"]


@pytest.mark.row("stackit-balancer-17", "stackit-balancer-04")
@pytest.mark.parametrize("what", ["ensure", "switch_off", "another_password", "delete"])
async def test_a_crash_after_any_write_leaves_no_credentials_behind(
    harness: StackitHarness, what: str
) -> None:
    variables = {
        "switch_off": {},
        "another_password": {**METRICS, "STACKIT_REMOTEWRITE_PASSWORD": "another-one"},
    }.get(what, METRICS)

    async def work(project: cloud.Cloud) -> None:
        if what == "delete":
            await deleted(balancer_of(project), service())
        else:
            await ensured(balancer_of(project), service(), [])

    for number in range(1, 6):
        if what != "ensure":
            async with opened(harness, **METRICS) as project:
                await ensured(balancer_of(project), service(), [])
        before = harness.service.writes
        await harness.lose_answer(number)
        async with opened(harness, **variables) as project:
            with suppress(cloud.CloudError):
                await work(project)
        done = harness.service.writes - before
        await harness.heal()
        async with opened(harness, **variables) as project:
            await work(project)
            assert len(held_credentials(harness)) == (what in ("ensure", "another_password"))
            assert len(harness.service.cloud.balancers) == (what != "delete")
            await deleted(balancer_of(project), service())
        assert (held_credentials(harness), harness.service.cloud.balancers) == ([], {})
        if done < number:
            return
    pytest.fail("it never came to its end")


# --- what others settled ------------------------------------------------------------------------


def settled(harness: StackitHarness, asked: cloud.Service, *targets: cloud.Node) -> dict[str, Any]:
    """A load balancer as the vendor's manager makes it: without our labels."""
    settings = config.LoadBalancer(network_id=NETWORK)
    recipe = balancer_specs.desired_spec(asked, targets, settings)
    order = dict(balancer_specs.build_order(recipe, {}, None))
    order["options"] = {**order["options"], "accessControl": {}}
    order["targetPools"] = [
        {**pool, "targets": pool["targets"][::-1]} for pool in order["targetPools"]
    ]
    return fake_balancers.create(harness.service.cloud, msgspec.to_builtins(order))


@pytest.mark.row("stackit-balancer-23")
async def test_the_listed_digest_never_matches_with_the_ip_mode_annotation(
    harness: StackitHarness,
) -> None:
    balancer = harness.balancer
    asked = service(ip_mode_proxy="true")
    await ensured(balancer, asked, [])
    (listed,) = await balancer.list_load_balancers(CLUSTER)

    assert listed.digest != balancer.load_balancer_digest(CLUSTER, asked, [])


@pytest.mark.row("stackit-balancer-23")
async def test_the_digest_covers_the_metrics_settings(harness: StackitHarness) -> None:
    async with opened(harness, **METRICS) as project:
        balancer = balancer_of(project)
        await ensured(balancer, service(), [])
        (listed,) = await balancer.list_load_balancers(CLUSTER)
        assert listed.digest == balancer.load_balancer_digest(CLUSTER, service(), [])
    async with opened(harness) as project:
        assert listed.digest != balancer_of(project).load_balancer_digest(CLUSTER, service(), [])


@pytest.mark.row("stackit-balancer-22")
async def test_a_404_with_an_empty_body_is_confirmed_before_it_counts(
    harness: StackitHarness,
) -> None:
    harness.service.settings.silent_404 = True
    balancer = harness.balancer
    assert await balancer.get_load_balancer(CLUSTER, service()) is None

    await ensured(balancer, service(), [])
    one = "GET /v2/projects/{projectId}/regions/{region}/load-balancers/{name}"
    harness.service.script.add(Fault(kind="empty", status=404, operation=one))

    assert await balancer.get_load_balancer(CLUSTER, service()) is not None
    await harness.in_vain(service(), [])
    harness.service.script.add(Fault(kind="garbage", status=404, operation=one))
    harness.service.heal()
    harness.service.script.add(Fault(kind="garbage", status=404, operation=one))
    with pytest.raises(cloud.Unknown):
        await balancer.get_load_balancer(CLUSTER, service())
    harness.service.heal()
    await deleted(balancer, service())
    assert harness.service.cloud.balancers == {}


ONE = "GET /v2/projects/{projectId}/regions/{region}/load-balancers/{name}"


@pytest.mark.row("stackit-machine-13")
async def test_repeated_machine_creation_returns_the_existing_server(
    harness: StackitHarness,
) -> None:
    group = of(harness)
    request = group.request(group.identity(), user_data=machine_probes.USER_DATA)

    first = await group.driver.create_machine(request)
    again = await group.driver.create_machine(request)

    assert (again.provider_id, harness.service.writes) == (first.provider_id, 1)
    (held,) = harness.service.cloud.servers.values()
    held.update(status="DELETING", createdAt="some day")
    with pytest.raises(cloud.RetryAfter):
        await group.driver.create_machine(request)
    assert [one.created for one in await group.list_vms()] == [None]
    assert harness.service.writes == 1


@pytest.mark.row("stackit-node-01", "stackit-machine-15")
async def test_an_answer_about_another_server_is_an_error(harness: StackitHarness) -> None:
    """Whichever proxy gave it, it proves nothing about the requested server."""
    group = of(harness)
    made = await group.create(who := group.identity())
    ((number, held),) = harness.service.cloud.servers.items()
    instances: Any = harness.project.instances
    held["status"] = "DELETED"
    await instances._api.wait_until_server_deleted(instances._place, number)

    held["id"] = SERVER
    with pytest.raises(cloud.Unknown, match=SERVER):
        await group.driver.get_machine_status(group.request(who, made.provider_id))
    with pytest.raises(cloud.Unknown):
        await instances._api.wait_until_server_deleted(instances._place, number)


@pytest.mark.row("stackit-machine-05", "stackit-machine-06")
async def test_a_machine_with_an_invalid_identity_owns_no_server(harness: StackitHarness) -> None:
    group = of(harness)
    await group.create(who := group.identity())
    for nobody in (replace(who, uid=""), replace(who, name="n" * 64)):
        await group.driver.delete_machine(group.request(nobody))
        with pytest.raises(cloud.NotFound):
            await group.driver.get_machine_status(group.request(nobody))

    assert len(await harness.vms()) == 1


@pytest.mark.row("stackit-machine-02")
@pytest.mark.parametrize("field", ["cluster", "pool"])
def test_cluster_and_pool_names_too_long_for_a_label_are_refused(field: str) -> None:
    who = cloud.Identity(cluster="c", pool="p", name="n", uid="u")

    assert machines.name_fault(who) == ""
    assert "at most 63" in machines.name_fault(replace(who, **{field: "x" * 64}))


@pytest.mark.row("stackit-spec-12")
@pytest.mark.parametrize("given", [{}, {"project-id": b"mine"}])
async def test_a_secret_without_a_valid_project_id_is_refused(
    harness: StackitHarness, given: Mapping[str, bytes]
) -> None:
    group = of(harness)
    key = harness.machine_credentials()["serviceaccount.json"]
    group.credentials = {"serviceaccount.json": key, **given}

    with pytest.raises(cloud.InvalidArgument, match="project-id"):
        await group.list_vms()


@pytest.mark.row("stackit-balancer-04")
async def test_a_creation_conflict_uses_the_existing_load_balancer(harness: StackitHarness) -> None:
    balancer = harness.balancer
    await ensured(balancer, service(), [])
    harness.service.script.add(Fault(code="not_found", operation=ONE, count=1))
    await ensured(balancer, service(), [])
    assert len(harness.service.cloud.balancers) == 1
    await deleted(balancer, service())

    harness.service.script.add(Fault(code="conflict", operation="POST*"))
    with pytest.raises(cloud.Aborted):
        await balancer.ensure_load_balancer(CLUSTER, service(), [])


@pytest.mark.row("stackit-balancer-22")
async def test_an_answer_about_another_load_balancer_is_an_error(harness: StackitHarness) -> None:
    await ensured(harness.balancer, service(), [])
    harness.service.cloud.balancers[NAME]["name"] = "other"
    with pytest.raises(cloud.Unknown, match="other"):
        await harness.balancer.get_load_balancer(CLUSTER, service())


@pytest.mark.row("stackit-balancer-17")
async def test_metrics_credentials_of_others_are_kept(harness: StackitHarness) -> None:
    world = harness.service.cloud
    said = {"displayName": "theirs", "username": "x", "password": "y"}
    fake_balancers.create_credentials(world, said)
    harness.variables = METRICS
    async with harness.open() as project:
        await ensured(balancer_of(project), service(), [])
        await deleted(balancer_of(project), service())

    assert [one["displayName"] for one in world.credentials.values()] == ["theirs"]


@pytest.mark.row("stackit-balancer-17")
async def test_deleted_metrics_credentials_are_recreated(harness: StackitHarness) -> None:
    world = harness.service.cloud
    harness.variables = METRICS
    async with harness.open() as project:
        await ensured(balancer_of(project), service(), [])
    world.credentials.clear()
    harness.variables = {**METRICS, "STACKIT_REMOTEWRITE_PASSWORD": "another-one"}
    async with harness.open() as project:
        await ensured(balancer_of(project), service(), [])

    (ref,) = world.credentials
    assert world.passwords[ref] == "another-one"
    metrics = world.balancers[NAME]["options"]["observability"]["metrics"]
    assert metrics["credentialsRef"] == ref


@pytest.mark.row("stackit-auth-03")
async def test_a_refused_token_is_retried_only_when_another_one_exists(
    harness: StackitHarness,
) -> None:
    """A token renewed in the meantime is another one; without credentials there is none."""
    async with auth.open_key_flow(
        auth.ServiceAccountKey(harness.service.account.key), f"{harness.url}/token"
    ) as flow:
        header = await flow.header()
        assert (flow.refused("Bearer an-older-one"), flow.refused(header)) == (True, False)
    harness.variables = {"STACKIT_NO_AUTH": "true"}
    async with harness.open() as project:
        assert project.inventory is not None
        with pytest.raises(cloud.Unauthenticated):
            await project.inventory.list_instances()
    assert harness.service.account.issued == 1
