"""What people are told about the routes to a node's Pods."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ccm.controllers.route import plan
from ccm.model import Node, names
from ccm.model.cidr import Network
from ccm.runtime.account import Facts


def explain(
    name: str,
    node_of: Callable[[str], Node | None],
    ranges: Sequence[Network],
    pause_s: Callable[[Node], float | None],
    *,
    key: str,
) -> Facts:
    """How a node stands with its routes.

    Args:
        name: of the node.
        node_of: the cached node.
        ranges: the cluster's Pod ranges.
        pause_s: seconds for which a route of the node is left alone, because it failed.
        key: of the comparison, in the queue.
    """
    node = node_of(name)
    if node is None:
        return Facts(state="not known", key=key)
    if plan.has_no_pod_cidrs(node):
        return Facts(
            state="no route",
            key=key,
            blocked="it has no Pod range (spec.podCIDRs is empty), and so gets no route",
            advice="run kube-controller-manager with --allocate-node-cidrs=true and "
            "--cluster-cidr, or turn routes off by --configure-cloud-routes=false",
        )
    wanted = plan.pod_networks(node)
    shown = ", ".join(wanted.values())
    outside = [cidr for network, cidr in wanted.items() if not plan.is_managed(network, ranges)]
    if outside:
        return Facts(
            state=f"routes to {shown}",
            key=key,
            blocked=f"its Pod range {', '.join(outside)} is outside of --cluster-cidr="
            f"{','.join(map(str, ranges))}, so a route to it is never taken away",
            advice="give --cluster-cidr the value that kube-controller-manager has",
        )
    if node.condition_status(names.CONDITION_NETWORK_UNAVAILABLE) == names.STATUS_FALSE:
        return Facts(state=f"routes to {shown} are there", key=key)
    return Facts(
        state=f"a route to {shown} is missing",
        key=key,
        plan=f"create a route to {shown}",
        blocked="" if node.addresses else "it has no address yet (status.addresses is empty)",
        next_s=pause_s(node),
    )
