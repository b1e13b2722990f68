"""Patches of the node controller are idempotent and minimal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.cloud.types import InstanceMetadata
from ccm.controllers.node import plan
from ccm.model import Node, NodeAddress, Taint, names
from ccm.testing.builders import node, uninitialized_taint
from tests.support.cluster import patched

U = uninitialized_taint()
KINDS = ["InternalIP", "ExternalIP", "Hostname", "InternalDNS"]

addresses = st.lists(
    st.builds(
        NodeAddress,
        type=st.sampled_from(KINDS),
        address=st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "name", "other"]),
    ),
    max_size=6,
)
words = st.sampled_from(["", "a", "b1", "z-1"])
keys = st.sampled_from(
    [
        *(key for pair in names.LABEL_PAIRS for key in pair),
        "own",
        "vendor.example.com/rack",
        "a.kubernetes.io/x",
    ]
)
label_maps = st.dictionaries(keys, st.sampled_from(["a", "b1", "z-1"]), max_size=5)
taints = st.lists(
    st.sampled_from(
        [
            U,
            uninitialized_taint(value="", effect="NoExecute"),
            Taint(key="a", effect="NoSchedule"),
            Taint(key=names.TAINT_SHUTDOWN, effect="NoSchedule"),
        ]
    ),
    max_size=4,
    unique=True,
)
nodes = st.builds(
    node,
    provider_id=st.sampled_from(["", "fake://1"]),
    taints=taints,
    labels=label_maps,
    addresses=addresses,
)
answers = st.builds(
    InstanceMetadata,
    provider_id=st.sampled_from(["fake://1", "fake://2"]),
    instance_type=words,
    zone=words,
    region=words,
    addresses=addresses,
    additional_labels=label_maps,
)


@given(nodes, answers)
def test_initialization_patch_is_complete_and_idempotent(
    before: Node, answer: InstanceMetadata
) -> None:
    patch = plan.address_patch(before, answer.addresses)
    addressed = before if patch is None else patched(before, patch)
    after = patched(addressed, plan.initialization(addressed, answer)[0])

    assert not any(taint.key == names.TAINT_UNINITIALIZED for taint in after.taints)
    assert [taint for taint in before.taints if taint.key != names.TAINT_UNINITIALIZED] == list(
        after.taints
    )
    assert after.provider_id == (before.provider_id or answer.provider_id)
    assert plan.address_patch(after, answer.addresses) is None
    for (beta, stable), value in zip(
        names.LABEL_PAIRS, (answer.zone, answer.region, answer.instance_type), strict=True
    ):
        if value:
            assert after.labels[beta] == after.labels[stable] == value
    again = plan.initialization(after, answer)[0]
    assert "labels" not in again["metadata"]


@given(nodes)
def test_label_patch_is_idempotent(before: Node) -> None:
    patch = plan.label_patch(before)

    assert patch is None or plan.label_patch(patched(before, patch)) is None


@given(addresses, addresses)
def test_address_comparison_ignores_order_across_types_only(
    old: list[NodeAddress], new: list[NodeAddress]
) -> None:
    def sorted_by_type(entries: list[NodeAddress]) -> list[NodeAddress]:
        return sorted(entries, key=lambda entry: entry.type)

    assert plan.addresses_differ(old, new) is (sorted_by_type(old) != sorted_by_type(new))
    assert plan.addresses_differ(old, new) is plan.addresses_differ(new, old)


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ({"fine": "not fine!"}, "fine"),
        ({"not a key": "1"}, "not a key"),
        ({"long": "x" * 64}, "long"),
    ],
)
def test_initialization_error_names_the_invalid_label(labels: dict[str, str], named: str) -> None:
    with pytest.raises(plan.Rejected, match=f"label {named}:"):
        plan.initialization(
            node(taints=[U]), InstanceMetadata(provider_id="fake://1", additional_labels=labels)
        )
