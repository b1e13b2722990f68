"""The daemon takes over a settled cluster of the Go implementation without a write.

The nodes look as the Go implementation leaves them: both labels of each pair, the
addresses in its order, its taints. Events and metrics are not compared.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ccm.cloud import InstanceMetadata, address
from ccm.model import Node, NodeAddress, Taint, names
from ccm.testing.builders import shutdown_taint, uninitialized_taint
from tests.conformance.environment import NodeEnvironment
from tests.support.fakecloud import FakeCloud
from tests.waiting import eventually

PERIOD_S = 0.05
TOPOLOGY = {
    names.LABEL_ZONE_BETA: "z1",
    names.LABEL_ZONE: "z1",
    names.LABEL_REGION_BETA: "r1",
    names.LABEL_REGION: "r1",
    names.LABEL_INSTANCE_TYPE_BETA: "t1.micro",
    names.LABEL_INSTANCE_TYPE: "t1.micro",
}
KUBELET = {names.LABEL_HOSTNAME: "n", names.LABEL_OS: "linux", names.LABEL_ARCH: "amd64"}


internal = partial(address, "InternalIP")
external = partial(address, "ExternalIP")
host = partial(address, "Hostname")


SETTLED: dict[str, dict[str, Any]] = {
    # The kubelet's Hostname follows the cloud's addresses.
    "plain": {"addresses": [internal("10.0.0.1"), external("192.0.2.1"), host("plain")]},
    # Two addresses of one type: the Go implementation patched them repeatedly without effect.
    "dual": {
        "addresses": [internal("10.0.0.2"), internal("fd00::2"), host("dual")],
        "annotations": {names.ANNOTATION_PROVIDED_NODE_IP: "10.0.0.2,fd00::2"},
    },
    # Written in another order of the types before the cloud changed its order.
    "order": {"addresses": [host("order"), external("192.0.2.3"), internal("10.0.0.3")]},
    # The address that matches the node IP comes first; others of its type are removed.
    "chosen": {
        "addresses": [internal("10.0.1.4"), external("192.0.2.4"), host("chosen")],
        "annotations": {names.ANNOTATION_PROVIDED_NODE_IP: "10.0.1.4"},
    },
    # A provider label that was edited by hand, and instance types that changed in the cloud.
    "drifted": {
        "addresses": [internal("10.0.0.5"), host("drifted")],
        "labels": {**TOPOLOGY, **KUBELET, "vendor.example.com/rack": "by-hand"},
    },
    # Initialised through an interface without provider IDs.
    "nameless": {"addresses": [internal("10.0.0.6"), host("nameless")], "provider_id": ""},
    "down": {
        "addresses": [internal("10.0.0.7"), host("down")],
        "ready": "Unknown",
        "taints": [
            Taint(key="node.kubernetes.io/unreachable", effect="NoSchedule"),
            shutdown_taint(),
        ],
    },
    # Not ready, and its machine runs.
    "sick": {"addresses": [internal("10.0.0.8"), host("sick")], "ready": "False"},
    "elsewhere": {"addresses": [host("elsewhere")], "provider_id": "other://9", "ready": "False"},
}
CLOUD_ADDRESSES = {
    "plain": [internal("10.0.0.1"), external("192.0.2.1")],
    "dual": [internal("10.0.0.2"), internal("fd00::2")],
    "order": [internal("10.0.0.3"), external("192.0.2.3")],
    "chosen": [internal("10.0.0.4"), internal("10.0.1.4"), external("192.0.2.4")],
    "drifted": [internal("10.0.0.5")],
    "nameless": [internal("10.0.0.6")],
    "down": [internal("10.0.0.7")],
    "sick": [internal("10.0.0.8")],
}


class Settled(FakeCloud):
    """Both interfaces; answers by node."""

    async def instance_metadata(self, node: Node) -> InstanceMetadata:
        await super().instance_metadata(node)
        return InstanceMetadata(
            provider_id=f"fake://{node.name}",
            instance_type="t2.large",
            addresses=CLOUD_ADDRESSES[node.name],
            zone="z2",
            region="r1",
            additional_labels={"vendor.example.com/rack": "7"},
        )

    async def instance_shutdown(self, node: Node) -> bool:
        await super().instance_shutdown(node)
        return node.name == "down"

    async def node_addresses_by_provider_id(self, provider_id: str) -> list[NodeAddress]:
        await super().node_addresses_by_provider_id(provider_id)
        return CLOUD_ADDRESSES[provider_id.removeprefix("fake://") or "nameless"]

    async def instance_shutdown_by_provider_id(self, provider_id: str) -> bool:
        await super().instance_shutdown_by_provider_id(provider_id)
        return provider_id == "fake://down"


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])
@pytest.mark.row("switch-over-01")
async def test_a_settled_cluster_is_taken_over_without_a_write(
    env: NodeEnvironment, v2: bool
) -> None:
    fake = Settled(v2=v2, exists=True)
    before = {}
    for name, shape in SETTLED.items():
        usual = {"labels": {**TOPOLOGY, **KUBELET}, "provider_id": f"fake://{name}"}
        before[name] = await env.node(name, **{**usual, **shape})

    def asked(entry: str) -> int:
        return sum(call.startswith(entry) for call in fake.calls)

    async with env.running(
        env.node_controller(fake, workers=2), env.lifecycle(fake, period_s=PERIOD_S)
    ):
        addresses = "instance-metadata" if v2 else "node-addresses"
        await eventually(lambda: asked(addresses) == len(CLOUD_ADDRESSES))
        # "down" and "sick" are looked at in each pass; the third pass has begun.
        await eventually(lambda: asked("instance-exists") >= 5)

    assert await env.trace() == []
    assert {name: await env.stored(name) for name in SETTLED} == before
    assert not [subject for _, subject in fake.asked if subject in ("elsewhere", "other://9")]


@pytest.mark.row("switch-over-02")
@pytest.mark.both_servers
async def test_restart_writes_nothing(env: NodeEnvironment) -> None:
    fake = Settled(exists=True)
    shape = {**SETTLED["dual"], "addresses": [host("dual")], "taints": [uninitialized_taint()]}
    await env.node("dual", **shape)
    await env.node_controller(fake).sync_node("dual")
    settled = await env.present("dual")
    await env.cached(settled)
    written = await env.trace()
    fake.calls.clear()

    controller = env.node_controller(fake)
    async with env.running(controller, env.lifecycle(fake, period_s=PERIOD_S)):
        await eventually(lambda: fake.calls == ["instance-metadata-by-provider-id"])
        await controller.update_addresses()

    assert await env.trace() == written
    assert await env.present("dual") == settled
