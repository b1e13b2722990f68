"""Machines whose objects are in one cluster and whose nodes are in another, or nowhere."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.cloud import Cloud
from ccm.cloud.calls.handle import Handle
from ccm.controllers.machine.controller import MachineController
from ccm.gardener import names
from ccm.gardener.codec import CODEC, MACHINES
from ccm.kube.informer import Informers
from ccm.kube.resources import CRDS
from ccm.machines.caches import Caches, Target
from ccm.machines.crdguard import CRDGuard
from ccm.machines.driver import Shared
from ccm.machines.settings import Settings
from ccm.testing.clock import advance
from tests.unit.controllers import machines
from tests.unit.controllers.machines import NODES_PATH, TOKENS, FakeDrains
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time

NAMESPACES = "/api/v1/namespaces"


class Two:
    """A control cluster with its machines, and another one that they may join."""

    def __init__(self, *, has_target: bool = True, cluster: str = "") -> None:
        self.control = machines.World(has_target=has_target)
        self.target = machines.World()
        self.target.server = MemoryServer()
        self.control.ready_class()
        self.cluster, self.driver = cluster, self.control.driver
        self.caches: list[Informers] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Caches]:
        """The machine controller at work, by itself."""
        clients = [each.server.client() for each in (self.control, self.target)]
        caches = self.caches = [Informers(each) for each in clients]
        found = Caches(
            codec=CODEC,
            informers=caches[0],
            client=clients[0],
            namespace="default",
            settings=Settings(names=CODEC.names, cluster=self.cluster, **self.control.rules),
            providers=lambda: (),
            target=Target(informers=caches[1], client=clients[1]),
        )
        cloud = Cloud(name="fake", machines=self.driver, has_cluster_id=True)
        shared = Shared.of(found, Handle(cloud))

        async def work() -> None:
            async with Group() as group:
                for each in caches:
                    group.start(each.run(), name="informers")
                await found.ready()
                made = MachineController(
                    shared=shared,
                    guard=CRDGuard(MACHINES, clients[0].resource(CRDS), self.control),
                    drains=FakeDrains(),
                    events=self.control,
                    turns=5,
                    rng=random.Random(0),
                )
                await made.controller.run()

        task = spawn(work(), name="work")
        try:
            await advance(1)
            yield found
            assert not task.done(), task
        finally:
            await cancel_and_join(task)


def uid(server: MemoryServer, namespace: str) -> str:
    return str((server.get(f"{NAMESPACES}/{namespace}") or {})["metadata"]["uid"])


@pytest.mark.row("machine-cluster-04", "machine-cluster-05")
async def test_machines_here_and_nodes_there() -> None:
    two = Two()
    two.control.machine()
    async with two.running():
        assert two.control.phase() == "Pending"
        assert len(two.target.server.list(TOKENS)) == 1
        (vm,) = two.driver.vms.values()
        assert vm.identity.cluster == uid(two.target.server, "kube-system")
        assert vm.identity.cluster != uid(two.control.server, "kube-system")
        two.control.node()  # of that name, in the wrong cluster
        await advance(10)
        assert two.control.phase() == "Pending"
        two.target.node(providerID="fake:///0")
        await advance(1)

    assert two.control.phase() == "Running"
    assert names.FINALIZER_NODE in two.target.node_object()["metadata"]["finalizers"]
    assert two.target.server.list(TOKENS) == two.control.server.list(TOKENS) == []
    asked = {path for _, path in two.control.server.requests}
    assert not any(NODES_PATH in path or "kube-system" in path for path in asked)
    assert {one.resource for one in two.caches[1].all} == {"nodes"}


@pytest.mark.row("machine-cluster-01", "machine-cluster-05")
async def test_without_a_cluster_to_join_nobody_is_asked_for_nodes() -> None:
    two = Two(has_target=False)
    two.control.machine()
    async with two.running() as world:
        assert two.control.phase() == "Available"
        (vm,) = two.driver.vms.values()
        assert vm.identity.cluster == uid(two.control.server, "default")
        assert (world.nodes.has_synced, list(world.nodes.store.list())) == (True, [])
        two.control.server.drop(f"{machines.BASE}/machines/m0")
        await advance(1)

    assert (two.control.get(), two.driver.vms) == ({}, {})
    assert two.target.server.requests.total() == 0
    followed = [{one.resource for one in each.all} for each in two.caches]
    assert followed == [{"machines", "machineclasses", "secrets"}, set()]


@pytest.mark.row("machine-cluster-05")
async def test_a_marker_that_is_given_is_not_asked_for() -> None:
    two = Two(cluster="ours")
    two.control.machine()
    async with two.running():
        (vm,) = two.driver.vms.values()

    assert vm.identity.cluster == "ours"
    assert not any(
        path.startswith(NAMESPACES + "/kube-system") and "secrets" not in path
        for _, path in two.target.server.requests
    )
