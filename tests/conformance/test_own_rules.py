"""Where the controllers differ from the reference on purpose, on both API servers.

Time is virtual for the controllers and real for the wire: a test moves the clock and then
waits for what the server or the cloud sees.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ccm.base import metrics
from ccm.cloud import CloudError, InstanceMetadata, RetryAfter, Unavailable, address
from ccm.controllers.nodelifecycle.plan import Protection
from ccm.model import Node, names
from ccm.testing.builders import shutdown_taint, uninitialized_taint
from ccm.testing.fakes import FakeCloud
from tests.conformance.stage import MAIN_PATCH, Stage, eventually, monitored
from tests.faults import Match, Respond
from tests.shifted import advance, jump, quiet

pytestmark = pytest.mark.shifted_time

U, DOWN = uninitialized_taint(), shutdown_taint()
V4 = address("InternalIP", "10.0.0.1")
EVENT_POST = Match(method="POST", path="events$")
LONG_PERIOD_S = 1e9


def cloud(**script: Any) -> FakeCloud:
    ids = {f"node{number}": f"fake://{number}" for number in range(3)}
    return FakeCloud(**{"provider_ids": ids, "addresses": [V4], **script})


@pytest.mark.row("node-own-01")
async def test_a_node_that_somebody_else_initialised_is_let_be(stage: Stage) -> None:
    await stage.node(taints=[U], addresses=[V4])
    stage.freeze()
    changed = await stage.change("node0", {"spec": {"taints": None}}, wait=False)

    await stage.node_controller(cloud()).sync_node("node0")

    assert await stage.trace() == ["PATCH nodes/node0 409", "GET nodes/node0 200"]
    assert await stage.present() == changed


@pytest.mark.row("node-own-02")
@pytest.mark.both_servers
async def test_a_machine_that_took_the_name_gets_nothing_of_the_old_one(stage: Stage) -> None:
    await stage.node(taints=[U], labels={names.LABEL_ZONE_BETA: "z"})
    stage.freeze()
    await stage.delete()
    await stage.make_again("node0", taints=[U])
    made = await stage.present()

    await stage.node_controller(cloud()).sync_node("node0")

    assert await stage.present() == made
    assert await stage.trace() == ["PATCH nodes/node0/status 409", "GET nodes/node0 200"]


@pytest.mark.row("node-own-02")
async def test_labels_of_the_old_machine_neither(stage: Stage) -> None:
    await stage.node(labels={names.LABEL_ZONE_BETA: "z"})
    stage.freeze()
    await stage.delete()
    await stage.make_again("node0")
    made = await stage.present()

    controller = stage.node_controller(cloud())
    await controller.sync_node("node0")
    await controller.update_addresses()

    assert await stage.present() == made
    assert await stage.trace() == [
        "PATCH nodes/node0 422",
        "GET nodes/node0 200",
        "PATCH nodes/node0/status 409",
        "GET nodes/node0 200",
    ]


@pytest.mark.row("node-own-03")
async def test_a_lagging_cache_does_not_initialise_twice(stage: Stage) -> None:
    fake = cloud()
    await stage.node(taints=[U])
    stage.freeze()
    controller = stage.node_controller(fake)

    for _ in range(2):
        await controller.sync_node("node0")

    assert len(fake.calls) == 1
    assert [told.reason for told in await stage.events()] == ["Synced"]


@pytest.mark.row("node-own-04")
async def test_heartbeats_do_not_override_a_back_off(stage: Stage) -> None:
    fake = cloud(metadata_error=Unavailable("down"))
    await stage.node(taints=[U])
    async with stage.running(stage.node_controller(fake, status_period_s=LONG_PERIOD_S)):
        await advance(20)
        asked = len(fake.calls)
        beat = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
        await stage.change("node0", {"status": beat}, subresource="status")
        await quiet()
        assert len(fake.calls) == asked

        await stage.change("node0", {"metadata": {"labels": {"hint": "1"}}})
        await eventually(lambda: len(fake.calls) == asked + 1)


@pytest.mark.row("node-own-05")
async def test_a_failing_node_is_tried_every_half_minute(stage: Stage) -> None:
    fake = cloud(metadata_error=Unavailable("down"))
    await stage.node(taints=[U])
    async with stage.running(stage.node_controller(fake, status_period_s=LONG_PERIOD_S)):
        await advance(300)
        asked = len(fake.calls)
        await advance(300)
        assert len(fake.calls) == asked + 10


@pytest.mark.row("node-own-06")
async def test_the_end_of_an_outage_wakes_all(stage: Stage) -> None:
    fake = cloud(metadata_error=Unavailable("down"))
    for number in range(3):
        await stage.node(f"node{number}", taints=[U])
    async with stage.running(stage.node_controller(fake, status_period_s=LONG_PERIOD_S)):
        await advance(300)
        fake.metadata_error = None
        await stage.change("node0", {"metadata": {"labels": {"hint": "1"}}})
        await stage.proxy.wait_for(MAIN_PATCH, count=3, answered=True)
    assert [list((await stage.present(f"node{n}")).taints) for n in range(3)] == [[], [], []]


@pytest.mark.row("node-own-07")
async def test_a_cloud_with_nothing_to_say_is_asked_again(stage: Stage) -> None:
    said: list[str] = []

    def answer(node: Node) -> InstanceMetadata | None:
        said.append(node.name)
        return InstanceMetadata(provider_id="fake://1") if len(said) > 5 else None

    await stage.node(taints=[U])
    async with stage.running(
        stage.node_controller(cloud(metadata=answer), status_period_s=LONG_PERIOD_S)
    ):
        await advance(10)
        await stage.proxy.wait_for(EVENT_POST, answered=True)
        await stage.proxy.wait_for(MAIN_PATCH, answered=True)
    assert (await stage.present()).provider_id == "fake://1"
    assert [told.reason for told in await stage.events()] == ["Synced"]


@pytest.mark.row("node-own-08")
async def test_people_are_told_why_a_node_waits(stage: Stage) -> None:
    name = "ccm_node_initialization_failures_total"
    labels = {"error": "Unavailable"}
    before = metrics.REGISTRY.get_sample_value(name, labels) or 0.0
    fake = cloud(metadata_error=Unavailable("the cloud is on fire"))
    made = await stage.node(taints=[U])
    async with stage.running(stage.node_controller(fake, status_period_s=LONG_PERIOD_S)):
        await advance(59)
        await stage.proxy.wait_for(EVENT_POST, answered=True)
    [told] = await stage.events()
    assert (told.type, told.reason) == ("Warning", "InitializationFailed")
    assert told.message == "Initialization failed: the cloud is on fire"
    assert (told.involved["name"], told.involved["uid"]) == ("node0", made.uid)
    failed = (metrics.REGISTRY.get_sample_value(name, labels) or 0.0) - before
    assert failed == len(fake.calls) > 5


@pytest.mark.parametrize(
    ("script", "annotations", "refusal"),
    [
        ({}, {names.ANNOTATION_PROVIDED_NODE_IP: "10.9.9.9"}, None),
        ({"additional_labels": {"fine": "not fine!"}}, {}, None),
        ({}, {}, Respond(422, {"kind": "Status", "reason": "Invalid", "code": 422})),
    ],
    ids=["annotation", "label", "refused"],
)
@pytest.mark.row("node-own-09")
async def test_what_will_not_pass_by_itself_is_retried_slowly(
    stage: Stage, script: Any, annotations: Any, refusal: Respond | None
) -> None:
    fake = cloud(**script)
    if refusal is not None:
        stage.proxy.on(MAIN_PATCH, refusal)
    await stage.node(taints=[U], annotations=annotations)
    async with stage.running(stage.node_controller(fake, status_period_s=LONG_PERIOD_S)):
        await stage.proxy.wait_for(EVENT_POST, answered=True)
        await advance(599)
        assert len(fake.calls) == 1
        await advance(2)
        await eventually(lambda: len(fake.calls) == 2)
        # A change of the object comes earlier.
        await stage.change("node0", {"metadata": {"annotations": {"mark": "1"}}})
        await eventually(lambda: len(fake.calls) == 3)
    assert [told.reason for told in await stage.events()] == ["InitializationFailed"]
    assert list((await stage.present()).taints) == [U]


@pytest.mark.row("node-own-10")
async def test_a_provider_may_ask_for_a_calm_delay(stage: Stage) -> None:
    fake = cloud(metadata_error=RetryAfter("busy", seconds=42))
    await stage.node(taints=[U])
    async with stage.running(stage.node_controller(fake, status_period_s=LONG_PERIOD_S)):
        await advance(41)
        assert len(fake.calls) == 1
        await advance(2)
        await eventually(lambda: len(fake.calls) == 2)
    assert await stage.trace() == []


@pytest.mark.row("node-own-11")
async def test_nodes_of_another_cloud_are_neither_initialised_nor_addressed(stage: Stage) -> None:
    fake = cloud()
    waiting = await stage.node("node0", provider_id="other://1", taints=[U])
    settled = await stage.node("node1", provider_id="other://2")
    controller = stage.node_controller(fake)

    await controller.sync_node("node0")
    await controller.update_addresses()

    assert (await stage.present("node0"), await stage.present("node1")) == (waiting, settled)
    assert (fake.calls, stage.calls()) == ([], [])


@pytest.mark.row("node-own-12")
async def test_nothing_said_about_a_settled_node_skips_it(stage: Stage) -> None:
    made = await stage.node(provider_id="fake://1", addresses=[V4])
    await stage.node("node1", provider_id="fake://2")

    def answer(node: Node) -> InstanceMetadata | None:
        known = InstanceMetadata(provider_id="fake://2", addresses=[V4])
        return known if node.name == "node1" else None

    await stage.node_controller(cloud(metadata=answer)).update_addresses()

    assert await stage.present() == made
    assert list((await stage.present("node1")).addresses) == [V4]


@pytest.mark.row("node-own-13")
async def test_an_invalid_label_is_never_sent(stage: Stage) -> None:
    await stage.node(taints=[U])

    with pytest.raises(CloudError, match="label fine: 'not fine!' is no label value"):
        await stage.node_controller(cloud(additional_labels={"fine": "not fine!"})).sync_node(
            "node0"
        )

    assert stage.proxy.requests(MAIN_PATCH) == []


# --- the lifecycle controller -------------------------------------------------------------------


@pytest.mark.row("lifecycle-own-11")
async def test_an_error_pauses_one_node_and_no_other(stage: Stage) -> None:
    class Half(FakeCloud):
        def _exists(self) -> bool:
            if self.asked[-1][1] == "fake://0":
                raise Unavailable("down")
            return True

    fake = Half()
    await stage.node("node0", ready="False", provider_id="fake://0")
    await stage.node("node1", ready="False", provider_id="fake://1")
    async with stage.running(stage.lifecycle(fake, period_s=5)):
        await advance(62)
    asked = [subject for call, subject in fake.asked if call == "instance-exists"]
    assert asked.count("fake://1") == 13  # at 0, 5, ... 60 s
    assert asked.count("fake://0") == 4  # at 0, 5, 15 and 35 s


@pytest.mark.row("lifecycle-own-12")
async def test_a_provider_may_ask_for_a_calm_delay_about_a_node(stage: Stage) -> None:
    fake = cloud(exists_error=RetryAfter("busy", seconds=42))
    await stage.node(ready="False", provider_id="fake://0")
    async with stage.running(stage.lifecycle(fake, period_s=5)):
        await advance(41)
        assert len(fake.calls) == 1
        await advance(2)
        assert len(fake.calls) == 2


@pytest.mark.row("lifecycle-own-13")
async def test_a_change_of_readiness_is_seen_at_once(stage: Stage) -> None:
    fake = cloud(exists=True, shutdown=True)
    await stage.node(provider_id="fake://0")
    async with stage.running(stage.lifecycle(fake, period_s=5)):
        await quiet()
        assert fake.calls == []
        await stage.change("node0", readiness("False"), subresource="status")
        await eventually(lambda: tainted(stage))
        await stage.change("node0", readiness("True"), subresource="status")
        await eventually(lambda: not tainted(stage))
    assert fake.calls == ["instance-exists", "instance-shutdown"]


def readiness(status: str) -> Any:
    return {"status": {"conditions": [{"type": "Ready", "status": status}]}}


def tainted(stage: Stage) -> bool:
    node = stage.informer.store.get("node0")
    return node is not None and list(node.taints) == [DOWN]


@pytest.mark.row("lifecycle-own-14")
async def test_a_slow_answer_holds_up_no_other_node(stage: Stage) -> None:

    class Slow(FakeCloud):
        async def instance_exists(self, node: Node) -> bool:
            if node.name == "node0":
                await asyncio.sleep(50)
            return await super().instance_exists(node)

    fake = Slow(exists=True)
    await stage.node("node0", ready="False", provider_id="fake://0")
    await stage.node("node1", ready="False", provider_id="fake://1")
    async with stage.running(stage.lifecycle(fake, period_s=5, workers=2)):
        await advance(22)
    assert (
        fake.asked
        == [
            ("instance-exists", "fake://1"),
            ("instance-shutdown", "fake://1"),
        ]
        * 5
    )


@pytest.mark.row("lifecycle-own-15")
async def test_a_young_node_is_kept_until_it_is_old_enough(stage: Stage) -> None:
    hour = Protection(least_age_s=3600)
    await stage.node(ready="False", provider_id="fake://0")
    controller = stage.lifecycle(cloud(exists=False), protection=hour)
    await monitored(controller)
    assert await stage.trace() == []

    jump(2 * 3600)
    await monitored(controller)
    assert await stage.stored("node0") is None


@pytest.mark.row("lifecycle-own-16")
async def test_a_brake_keeps_the_nodes_that_are_too_many(stage: Stage) -> None:
    for number in range(3):
        await stage.node(f"node{number}", ready="False", provider_id=f"fake://{number}")
    controller = stage.lifecycle(cloud(exists=False), protection=Protection(most_deletions=2))

    for number in range(3):
        await monitored(controller, f"node{number}")

    requests = [one for one in await stage.trace() if one.startswith("DELETE")]
    assert requests == ["DELETE nodes/node0 200", "DELETE nodes/node1 200"]
