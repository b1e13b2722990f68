"""What people are told about a node that has to be initialised."""

from __future__ import annotations

from collections.abc import Callable

from ccm.cloud.ownership import Ownership
from ccm.controllers.node import plan
from ccm.model import Node
from ccm.model.node import is_uninitialized
from ccm.runtime.account import Facts, foreign


def explain(name: str, node_of: Callable[[str], Node | None], ownership: Ownership) -> Facts:
    """How a node stands with its initialisation."""
    node = node_of(name)
    if node is None:
        return Facts(state="not known")
    if why := foreign(node, ownership):
        return Facts(state="another's", foreign=why)
    if is_uninitialized(node):
        return Facts(
            state="not initialised",
            plan="ask the cloud about its instance, write addresses, labels and provider ID, lift "
            "the taint",
        )
    if not node.provider_id:
        return Facts(
            state="never waited for a cloud",
            blocked="its kubelet does not leave it to a cloud: the node came without provider ID "
            "and without the taint of those that wait to be initialised",
            advice="start its kubelet with --cloud-provider=external, delete the Node, and let the "
            "kubelet register it anew",
        )
    has_labels = plan.label_patch(node) is None
    return Facts(
        state=f"initialised as {node.provider_id}",
        plan="" if has_labels else "bring stable labels in step with beta labels",
    )
