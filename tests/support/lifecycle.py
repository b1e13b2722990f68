"""The controller of node life cycles in virtual time, without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ccm.cloud.calls.handle import Handle
from ccm.cloud.lookup import InstanceLookup, NodeOwnership
from ccm.controllers.nodelifecycle.controller import NodeLifecycleController
from ccm.controllers.nodelifecycle.plan import Rules
from ccm.model import Node
from ccm.runtime.deletions import DeletionRecord, Holds
from ccm.testing.builders import node as build
from tests.support.cluster import Cluster
from tests.support.configmap import Api
from tests.support.fakecloud import FakeCloud


def silent(name: str) -> Node:
    return build(name, provider_id=f"fake://{name}", uid=f"uid-{name}", ready="Unknown")


def ready(name: str) -> Node:
    return build(name, provider_id=f"fake://{name}", uid=f"uid-{name}", ready="True")


@asynccontextmanager
async def running(fake: FakeCloud, **rules: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster()
    rules = {"ownership": NodeOwnership(schemes=("fake",)), "allow_mass": True, **rules}
    made = NodeLifecycleController(
        nodes=cluster.informer,
        api=cluster,
        lookup=InstanceLookup(Handle(fake.cloud())),
        slots=DeletionRecord(Api(), namespace="kube-system", owner="lease"),
        holds=Holds("Node", cluster),
        events=cluster,
        rules=Rules(**rules),
        workers=4,
    )
    async with cluster.running(made.controller):
        yield cluster
