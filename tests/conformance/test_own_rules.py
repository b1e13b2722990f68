"""Where the controllers differ from the reference on purpose, on both API servers.

Time is virtual for the controllers and real for the wire: a test moves the clock and then
waits for what the server or the cloud sees.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ccm.base import metrics
from ccm.cloud import CloudError, InstanceMetadata, RetryAfter, Unavailable
from ccm.model import Node, names
from ccm.testing.builders import shutdown_taint
from tests.conformance.environment import (
    EVENT_POST,
    MAIN_PATCH,
    REFUSED,
    UNINITIALIZED,
    V4,
    NodeEnvironment,
    cloud,
    row,
)
from tests.faults import Respond
from tests.shifted import advance, jump, quiet
from tests.support.fakecloud import FakeCloud
from tests.waiting import eventually

pytestmark = pytest.mark.shifted_time

U, DOWN = UNINITIALIZED, shutdown_taint()
WRONG_IP = {names.ANNOTATION_PROVIDED_NODE_IP: "10.9.9.9"}
INVALID_LABEL = {"additional_labels": {"fine": "not fine!"}}
HINT = {"metadata": {"labels": {"hint": "1"}}}


def down() -> FakeCloud:
    return cloud(metadata_error=Unavailable("the cloud is on fire"))


async def not_ready(env: NodeEnvironment, count: int) -> None:
    """Create this number of unready nodes."""
    for number in range(count):
        await env.node(f"node{number}", ready="False", provider_id=f"fake://{number}")


@pytest.mark.row("node-own-01")
async def test_node_initialised_by_another_client_is_left_unchanged(env: NodeEnvironment) -> None:
    await env.node(taints=[U], addresses=[V4])
    changed = await env.change_unseen({"spec": {"taints": None}})

    await env.sync(cloud())

    assert await env.trace() == ["PATCH nodes/node0 409", "GET nodes/node0 200"]
    assert await env.present() == changed


@pytest.mark.row("node-own-02")
@pytest.mark.both_servers
async def test_recreated_node_is_not_initialised_from_the_old_object(
    env: NodeEnvironment,
) -> None:
    await env.node(taints=[U], labels={names.LABEL_ZONE_BETA: "z"})
    made = await env.recreate(taints=[U])

    await env.sync(cloud())

    assert await env.present() == made
    assert await env.trace() == ["PATCH nodes/node0/status 409", "GET nodes/node0 200"]


@pytest.mark.row("node-own-02")
async def test_recreated_node_gets_no_labels_or_addresses_of_the_old_one(
    env: NodeEnvironment,
) -> None:
    await env.node(provider_id="fake://1", labels={names.LABEL_ZONE_BETA: "z"})
    made = await env.recreate()

    controller = env.node_controller(cloud())
    await controller.sync_node("node0")
    await controller.update_addresses()

    assert await env.present() == made
    assert await env.trace() == [
        "PATCH nodes/node0 422",
        "GET nodes/node0 200",
        "PATCH nodes/node0/status 409",
        "GET nodes/node0 200",
    ]


@pytest.mark.row("node-own-03")
async def test_a_lagging_cache_does_not_initialise_twice(env: NodeEnvironment) -> None:
    fake = cloud()
    await env.node(taints=[U])
    env.is_frozen = True
    controller = env.node_controller(fake)

    for _ in range(2):
        await controller.sync_node("node0")

    assert len(fake.calls) == 1
    assert await env.reasons() == ["Synced"]


@pytest.mark.row("node-own-04")
async def test_heartbeats_do_not_override_a_back_off(env: NodeEnvironment) -> None:
    fake = down()
    await env.node(taints=[U])
    async with env.running(env.node_controller(fake)):
        await advance(20)
        asked = len(fake.calls)
        beat = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
        await env.change("node0", {"status": beat}, subresource="status")
        await quiet()
        assert len(fake.calls) == asked

        await env.change("node0", HINT)
        await eventually(lambda: len(fake.calls) > asked)


@pytest.mark.row("node-own-05")
async def test_failing_initialisation_is_retried_every_30_seconds(env: NodeEnvironment) -> None:
    fake = down()
    await env.node(taints=[U])
    async with env.running(env.node_controller(fake)):
        await advance(300)
        asked = len(fake.calls)
        await advance(300)
        assert len(fake.calls) - asked in (9, 10, 11)  # depends on the phase of the retries


@pytest.mark.row("node-own-06")
async def test_success_after_an_outage_retries_all_waiting_nodes(env: NodeEnvironment) -> None:
    fake = down()
    for number in range(3):
        await env.node(f"node{number}", taints=[U])
    async with env.running(env.node_controller(fake)):
        await advance(300)
        fake.metadata_error = None
        await env.change("node0", HINT)
        await env.proxy.wait_for(MAIN_PATCH, count=3, answered=True)
    assert [list((await env.present(f"node{n}")).taints) for n in range(3)] == [[], [], []]


@pytest.mark.row("node-own-07")
async def test_missing_metadata_is_requested_again(env: NodeEnvironment) -> None:
    said: list[str] = []

    def answer(node: Node) -> InstanceMetadata | None:
        said.append(node.name)
        return InstanceMetadata(provider_id="fake://1") if len(said) > 5 else None

    await env.node(taints=[U])
    async with env.running(env.node_controller(cloud(metadata=answer))):
        await advance(10)
        await env.proxy.wait_for(EVENT_POST, answered=True)
        await env.proxy.wait_for(MAIN_PATCH, answered=True)
    assert (await env.present()).provider_id == "fake://1"
    assert await env.reasons() == ["Synced"]


@pytest.mark.row("node-own-08")
async def test_failed_initialisation_emits_a_warning_event(env: NodeEnvironment) -> None:
    def failures() -> float:
        name = "ccm_node_initialization_failures_total"
        return metrics.REGISTRY.get_sample_value(name, {"error": "Unavailable"}) or 0.0

    before = failures()
    fake = down()
    made = await env.node(taints=[U])
    async with env.running(env.node_controller(fake)):
        await advance(59)
        await env.proxy.wait_for(EVENT_POST, answered=True)
    [event] = await env.events()
    assert (event.type, event.reason) == ("Warning", "InitializationFailed")
    assert event.message == "Initialization failed: the cloud is on fire"
    assert event.involved_object["uid"] == made.uid
    assert failures() - before == len(fake.calls) > 5


@pytest.mark.parametrize(
    ("script", "annotations", "refusal"),
    [
        row("node-own-09", {}, WRONG_IP, None, label="annotation"),
        row("node-own-09", INVALID_LABEL, {}, None, label="label"),
        row("node-own-09", {}, {}, REFUSED, label="refused"),
    ],
)
async def test_permanent_initialisation_errors_are_retried_slowly(
    env: NodeEnvironment, script: Any, annotations: Any, refusal: Respond | None
) -> None:
    fake = cloud(**script)
    if refusal is not None:
        env.proxy.on(MAIN_PATCH, refusal)
    await env.node(taints=[U], annotations=annotations)
    async with env.running(env.node_controller(fake)):
        await env.proxy.wait_for(EVENT_POST, answered=True)
        # In the node's first quarter of an hour after 0, 1, 3, 7, 15, 31, 63, ... 903 s.
        for _ in range(32):
            await advance(30)
            await quiet()
        young = len(fake.calls)
        assert 15 <= young <= 22
        await advance(500)
        assert len(fake.calls) == young
        await advance(100)
        await eventually(lambda: len(fake.calls) == young + 1)
        # A change of the object triggers an earlier retry.
        await env.change("node0", {"metadata": {"annotations": {"mark": "1"}}})
        await eventually(lambda: len(fake.calls) == young + 2)
    assert await env.reasons() == ["InitializationFailed"]
    assert list((await env.present()).taints) == [U]


@pytest.mark.row("node-own-10")
async def test_retry_after_delays_the_initialisation_without_an_event(env: NodeEnvironment) -> None:
    fake = cloud(metadata_error=RetryAfter("busy", seconds=42))
    await env.node(taints=[U])
    async with env.running(env.node_controller(fake)):
        await advance(41)
        assert len(fake.calls) == 1
        await advance(10)
        await eventually(lambda: len(fake.calls) == 2)
    assert await env.trace() == []


@pytest.mark.row("node-own-11")
async def test_nodes_of_another_cloud_are_neither_initialised_nor_addressed(
    env: NodeEnvironment,
) -> None:
    fake = cloud()
    waiting = await env.node("node0", provider_id="other://1", taints=[U])
    settled = await env.node("node1", provider_id="other://2")
    controller = env.node_controller(fake)

    await controller.sync_node("node0")
    await controller.update_addresses()

    assert (await env.present("node0"), await env.present("node1")) == (waiting, settled)
    assert (fake.calls, env.calls()) == ([], [])


@pytest.mark.row("node-own-13")
async def test_an_invalid_label_is_never_sent(env: NodeEnvironment) -> None:
    await env.node(taints=[U])

    with pytest.raises(CloudError, match="label fine: 'not fine!' is not a valid label value"):
        await env.node_controller(cloud(additional_labels={"fine": "not fine!"})).sync_node("node0")

    assert env.proxy.requests(MAIN_PATCH) == []


# --- the lifecycle controller -------------------------------------------------------------------


@pytest.mark.row("lifecycle-own-11")
async def test_lifecycle_error_backs_off_only_its_own_node(env: NodeEnvironment) -> None:
    class Half(FakeCloud):
        def _exists(self) -> bool:
            if self.asked[-1][1] == "fake://0":
                raise Unavailable("down")
            return True

    fake = Half()
    await not_ready(env, 2)
    async with env.running(env.lifecycle(fake, period_s=5)):
        await advance(62)
    assert fake.asked.count(("instance-exists", "fake://1")) == 13  # at 0, 5, ... 60 s
    assert fake.asked.count(("instance-exists", "fake://0")) == 4  # at 0, 5, 15 and 35 s


@pytest.mark.row("lifecycle-own-12")
async def test_retry_after_delays_the_next_lifecycle_check(env: NodeEnvironment) -> None:
    fake = cloud(exists_error=RetryAfter("busy", seconds=42))
    await not_ready(env, 1)
    async with env.running(env.lifecycle(fake, period_s=5)):
        await advance(41)
        assert len(fake.calls) == 1
        await advance(10)
        assert len(fake.calls) == 2


@pytest.mark.row("lifecycle-own-13")
async def test_readiness_change_triggers_a_lifecycle_check_at_once(env: NodeEnvironment) -> None:
    fake = cloud(exists=True, shutdown=True)
    await env.node(provider_id="fake://0")
    async with env.running(env.lifecycle(fake, period_s=5)):
        await quiet()
        assert fake.calls == []
        await env.change("node0", readiness("False"), subresource="status")
        await eventually(lambda: tainted(env))
        await env.change("node0", readiness("True"), subresource="status")
        await eventually(lambda: not tainted(env))
    assert fake.calls == ["instance-exists", "instance-shutdown"]


def readiness(status: str) -> Any:
    return {"status": {"conditions": [{"type": "Ready", "status": status}]}}


def tainted(env: NodeEnvironment) -> bool:
    node = env.informer.store.get("node0")
    return node is not None and list(node.taints) == [DOWN]


@pytest.mark.row("lifecycle-own-14")
async def test_slow_cloud_answer_delays_no_other_node(env: NodeEnvironment) -> None:

    class Slow(FakeCloud):
        async def instance_exists(self, node: Node) -> bool:
            if node.name == "node0":
                await asyncio.sleep(50)
            return await super().instance_exists(node)

    fake = Slow(exists=True)
    await not_ready(env, 2)
    async with env.running(env.lifecycle(fake, period_s=5, workers=2)):
        await advance(22)
    both = [("instance-exists", "fake://1"), ("instance-shutdown", "fake://1")]
    assert fake.asked == both * 5


@pytest.mark.row("lifecycle-own-15")
async def test_node_is_not_deleted_before_the_minimum_age(env: NodeEnvironment) -> None:
    await not_ready(env, 1)
    controller = env.lifecycle(cloud(exists=False), min_age_s=3600)
    async with env.running(controller):
        await advance(20)
        assert [one for one in await env.trace() if one.startswith("DELETE")] == []

        jump(2 * 3600)
        await eventually(lambda: env.informer.store.get("node0") is None)


@pytest.mark.row("lifecycle-own-16")
async def test_deletion_limit_keeps_the_remaining_nodes(env: NodeEnvironment) -> None:
    await not_ready(env, 3)
    controller = env.lifecycle(cloud(exists=False), limit=2, period_s=0.5)
    async with env.running(controller):
        await eventually(lambda: len(env.informer.store) == 1)
        await advance(60)

    requests = [one for one in await env.trace() if one.startswith("DELETE")]
    assert len(requests) == 2
    found = [await env.stored(f"node{number}") for number in range(3)]
    assert found.count(None) == 2
