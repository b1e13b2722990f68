"""Names, flags and rights of the node lifecycle controller, and how it is made."""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ccm.base import flag_checks as checks
from ccm.base.flags import Section
from ccm.runtime.manifest import GENERIC, ControllerContext, Manifest, lacks_instances

if TYPE_CHECKING:
    from ccm.runtime.controller import Controller

NAME = "cloud-node-lifecycle-controller"
_SECTION = Section(NAME)
_DELETIONS = Section("deletion of nodes", ours=True)


@dataclass(frozen=True, kw_only=True)
class NodeLifecycleFlags:
    """The flags of this controller."""

    # Deviation: the reference asks about one node after the other, so one slow answer
    # of the cloud holds up the deletion of all nodes behind it.
    concurrent_node_lifecycle_syncs: int = _SECTION.flag(
        16,
        "Nodes that are looked up in the cloud at the same time. The reference's default is 1; "
        "here one slow answer must not hold up the other nodes.",
        unit="nodes",
        check=checks.at_least_one,
    )
    node_monitor_period: timedelta = GENERIC.flag(
        timedelta(seconds=5),
        "Time between two passes that ask the cloud about nodes that are not ready.",
        check=checks.positive,
        path="KubeCloudShared.NodeMonitorPeriod",
    )
    node_deletion_least_age: timedelta = _DELETIONS.flag(
        timedelta(0),
        "A node younger than this is not deleted, though the cloud does not know its instance: it "
        "may not know it yet. 0 means that any node may be deleted.",
        check=checks.not_negative,
    )
    node_deletion_limit: int = _DELETIONS.flag(
        0,
        "Most nodes that are deleted within ten minutes; the others are held meanwhile, and looked "
        "at again in each pass. A brake for the day when the cloud denies every instance. 0 means "
        "no limit.",
        unit="nodes",
        check=checks.zero_or_more("no limit"),
    )


def _build(context: ControllerContext, flags: NodeLifecycleFlags) -> Controller:
    from ccm.cloud.lookup import InstanceLookup
    from ccm.controllers.nodelifecycle.controller import NodeLifecycleController, Settings
    from ccm.controllers.nodelifecycle.metrics import observe_call
    from ccm.controllers.nodelifecycle.plan import Protection
    from ccm.kube.resources import NODES
    from ccm.model.names import COMPONENT_NODE_LIFECYCLE

    return NodeLifecycleController(
        nodes=context.informers.of(NODES),
        api=context.client(MANIFEST.client).resource(NODES),
        lookup=InstanceLookup(context.handle.observe(observe_call), context.inventory),
        schemes=tuple(context.handle.cloud.provider_schemes),
        events=context.recorder(COMPONENT_NODE_LIFECYCLE),
        settings=Settings(
            workers=flags.concurrent_node_lifecycle_syncs,
            period_s=flags.node_monitor_period.total_seconds(),
            protection=Protection(
                least_age_s=flags.node_deletion_least_age.total_seconds(),
                most_deletions=flags.node_deletion_limit,
            ),
        ),
    ).controller


MANIFEST: Manifest[NodeLifecycleFlags] = Manifest(
    name=NAME,
    alias="cloud-node-lifecycle",
    # One service account for both node controllers, as the API server's built-in roles expect.
    client="node-controller",
    metric="cloud-node-lifecycle",
    acts=(("get", "nodes"), ("patch", "nodes"), ("delete", "nodes")),
    lacks=lacks_instances,
    build=_build,
)
