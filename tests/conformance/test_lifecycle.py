"""Nodes that are not ready: deleted, tainted or kept, on both API servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ccm.cloud import NotFound, Unavailable, Unimplemented
from ccm.model import Taint, names
from ccm.testing.builders import shutdown_taint, uninitialized_taint
from ccm.testing.fakes import FakeCloud
from tests.conformance.outcome import DELETED, DOWN, KEPT, TAINTED, A, outcome
from tests.conformance.stage import DELETE, Stage, monitored, wrapped
from tests.faults import Respond

B = Taint(key="b", value="1", effect="NoExecute")
FOO = {"external_ids": {"node0": "foo://12345"}}


def row(name: str, *facts: Any) -> Any:
    return pytest.param(*facts, marks=pytest.mark.row(name), id=name)


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize(
    ("ready", "script", "provider_id", "expected"),
    [
        row("lifecycle-del-01", "False", {"exists": False}, "", DELETED),
        row(
            "lifecycle-del-02",
            "False",
            {"exists": False, "exists_error": Unavailable("down")},
            "node0",
            KEPT,
        ),
        row("lifecycle-del-03", "False", {"exists": True}, "node0", KEPT),
        row("lifecycle-del-04", "Unknown", {"exists": False}, "", DELETED),
        row("lifecycle-del-05", "Unknown", {"exists": True, **FOO}, "", KEPT),
        row("lifecycle-del-06", "True", {"exists": False}, "node0", KEPT),
    ],
)
async def test_nodes_of_vanished_instances_are_deleted(
    stage: Stage, v2: bool, ready: str, script: Mapping[str, Any], provider_id: str, expected: str
) -> None:
    fake = FakeCloud(v2=v2, **script)
    made = await stage.node(ready=ready, provider_id=provider_id)

    await monitored(stage.lifecycle(fake))

    assert await outcome(stage, made) == expected
    assert [told.reason for told in await stage.events()] == (
        ["DeletingNode"] if expected is DELETED else []
    )
    if ready == "True":
        assert fake.calls == []


@pytest.mark.parametrize(
    ("ready", "script", "provider_id", "expected"),
    [
        row("lifecycle-shut-01", "False", {"exists": True, "shutdown": True}, "node0", TAINTED),
        row("lifecycle-shut-02", "False", {"exists": True, "shutdown": True, **FOO}, "", TAINTED),
        row("lifecycle-shut-03", "False", {"external_ids": {"node0": ""}}, "", DELETED),
        row(
            "lifecycle-shut-04",
            "False",
            {"external_id_errors": {"node0": Unavailable("down")}},
            "",
            KEPT,
        ),
        row(
            "lifecycle-shut-05",
            "False",
            {"external_id_errors": {"node0": NotFound("gone")}, "exists": True},
            "",
            DELETED,
        ),
        row("lifecycle-shut-06", "False", {"shutdown_error": Unavailable("down")}, "", DELETED),
        row("lifecycle-shut-07", "False", {"shutdown": False}, "", DELETED),
        row("lifecycle-shut-08", "True", {"exists": True, "shutdown": True}, "", KEPT),
        row("lifecycle-shut-09", "Unknown", {"shutdown": True}, "", DELETED),
    ],
)
async def test_shut_down_nodes_are_tainted(
    stage: Stage, ready: str, script: Mapping[str, Any], provider_id: str, expected: str
) -> None:
    fake = FakeCloud(v2=False, **script)
    made = await stage.node(ready=ready, provider_id=provider_id)

    await monitored(stage.lifecycle(fake))

    assert await outcome(stage, made) == expected
    if expected is DELETED:
        assert not [call for call in fake.calls if "shutdown" in call]


@pytest.mark.row("lifecycle-shut-10")
async def test_events_point_at_the_node(stage: Stage) -> None:
    made = await stage.node(ready="False")
    stage.proxy.on(DELETE, Respond(500))

    await monitored(stage.lifecycle(FakeCloud(exists=False)))

    events = await stage.events()
    assert [(told.type, told.reason) for told in events] == [
        ("Normal", "DeletingNode"),
        ("Warning", "DeletingNodeFailed"),
    ]
    for told in events:
        assert dict(told.involved) == {
            "apiVersion": "v1",
            "kind": "Node",
            "name": "node0",
            "uid": made.uid,
        }
        assert told.component == "cloud-node-lifecycle-controller"
    assert "500" in events[1].message


@pytest.mark.parametrize(
    ("provider_id", "script", "asked", "expected"),
    [
        row(
            "lifecycle-id-01",
            "fake://12345",
            {"exists": True},
            [
                ("instance-exists-by-provider-id", "fake://12345"),
                ("instance-shutdown-by-provider-id", "fake://12345"),
            ],
            KEPT,
        ),
        row(
            "lifecycle-id-02",
            "",
            {"exists": True, "external_ids": {"node0": "12345"}},
            [
                ("instance-id", "node0"),
                ("instance-exists-by-provider-id", "fake://12345"),
                ("instance-shutdown-by-provider-id", "fake://12345"),
            ],
            KEPT,
        ),
        row(
            "lifecycle-id-03",
            "",
            {"external_id_errors": {"node0": NotFound("gone")}},
            [("instance-id", "node0"), ("instance-id", "node0")],
            DELETED,
        ),
        row(
            "lifecycle-id-04",
            "",
            {"external_id_errors": {"node0": Unavailable("down")}},
            [("instance-id", "node0")],
            KEPT,
        ),
    ],
)
async def test_the_old_interface_is_asked_by_provider_id(
    stage: Stage,
    provider_id: str,
    script: Mapping[str, Any],
    asked: list[tuple[str, str]],
    expected: str,
) -> None:
    fake = FakeCloud(v2=False, **script)
    made = await stage.node(ready="False", provider_id=provider_id)

    await monitored(stage.lifecycle(fake))

    assert fake.asked == asked
    assert await outcome(stage, made) == expected


@pytest.mark.parametrize(
    "error",
    [
        row("lifecycle-more-01", NotFound("gone")),
        row("lifecycle-more-02", wrapped(NotFound("gone"))),
    ],
)
@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
async def test_an_absence_as_an_error_keeps_the_node(
    stage: Stage, v2: bool, error: Exception
) -> None:
    made = await stage.node(ready="False", provider_id="fake://1")

    await monitored(stage.lifecycle(FakeCloud(v2=v2, exists_error=error)))

    assert await outcome(stage, made) == KEPT
    assert stage.calls() == []


@pytest.mark.row("lifecycle-more-03")
async def test_a_wrapped_absence_of_the_id_keeps_the_node(stage: Stage) -> None:
    made = await stage.node(ready="False")
    fake = FakeCloud(v2=False, external_id_errors={"node0": wrapped(NotFound("gone"))})

    await monitored(stage.lifecycle(fake))

    assert await outcome(stage, made) == KEPT


@pytest.mark.row("lifecycle-more-04")
async def test_a_node_without_a_ready_condition_is_not_ready(stage: Stage) -> None:
    await stage.node(ready=None)

    await monitored(stage.lifecycle(FakeCloud(exists=False)))

    assert await stage.stored() is None


@pytest.mark.row("lifecycle-more-05")
async def test_a_node_that_waits_for_initialisation_is_treated_like_others(stage: Stage) -> None:
    await stage.node(ready="False", taints=[uninitialized_taint()])

    await monitored(stage.lifecycle(FakeCloud(exists=False)))

    assert await stage.stored() is None


@pytest.mark.row("lifecycle-more-06")
async def test_an_unknown_power_state_changes_nothing(stage: Stage) -> None:
    fake = FakeCloud(exists=True, shutdown_error=Unavailable("down"))
    made = await stage.node(ready="False", provider_id="fake://1")
    await stage.node("node1", ready="False", provider_id="fake://2", taints=[DOWN])
    controller = stage.lifecycle(fake)

    await monitored(controller)
    await monitored(controller, "node1")

    assert await outcome(stage, made) == KEPT
    assert [subject for call, subject in fake.asked if call == "instance-shutdown"] == [
        "fake://1",
        "fake://2",
    ]
    assert stage.calls() == []


@pytest.mark.row("lifecycle-more-07")
@pytest.mark.both_servers
async def test_the_taint_joins_the_others(stage: Stage) -> None:
    made = await stage.node(ready="False", provider_id="fake://1", taints=[A, B])

    await monitored(stage.lifecycle(FakeCloud(exists=True, shutdown=True)))

    assert stage.bodies() == [
        {
            "metadata": {"resourceVersion": made.resource_version},
            "spec": {
                "taints": [
                    {"key": "a", "effect": "NoSchedule"},
                    {"key": "b", "value": "1", "effect": "NoExecute"},
                    {"key": names.TAINT_SHUTDOWN, "effect": "NoSchedule"},
                ]
            },
        }
    ]
    assert list((await stage.present()).taints) == [A, B, DOWN]


@pytest.mark.row("lifecycle-more-08")
async def test_the_only_taint_goes(stage: Stage) -> None:
    made = await stage.node(ready="True", provider_id="fake://1", taints=[DOWN])

    await monitored(stage.lifecycle(FakeCloud(exists=True, shutdown=True)))

    assert stage.bodies() == [
        {"metadata": {"resourceVersion": made.resource_version}, "spec": {"taints": None}}
    ]
    assert list((await stage.present()).taints) == []


@pytest.mark.row("lifecycle-more-09")
async def test_a_taint_that_somebody_else_removed_is_let_be(stage: Stage) -> None:
    await stage.node(ready="True", provider_id="fake://1", taints=[DOWN, A])
    stage.freeze()
    changed = await stage.change(
        "node0", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, wait=False
    )

    await monitored(stage.lifecycle(FakeCloud()))

    assert await stage.trace() == ["PATCH nodes/node0 409", "GET nodes/node0 200"]
    assert await stage.present() == changed


@pytest.mark.row("lifecycle-more-10")
async def test_a_taint_of_another_effect_is_not_ours(stage: Stage) -> None:
    fake = FakeCloud(exists=False)
    made = await stage.node(provider_id="fake://1", taints=[shutdown_taint(effect="NoExecute")])

    await monitored(stage.lifecycle(fake))

    assert await stage.present() == made
    assert (fake.calls, stage.calls()) == ([], [])


@pytest.mark.row("lifecycle-more-11")
async def test_a_node_tainted_already_costs_questions_only(stage: Stage) -> None:
    fake = FakeCloud(exists=True, shutdown=True)
    await stage.node(ready="False", provider_id="fake://1", taints=[DOWN])
    controller = stage.lifecycle(fake)

    for _ in range(2):
        await monitored(controller)

    assert fake.calls == ["instance-exists", "instance-shutdown"] * 2
    assert stage.calls() == []


@pytest.mark.row("lifecycle-more-12")
async def test_the_old_interface_looks_the_id_up_once(stage: Stage) -> None:
    fake = FakeCloud(v2=False, exists=True, external_ids={"node0": "1"})
    await stage.node(ready="False")

    await monitored(stage.lifecycle(fake))

    assert fake.calls == [
        "instance-id",
        "instance-exists-by-provider-id",
        "instance-shutdown-by-provider-id",
    ]


@pytest.mark.row("lifecycle-more-13")
async def test_a_running_node_that_is_not_ready_keeps_the_taint(stage: Stage) -> None:
    made = await stage.node(ready="False", provider_id="fake://1", taints=[DOWN])

    await monitored(stage.lifecycle(FakeCloud(exists=True, shutdown=False)))

    assert await outcome(stage, made) == KEPT


@pytest.mark.row("lifecycle-more-14")
async def test_the_new_interface_wins(stage: Stage) -> None:
    fake = FakeCloud(exists=True)
    await stage.node(ready="False")

    await monitored(stage.lifecycle(fake))

    assert fake.calls == ["instance-exists", "instance-shutdown"]


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize(
    "error",
    [
        row("lifecycle-more-15", Unimplemented("cannot tell")),
        row("lifecycle-own-01", wrapped(Unimplemented("cannot tell"))),
    ],
)
async def test_a_cloud_that_cannot_tell_power_has_running_instances(
    stage: Stage, v2: bool, error: Exception
) -> None:
    fake = FakeCloud(v2=v2, exists=True, shutdown_error=error)
    made = await stage.node(ready="False", provider_id="fake://1")
    controller = stage.lifecycle(fake)

    await monitored(controller)

    assert await outcome(stage, made) == KEPT
    assert not controller._backoff  # no error: asked again in the next pass
