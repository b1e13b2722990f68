"""Nodes that are not ready: deleted, tainted or kept, on both API servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ccm.cloud import NotFound, Unavailable, Unimplemented
from ccm.model import Node, Taint, names
from ccm.testing.builders import shutdown_taint
from tests.conformance.environment import (
    CONFLICT,
    DELETE,
    MAIN_PATCH,
    TAINT,
    UNINITIALIZED,
    WRITE_NODE,
    NodeEnvironment,
    row,
    wrapped,
)
from tests.faults import Respond
from tests.support.fakecloud import FakeCloud

DOWN = shutdown_taint()
B = Taint(key="b", value="1", effect="NoExecute")
MAIN, EVENT = "PATCH nodes/node0 200", "POST namespaces/default/events 201"
CONFLICTING, LOOK = "PATCH nodes/node0 409", "GET nodes/node0 200"
ONLY_TAINT = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}

DELETED, KEPT, TAINTED, UNTAINTED = "deleted", "kept", "tainted", "untainted"
REQUESTS = {
    DELETED: ["DELETE nodes/node0 200", EVENT],
    KEPT: [],
    TAINTED: [MAIN],
    UNTAINTED: [MAIN],
}

READY, FAILED, UNKNOWN = {"ready": "True"}, {"ready": "False"}, {"ready": "Unknown"}
KNOWN: dict[str, Any] = {"ready": "False", "provider_id": "fake://1"}
KNOWN_DOWN = {**KNOWN, "taints": [DOWN]}
SETTLED = {"ready": "True", "provider_id": "fake://1"}
AT_NODE0 = {"ready": "False", "provider_id": "node0"}
AT_12345 = {"ready": "False", "provider_id": "fake://12345"}
FOREIGN = {"ready": "False", "provider_id": "other://1"}
V1 = {"v2": False}
GONE, RUNS = {"exists": False}, {"exists": True}
OFF: dict[str, Any] = {"exists": True, "shutdown": True}
POWER_UNKNOWN = {"exists": True, "shutdown_error": Unavailable("down")}
FOO = {"external_ids": {"node0": "foo://12345"}}
TWO_QUESTIONS = ["instance-exists fake://1", "instance-shutdown fake://1"]
OLD_QUESTIONS = [
    "instance-exists-by-provider-id fake://12345",
    "instance-shutdown-by-provider-id fake://12345",
]
ASKED_BY_NAME = ["instance-exists node0", "instance-shutdown node0"]
ASKED_ID = "instance-id node0"


def no_id(error: Exception) -> dict[str, Any]:
    """A cloud of the old interface that fails when it is asked for the instance ID."""
    return {**V1, "external_id_errors": {"node0": error}}


def both(name: str, node: Any, script: Any, *expected: Any) -> list[Any]:
    """The same through the old interface and the new one."""
    return [
        row(name, node, {"v2": v2, **script}, *expected, label=f"{name}-v{1 + v2}")
        for v2 in (False, True)
    ]


@pytest.mark.parametrize(
    ("node", "script", "expected", "asked"),
    [
        *both("lifecycle-del-01", FAILED, GONE, DELETED, None),
        *both("lifecycle-del-02", AT_NODE0, {"exists_error": Unavailable("down")}, KEPT, None),
        *both("lifecycle-del-03", AT_NODE0, RUNS, KEPT, None),
        *both("lifecycle-del-04", UNKNOWN, GONE, DELETED, None),
        *both("lifecycle-del-05", UNKNOWN, {**RUNS, **FOO}, KEPT, None),
        *both("lifecycle-del-06", {**READY, "provider_id": "node0"}, GONE, KEPT, []),
        row("lifecycle-shut-01", AT_NODE0, {**V1, **OFF}, TAINTED, None),
        row("lifecycle-shut-02", FAILED, {**V1, **OFF, **FOO}, TAINTED, None),
        row("lifecycle-shut-03", FAILED, {**V1, "external_ids": {"node0": ""}}, DELETED, None),
        row("lifecycle-shut-04", FAILED, no_id(Unavailable("down")), KEPT, None),
        row("lifecycle-shut-05", FAILED, {**no_id(NotFound("gone")), **RUNS}, DELETED, None),
        row("lifecycle-shut-06", FAILED, {**V1, "shutdown_error": Unavailable("")}, DELETED, None),
        row("lifecycle-shut-07", FAILED, {**V1, "shutdown": False}, DELETED, None),
        row("lifecycle-shut-08", READY, {**V1, **OFF}, KEPT, None),
        row("lifecycle-shut-09", UNKNOWN, {**V1, "shutdown": True}, DELETED, None),
        row("lifecycle-id-01", AT_12345, {**V1, **RUNS}, KEPT, OLD_QUESTIONS),
        row(
            "lifecycle-id-02 lifecycle-more-12",
            *(FAILED, {**V1, **RUNS, "external_ids": {"node0": "12345"}}),
            *(KEPT, [ASKED_ID, *OLD_QUESTIONS]),
        ),
        row("lifecycle-id-03", FAILED, no_id(NotFound("gone")), DELETED, [ASKED_ID]),
        row("lifecycle-id-04", FAILED, no_id(Unavailable("down")), KEPT, [ASKED_ID]),
        *both("lifecycle-more-01", KNOWN, {"exists_error": NotFound("gone")}, KEPT, None),
        *both("lifecycle-more-02", KNOWN, {"exists_error": wrapped(NotFound(""))}, KEPT, None),
        row("lifecycle-more-03", FAILED, no_id(wrapped(NotFound("gone"))), KEPT, None),
        row("lifecycle-more-04", {"ready": None}, GONE, DELETED, None),
        row("lifecycle-more-05", {**FAILED, "taints": [UNINITIALIZED]}, GONE, DELETED, None),
        row("lifecycle-more-06", KNOWN, POWER_UNKNOWN, KEPT, TWO_QUESTIONS),
        row("lifecycle-more-06", KNOWN_DOWN, POWER_UNKNOWN, KEPT, TWO_QUESTIONS, label="tainted"),
        row(
            "lifecycle-more-10",
            {**SETTLED, "taints": [shutdown_taint(effect="NoExecute")]},
            GONE,
            KEPT,
            [],
        ),
        row("lifecycle-more-11", KNOWN_DOWN, OFF, KEPT, TWO_QUESTIONS),
        row("lifecycle-more-13", KNOWN_DOWN, RUNS, KEPT, None),
        row("lifecycle-more-14", FAILED, RUNS, KEPT, ASKED_BY_NAME),
        row("lifecycle-own-07", FOREIGN, {**GONE, "shutdown": True}, KEPT, [], label="not ready"),
        row(
            "lifecycle-own-07",
            {**FOREIGN, **READY, "taints": [DOWN]},
            {**GONE, "shutdown": True},
            KEPT,
            [],
            label="tainted",
        ),
        row("lifecycle-trace-01", SETTLED, {}, KEPT, []),
        row("lifecycle-trace-02", {**SETTLED, "taints": [DOWN]}, {}, UNTAINTED, []),
        row("lifecycle-trace-04", KNOWN, RUNS, KEPT, TWO_QUESTIONS),
        row("lifecycle-trace-05", KNOWN, OFF, TAINTED, TWO_QUESTIONS),
        row("lifecycle-trace-06", KNOWN, GONE, DELETED, TWO_QUESTIONS[:1]),
    ],
)
async def test_lifecycle_check_deletes_taints_untaints_or_keeps_the_node(
    env: NodeEnvironment,
    node: Mapping[str, Any],
    script: Mapping[str, Any],
    expected: str,
    asked: Sequence[str] | None,
) -> None:
    fake = FakeCloud(**script)
    made = await env.node(**node)

    await env.monitor(fake)

    assert await outcome(env, made) == expected
    # Events are asynchronous: they arrive before or after the request that they announce.
    assert sorted(await env.trace()) == REQUESTS[expected]
    if expected is DELETED:
        assert env.bodies(DELETE)[0]["preconditions"] == {"uid": made.uid}
        assert await env.reasons() == ["DeletingNode"]
        assert not [call for call in fake.calls if "shutdown" in call]
    if asked is not None:
        assert [f"{call} {subject}" for call, subject in fake.asked] == asked


async def outcome(env: NodeEnvironment, made: Node) -> str:
    """Return the outcome for the node; fail for any other change."""
    node = await env.stored()
    if node is None:
        return DELETED
    if node == made:
        return KEPT
    assert (node.provider_id, dict(node.labels)) == (made.provider_id, dict(made.labels))
    if DOWN in made.taints:
        assert [*node.taints, DOWN] == list(made.taints)
        return UNTAINTED
    assert list(node.taints) == [*made.taints, DOWN]
    return TAINTED


@pytest.mark.row("lifecycle-shut-10")
async def test_deletion_events_reference_the_node(env: NodeEnvironment) -> None:
    made = await env.node(ready="False")
    env.proxy.on(DELETE, Respond(500))

    await env.monitor(FakeCloud(exists=False))

    deleting, failed = await env.events()
    assert (deleting.type, deleting.reason) == ("Normal", "DeletingNode")
    assert (failed.type, failed.reason) == ("Warning", "DeletingNodeFailed")
    assert "500" in failed.message
    about = {"apiVersion": "v1", "kind": "Node", "name": "node0", "uid": made.uid}
    assert deleting.involved_object == failed.involved_object == about
    component = "cloud-node-lifecycle-controller"
    assert deleting.source["component"] == failed.source["component"] == component


@pytest.mark.row("lifecycle-more-07")
@pytest.mark.both_servers
async def test_shutdown_taint_is_added_to_existing_taints(env: NodeEnvironment) -> None:
    made = await env.node(**KNOWN, taints=[TAINT, B])

    await env.monitor(FakeCloud(**OFF))

    taints = [
        {"key": "a", "effect": "NoSchedule"},
        {"key": "b", "value": "1", "effect": "NoExecute"},
        {"key": names.TAINT_SHUTDOWN, "effect": "NoSchedule"},
    ]
    version = {"resourceVersion": made.resource_version}
    assert env.bodies() == [{"metadata": version, "spec": {"taints": taints}}]
    assert list((await env.present()).taints) == [TAINT, B, DOWN]


@pytest.mark.row("lifecycle-more-08")
async def test_removing_the_only_taint_clears_the_list(env: NodeEnvironment) -> None:
    made = await env.node(provider_id="fake://1", taints=[DOWN])

    await env.monitor(FakeCloud(**OFF))

    version = {"resourceVersion": made.resource_version}
    assert env.bodies() == [{"metadata": version, "spec": {"taints": None}}]
    assert list((await env.present()).taints) == []


@pytest.mark.row("lifecycle-more-09")
async def test_concurrently_removed_shutdown_taint_is_not_patched_again(
    env: NodeEnvironment,
) -> None:
    await env.node(provider_id="fake://1", taints=[DOWN, TAINT])
    changed = await env.change_unseen(ONLY_TAINT)

    await env.monitor(FakeCloud())

    assert await env.trace() == [CONFLICTING, LOOK]
    assert await env.present() == changed


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize(
    "error",
    [
        row("lifecycle-more-15", Unimplemented("cannot tell")),
        row("lifecycle-own-01", wrapped(Unimplemented("cannot tell"))),
    ],
)
async def test_unimplemented_shutdown_query_counts_as_running(
    env: NodeEnvironment, v2: bool, error: Exception
) -> None:
    made = await env.node(**KNOWN)

    controller = await env.monitor(FakeCloud(v2=v2, exists=True, shutdown_error=error))

    assert await outcome(env, made) == KEPT
    assert not controller.controller.backoff  # no error: asked again in the next pass


@pytest.mark.row("lifecycle-trace-03")
@pytest.mark.both_servers
async def test_taint_conflict_is_retried_after_one_read(env: NodeEnvironment) -> None:
    await env.node(provider_id="fake://1", taints=[DOWN])
    env.proxy.on(MAIN_PATCH, CONFLICT, times=1)

    await env.monitor(FakeCloud())

    assert await env.trace() == [CONFLICTING, LOOK, MAIN]
    assert list((await env.present()).taints) == []


# --- where we differ on purpose -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "script"),
    [
        *both("lifecycle-own-02", KNOWN, RUNS),
        row("lifecycle-own-03", KNOWN, {"exists_error": Unavailable("down")}),
    ],
)
async def test_denial_that_is_retracted_deletes_no_node(
    env: NodeEnvironment, node: Mapping[str, Any], script: Mapping[str, Any]
) -> None:
    class Wavering(FakeCloud):
        def _exists(self) -> bool:
            return len(self.calls) > 1 and super()._exists()

    fake = Wavering(**script)
    made = await env.node(**node)

    await env.monitor_twice(fake)

    assert ["exists" in call for call in fake.calls] == [True, True]
    assert await outcome(env, made) == KEPT
    assert env.calls() == []


@pytest.mark.row("lifecycle-own-17")
@pytest.mark.both_servers
@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
async def test_two_consecutive_denials_delete_the_node(env: NodeEnvironment, v2: bool) -> None:
    fake = FakeCloud(exists=False, v2=v2)
    made = await env.node(**KNOWN)

    await env.monitor_twice(fake)

    assert ["exists" in call for call in fake.calls] == [True, True]
    assert await outcome(env, made) == DELETED
    assert env.bodies(DELETE)[0]["preconditions"] == {"uid": made.uid}
    assert await env.reasons() == ["DeletingNode"]


@pytest.mark.row("lifecycle-own-04")
@pytest.mark.both_servers
async def test_recreated_node_of_the_same_name_is_not_deleted(env: NodeEnvironment) -> None:
    await env.node(**KNOWN)
    made = await env.recreate()

    await env.monitor(FakeCloud(exists=False))

    assert await env.present() == made
    assert [call.status for call in env.proxy.requests(DELETE)] == [409]
    assert await env.reasons() == ["DeletingNode"]


@pytest.mark.row("lifecycle-own-05")
async def test_node_that_is_already_gone_counts_as_deleted(env: NodeEnvironment) -> None:
    await env.node(**KNOWN)
    env.is_frozen = True
    await env.delete()

    await env.monitor(FakeCloud(exists=False))

    assert [call.status for call in env.proxy.requests(DELETE)] == [404]
    assert await env.reasons() == ["DeletingNode"]


@pytest.mark.row("lifecycle-own-06")
@pytest.mark.both_servers
async def test_node_being_deleted_causes_no_request(env: NodeEnvironment) -> None:
    await env.node(**KNOWN, finalizers=["example.com/hold"])
    await env.delete()
    made = await env.present()
    assert made.metadata.deletion_timestamp
    await env.cached(made)

    await env.monitor(FakeCloud(exists=False))

    assert await env.present() == made
    assert await env.trace() == []


@pytest.mark.row("lifecycle-own-08")
@pytest.mark.both_servers
async def test_shutdown_taint_is_added_despite_a_conflict(env: NodeEnvironment) -> None:
    await env.node(**KNOWN)
    await env.change_unseen(ONLY_TAINT)

    await env.monitor(FakeCloud(**OFF))

    assert await env.trace() == [CONFLICTING, LOOK, MAIN]
    assert list((await env.present()).taints) == [TAINT, DOWN]


@pytest.mark.row("lifecycle-own-09")
async def test_node_that_became_ready_meanwhile_is_not_tainted(env: NodeEnvironment) -> None:
    await env.node(**KNOWN)
    changed = await env.change_unseen(
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, subresource="status"
    )

    await env.monitor(FakeCloud(**OFF))

    assert await env.present() == changed


@pytest.mark.row("lifecycle-own-10")
async def test_taint_patch_stops_after_five_conflicts(env: NodeEnvironment) -> None:
    await env.node(**KNOWN)
    env.proxy.on(MAIN_PATCH, CONFLICT)

    await env.monitor(FakeCloud(**OFF))

    assert len(env.proxy.requests(WRITE_NODE)) == 5
