"""The board: what counts as initialised, what is counted, what is worth a line."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from ccm.model import Event, NodeAddress, ObjectMeta, ObjectReference, Taint, names
from ccm.sandbox.board import SIM_LABELS, Board, is_settled
from ccm.testing import builders

LABELS = dict.fromkeys(SIM_LABELS, "x")
ADDRESS = NodeAddress(type="InternalIP", address="10.0.0.1")
HOST_NAME = NodeAddress(type="Hostname", address="a")


def event(
    name: str, *, reason: str = "Synced", kind: str = "Normal", count: int = 1, key: str = "e"
) -> Event:
    return Event(
        metadata=ObjectMeta(name=key, namespace="default"),
        involved_object=ObjectReference(kind="Node", name=name),
        reason=reason,
        message="told",
        type=kind,
        count=count,
    )


def settled(
    *,
    provider_id: str = "sim://i",
    address: NodeAddress = ADDRESS,
    taints: Sequence[Taint] = (),
    labels: Mapping[str, str] = LABELS,
) -> bool:
    node = builders.node(provider_id=provider_id, addresses=[address], taints=taints, labels=labels)
    return is_settled(node, SIM_LABELS)


def test_a_node_of_the_simulated_cloud_needs_everything() -> None:
    assert settled()
    assert not settled(provider_id="")
    assert not settled(address=HOST_NAME)
    assert not settled(taints=[builders.uninitialized_taint()])


@pytest.mark.parametrize("label", SIM_LABELS)
def test_each_label_is_needed(label: str) -> None:
    assert not settled(labels={key: "x" for key in SIM_LABELS if key != label})


def test_of_another_providers_node_nothing_but_the_id_is_known() -> None:
    assert is_settled(builders.node(provider_id="acme://1"), ())
    assert not is_settled(builders.node(), ())


@pytest.mark.asyncio
async def test_it_has_converged_with_the_last_expected_node() -> None:
    board = Board(["a", "b"])
    board.node_seen(builders.node("a", provider_id="x://a"), 1.0)
    board.node_seen(builders.node("stranger", provider_id="x://s"), 1.0)
    assert not board.is_converged
    assert board.missing == ["b"]

    board.node_seen(builders.node("b", provider_id="x://b"), 2.0)

    async with asyncio.timeout(1):
        await board.wait_converged()
    assert board.counts.initialised == 2
    assert board.counts.registered == 3


def test_a_row_says_how_long_the_node_waited() -> None:
    board = Board(["a"])
    board.node_seen(builders.node("a", taints=[builders.uninitialized_taint()]), 10.0)
    board.node_seen(builders.node("a", provider_id="x://a"), 12.5)
    board.node_seen(builders.node("a", provider_id="x://a"), 99.0)

    assert board.rows["a"].settled_after == 2.5
    assert board.rows["a"].changed_at == 12.5


def test_a_node_made_anew_starts_a_new_row() -> None:
    board = Board(["a"])
    board.node_seen(builders.node("a", provider_id="x://a"), 1.0)
    board.node_gone("a", 2.0)
    gone = board.rows["a"]
    assert gone.is_deleted

    board.node_seen(builders.node("a", uid="other"), 3.0)

    assert not board.rows["a"].is_deleted
    assert board.rows["a"].settled_after is None
    assert board.counts.initialised == 1


def test_a_repeated_warning_counts_as_often_as_it_says() -> None:
    board = Board(["a"])
    board.event_seen(event("a", kind=names.WARNING, reason="Bad", count=1), 1.0)
    board.event_seen(event("a", kind=names.WARNING, reason="Bad", count=3), 2.0)
    board.count_warnings(event("a", kind=names.WARNING, reason="Bad", count=3))
    board.event_seen(event("a", kind="Normal", key="other"), 2.0)
    board.daemon_warned("oh", 3.0)

    assert board.counts.warnings == 4


def test_powering_off_and_deleting_are_worth_a_line_but_not_the_usual_event() -> None:
    board = Board(["a"])
    board.node_seen(builders.node("a", provider_id="x://a"), 1.0)
    board.event_seen(event("a"), 1.0)
    assert board.happened == 0

    board.node_seen(
        builders.node("a", provider_id="x://a", taints=[builders.shutdown_taint()]), 2.0
    )
    board.event_seen(event("a", reason=names.REASON_DELETING_NODE), 3.0)
    board.node_gone("a", 3.0)

    assert [one.text for one in board.news(0)] == [
        "a: shutdown taint set",
        "a: DeletingNode: told",
        "a: deleted",
    ]
    assert board.rows["a"].last_event == "DeletingNode: told"


def test_news_are_those_not_told_yet() -> None:
    board = Board(["a"])
    for number in range(500):
        board.note(f"{number}", 0.0)

    assert [one.text for one in board.news(498)] == ["498", "499"]
    assert board.news(500) == []
    assert board.news(0)[0].text == "300"
