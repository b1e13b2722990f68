"""Machines of a sandbox, and their nodes."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from ccm.gardener import decoding
from ccm.gardener import types as documents
from ccm.gardener.codec import MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES
from ccm.kube.resources import ResourceKind
from ccm.model.machines import Machine
from ccm.sandbox import machines
from tests.unit.controllers.memory_server import MemoryServer

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.mark.virtual_time
async def test_removal_returns_the_machines_that_remain() -> None:
    server = MemoryServer()
    client = server.client()
    await machines.create_crds(client)
    await machines.create(client, 2, machines.simulated("t"))
    made: list[tuple[ResourceKind[Any], str]] = [
        (MACHINE_SETS, "s"),
        (MACHINES, "m"),
        (MACHINES, "held"),
    ]
    for kind, name in made:
        await client.resource(kind).create({"metadata": {"name": name}}, namespace="default")
    path = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines/held"
    server.patch(path, {"metadata": {"finalizers": ["x/held"]}})

    assert await machines.remove(client) == ["held"]
    assert not (await client.resource(MACHINE_DEPLOYMENTS).list_page(namespace="default")).items
    assert not (await client.resource(MACHINE_SETS).list_page(namespace="default")).items
    server.patch(path, {"metadata": {"finalizers": []}})
    assert await machines.remove(client) == []


def test_rollout_summary_shows_counts_and_bounds() -> None:
    def told(**changed: Any) -> str:
        body = dict(machines.deployment(4, machines.CLASS))
        body["status"] = {"replicas": 5, "updatedReplicas": 2, "availableReplicas": 3}
        body["spec"] = {**body["spec"], **changed}
        return machines.rollout_summary(
            decoding.machine_deployment(msgspec.convert(body, documents.MachineDeployment))
        )

    now = "workers: 5 machines (at most 5), 2 of 4 new, 3 available (at least 3)"
    assert (told(), told(paused=True)) == (now, f"{now}, paused")
    assert re.match("workers: .*selector", told(selector={})), "the summary shows the error"


def test_machine_with_a_vm_becomes_a_node() -> None:
    def one(name: str, **spec: Any) -> Machine:
        labels = {"node": f"node-{name}"} if spec else {}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        return MACHINES.decode(msgspec.json.encode(body))

    every = [one("a"), one("b", providerID="x://b")]

    assert machines.provider_ids_by_node(every) == {"node-b": "x://b"}
