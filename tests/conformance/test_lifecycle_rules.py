"""The node lifecycle controller where we differ on purpose."""

from __future__ import annotations

import pytest

from ccm.cloud import Unavailable
from ccm.model import Taint
from ccm.testing.fakes import FakeCloud
from tests.conformance.outcome import DOWN, KEPT, A, outcome
from tests.conformance.stage import DELETE, MAIN_PATCH, WRITE_NODE, Stage, monitored
from tests.faults import Respond


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.row("lifecycle-own-02")
async def test_a_cloud_that_takes_back_its_word_deletes_nothing(stage: Stage, v2: bool) -> None:
    class Wavering(FakeCloud):
        def _exists(self) -> bool:
            return len(self.calls) > 1

    fake = Wavering(v2=v2)
    made = await stage.node(ready="False", provider_id="fake://1")

    await monitored(stage.lifecycle(fake))

    assert [call for call in fake.calls if "exists" not in call] == []
    assert len(fake.calls) == 2
    assert await outcome(stage, made) == KEPT
    assert stage.calls() == []


@pytest.mark.row("lifecycle-own-03")
async def test_an_error_the_second_time_keeps_the_node(stage: Stage) -> None:
    class Failing(FakeCloud):
        def _exists(self) -> bool:
            if len(self.calls) > 1:
                raise Unavailable("down")
            return False

    made = await stage.node(ready="False", provider_id="fake://1")

    await monitored(stage.lifecycle(Failing()))

    assert await outcome(stage, made) == KEPT


@pytest.mark.row("lifecycle-own-04")
@pytest.mark.both_servers
async def test_a_node_made_anew_under_the_same_name_is_not_deleted(stage: Stage) -> None:
    await stage.node(ready="False", provider_id="fake://1")
    stage.freeze()
    await stage.delete()
    await stage.make_again()

    await monitored(stage.lifecycle(FakeCloud(exists=False)))

    assert await stage.stored() is not None
    assert [call.status for call in stage.proxy.requests(DELETE)] == [409]
    assert [told.reason for told in await stage.events()] == ["DeletingNode"]


@pytest.mark.row("lifecycle-own-05")
async def test_a_node_that_is_gone_already_was_deleted(stage: Stage) -> None:
    await stage.node(ready="False", provider_id="fake://1")
    stage.freeze()
    await stage.delete()

    await monitored(stage.lifecycle(FakeCloud(exists=False)))

    assert [call.status for call in stage.proxy.requests(DELETE)] == [404]
    assert [told.reason for told in await stage.events()] == ["DeletingNode"]


@pytest.mark.row("lifecycle-own-06")
@pytest.mark.both_servers
async def test_a_node_being_deleted_is_held(stage: Stage) -> None:
    await stage.node(ready="False", provider_id="fake://1", finalizers=["example.com/hold"])
    await stage.delete()
    made = await stage.present()
    assert made.metadata.deletion_timestamp
    await stage.cached(made)

    await monitored(stage.lifecycle(FakeCloud(exists=False)))

    assert await stage.present() == made
    assert await stage.trace() == []


@pytest.mark.parametrize(
    ("ready", "taints"), [("False", []), ("True", [DOWN])], ids=["not ready", "tainted"]
)
@pytest.mark.row("lifecycle-own-07")
async def test_nodes_of_another_cloud_are_left_alone(
    stage: Stage, ready: str, taints: list[Taint]
) -> None:
    fake = FakeCloud(exists=False, shutdown=True)
    made = await stage.node(ready=ready, provider_id="other://1", taints=taints)

    await monitored(stage.lifecycle(fake))

    assert await stage.present() == made
    assert (fake.calls, stage.calls()) == ([], [])


@pytest.mark.row("lifecycle-own-08")
@pytest.mark.both_servers
async def test_the_taint_is_lost_to_no_conflict(stage: Stage) -> None:
    await stage.node(ready="False", provider_id="fake://1")
    stage.freeze()
    await stage.change(
        "node0", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, wait=False
    )

    await monitored(stage.lifecycle(FakeCloud(exists=True, shutdown=True)))

    assert await stage.trace() == [
        "PATCH nodes/node0 409",
        "GET nodes/node0 200",
        "PATCH nodes/node0 200",
    ]
    assert list((await stage.present()).taints) == [A, DOWN]


@pytest.mark.row("lifecycle-own-09")
async def test_a_node_that_became_ready_meanwhile_is_not_tainted(stage: Stage) -> None:
    await stage.node(ready="False", provider_id="fake://1")
    stage.freeze()
    changed = await stage.change(
        "node0",
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        subresource="status",
        wait=False,
    )

    await monitored(stage.lifecycle(FakeCloud(exists=True, shutdown=True)))

    assert await stage.present() == changed


@pytest.mark.row("lifecycle-own-10")
async def test_five_conflicts_are_enough(stage: Stage) -> None:
    await stage.node(ready="False", provider_id="fake://1")
    status = {"kind": "Status", "reason": "Conflict", "message": "moved", "code": 409}
    stage.proxy.on(MAIN_PATCH, Respond(409, status))

    await monitored(stage.lifecycle(FakeCloud(exists=True, shutdown=True)))

    assert len(stage.proxy.requests(WRITE_NODE)) == 5
