"""Who is asked what, in which order, and with which bodies: on both API servers."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.cloud import Unavailable, address
from ccm.model import names
from ccm.testing.builders import shutdown_taint, uninitialized_taint
from ccm.testing.fakes import FakeCloud
from tests.conformance.stage import MAIN_PATCH, Stage, monitored
from tests.faults import Match, Respond

U, DOWN = uninitialized_taint(), shutdown_taint()
H = address("Hostname", "node0.cloud.internal")
I4 = address("InternalIP", "10.0.0.1")
E = address("ExternalIP", "132.143.154.163")
A3, A2 = (H, I4, E), (I4, E)
REPLACE = {"$patch": "replace"}
METADATA, EVENT = "instance-metadata-by-provider-id", "POST namespaces/default/events 201"
EVENT_POST = Match(method="POST", path="events$")
STATUS, MAIN = "PATCH nodes/node0/status 200", "PATCH nodes/node0 200"


def cloud(**script: Any) -> FakeCloud:
    return FakeCloud(**{"provider_ids": {"node0": "fake://1"}, **script})


def entry(of: Any) -> dict[str, str]:
    return {"type": of.type, "address": of.address}


@pytest.mark.parametrize(
    ("before", "addresses", "after"),
    [
        pytest.param([H], A2, [I4, E, H], marks=pytest.mark.row("node-trace-01")),
        pytest.param([], A3, [H, I4, E], marks=pytest.mark.row("node-trace-02")),
    ],
)
@pytest.mark.both_servers
async def test_initialisation_writes_twice(
    stage: Stage, before: Any, addresses: Any, after: Any
) -> None:
    fake = cloud(addresses=addresses)
    made = await stage.node(taints=[U], addresses=before)

    await stage.node_controller(fake).sync_node("node0")

    assert fake.calls == [METADATA]
    assert await stage.trace() == [STATUS, MAIN, EVENT]
    status, main = stage.bodies()
    assert status == {
        "metadata": {"resourceVersion": made.resource_version},
        "status": {"addresses": [*map(entry, after), REPLACE]},
    }
    version = main["metadata"].pop("resourceVersion")
    assert int(version) > int(made.resource_version)
    assert main == {"metadata": {}, "spec": {"providerID": "fake://1", "taints": None}}


@pytest.mark.row("node-trace-03")
async def test_initialisation_without_addresses_writes_once(stage: Stage) -> None:
    fake = cloud()
    made = await stage.node(taints=[U], addresses=[H])

    await stage.node_controller(fake).sync_node("node0")

    assert fake.calls == [METADATA]
    assert await stage.trace() == [MAIN, EVENT]
    assert stage.bodies() == [
        {
            "metadata": {"resourceVersion": made.resource_version},
            "spec": {"providerID": "fake://1", "taints": None},
        }
    ]


@pytest.mark.row("node-trace-04")
async def test_initialisation_through_the_old_interface(stage: Stage) -> None:
    fake = cloud(v2=False, external_ids={"node0": "1"}, addresses=A2)
    await stage.node(taints=[U])

    await stage.node_controller(fake).sync_node("node0")

    assert fake.calls == [
        "instance-id",
        "node-addresses-by-provider-id",
        "instance-type-by-provider-id",
        "get-zone-by-provider-id",
    ]
    assert await stage.trace() == [STATUS, MAIN, EVENT]


@pytest.mark.parametrize(
    ("script", "annotations"),
    [
        ({"metadata_error": Unavailable("down")}, {}),
        ({"addresses": A2}, {names.ANNOTATION_PROVIDED_NODE_IP: "10.0.0.2"}),
    ],
    ids=["metadata", "annotation"],
)
@pytest.mark.row("node-trace-05")
async def test_a_failed_initialisation_changes_nothing(
    stage: Stage, script: Any, annotations: Any
) -> None:
    fake = cloud(**script)
    await stage.node(taints=[U], annotations=annotations)
    controller = stage.node_controller(fake)
    async with stage.running(controller):
        await stage.proxy.wait_for(EVENT_POST, answered=True)

    assert set(fake.calls) == {METADATA}
    assert set(await stage.trace()) == {EVENT}


@pytest.mark.row("node-trace-06")
async def test_a_settled_node_costs_nothing(stage: Stage) -> None:
    fake = cloud(addresses=A2)
    labels = dict.fromkeys((names.LABEL_ZONE_BETA, names.LABEL_ZONE), "z")
    await stage.node(provider_id="fake://1", labels=labels)

    await stage.node_controller(fake).sync_node("node0")

    assert (fake.calls, stage.calls()) == ([], [])


@pytest.mark.row("node-trace-07")
async def test_a_label_is_patched_without_a_look(stage: Stage) -> None:
    fake = cloud()
    await stage.node(labels={names.LABEL_ZONE_BETA: "z", names.LABEL_ZONE: "y"})

    await stage.node_controller(fake).sync_node("node0")

    assert fake.calls == []
    assert await stage.trace() == [MAIN]


@pytest.mark.row("node-trace-08")
async def test_unchanged_addresses_cost_one_question(stage: Stage) -> None:
    fake = cloud(addresses=A2)
    await stage.node(provider_id="fake://1", addresses=[I4, E, H])

    await stage.node_controller(fake).update_addresses()

    assert (fake.calls, stage.calls()) == ([METADATA], [])


@pytest.mark.row("node-trace-09")
async def test_a_changed_address_is_one_patch(stage: Stage) -> None:
    fake = cloud(addresses=A2)
    made = await stage.node(
        provider_id="fake://1", addresses=[I4, address("ExternalIP", "132.143.154.164"), H]
    )

    await stage.node_controller(fake).update_addresses()

    assert fake.calls == [METADATA]
    assert await stage.trace() == [STATUS]
    assert stage.bodies() == [
        {
            "metadata": {"resourceVersion": made.resource_version},
            "status": {"addresses": [entry(I4), entry(E), entry(H), REPLACE]},
        }
    ]
    assert list((await stage.present()).addresses) == [I4, E, H]


@pytest.mark.parametrize(
    ("ready", "taints", "script", "calls", "trace"),
    [
        pytest.param("True", [], {}, [], [], marks=pytest.mark.row("lifecycle-trace-01")),
        pytest.param("True", [DOWN], {}, [], [MAIN], marks=pytest.mark.row("lifecycle-trace-02")),
        pytest.param(
            "False",
            [],
            {"exists": True},
            ["instance-exists", "instance-shutdown"],
            [],
            marks=pytest.mark.row("lifecycle-trace-04"),
        ),
        pytest.param(
            "False",
            [],
            {"exists": True, "shutdown": True},
            ["instance-exists", "instance-shutdown"],
            [MAIN],
            marks=pytest.mark.row("lifecycle-trace-05"),
        ),
        pytest.param(
            "False",
            [],
            {"exists": False},
            ["instance-exists", "instance-exists"],
            ["DELETE nodes/node0 200", EVENT],
            marks=pytest.mark.row("lifecycle-trace-06"),
        ),
    ],
)
async def test_one_look_of_the_lifecycle_controller(
    stage: Stage, ready: str, taints: Any, script: Any, calls: list[str], trace: list[str]
) -> None:
    fake = cloud(**script)
    made = await stage.node(provider_id="fake://1", ready=ready, taints=taints)

    await monitored(stage.lifecycle(fake))

    assert fake.calls == calls
    # Events travel on their own: before or after the request they announce.
    assert sorted(await stage.trace()) == sorted(trace)
    for body in stage.bodies(Match(method="DELETE")):
        assert body["preconditions"] == {"uid": made.uid}


@pytest.mark.row("lifecycle-trace-03")
@pytest.mark.both_servers
async def test_a_conflict_is_one_look_and_another_try(stage: Stage) -> None:
    await stage.node(provider_id="fake://1", ready="True", taints=[DOWN])
    conflict = {"kind": "Status", "reason": "Conflict", "message": "moved", "code": 409}
    stage.proxy.on(MAIN_PATCH, Respond(409, conflict), times=1)

    await monitored(stage.lifecycle(cloud()))

    assert await stage.trace() == ["PATCH nodes/node0 409", "GET nodes/node0 200", MAIN]
    assert list((await stage.present()).taints) == []
