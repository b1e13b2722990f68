"""Machines of a sandbox, and their nodes."""

from __future__ import annotations

import base64
import re
from typing import Any

import msgspec
import pytest

from ccm.base.tasks import cancel_and_join, spawn
from ccm.gardener import decoding
from ccm.gardener import types as documents
from ccm.gardener.codec import MACHINES
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import ResourceKind
from ccm.kubermatic import names
from ccm.kubermatic.codec import MACHINE_DEPLOYMENTS
from ccm.model.machines import Machine
from ccm.sandbox import GARDENER, KUBERMATIC, MACHINE_APIS, machineapis, machines
from ccm.testing.clock import advance
from tests.unit.controllers.memory_server import MemoryServer

BODIES: dict[str, dict[str, Any]] = {
    GARDENER: {},
    KUBERMATIC: {"spec": {"template": {}, "selector": {}}},
}
"""What else an object needs."""


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", MACHINE_APIS)
async def test_removal_returns_the_machines_that_remain(name: str) -> None:
    server, api = MemoryServer(), machineapis.APIS[name]
    client, codec, where = server.client(), api.codec, api.namespace
    await machines.create_crds(client, api)
    await machines.create(client, api, 2, api.simulated("t"))
    made: list[tuple[ResourceKind[Any], str]] = [
        (codec.machine_sets, "s"),
        (codec.machines, "m"),
        (codec.machines, "held"),
    ]
    for kind, title in made:
        body = {"metadata": {"name": title}, **BODIES[name]}
        await client.resource(kind).create(body, namespace=where)
    (created,) = (await client.resource(codec.machine_deployments).list_page(namespace=where)).items
    path = codec.machines.path(namespace=where, name="held")
    server.patch(path, {"metadata": {"finalizers": ["x/held"]}})

    assert (created.name, created.replicas, created.faults) == ("workers", 2, ())
    assert await machines.remove(client, api) == ["held"]
    owners: list[ResourceKind[Any]] = [codec.machine_deployments, codec.machine_sets]
    for kind in owners:
        assert not (await client.resource(kind).list_page(namespace=where)).items
    server.patch(path, {"metadata": {"finalizers": []}})
    assert await machines.remove(client, api) == []


@pytest.mark.virtual_time
@pytest.mark.row("kubermatic-sandbox-01")
async def test_user_data_have_the_revision_of_the_deployment_and_a_bootstrap_token() -> None:
    server, api = MemoryServer(), machineapis.APIS[KUBERMATIC]
    client = server.client()
    await machines.create_crds(client, api)
    await machines.create(client, api, 1, api.simulated("t"))
    deployment = MACHINE_DEPLOYMENTS.path(namespace=api.namespace, name="workers")
    secret = f"/api/v1/namespaces/{names.BOOTSTRAP_NAMESPACE}/secrets"

    def written() -> dict[str, tuple[str, bytes]]:
        return {
            one["metadata"]["name"]: (
                one["metadata"]["annotations"][names.ANNOTATION_BOOTSTRAP_REVISION],
                base64.b64decode(one["data"][names.BOOTSTRAP_KEY]),
            )
            for one in server.list(secret)
        }

    informers = SharedInformers(client)
    (writer,) = api.companions(informers, client)
    running = [spawn(one.run(), name="one") for one in (informers, writer)]
    await advance(5)
    assert written() == {}, "the deployment has no revision yet"

    found = []
    for revision in ("1", "2"):
        notes = {names.ANNOTATION_REVISION: revision}
        server.patch(deployment, {"metadata": {"annotations": notes}})
        await advance(5)
        found.append(written()["workers-kube-system-bootstrap-config"])
    for task in running:
        await cancel_and_join(task)

    (first, text), (second, same) = found
    assert (first, second, text) == ("1", "2", same)
    (token,) = [
        one
        for one in server.list("/api/v1/namespaces/kube-system/secrets")
        if one["type"] == "bootstrap.kubernetes.io/token"
    ]
    data = {key: base64.b64decode(value) for key, value in token["data"].items()}
    assert b"hostname: <MACHINE_NAME>\n" in text
    assert data["token-id"] + b"." + data["token-secret"] in text


def test_rollout_summary_shows_counts_and_bounds() -> None:
    def told(**changed: Any) -> str:
        api = machineapis.APIS[GARDENER]
        body = dict(api.deployment(4, api.simulated("t")))
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
