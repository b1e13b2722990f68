"""What is done about nodes without a machine, and what of a change asks for a pass. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from ccm.machines import nodesync
from ccm.machines.settings import Settings
from ccm.model import Node
from ccm.model.machines import Machine
from ccm.model.node import age_s
from ccm.model.patches import Patch

TRIGGER = "OutOfRange"
"""A machine with this in its description may have left a VM behind (reference)."""


def asks_for_a_pass(old: Machine | None, new: Machine | None) -> bool:
    """Whether VMs should be looked over at once: a machine is gone, or has a doubtful VM."""
    if new is None:
        return old is not None
    if old is None:
        return False
    before, after = (one.status.description for one in (old, new))
    return TRIGGER in after and TRIGGER not in before


def node_patch(
    node: Node, machines: Collection[Machine], now: datetime, settings: Settings
) -> Patch | None:
    """What is written on a node, from the machines that name it; None: nothing.

    Of several nobody knows which is the right one: the node is left as it is.
    """
    if len(machines) > 1:
        return None
    if machines:
        return nodesync.managed_patch(node, settings)
    age = age_s(node, now)
    if age is None or age <= settings.creation_timeout_s:
        return None
    return nodesync.unmanaged_patch(node, settings)
