"""Edge cases of the node controller in virtual time: conflicts, labels, nodes of other clouds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ccm.app.controllers import NodeCache
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import Inventory
from ccm.cloud.lookup import InstanceLookup, NodeOwnership, SharedInventory
from ccm.cloud.types import InstanceListing, InstanceMetadata, InstanceRecord, Power
from ccm.controllers.node.controller import NodeController
from ccm.kube.errors import Conflict
from ccm.model import names
from ccm.runtime.controller import DONE
from ccm.testing.builders import node as build
from ccm.testing.builders import uninitialized_taint
from ccm.testing.clock import advance
from tests.support.cluster import Cluster, moved
from tests.support.fakecloud import FakeCloud

pytestmark = pytest.mark.virtual_time

U = uninitialized_taint()


def controller(cluster: Cluster, fake: FakeCloud, node_selector: str = "") -> NodeController:
    return NodeController(
        nodes=cluster.informer,
        api=cluster,
        lookup=InstanceLookup(CloudClient(fake.cloud())),
        ownership=NodeOwnership.from_flag(("fake",), node_selector),
        events=cluster,
        status_period_s=1e9,
        rng=random.Random(1),
    )


def cloud(**script: Any) -> FakeCloud:
    return FakeCloud(**{"provider_ids": {"node0": "fake://1"}, **script})


async def test_sync_ends_when_the_node_was_deleted_after_a_conflict() -> None:
    cluster = Cluster(build(taints=[U]))

    def vanish() -> Conflict:
        cluster.drop("node0")
        return moved()

    cluster.refuse = vanish
    result = await controller(cluster, cloud()).sync_node("node0")

    assert (result, cluster.requests) == (DONE, ["PATCH", "GET"])


@pytest.mark.parametrize(
    ("node", "known", "node_selector", "touched"),
    [
        ({}, False, "", False),
        ({}, True, "", True),
        ({}, False, "beta.kubernetes.io/instance-type", True),
        ({"provider_id": "fake://1"}, False, "", True),
        ({"provider_id": "other://1"}, True, "", False),
        ({"provider_id": "fake://1"}, True, "elsewhere", False),
    ],
)
async def test_labels_are_reconciled_only_on_managed_nodes(
    node: dict[str, str], known: bool, node_selector: str, touched: bool
) -> None:
    """A node without provider ID and taint is managed only if the cloud has its instance."""
    labels = {names.LABEL_INSTANCE_TYPE_BETA: "x"}
    cluster = Cluster(build(labels=labels, **node))  # type: ignore[arg-type]
    fake = cloud(metadata=lambda _: InstanceMetadata() if known else None)

    async with cluster.running(controller(cluster, fake, node_selector).controller):
        await advance(60)

    assert cluster.requests == (["PATCH"] if touched else [])


async def test_unselected_node_causes_no_cloud_call_and_no_patch() -> None:
    """Taint and labels of a node outside the selector stay: another controller manages the node."""
    labels = {names.LABEL_ZONE_BETA: "z1"}
    cluster = Cluster(build("new", taints=[U]), build("old", labels=labels))
    fake = cloud()
    made = controller(cluster, fake, node_selector="own")

    for name in ("new", "old"):
        assert await made.sync_node(name) == DONE
    await made.update_addresses()

    assert (fake.calls, cluster.requests) == ([], [])


@pytest.mark.parametrize("size", [500, 2000])
async def test_cloud_calls_of_new_nodes_do_not_grow_with_their_number(size: int) -> None:
    """All nodes register within 100 s, and each is initialised at once."""
    ids = {str(number): f"fake://{number}" for number in range(size)}
    records = [
        InstanceRecord(name=name, power=Power.RUNNING, metadata=InstanceMetadata(provider_id=id_))
        for name, id_ in ids.items()
    ]
    listing = InstanceListing(instances=records, requests=size // 50)
    fake = FakeCloud(v1=False, listing=listing, provider_ids=ids, delay_s=1.0)
    client, cluster = CloudClient(fake.cloud()), Cluster()
    inventory = SharedInventory(
        lambda: client.call(Inventory.list_instances), population=lambda: size, max_age_s=4.0
    )
    NodeCache(cluster.informer).on_node(inventory.on_node_event, name="inventory")
    made = NodeController(
        nodes=cluster.informer,
        api=cluster,
        lookup=InstanceLookup(client, inventory),
        ownership=NodeOwnership.from_flag(("fake",), ""),
        events=cluster,
        workers=64,
        status_period_s=1e9,
        rng=random.Random(1),
    )
    async with cluster.running(made.controller):
        for name in ids:
            cluster.put(build(name, taints=[U]))
            await advance(100 / size)
        await advance(60)

    assert {name: cluster[name].provider_id for name in ids} == ids
    listings = fake.calls.count("list-instances")
    assert listings * listing.requests <= 1.6 * 100, "a constant rate in the 100 s"
    singles = fake.calls.count("instance-metadata-by-provider-id")
    assert singles <= size // 50, "until the first listing, nodes seem to be few"
    assert cluster.requests == ["PATCH"] * size
