"""A Node as the API server sends it, and the questions controllers ask about it."""

from __future__ import annotations

import msgspec
import pytest

from ccm.model import Node, NodeAddress, Taint, names
from ccm.model.node import has_shutdown_taint, is_uninitialized
from ccm.testing.builders import node

WIRE = b"""{
  "apiVersion": "v1", "kind": "Node",
  "metadata": {"name": "node-1", "uid": "u-1", "resourceVersion": "41"},
  "spec": {
    "providerID": "sim://i-1", "podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"],
    "unschedulable": true,
    "taints": [{"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}]
  },
  "status": {
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "conditions": [
      {"type": "MemoryPressure", "status": "False"},
      {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    ],
    "nodeInfo": {"kubeletVersion": "v1.36.3"}
  }
}"""


def test_what_was_read_is_written_with_the_same_names() -> None:
    read = msgspec.json.decode(WIRE, type=Node)

    assert msgspec.to_builtins(read)["spec"] == msgspec.json.decode(WIRE)["spec"]
    assert (read.provider_id, read.spec.pod_cidr) == ("sim://i-1", "10.0.0.0/24")
    assert read.addresses == [NodeAddress(type="InternalIP", address="10.0.0.1")]


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_ready_is_the_status_of_the_ready_condition(status: str) -> None:
    assert node(ready=status).ready == status
    assert node(ready=None).ready == "Unknown"


def test_a_reference_for_events_has_the_uid_and_no_version() -> None:
    reference = msgspec.json.decode(WIRE, type=Node).reference

    assert msgspec.to_builtins(reference) == {
        "kind": "Node",
        "apiVersion": "v1",
        "name": "node-1",
        "uid": "u-1",
    }


@pytest.mark.parametrize(
    ("taint", "expected"),
    [
        (Taint(key=names.TAINT_UNINITIALIZED, value="true", effect="NoSchedule"), True),
        (Taint(key=names.TAINT_UNINITIALIZED, value="false", effect="NoExecute"), True),
        (Taint(key=names.TAINT_UNINITIALIZED), True),
        (Taint(key=names.TAINT_SHUTDOWN, effect="NoSchedule"), False),
    ],
)
def test_any_taint_with_the_key_means_that_the_node_waits_for_its_cloud(
    taint: Taint, expected: bool
) -> None:
    assert is_uninitialized(node(taints=[Taint(key="other"), taint])) is expected


@pytest.mark.parametrize(
    ("taint", "expected"),
    [
        (Taint(key=names.TAINT_SHUTDOWN, effect="NoSchedule"), True),
        (Taint(key=names.TAINT_SHUTDOWN, value="x", effect="NoSchedule"), True),
        (Taint(key=names.TAINT_SHUTDOWN, effect="NoExecute"), False),
        (Taint(key=names.TAINT_UNINITIALIZED, effect="NoSchedule"), False),
    ],
)
def test_the_shutdown_taint_is_known_by_key_and_effect(taint: Taint, expected: bool) -> None:
    assert has_shutdown_taint(node(taints=[taint])) is expected
