"""The periodic pass over the addresses of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ccm.cloud import NotFound, Unavailable, address
from ccm.model import NodeAddress
from ccm.testing.fakes import FakeCloud
from tests.conformance.stage import Stage

V4 = address("InternalIP", "10.0.0.1")
V6 = address("InternalIP", "fd00::1")
EXTERNAL = address("ExternalIP", "192.0.2.1")
HOST = address("Hostname", "n")


def cloud(**script: Any) -> FakeCloud:
    return FakeCloud(**{"provider_ids": {"node0": "fake://1"}, "addresses": [V4], **script})


@pytest.mark.parametrize(
    ("before", "cloud_addresses", "after"),
    [
        pytest.param([HOST, V4], [V4, HOST], None, marks=pytest.mark.row("node-more-09")),
        pytest.param([V4, V6], [V4, V6], None, marks=pytest.mark.row("node-more-10")),
        pytest.param([V4, V6], [V6, V4], [V6, V4], marks=pytest.mark.row("node-more-11")),
        pytest.param(
            [HOST, EXTERNAL], [V4], [V4, HOST], marks=pytest.mark.row("node-more-12"), id="kubelet"
        ),
        pytest.param([HOST, V4], [], None, marks=pytest.mark.row("node-more-13"), id="silent"),
    ],
)
async def test_the_address_pass(
    stage: Stage,
    before: Sequence[NodeAddress],
    cloud_addresses: Sequence[NodeAddress],
    after: Sequence[NodeAddress] | None,
) -> None:
    fake = cloud(addresses=cloud_addresses)
    made = await stage.node(provider_id="fake://1", addresses=before, ready="Unknown")

    await stage.node_controller(fake).update_addresses()

    assert fake.calls == ["instance-metadata-by-provider-id"]
    if after is None:
        assert await stage.present() == made
        assert stage.calls() == []
    else:
        assert list((await stage.present()).addresses) == list(after)
        assert stage.bodies() == [
            {
                "metadata": {"resourceVersion": made.resource_version},
                "status": {
                    "addresses": [
                        *({"type": entry.type, "address": entry.address} for entry in after),
                        {"$patch": "replace"},
                    ]
                },
            }
        ]


@pytest.mark.row("node-more-14")
async def test_the_address_pass_asks_by_provider_id_then_by_name(stage: Stage) -> None:
    class Named(FakeCloud):
        async def node_addresses_by_provider_id(self, provider_id: str) -> Sequence[NodeAddress]:
            await super().node_addresses_by_provider_id(provider_id)
            raise NotFound("no such ID")

    fake = Named(v2=False, addresses=[V4])
    await stage.node(provider_id="fake://1")

    await stage.node_controller(fake).update_addresses()

    assert fake.asked == [
        ("node-addresses-by-provider-id", "fake://1"),
        ("node-addresses", "node0"),
    ]
    assert list((await stage.present()).addresses) == [V4]


@pytest.mark.parametrize("fault", [Unavailable("down"), ValueError("nonsense")])
@pytest.mark.row("node-more-15")
async def test_one_nodes_error_does_not_stop_the_address_pass(
    stage: Stage, fault: Exception
) -> None:
    def answer(node: Any) -> Any:
        if node.name == "node0":
            raise fault
        return "nonsense" if node.name == "node1" else cloud_metadata

    from ccm.cloud import InstanceMetadata

    cloud_metadata = InstanceMetadata(provider_id="fake://2", addresses=[V4])
    for number in range(3):
        await stage.node(f"node{number}", provider_id=f"fake://{number}")

    await stage.node_controller(cloud(metadata=answer)).update_addresses()

    assert [list((await stage.present(f"node{n}")).addresses) for n in range(3)] == [[], [], [V4]]


@pytest.mark.parametrize(
    ("workers", "name"),
    [
        pytest.param(workers, f"node-pass-0{number}", marks=pytest.mark.row(f"node-pass-0{number}"))
        for number, workers in enumerate((1, 5, 10, 30), start=1)
    ],
)
async def test_the_address_pass_asks_once_about_each_node(
    stage: Stage, workers: int, name: str
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
        await stage.node(f"node{number}", provider_id=f"fake://{number}")

    await stage.node_controller(fake, status_workers=workers).update_addresses()

    assert len(fake.calls) == len(set(fake.asked)) == 100
    assert fake.peak == workers
    assert stage.calls() == []
