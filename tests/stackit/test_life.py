"""Whole lives against the documents, and no secret in any text."""

from __future__ import annotations

import pytest

from ccm import cloud
from ccm.testing import machine_probes
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import HTTPS, UDP, deleted, ensured, updated
from ccm.testing.fake_api import Exchange
from ccm.testing.probes import CLUSTER
from ccm.testing.probes import nodes as make_nodes
from providers.stackit.testing.server import IMAGE
from tests.stackit import document
from tests.stackit.balancing import EFFECTS, METRICS, service
from tests.stackit.harness import StackitHarness
from tests.support.vendor import balancer_of

WHOLE = {
    "labels": {"app/component": "a"},
    "securityGroups": ["default"],
    "userData": "#!/bin/sh",
    "bootVolume": {
        "size": 40,
        "performanceClass": "storage_premium_perf6",
        "source": {"type": "image", "id": IMAGE},
    },
    "volumes": [IMAGE],
    "keypairName": "ops",
    "availabilityZone": "eu01-2",
    "affinityGroup": IMAGE,
    "serviceAccountMails": ["a@sa.stackit.cloud"],
    "agent": {"provisioned": True},
    "metadata": {"a": "b"},
}


@pytest.mark.row("stackit-call-03")
async def test_all_calls_match_the_api_documents(
    harness: StackitHarness, seen: list[Exchange]
) -> None:
    document.load()
    harness.variables = METRICS
    async with harness.open() as project:
        assert project.inventory is not None
        nodes = await make_nodes(project, harness, 3)
        await project.inventory.list_instances()
        balancer = balancer_of(project)
        for asked, _, _ in EFFECTS:
            await ensured(balancer, asked, nodes[:2])
            await deleted(balancer, asked)
        both = build_service(ports=[service().ports[0], HTTPS, UDP])
        await ensured(balancer, both, nodes[:1])
        await updated(balancer, both, nodes)
        await ensured(balancer, build_service(ports=[HTTPS]), [])
        await ensured(balancer, build_service("other"), nodes)
        harness.service.settings.page_size = 1
        await balancer.list_load_balancers(CLUSTER)
    harness.variables = {**METRICS, "STACKIT_REMOTEWRITE_PASSWORD": "another-one"}
    async with harness.open() as project:
        await ensured(balancer_of(project), build_service("other"), nodes)
    harness.variables = {}
    async with harness.open() as project:
        await ensured(balancer_of(project), build_service("other"), nodes)
        for name in ("other", "web"):
            await deleted(balancer_of(project), build_service(name))
        machines = machine_probes.machines_of(project, harness)
        for spec in ({}, WHOLE):
            machines.spec = {**harness.machine_spec(), **spec}
            who = machines.identity()
            made = await machines.create(who)
            await machines.initialize(who, made.provider_id)
            await machines.status(who)
            await machines.list_vms()
            await machines.delete(who, made.provider_id)
        volume = {"id": IMAGE, "availabilityZone": "eu01-2", "size": 40}
        harness.service.cloud.volumes[IMAGE] = volume
        driver = machines.driver
        await driver.validate_spec(  # type: ignore[attr-defined]
            machines.spec, cloud.Credentials(harness.machine_credentials()), live=True
        )

    assert document.violations(seen) == []
    wrote = {one.operation for one in seen if one.method != "GET"}
    assert len(wrote) == 11, f"not every call that writes was tried: {sorted(wrote)}"
    assert {one.content_type for one in seen if one.request and one.path != "/token"} == {
        "application/json"
    }
    assert {one.content_type for one in seen if one.path == "/token"} == {
        "application/x-www-form-urlencoded"
    }
