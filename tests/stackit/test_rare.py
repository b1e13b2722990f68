"""What seldom happens: answers about something else, things in between, requests without a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ccm import cloud
from ccm.testing import machine_probes
from ccm.testing.contract_balancers import deleted, ensured
from ccm.testing.fake_faults import Fault
from ccm.testing.network_probes import CLUSTER
from providers.stackit import auth, machine_specs
from providers.stackit.testing import balancers as fake_balancers
from providers.stackit.testing.server import PROJECT
from tests.stackit.balancing import METRICS, NAME, balancer_of, service
from tests.stackit.harness import StackitHarness
from tests.stackit.test_machines import SERVER, of

ONE = "GET /v2/projects/{projectId}/regions/{region}/load-balancers/{name}"


@pytest.mark.row("stackit-machine-13")
async def test_a_creation_that_was_cut_short_is_finished(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness)
    request = group.request(group.identity(), user_data=machine_probes.USER_DATA)

    first = await group.driver.create_machine(request)
    again = await group.driver.create_machine(request)

    assert (again.provider_id, harness.service.writes) == (first.provider_id, 1)
    (held,) = harness.service.cloud.servers.values()
    held.update(status="DELETING", createdAt="some day")
    with pytest.raises(cloud.RetryAfter):
        await group.driver.create_machine(request)
    assert [one.created for one in await group.listed()] == [None]
    assert harness.service.writes == 1


@pytest.mark.row("stackit-node-01", "stackit-machine-15")
async def test_an_answer_about_another_server(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    """Whatever stands between us and the API: it is no word about ours."""
    group = of(project, harness)
    made = await group.create(who := group.identity())
    ((number, held),) = harness.service.cloud.servers.items()
    instances: Any = project.instances
    held["status"] = "DELETED"
    await instances._api.wait_until_server_deleted(PROJECT, "eu01", number)

    held["id"] = SERVER
    with pytest.raises(cloud.Unknown, match=SERVER):
        await group.driver.get_machine_status(group.request(who, made.provider_id))
    with pytest.raises(cloud.Unknown):
        await instances._api.wait_until_server_deleted(PROJECT, "eu01", number)


@pytest.mark.row("stackit-machine-05", "stackit-machine-06")
async def test_a_machine_without_identity_has_nothing(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    group = of(project, harness)
    await group.create(who := group.identity())
    for nobody in (replace(who, uid=""), replace(who, name="n" * 64)):
        await group.driver.delete_machine(group.request(nobody))
        with pytest.raises(cloud.NotFound):
            await group.driver.get_machine_status(group.request(nobody))

    assert len(await harness.vms()) == 1


@pytest.mark.row("stackit-machine-02")
@pytest.mark.parametrize("field", ["cluster", "pool"])
def test_marks_that_are_no_labels(field: str) -> None:
    who = cloud.Identity(cluster="c", pool="p", name="n", uid="u")

    assert machine_specs.name_fault(who) == ""
    assert "at most 63" in machine_specs.name_fault(replace(who, **{field: "x" * 64}))


@pytest.mark.row("stackit-spec-12")
@pytest.mark.parametrize("given", [{}, {"project-id": b"mine"}])
async def test_a_secret_without_a_project(
    harness: StackitHarness, project: cloud.Cloud, given: Mapping[str, bytes]
) -> None:
    group = of(project, harness)
    key = harness.machine_credentials()["serviceaccount.json"]
    group.credentials = {"serviceaccount.json": key, **given}

    with pytest.raises(cloud.InvalidArgument, match="project-id"):
        await group.listed()


@pytest.mark.row("stackit-balancer-04")
async def test_a_load_balancer_that_was_made_meanwhile(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    balancer = balancer_of(project)
    await ensured(balancer, service(), [])
    harness.service.script.add(Fault(code="not_found", operation=ONE, count=1))
    await ensured(balancer, service(), [])
    assert len(harness.service.cloud.balancers) == 1
    await deleted(balancer, service())

    harness.service.script.add(Fault(code="conflict", operation="POST*"))
    with pytest.raises(cloud.Aborted):
        await balancer.ensure_load_balancer(CLUSTER, service(), [])


@pytest.mark.row("stackit-balancer-22")
async def test_an_answer_about_another_load_balancer(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    await ensured(balancer_of(project), service(), [])
    harness.service.cloud.balancers[NAME]["name"] = "other"
    with pytest.raises(cloud.Unknown, match="other"):
        await balancer_of(project).get_load_balancer(CLUSTER, service())


@pytest.mark.row("stackit-balancer-17")
async def test_credentials_of_somebody_else_stay(harness: StackitHarness) -> None:
    world = harness.service.cloud
    said = {"displayName": "theirs", "username": "x", "password": "y"}
    fake_balancers.create_credentials(world, said)
    harness.variables = METRICS
    async with harness.open() as project:
        await ensured(balancer_of(project), service(), [])
        await deleted(balancer_of(project), service())

    assert [one["displayName"] for one in world.credentials.values()] == ["theirs"]


@pytest.mark.row("stackit-balancer-17")
async def test_credentials_that_somebody_deleted_are_made_anew(harness: StackitHarness) -> None:
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
async def test_who_has_no_other_token_says_so(harness: StackitHarness) -> None:
    """One that was renewed meanwhile is another; without credentials there is none."""
    async with auth.open_key_flow(
        auth.Key(harness.service.account.key), f"{harness.url}/token"
    ) as flow:
        header = await flow.header()
        assert (flow.refused("Bearer an-older-one"), flow.refused(header)) == (True, False)
    harness.variables = {"STACKIT_NO_AUTH": "true"}
    async with harness.open() as project:
        assert project.inventory is not None
        with pytest.raises(cloud.Unauthenticated):
            await project.inventory.list_instances()
    assert harness.service.account.issued == 1
