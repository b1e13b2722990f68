"""Manifest of the cloud node lifecycle controller."""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ccm.base.flags import (
    LIMIT,
    FlagSection,
    at_least_one,
    not_negative,
    one_of,
    positive,
    zero_or_more,
)
from ccm.runtime.manifest import (
    GENERIC,
    ControllerContext,
    Manifest,
    MassDeletionFlags,
    NodeSelectorFlags,
    missing_instances,
)

if TYPE_CHECKING:
    from ccm.runtime.controller import Controller

NAME = "cloud-node-lifecycle-controller"
_SECTION = FlagSection(NAME)
_DELETIONS = FlagSection("deletion of nodes", ours=True)
_GUARDED, _REFERENCE = "guarded", "reference"


def _limit(value: int | None) -> str:
    return "" if value is None else zero_or_more("no limit")(value)


@dataclass(frozen=True, kw_only=True)
class NodeLifecycleFlags(NodeSelectorFlags, MassDeletionFlags):
    """Flags of the cloud node lifecycle controller."""

    # Deviation: the Go controller queries one node after another, so a slow response of the
    # cloud about one node delays the deletion of all later nodes.
    concurrent_node_lifecycle_syncs: int = _SECTION.flag(
        16,
        "Nodes whose instances are checked concurrently. The Go implementation's default is 1; "
        "here one slow response must not delay the other nodes.",
        unit="nodes",
        check=at_least_one,
    )
    node_monitor_period: timedelta = GENERIC.flag(
        timedelta(seconds=5),
        "Time between two checks of the instances of nodes that are not ready.",
        check=positive,
        path="KubeCloudShared.NodeMonitorPeriod",
    )
    node_deletion_min_age: timedelta = _DELETIONS.flag(
        timedelta(0),
        "Minimum age of a node to be deleted: the cloud may not report a new instance yet. 0 "
        "means any age.",
        check=not_negative,
        former_name="node-deletion-least-age",
    )
    node_deletion_limit: int | None = _DELETIONS.flag(
        None,
        "Maximum node deletions in ten minutes, across replicas; further ones are blocked, and "
        "checked again in each pass. Limits the damage if the cloud reports every instance "
        "missing. auto means 10 or a tenth of the managed nodes, whichever is more; 0 means no "
        "limit.",
        kind=LIMIT,
        unit="nodes",
        check=_limit,
    )
    node_deletion_policy: str = _DELETIONS.flag(
        _GUARDED,
        "Conditions for the deletion of a node. guarded: the cloud reports the instance missing "
        "twice, a monitor period apart, and its responses about other nodes are plausible. "
        "reference: it reports the instance missing once, as in the Go implementation; nothing is "
        "blocked, and the other flags of this section have no effect.",
        check=one_of(_GUARDED, _REFERENCE),
    )


def _build(context: ControllerContext, flags: NodeLifecycleFlags) -> Controller:
    from ccm.cloud.lookup import InstanceLookup, NodeOwnership
    from ccm.controllers.nodelifecycle.controller import KIND, NodeLifecycleController
    from ccm.controllers.nodelifecycle.metrics import observe_call
    from ccm.controllers.nodelifecycle.plan import DeletionRules, NodeAction, Reason, is_suspect
    from ccm.kube.resources import NODES
    from ccm.model.names import COMPONENT_NODE_LIFECYCLE
    from ccm.runtime.deletions import DeletionBlocks
    from ccm.runtime.object_status import ControllerFacts, foreign_reason

    events = context.recorder(COMPONENT_NODE_LIFECYCLE)
    nodes = context.informers.informer_for(NODES)
    rules = DeletionRules(
        ownership=NodeOwnership.for_cloud(context.cloud_client.cloud, flags.node_selector),
        period_s=flags.node_monitor_period.total_seconds(),
        min_age_s=flags.node_deletion_min_age.total_seconds(),
        limit=flags.node_deletion_limit,
        allow_mass=flags.allow_mass_deletion,
        reference=flags.node_deletion_policy == _REFERENCE,
    )
    lifecycle = NodeLifecycleController(
        nodes=nodes,
        api=context.client(MANIFEST.client).resource(NODES),
        lookup=InstanceLookup(context.cloud_client.with_observer(observe_call), context.inventory),
        slots=context.deletions,
        holds=DeletionBlocks(KIND, events, context.deletions),
        events=events,
        rules=rules,
        workers=flags.concurrent_node_lifecycle_syncs,
    )

    def facts(name: str) -> ControllerFacts:
        node = nodes.store.get(name)
        if node is None:
            return ControllerFacts()
        if (why := foreign_reason(node, rules.ownership)) or not is_suspect(node, rules.ownership):
            return ControllerFacts(foreign=why)
        verdict = lifecycle.decision(node)
        if verdict is None or verdict.action is NodeAction.KEEP:
            return ControllerFacts()
        is_held = verdict.is_blocked and verdict.reason is not Reason.UNCONFIRMED
        why = f"its deletion is blocked: {verdict.reason.value}" if is_held else ""
        plan = f"delete it: {verdict.reason.value}"
        return ControllerFacts(plan=plan, blocked=why, next_s=lifecycle.confirmation_wait_s(node))

    lifecycle.controller.facts_functions["node"] = facts
    return lifecycle.controller


MANIFEST: Manifest[NodeLifecycleFlags] = Manifest(
    name=NAME,
    alias="cloud-node-lifecycle",
    # Both node controllers share a service account, as the API server's built-in roles expect.
    client="node-controller",
    metric="cloud-node-lifecycle",
    permissions=(("get", "nodes"), ("patch", "nodes"), ("delete", "nodes")),
    missing_interface=missing_instances,
    build=_build,
)
