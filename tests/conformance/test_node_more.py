"""Requests, bodies, events and edge cases of the node controller, on both API servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ccm.base import metrics
from ccm.cloud import Unavailable, address
from ccm.kube.errors import Invalid, ServerError
from ccm.model import NodeAddress, names
from tests.conformance.environment import (
    CONFLICT,
    EVENT_POST,
    MAIN_PATCH,
    REFUSED,
    STATUS_PATCH,
    UNINITIALIZED,
    V4,
    NodeEnvironment,
    cloud,
    row,
)
from tests.faults import Respond
from tests.shifted import advance
from tests.waiting import eventually

U = UNINITIALIZED
H = address("Hostname", "node0.cloud.internal")
E = address("ExternalIP", "132.143.154.163")
A3, A2 = (H, V4, E), (V4, E)
SETTLED = {"provider_id": "fake://1"}
ZONES = (names.LABEL_ZONE_BETA, names.LABEL_ZONE)
METADATA, EVENT = "instance-metadata-by-provider-id", "POST namespaces/default/events 201"
STATUS, MAIN = "PATCH nodes/node0/status 200", "PATCH nodes/node0 200"
TAINT_DELAY = "node_controller_cloud_provider_taint_removal_delay_seconds_count"
SYNC_DELAY = "node_controller_initial_node_sync_delay_seconds_count"


def delays() -> list[float]:
    """Return the number of observations of both initialisation delays."""
    return [metrics.REGISTRY.get_sample_value(name) or 0.0 for name in (TAINT_DELAY, SYNC_DELAY)]


@pytest.mark.parametrize(
    ("before", "addresses", "after"),
    [row("node-trace-01", [H], A2, [V4, E, H]), row("node-trace-02", [], A3, [H, V4, E])],
)
@pytest.mark.both_servers
async def test_initialisation_patches_the_status_and_then_the_node(
    env: NodeEnvironment,
    before: Sequence[NodeAddress],
    addresses: Sequence[NodeAddress],
    after: Sequence[NodeAddress],
) -> None:
    fake = cloud(addresses=addresses)
    made = await env.node(taints=[U], addresses=before)

    await env.sync(fake)

    assert fake.calls == [METADATA]
    assert await env.trace() == [STATUS, MAIN, EVENT]
    status, main = env.bodies()
    entries = [{"type": each.type, "address": each.address} for each in after]
    assert status == {
        "metadata": {"resourceVersion": made.resource_version},
        "status": {"addresses": [*entries, {"$patch": "replace"}]},
    }
    version = main["metadata"].pop("resourceVersion")
    assert int(version) > int(made.resource_version)
    assert main == {"metadata": {}, "spec": {"providerID": "fake://0", "taints": None}}


@pytest.mark.row("node-more-08", "node-trace-03")
async def test_initialisation_without_cloud_addresses_keeps_existing_ones(
    env: NodeEnvironment,
) -> None:
    fake = cloud(addresses=[])
    made = await env.node(taints=[U], addresses=[H, V4])

    await env.sync(fake)

    assert fake.calls == [METADATA]
    assert await env.trace() == [MAIN, EVENT]
    version = {"resourceVersion": made.resource_version}
    spec = {"providerID": "fake://0", "taints": None}
    assert env.bodies() == [{"metadata": version, "spec": spec}]
    node = await env.present()
    assert (list(node.taints), list(node.addresses)) == ([], [H, V4])


@pytest.mark.row("node-more-26", "node-trace-04")
async def test_v1_interface_is_called_in_a_fixed_order(env: NodeEnvironment) -> None:
    fake = cloud(v2=False, external_ids={"node0": "1"}, addresses=A2)
    await env.node(taints=[U])

    await env.sync(fake)

    assert fake.calls == [
        "instance-id",
        "node-addresses-by-provider-id",
        "instance-type-by-provider-id",
        "get-zone-by-provider-id",
    ]
    assert await env.trace() == [STATUS, MAIN, EVENT]


@pytest.mark.parametrize(
    ("script", "provided"),
    [
        row("node-trace-05", {"metadata_error": Unavailable("down")}, None, label="metadata"),
        row("node-trace-05", {"addresses": A2}, "10.0.0.2", label="annotation"),
    ],
)
async def test_a_failed_initialisation_changes_nothing(
    env: NodeEnvironment, script: Any, provided: str | None
) -> None:
    fake = cloud(**script)
    annotations = {names.ANNOTATION_PROVIDED_NODE_IP: provided} if provided else {}
    await env.node(taints=[U], annotations=annotations)
    async with env.running(env.node_controller(fake)):
        await env.proxy.wait_for(EVENT_POST, answered=True)

    assert set(fake.calls) == {METADATA}
    assert set(await env.trace()) == {EVENT}


@pytest.mark.parametrize(
    ("node", "trace"),
    [
        row("node-trace-06", {**SETTLED, "labels": dict.fromkeys(ZONES, "z")}, []),
        row("node-trace-07", {**SETTLED, "labels": dict(zip(ZONES, "zy", strict=True))}, [MAIN]),
    ],
)
async def test_labels_are_patched_without_a_cloud_call(
    env: NodeEnvironment, node: Any, trace: list[str]
) -> None:
    fake = cloud()
    await env.node(**node)

    await env.sync(fake)

    assert fake.calls == []
    assert await env.trace() == trace


@pytest.mark.row("node-more-16")
@pytest.mark.both_servers
async def test_conflicting_patches_are_retried(env: NodeEnvironment) -> None:
    await env.node(taints=[U])
    env.proxy.on(MAIN_PATCH, CONFLICT, times=2)
    before = delays()

    await env.sync(cloud())

    assert await env.trace() == [
        STATUS,
        *["PATCH nodes/node0 409", "GET nodes/node0 200"] * 2,
        MAIN,
        EVENT,
    ]
    assert list((await env.present()).taints) == []
    assert await env.reasons() == ["Synced"]
    assert delays() == [before[0] + 1, before[1] + 1]


@pytest.mark.row("node-more-17")
@pytest.mark.both_servers
async def test_rejected_patch_keeps_the_uninitialized_taint(env: NodeEnvironment) -> None:
    await env.node(taints=[U])
    env.proxy.on(MAIN_PATCH, REFUSED)
    before = delays()

    with pytest.raises(Invalid):
        await env.sync(cloud())

    assert list((await env.present()).taints) == [U]
    assert await env.reasons() == []
    assert delays() == before


@pytest.mark.row("node-more-18")
async def test_taint_is_kept_until_the_addresses_are_written(env: NodeEnvironment) -> None:
    made = await env.node(taints=[U])
    env.proxy.on(STATUS_PATCH, Respond(500), times=1)
    controller = env.node_controller(cloud())

    with pytest.raises(ServerError):
        await controller.sync_node("node0")
    assert await env.present() == made
    assert await env.reasons() == []

    await controller.sync_node("node0")
    assert list((await env.present()).addresses) == [V4]
    assert await env.reasons() == ["Synced"]


@pytest.mark.shifted_time
@pytest.mark.row("node-more-19")
async def test_a_node_deleted_during_its_back_off_is_forgotten(env: NodeEnvironment) -> None:
    fake = cloud(metadata_error=Unavailable("down"))
    await env.node(taints=[U])
    controller = env.node_controller(fake)
    async with env.running(controller):
        await eventually(lambda: len(fake.calls) >= 1)  # the next one may come meanwhile
        await env.delete()
        await eventually(lambda: not env.informer.store.keys())
        asked = len(fake.calls)
        await advance(100)  # a back-off lasts 30 s at most
        assert len(fake.calls) == asked
        assert controller.controller.backoff.failures("node0") == 0
    assert [call.method for call in env.calls()] == ["POST"]


@pytest.mark.row("node-more-20")
async def test_update_of_a_settled_node_causes_no_call(env: NodeEnvironment) -> None:
    fake = cloud(provider_ids={"second": "fake://2"})
    labels = dict.fromkeys(ZONES, "z")
    await env.node(provider_id="fake://1", labels=labels, addresses=[V4])
    controller = env.node_controller(fake)
    async with env.running(controller):
        await eventually(lambda: len(fake.calls) == 1)  # the address pass
        await env.change("node0", {"metadata": {"annotations": {"mark": "1"}}})
        await env.node("second", taints=[U], as_admitted=True)
        await eventually(lambda: len(fake.calls) == 2)
    assert fake.asked[1:] == [("instance-metadata-by-provider-id", "second")]
    assert not [call for call in env.calls() if "node0" in call.path]


@pytest.mark.row("node-more-21")
@pytest.mark.both_servers
async def test_only_labels_that_differ_are_patched(env: NodeEnvironment) -> None:
    regions = dict.fromkeys((names.LABEL_REGION_BETA, names.LABEL_REGION), "r")
    zones = dict(zip(ZONES, ("z", "old"), strict=True))
    made = await env.node(provider_id="fake://1", labels={**zones, **regions})

    await env.sync(cloud())

    assert await env.trace() == [MAIN]
    labels = {names.LABEL_ZONE: "z"}
    assert env.bodies() == [{"metadata": {"uid": made.uid, "labels": labels}}]


@pytest.mark.row("node-more-27")
async def test_v2_interface_takes_precedence_over_v1(env: NodeEnvironment) -> None:
    await env.node(taints=[U])
    await env.node("settled", provider_id="fake://2")
    fake = cloud(v1=True, v2=True)
    controller = env.node_controller(fake)

    await controller.sync_node("node0")
    await controller.update_addresses()

    assert set(fake.calls) == {"instance-metadata-by-provider-id"}


@pytest.mark.row("node-more-28")
@pytest.mark.both_servers
async def test_synced_event_references_the_node(env: NodeEnvironment) -> None:
    made = await env.node(taints=[U])

    await env.sync(cloud())

    [event] = await env.events()
    assert (event.type, event.reason) == ("Normal", "Synced")
    assert event.source["component"] == "cloud-node-controller"
    assert event.involved_object == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node0",
        "uid": made.uid,
        "resourceVersion": made.resource_version,
    }
