"""The truth table of deletion, and the shutdown taint: pure and repeatable."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from ccm.cloud.types import InstanceState, Power
from ccm.controllers.nodelifecycle.plan import (
    Action,
    Protection,
    Reason,
    changed_state,
    is_suspect,
    judge,
    taint_patch,
)
from ccm.model import Node, Taint, names
from ccm.testing.builders import node, shutdown_taint

OURS = ("fake",)
GONE = InstanceState(exists=False)
RUNNING = InstanceState(exists=True, power=Power.RUNNING)
SHUTDOWN = InstanceState(exists=True, power=Power.SHUTDOWN)
DOWN, A = shutdown_taint(), Taint(key="a", effect="NoSchedule")
NOT_OURS = shutdown_taint(effect="NoExecute")

ASKED = node(provider_id="fake://1", ready="False")


def deleting(of: Node) -> Node:
    metadata = msgspec.structs.replace(of.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(of, metadata=metadata)


@pytest.mark.parametrize(
    ("current", "state", "confirmed", "action", "reason"),
    [
        (ASKED, GONE, True, Action.DELETE, Reason.GONE),
        (ASKED, GONE, None, Action.HOLD, Reason.UNCONFIRMED),
        (ASKED, GONE, False, Action.HOLD, Reason.CONTRADICTED),
        (ASKED, RUNNING, True, Action.KEEP, Reason.EXISTS),
        (ASKED, SHUTDOWN, None, Action.KEEP, Reason.EXISTS),
        (None, GONE, True, Action.KEEP, Reason.REPLACED),
        (node(provider_id="fake://1", ready="False", uid="x"), GONE, True, Action.KEEP, None),
        (node(provider_id="fake://2", ready="False"), GONE, True, Action.KEEP, Reason.REPLACED),
        (node(provider_id="fake://1"), GONE, True, Action.KEEP, Reason.READY),
        (deleting(ASKED), GONE, True, Action.HOLD, Reason.DELETING),
        (deleting(ASKED), GONE, None, Action.HOLD, Reason.DELETING),
    ],
)
def test_what_happens_to_a_node(
    current: Node | None,
    state: InstanceState,
    confirmed: bool | None,
    action: Action,
    reason: Reason | None,
) -> None:
    verdict = judge(ASKED, current, state, confirmed_gone=confirmed, schemes=OURS)

    assert verdict.action is action
    assert verdict.reason is (reason or Reason.REPLACED)
    assert verdict == judge(ASKED, current, state, confirmed_gone=confirmed, schemes=OURS)


@pytest.mark.parametrize("confirmed", [None, True])
@pytest.mark.parametrize("why", [Reason.YOUNG, Reason.BRAKED])
def test_what_is_forbidden_holds_a_node_that_would_be_deleted(
    why: Reason, confirmed: bool | None
) -> None:
    """The cloud need not be asked a second time for that."""
    held = judge(ASKED, ASKED, GONE, confirmed_gone=confirmed, schemes=OURS, forbidden=why)
    kept = judge(ASKED, ASKED, RUNNING, confirmed_gone=None, schemes=OURS, forbidden=why)

    assert (held.action, held.reason) == (Action.HOLD, why)
    assert kept.action is Action.KEEP


@pytest.mark.parametrize(
    ("protection", "age_s", "lately", "why"),
    [
        (Protection(), 0, 1000, None),
        (Protection(), -5, 0, None),
        (Protection(least_age_s=60), 59, 0, Reason.YOUNG),
        (Protection(least_age_s=60), 60, 0, None),
        (Protection(most_deletions=3), 0, 2, None),
        (Protection(most_deletions=3), 0, 3, Reason.BRAKED),
    ],
)
def test_what_forbids_deleting(
    protection: Protection, age_s: float, lately: int, why: Reason | None
) -> None:
    assert protection.forbids(age_s=age_s, deleted_lately=lately) is why


def test_a_node_is_deleted_in_one_case_only() -> None:
    others = [
        ASKED,
        None,
        deleting(ASKED),
        *(
            node(provider_id=provider_id, ready=ready, uid=uid)
            for provider_id in ("fake://1", "fake://2", "other://1", "")
            for ready in ("True", "False", "Unknown", None)
            for uid in ("uid-node0", "another")
        ),
    ]
    deleted = [
        (current, state, confirmed)
        for current, state, confirmed in itertools.product(
            others, (GONE, RUNNING, SHUTDOWN), (None, False, True)
        )
        if judge(ASKED, current, state, confirmed_gone=confirmed, schemes=OURS).action
        is Action.DELETE
    ]

    assert deleted
    for current, state, confirmed in deleted:
        assert current is not None
        assert (current.uid, current.provider_id) == (ASKED.uid, ASKED.provider_id)
        assert current.ready != names.STATUS_TRUE
        assert not current.metadata.deletion_timestamp
        assert state == GONE
        assert confirmed is True


def test_a_node_of_another_cloud_is_never_deleted() -> None:
    foreign = node(provider_id="other://1", ready="False")

    verdict = judge(foreign, foreign, GONE, confirmed_gone=True, schemes=OURS)

    assert (verdict.action, verdict.reason) == (Action.KEEP, Reason.FOREIGN)


@pytest.mark.parametrize(
    ("suspect", "expected"),
    [
        (node(ready="True"), False),
        (node(ready="False"), True),
        (node(ready="Unknown"), True),
        (node(ready=None), True),
        (node(ready="True", taints=[DOWN]), True),
        (node(ready="True", taints=[NOT_OURS]), False),
        (node(ready="False", provider_id="other://1"), False),
        (node(ready="True", taints=[DOWN], provider_id="other://1"), False),
        (node(ready="False", provider_id="no-scheme"), True),
    ],
)
def test_who_is_looked_at_in_each_pass(suspect: Node, expected: bool) -> None:
    assert is_suspect(suspect, OURS) is expected


READY, SICK = node(), node(ready="False")
READY_DOWN, SICK_DOWN = node(taints=[DOWN]), node(ready="False", taints=[DOWN])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, SICK, True),
        (READY, SICK, True),
        (SICK, READY, True),
        (SICK, node(ready="Unknown"), False),
        (SICK, node(ready="False", labels={"a": "1"}), False),
        (SICK, node(ready="False", uid="another"), True),
        (SICK, SICK_DOWN, False),
        (SICK_DOWN, SICK, True),
        (READY, READY_DOWN, True),
        (READY_DOWN, READY, False),
        (SICK_DOWN, READY_DOWN, True),
    ],
    ids=[
        *("new", "got sick", "recovered", "still sick", "label", "re-created", "our own taint"),
        *("taint lost", "ready got tainted", "our own untainting", "recovered with the taint"),
    ],
)
def test_which_changes_do_not_wait_for_the_next_pass(
    old: Node | None, new: Node, expected: bool
) -> None:
    assert changed_state(old, new) is expected


@pytest.mark.parametrize("taints", [(A, DOWN), (DOWN, NOT_OURS), (A,), (DOWN,), ()])
@pytest.mark.parametrize("ready", ["True", "False", "Unknown", None])
@pytest.mark.parametrize("state", [None, RUNNING, SHUTDOWN])
def test_the_taint_is_written_only_where_it_is_wrong(
    taints: tuple[Taint, ...], ready: str | None, state: InstanceState | None
) -> None:
    before = node(taints=taints, ready=ready, resource_version="41")

    patch = taint_patch(before, state)

    tainted = DOWN in taints
    wrong = tainted if ready == "True" else state is SHUTDOWN and not tainted
    assert (patch is not None) is wrong
    if patch is not None:
        after = [Taint(**entry) for entry in patch["spec"]["taints"] or []]
        assert patch["metadata"] == {"resourceVersion": "41"}
        assert [taint for taint in after if taint != DOWN] == [t for t in taints if t != DOWN]
        assert (DOWN in after) is not tainted
        again = node(taints=after, ready=ready)
        assert taint_patch(again, state) is None
