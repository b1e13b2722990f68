"""Manifest of the cloud node controller."""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ccm.base.flags import FlagSection, at_least_one, positive, zero_or_more
from ccm.runtime.manifest import (
    MISC,
    ControllerContext,
    Manifest,
    NodeSelectorFlags,
    missing_instances,
)

if TYPE_CHECKING:
    from ccm.runtime.controller import Controller

NAME = "cloud-node-controller"
_SECTION = FlagSection(NAME)


@dataclass(frozen=True, kw_only=True)
class NodeFlags(NodeSelectorFlags):
    """Flags of the cloud node controller."""

    # Deviation: see the flag's text.
    concurrent_node_syncs: int = _SECTION.flag(
        32,
        "Nodes that are initialised concurrently. The Go implementation's default is 1; here one "
        "slow response must not delay the other nodes, and requests to the API server and the "
        "cloud have limits of their own.",
        unit="nodes",
        check=at_least_one,
        path="NodeController.ConcurrentNodeSyncs",
    )
    concurrent_node_status_updates: int = _SECTION.flag(
        0,
        "Nodes whose addresses are updated concurrently. 0 means the value of "
        "--concurrent-node-syncs.",
        unit="nodes",
        check=zero_or_more("the value of --concurrent-node-syncs"),
        path="NodeController.ConcurrentNodeStatusUpdates",
    )
    node_status_update_frequency: timedelta = MISC.flag(
        timedelta(minutes=5),
        "Time between two passes that update the addresses of all nodes.",
        check=positive,
        path="NodeStatusUpdateFrequency",
    )

    @property
    def node_status_workers(self) -> int:
        """`concurrent_node_status_updates`; if that is 0, `concurrent_node_syncs`."""
        return self.concurrent_node_status_updates or self.concurrent_node_syncs


def _build(context: ControllerContext, flags: NodeFlags) -> Controller:
    from ccm.cloud.lookup import InstanceLookup, NodeOwnership
    from ccm.controllers.node.controller import NodeController
    from ccm.kube.resources import NODES
    from ccm.model.names import COMPONENT_NODE
    from ccm.model.node import is_uninitialized
    from ccm.runtime.object_status import ControllerFacts, foreign_reason

    nodes = context.informers.informer_for(NODES)
    ownership = NodeOwnership.for_cloud(context.cloud_client.cloud, flags.node_selector)
    controller = NodeController(
        nodes=nodes,
        api=context.client(MANIFEST.client).resource(NODES),
        lookup=InstanceLookup(context.cloud_client, context.inventory),
        ownership=ownership,
        events=context.recorder(COMPONENT_NODE),
        workers=flags.concurrent_node_syncs,
        status_workers=flags.node_status_workers,
        status_period_s=flags.node_status_update_frequency.total_seconds(),
    ).controller

    def facts(name: str) -> ControllerFacts:
        node = nodes.store.get(name)
        if node is None:
            return ControllerFacts()
        is_new = is_uninitialized(node)
        return ControllerFacts(
            foreign=foreign_reason(node, ownership), plan="initialise it" if is_new else ""
        )

    controller.facts_functions["node"] = facts
    return controller


MANIFEST: Manifest[NodeFlags] = Manifest(
    name=NAME,
    alias="cloud-node",
    # Both node controllers share a service account, as the API server's built-in roles expect.
    client="node-controller",
    metric="cloud-node",
    permissions=(("get", "nodes"), ("patch", "nodes"), ("patch", "nodes/status")),
    missing_interface=missing_instances,
    build=_build,
)
