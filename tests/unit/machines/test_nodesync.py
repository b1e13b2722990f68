"""What a write to a machine's node is bound to."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ccm.gardener import views
from ccm.machines import nodesync
from ccm.machines.views import MachineView
from ccm.model import ObjectMeta, Taint
from ccm.testing import builders

RULES = views.rules("ours")
TAINT = Taint(key="pool", effect="NoSchedule")


@pytest.mark.parametrize("taints", [(), (TAINT,)], ids=["merged", "replaced"])
def test_only_what_is_replaced_as_a_whole_is_bound_to_a_version(taints: tuple[Taint, ...]) -> None:
    """A kubelet that writes its node at the same moment is no conflict; lost taints would be."""
    machine = MachineView(
        metadata=ObjectMeta(name="m0", namespace="default"),
        created=datetime(2026, 1, 1, tzinfo=UTC),
        class_name="small",
        taints=taints,
    )

    patch = nodesync.patch(machine, builders.node("m0", resource_version="7"), RULES)

    assert patch is not None
    assert patch["metadata"]["finalizers"] == [RULES.node_finalizer]
    assert patch["metadata"].get("resourceVersion") == ("7" if taints else None)
