"""Initialisation, labels and addresses in the corners, on both API servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ccm.base import metrics
from ccm.cloud import CloudError, NotFound, Unavailable, Unimplemented, Zone, address
from ccm.controllers.node.controller import NodeController
from ccm.kube.errors import Invalid, ServerError
from ccm.model import NodeAddress, Taint, names
from ccm.testing.builders import uninitialized_taint
from ccm.testing.fakes import FakeCloud
from tests.conformance.stage import MAIN_PATCH, STATUS_PATCH, Stage, eventually, wrapped
from tests.faults import Respond
from tests.shifted import advance

U = uninitialized_taint()
OTHER = Taint(key="a", effect="NoSchedule")
V4 = address("InternalIP", "10.0.0.1")
V6 = address("InternalIP", "fd00::1")
EXTERNAL = address("ExternalIP", "192.0.2.1")
HOST = address("Hostname", "n")
CONFLICT = Respond(
    409,
    {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Conflict",
        "message": "the object has been modified",
        "code": 409,
    },
)
TAINT_DELAY = "node_controller_cloud_provider_taint_removal_delay_seconds_count"
SYNC_DELAY = "node_controller_initial_node_sync_delay_seconds_count"


def cloud(**script: Any) -> FakeCloud:
    return FakeCloud(**{"provider_ids": {"node0": "fake://1"}, "addresses": [V4], **script})


def sample(name: str) -> float:
    return metrics.REGISTRY.get_sample_value(name) or 0.0


async def reasons(stage: Stage) -> list[str]:
    return [told.reason for told in await stage.events()]


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        pytest.param(
            [uninitialized_taint(value="", effect="NoExecute")],
            [],
            marks=pytest.mark.row("node-more-01"),
        ),
        pytest.param(
            [U, OTHER, uninitialized_taint(effect="NoExecute")],
            [OTHER],
            marks=pytest.mark.row("node-more-02"),
        ),
    ],
)
async def test_every_taint_with_the_key_is_lifted(
    stage: Stage, before: Sequence[Taint], kept: Sequence[Taint]
) -> None:
    await stage.node(taints=before)

    await stage.node_controller(cloud()).sync_node("node0")

    assert list((await stage.present()).taints) == list(kept)


@pytest.mark.row("node-more-03")
async def test_the_nodes_own_provider_id_stays(stage: Stage) -> None:
    await stage.node(provider_id="fake://a", taints=[U])

    await stage.node_controller(cloud()).sync_node("node0")

    assert (await stage.present()).provider_id == "fake://a"


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        pytest.param("y", "y", marks=pytest.mark.row("node-more-04")),
        pytest.param("", "x", marks=pytest.mark.row("node-more-05")),
    ],
)
async def test_zone_labels_are_overwritten_unless_the_cloud_is_silent(
    stage: Stage, zone: str, expected: str
) -> None:
    pair = (names.LABEL_ZONE_BETA, names.LABEL_ZONE)
    await stage.node(labels=dict.fromkeys(pair, "x"), taints=[U])

    await stage.node_controller(cloud(zone=Zone(failure_domain=zone))).sync_node("node0")

    assert dict((await stage.present()).labels) == dict.fromkeys(pair, expected)


@pytest.mark.parametrize(
    ("provided", "addresses"),
    [
        pytest.param("", [V4], marks=pytest.mark.row("node-more-06")),
        pytest.param("10.0.0.1", [], marks=pytest.mark.row("node-more-07")),
    ],
)
async def test_a_provided_ip_must_match(
    stage: Stage, provided: str, addresses: Sequence[NodeAddress]
) -> None:
    made = await stage.node(
        taints=[U], annotations={names.ANNOTATION_PROVIDED_NODE_IP: provided}, addresses=[HOST]
    )

    with pytest.raises(CloudError):
        await stage.node_controller(cloud(addresses=addresses)).sync_node("node0")

    assert await stage.present() == made


@pytest.mark.row("node-more-08")
async def test_a_cloud_without_addresses_initialises_and_leaves_them(stage: Stage) -> None:
    await stage.node(taints=[U], addresses=[HOST, V4])

    await stage.node_controller(cloud(addresses=[])).sync_node("node0")

    node = await stage.present()
    assert list(node.taints) == []
    assert list(node.addresses) == [HOST, V4]
    assert stage.proxy.requests(STATUS_PATCH) == []


@pytest.mark.row("node-more-16")
@pytest.mark.both_servers
async def test_conflicts_are_tried_again(stage: Stage) -> None:
    await stage.node(taints=[U])
    stage.proxy.on(MAIN_PATCH, CONFLICT, times=2)
    before = sample(TAINT_DELAY), sample(SYNC_DELAY)

    await stage.node_controller(cloud()).sync_node("node0")

    assert await stage.trace() == [
        "PATCH nodes/node0/status 200",
        "PATCH nodes/node0 409",
        "GET nodes/node0 200",
        "PATCH nodes/node0 409",
        "GET nodes/node0 200",
        "PATCH nodes/node0 200",
        "POST namespaces/default/events 201",
    ]
    assert list((await stage.present()).taints) == []
    assert await reasons(stage) == ["Synced"]
    assert (sample(TAINT_DELAY), sample(SYNC_DELAY)) == (before[0] + 1, before[1] + 1)


@pytest.mark.row("node-more-17")
@pytest.mark.both_servers
async def test_a_node_the_server_refuses_keeps_its_taint(stage: Stage) -> None:
    await stage.node(taints=[U])
    stage.proxy.on(MAIN_PATCH, Respond(422, {"kind": "Status", "reason": "Invalid", "code": 422}))
    before = sample(TAINT_DELAY), sample(SYNC_DELAY)

    with pytest.raises(Invalid):
        await stage.node_controller(cloud()).sync_node("node0")

    assert list((await stage.present()).taints) == [U]
    assert await reasons(stage) == []
    assert (sample(TAINT_DELAY), sample(SYNC_DELAY)) == before


@pytest.mark.row("node-more-18")
async def test_a_node_never_loses_its_taint_without_addresses(stage: Stage) -> None:
    made = await stage.node(taints=[U])
    stage.proxy.on(STATUS_PATCH, Respond(500), times=1)
    controller = stage.node_controller(cloud())

    with pytest.raises(ServerError):
        await controller.sync_node("node0")
    assert await stage.present() == made
    assert await reasons(stage) == []

    await controller.sync_node("node0")
    assert list((await stage.present()).addresses) == [V4]
    assert await reasons(stage) == ["Synced"]


@pytest.mark.shifted_time
@pytest.mark.row("node-more-19")
async def test_a_node_deleted_during_its_back_off_is_forgotten(stage: Stage) -> None:
    fake = cloud(metadata_error=Unavailable("down"))
    await stage.node(taints=[U])
    controller = stage.node_controller(fake)
    async with stage.running(controller):
        await eventually(lambda: len(fake.calls) == 1)
        await stage.delete()
        await eventually(lambda: not stage.informer.store.keys())
        asked = len(fake.calls)
        await advance(100)  # a back-off lasts 30 s at most
        assert len(fake.calls) == asked
        assert failures(controller) == 0
    assert [call.method for call in stage.calls()] == ["POST"]


def failures(controller: NodeController) -> int:
    return controller.controller.backoff.failures("node0")


@pytest.mark.row("node-more-20")
async def test_an_event_of_a_settled_node_costs_nothing(stage: Stage) -> None:
    fake = cloud(provider_ids={"second": "fake://2"})
    labels = dict.fromkeys((names.LABEL_ZONE_BETA, names.LABEL_ZONE), "z")
    await stage.node(provider_id="fake://1", labels=labels, addresses=[V4])
    controller = stage.node_controller(fake)
    async with stage.running(controller):
        await eventually(lambda: len(fake.calls) == 1)  # the address pass
        await stage.change("node0", {"metadata": {"annotations": {"mark": "1"}}})
        await stage.node("second", taints=[U], as_admitted=True)
        await eventually(lambda: len(fake.calls) == 2)
    assert fake.asked[1:] == [("instance-metadata-by-provider-id", "second")]
    assert not [call for call in stage.calls() if "node0" in call.path]


@pytest.mark.row("node-more-21")
@pytest.mark.both_servers
async def test_only_labels_that_differ_are_patched(stage: Stage) -> None:
    made = await stage.node(
        labels={
            names.LABEL_ZONE_BETA: "z",
            names.LABEL_ZONE: "old",
            names.LABEL_REGION_BETA: "r",
            names.LABEL_REGION: "r",
        }
    )

    await stage.node_controller(cloud()).sync_node("node0")

    assert await stage.trace() == ["PATCH nodes/node0 200"]
    assert stage.bodies() == [
        {"metadata": {"uid": made.uid, "labels": {names.LABEL_ZONE: "z"}}},
    ]


@pytest.mark.row("node-more-22")
async def test_an_additional_label_never_beats_the_clouds_own_zone(stage: Stage) -> None:
    await stage.node(taints=[U])
    fake = cloud(
        zone=Zone(failure_domain="z"), additional_labels={names.LABEL_ZONE: "other", "own": "1"}
    )

    await stage.node_controller(fake).sync_node("node0")

    assert dict((await stage.present()).labels) == {
        names.LABEL_ZONE_BETA: "z",
        names.LABEL_ZONE: "z",
        "own": "1",
    }


@pytest.mark.row("node-more-23")
async def test_reserved_label_prefixes(stage: Stage) -> None:
    keys = [
        "mykubernetes.io/x",
        "a.kubernetes.io/x",
        "node-restriction.kubernetes.io/x",
        "x.kubernetes.io.example.com/y",
    ]
    await stage.node(taints=[U])

    await stage.node_controller(cloud(additional_labels=dict.fromkeys(keys, "1"))).sync_node(
        "node0"
    )

    assert sorted((await stage.present()).labels) == [
        "mykubernetes.io/x",
        "x.kubernetes.io.example.com/y",
    ]


@pytest.mark.row("node-more-24")
async def test_an_unknown_instance_of_the_old_interface_is_an_error(stage: Stage) -> None:
    made = await stage.node(taints=[U])
    fake = cloud(v2=False, external_id_errors={"node0": wrapped(NotFound("gone"))})

    with pytest.raises(CloudError):
        await stage.node_controller(fake).sync_node("node0")

    assert await stage.present() == made


@pytest.mark.row("node-more-25")
async def test_ids_the_old_interface_does_not_offer_are_done_without(stage: Stage) -> None:
    await stage.node(taints=[U])
    fake = cloud(v2=False, external_id_errors={"node0": wrapped(Unimplemented("no IDs"))})

    await stage.node_controller(fake).sync_node("node0")

    node = await stage.present()
    assert (node.provider_id, list(node.taints)) == ("", [])


@pytest.mark.row("node-more-26")
async def test_the_old_interface_is_asked_in_this_order(stage: Stage) -> None:
    await stage.node(taints=[U])
    fake = cloud(v2=False)

    await stage.node_controller(fake).sync_node("node0")

    assert fake.calls == [
        "instance-id",
        "node-addresses-by-provider-id",
        "instance-type-by-provider-id",
        "get-zone-by-provider-id",
    ]


@pytest.mark.row("node-more-27")
async def test_the_new_interface_wins(stage: Stage) -> None:
    await stage.node(taints=[U])
    await stage.node("settled", provider_id="fake://2")
    fake = cloud(v1=True, v2=True)
    controller = stage.node_controller(fake)

    await controller.sync_node("node0")
    await controller.update_addresses()

    assert set(fake.calls) == {"instance-metadata-by-provider-id"}


@pytest.mark.row("node-more-28")
@pytest.mark.both_servers
async def test_the_event_points_at_the_node(stage: Stage) -> None:
    made = await stage.node(taints=[U])

    await stage.node_controller(cloud()).sync_node("node0")

    [told] = await stage.events()
    assert (told.type, told.reason, told.component) == (
        "Normal",
        "Synced",
        "cloud-node-controller",
    )
    assert dict(told.involved) == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node0",
        "uid": made.uid,
        "resourceVersion": made.resource_version,
    }
