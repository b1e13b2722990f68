"""The periodic pass over the addresses of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ccm.cloud import InstanceMetadata, NotFound, Unavailable, address
from ccm.model import Node, NodeAddress
from tests.conformance.environment import V4, NodeEnvironment, cloud, row
from tests.support.fakecloud import FakeCloud

V6 = address("InternalIP", "fd00::1")
EXTERNAL = address("ExternalIP", "192.0.2.1")
OTHER = address("ExternalIP", "192.0.2.2")
HOST = address("Hostname", "n")


@pytest.mark.parametrize(
    ("before", "addresses", "after"),
    [
        row("node-more-09", [HOST, V4], [V4, HOST], None),
        row("node-more-10", [V4, V6], [V4, V6], None),
        row("node-more-11", [V4, V6], [V6, V4], [V6, V4]),
        row("node-more-12", [HOST, EXTERNAL], [V4], [V4, HOST], label="kubelet"),
        row("node-more-13", [HOST, V4], [], None),
        row("node-trace-08", [V4, EXTERNAL, HOST], [V4, EXTERNAL], None),
        row("node-trace-09", [V4, OTHER, HOST], [V4, EXTERNAL], [V4, EXTERNAL, HOST]),
    ],
)
async def test_address_pass_writes_only_changed_addresses(
    env: NodeEnvironment,
    before: Sequence[NodeAddress],
    addresses: Sequence[NodeAddress],
    after: Sequence[NodeAddress] | None,
) -> None:
    fake = cloud(addresses=addresses)
    made = await env.node(provider_id="fake://1", addresses=before, ready="Unknown")

    await env.node_controller(fake).update_addresses()

    assert fake.calls == ["instance-metadata-by-provider-id"]
    if after is None:
        assert await env.present() == made
        assert env.calls() == []
        return
    assert list((await env.present()).addresses) == after
    assert await env.trace() == ["PATCH nodes/node0/status 200"]
    entries = [{"type": entry.type, "address": entry.address} for entry in after]
    version = {"resourceVersion": made.resource_version}
    status = {"addresses": [*entries, {"$patch": "replace"}]}
    assert env.bodies() == [{"metadata": version, "status": status}]


@pytest.mark.row("node-more-14")
async def test_address_pass_asks_by_provider_id_and_then_by_name(env: NodeEnvironment) -> None:
    class Named(FakeCloud):
        async def node_addresses_by_provider_id(self, provider_id: str) -> Sequence[NodeAddress]:
            await super().node_addresses_by_provider_id(provider_id)
            raise NotFound("no such ID")

    fake = Named(v2=False, addresses=[V4])
    await env.node(provider_id="fake://1")

    await env.node_controller(fake).update_addresses()

    assert fake.asked == [
        ("node-addresses-by-provider-id", "fake://1"),
        ("node-addresses", "node0"),
    ]
    assert list((await env.present()).addresses) == [V4]


@pytest.mark.parametrize(
    "fault",
    [
        row("node-more-15", Unavailable("down"), label="error"),
        row("node-more-15", ValueError("nonsense"), label="bug"),
        row("node-own-12", None),
    ],
)
async def test_one_nodes_error_does_not_stop_the_address_pass(
    env: NodeEnvironment, fault: Exception | None
) -> None:
    known = InstanceMetadata(provider_id="fake://2", addresses=[V4])

    def answer(node: Node) -> Any:
        if node.name == "node0" and fault is not None:
            raise fault
        return {"node0": None, "node1": "nonsense", "node2": known}[node.name]

    for number in range(3):
        await env.node(f"node{number}", provider_id=f"fake://{number}", addresses=[V6])

    await env.node_controller(cloud(metadata=answer)).update_addresses()

    assert [list((await env.present(f"node{n}")).addresses) for n in range(3)] == [[V6], [V6], [V4]]


@pytest.mark.parametrize(
    "workers", [row(f"node-pass-0{n}", each) for n, each in enumerate((1, 5, 10, 30), start=1)]
)
async def test_address_pass_asks_once_per_node_with_the_configured_workers(
    env: NodeEnvironment, workers: int
) -> None:
    class Counting(FakeCloud):
        now = 0
        peak = 0

        async def _log(self, entry: str, subject: str) -> None:
            self.now += 1
            self.peak = max(self.peak, self.now)
            await super()._log(entry, subject)
            self.now -= 1

    fake = Counting(v2=False, delay_s=0.002)
    for number in range(100):
        await env.node(f"node{number}", provider_id=f"fake://{number}")

    await env.node_controller(fake, status_workers=workers).update_addresses()

    assert len(fake.calls) == len(set(fake.asked)) == 100
    assert fake.peak == workers
    assert env.calls() == []
