"""What people are told about a node that is not ready: whether it will be deleted, and why not."""

from __future__ import annotations

from collections.abc import Callable

from ccm.controllers.nodelifecycle import plan
from ccm.controllers.nodelifecycle.plan import Action, Reason, Rules, Verdict
from ccm.model import Node, names
from ccm.model.node import has_shutdown_taint
from ccm.runtime.account import Facts, foreign

_ALLOW = f"kubectl annotate node NAME {names.ANNOTATION_ALLOW_DELETION}=true"

_ADVICE = {
    Reason.MASS_DENIAL: "see whether the cloud, its credentials and project are the right ones; if "
    f"the instance is gone indeed: {_ALLOW}",
    Reason.ALL_DENIED: "give the daemon the credentials of the project that the nodes are in; if "
    f"the instances are gone indeed: {_ALLOW}, or set --allow-mass-deletion",
    Reason.BRAKED: "nothing, it goes on by itself within ten minutes; or raise "
    "--node-deletion-limit",
    Reason.UNRECORDED: "let the daemon read and write its ConfigMap: kube-ccm doctor",
    Reason.UNCLAIMED: f"say which nodes are ours with --own-nodes, or: {_ALLOW}",
    Reason.MIXED: f"say which nodes are ours with --own-nodes, or: {_ALLOW}",
}


def explain(
    name: str,
    node_of: Callable[[str], Node | None],
    rules: Rules,
    judged: Callable[[Node], Verdict | None],
    wait_s: Callable[[Node], float | None],
) -> Facts:
    """How a node stands with the cloud's word about its instance.

    Args:
        name: of the node.
        node_of: the cached node.
        rules: what the judge goes by.
        judged: the judge's word; None: the cloud was not asked yet.
        wait_s: seconds until a denied node may be asked about again.
    """
    node = node_of(name)
    if node is None:
        return Facts(state="not known")
    if why := foreign(node, rules.ownership):
        return Facts(state="another's", foreign=why)
    if not plan.is_suspect(node, rules.ownership):
        return Facts(state="ready")
    verdict = judged(node)
    if verdict is None:
        return Facts(state="not ready", plan="ask the cloud whether its instance exists")
    if verdict.is_held_back and verdict.reason is not Reason.UNCONFIRMED:
        return Facts(
            state="not ready, and its cloud denies it",
            plan="delete it",
            blocked=f"it is not deleted although its cloud denies it: {verdict.reason.value}",
            advice=_ADVICE.get(verdict.reason, "").replace("NAME", name),
        )
    if verdict.action is Action.KEEP:
        is_off = has_shutdown_taint(node)
        return Facts(
            state=f"not ready, its instance is {'switched off' if is_off else 'there'}",
            plan="ask again in each pass",
            advice="switch its instance on" if is_off else "look at its kubelet",
        )
    return Facts(
        state="not ready, and its cloud denies it",
        plan=f"delete it, once the cloud has said again that it is gone: {verdict.reason.value}",
        next_s=wait_s(node),
    )
