"""A node from its registration until it is settled, and then the quiet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ccm.model import names
from providers.sim import world
from tests.scenario import harness, nodes
from tests.scenario.harness import Environment, wait_for


@pytest.mark.both_servers
async def test_one_node_end_to_end(env: Environment) -> None:
    """A new node gets provider ID, labels, addresses and loses its taint, in two writes."""
    machine = env.machine(
        "alpha",
        type="large",
        zone="sim-1b",
        labels={"rack": "r7"},
        addresses=(
            world.Address(kind="private", value="10.1.2.3"),
            world.Address(kind="public", value="203.0.113.5"),
        ),
    )
    await env.start_leading(program=Path(sys.executable).parent / "cloud-controller-manager")

    await env.cluster.register("alpha")
    (node,) = await env.cluster.initialised("alpha")

    assert node["spec"]["providerID"] == f"sim://{machine.id}"
    labels = node["metadata"]["labels"]
    assert labels[names.LABEL_INSTANCE_TYPE] == labels[names.LABEL_INSTANCE_TYPE_BETA] == "large"
    assert labels[names.LABEL_ZONE] == labels[names.LABEL_ZONE_BETA] == "sim-1b"
    assert labels[names.LABEL_REGION] == labels[names.LABEL_REGION_BETA] == "sim-1"
    assert labels["rack"] == "r7"
    assert nodes.addresses(node) == {
        names.ADDRESS_INTERNAL_IP: "10.1.2.3",
        names.ADDRESS_EXTERNAL_IP: "203.0.113.5",
        names.ADDRESS_HOSTNAME: "alpha",
    }
    (event,) = await wait_for(
        lambda: env.cluster.events("alpha", names.REASON_SYNCED), "an event Synced"
    )
    assert event["type"] == names.NORMAL
    assert event["source"]["component"] == names.COMPONENT_NODE
    written = env.proxy.requests(harness.NODE_WRITE)
    assert [(one.method, one.path) for one in written] == [
        ("PATCH", f"{harness.NODES}/alpha/status"),
        ("PATCH", f"{harness.NODES}/alpha"),
    ]
