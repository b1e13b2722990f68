"""What became of a node that is not ready."""

from __future__ import annotations

from typing import Any

from ccm.model import Taint
from ccm.testing.builders import shutdown_taint
from tests.conformance.stage import Stage

DOWN = shutdown_taint()
A = Taint(key="a", effect="NoSchedule")

DELETED, KEPT, TAINTED = "deleted", "kept", "tainted"


async def outcome(stage: Stage, made: Any) -> str:
    """What became of the node; fails when it is none of the three."""
    node = await stage.stored()
    if node is None:
        return DELETED
    if node == made:
        return KEPT
    assert list(node.taints) == [*made.taints, DOWN]
    assert (node.provider_id, dict(node.labels)) == (made.provider_id, dict(made.labels))
    return TAINTED
