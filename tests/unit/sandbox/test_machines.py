"""The Machines that a sandbox makes, and the nodes that they become."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ccm.gardener.kinds import MACHINE_CLASSES, MACHINES
from ccm.gardener.types import Machine
from ccm.kube.resources import SECRETS
from ccm.sandbox import machines
from providers.sim import machine_specs
from tests.unit.controllers.memory_server import MemoryServer

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.mark.virtual_time
async def test_what_is_made_is_served_and_made_once() -> None:
    server = MemoryServer()
    client = server.client()
    await machines.define(client)
    await machines.define(client)

    for _ in range(2):
        await machines.create(client, 3, machines.simulated("http://x:1", "t"))

    found = (await client.resource(MACHINES).list_page(namespace="default")).items
    assert [one.key for one in found] == machines.keys(3)
    assert {one.spec.class_.name for one in found} == {machines.CLASS}
    (made_of,) = (await client.resource(MACHINE_CLASSES).list_page(namespace="default")).items
    (secret,) = (await client.resource(SECRETS).list_page(namespace="default")).items
    assert list(machine_specs.problems(made_of.spec, secret.data or {})) == []


@pytest.mark.virtual_time
async def test_those_that_do_not_go_are_named() -> None:
    server = MemoryServer()
    client = server.client()
    await machines.define(client)
    await machines.create(client, 2, machines.simulated("http://x:1", "t"))
    path = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines/machine-0002"
    server.patch(path, {"metadata": {"finalizers": ["x/held"]}})

    assert await machines.remove(client) == ["machine-0002"]
    server.patch(path, {"metadata": {"finalizers": []}})
    assert await machines.remove(client) == []


def test_a_vm_that_is_there_is_a_node() -> None:
    def one(name: str, **spec: Any) -> Machine:
        labels = {"node": f"node-{name}"} if spec else {}
        return msgspec.convert(
            {"metadata": {"name": name, "labels": labels}, "spec": spec}, Machine
        )

    every = [one("a"), one("b", providerID="x://b")]

    assert machines.nodes(every) == {"node-b": "x://b"}
