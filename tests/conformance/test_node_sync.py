"""Initialising a node: what it looks like afterwards, on both API servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ccm.cloud import Cloud, CloudError, Unavailable, Unimplemented, Zone, address
from ccm.model import NodeAddress, Taint, names
from ccm.testing.builders import uninitialized_taint
from ccm.testing.fakes import FakeCloud
from tests.conformance.stage import Stage

U = uninitialized_taint()
X = Taint(key="ImproveCoverageTaint", value="true", effect="NoSchedule")
H = address("Hostname", "node0.cloud.internal")
I = address("InternalIP", "10.0.0.1")  # noqa: E741 - the letter of the table
E = address("ExternalIP", "132.143.154.163")
KUBELET = address("Hostname", "nodeoverriden")
A3, A2 = (H, I, E), (I, E)
WEST = Zone(failure_domain="us-west-1a", region="us-west")
WEST_LABELS = {
    names.LABEL_ZONE_BETA: "us-west-1a",
    names.LABEL_ZONE: "us-west-1a",
    names.LABEL_REGION_BETA: "us-west",
    names.LABEL_REGION: "us-west",
}
NODE_IP = {names.ANNOTATION_PROVIDED_NODE_IP: "10.0.0.1"}
ID = {"node0": "fake://12345"}
KNOWN_AT = {"annotations": NODE_IP, "taints": [X, U], "addresses": [H]}


@dataclass(frozen=True, kw_only=True)
class After:
    """What the node has in the end."""

    provider_id: str = ""
    taints: Sequence[Taint] = ()
    addresses: Sequence[NodeAddress] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def v1(**script: Any) -> FakeCloud:
    return FakeCloud(v2=False, **{"external_ids": {"node0": "12345"}, **script})


def v2(**script: Any) -> FakeCloud:
    return FakeCloud(v1=False, **script)


class TwoSchemes(FakeCloud):
    """A provider whose IDs do not all begin with its name."""

    def cloud(self) -> Cloud:
        return replace(super().cloud(), schemes=("aws", "fake"))


def row(name: str, fake: FakeCloud, before: Mapping[str, Any], after: After) -> Any:
    return pytest.param(fake, before, after, marks=pytest.mark.row(name), id=name)


INITIALIZED = [
    row(
        "node-sync-01",
        v1(addresses=A3, instance_types={"node0": "t1.micro"}),
        {"taints": [U], "addresses": [KUBELET]},
        After(provider_id="fake://12345", addresses=A3),
    ),
    row(
        "node-sync-02",
        v1(addresses=A2),
        {"taints": [U], "addresses": [KUBELET]},
        After(provider_id="fake://12345", addresses=(*A2, KUBELET)),
    ),
    row(
        "node-sync-03",
        v1(addresses=A3),
        {"taints": [U]},
        After(provider_id="fake://12345", addresses=A3),
    ),
    row(
        "node-sync-05",
        v1(addresses=A3, name="aws", zone=WEST),
        {"taints": [U], "ready": "Unknown"},
        After(provider_id="aws://12345", addresses=A3, labels=WEST_LABELS),
    ),
    row(
        "node-sync-06",
        v1(addresses=A3),
        {"taints": [X, U], "ready": "Unknown"},
        After(provider_id="fake://12345", addresses=A3, taints=[X]),
    ),
    row(
        "node-sync-08",
        v1(addresses=A2),
        {**KNOWN_AT, "provider_id": "node0.aws.12345"},
        After(provider_id="node0.aws.12345", addresses=(*A2, H), taints=[X]),
    ),
    row(
        "node-sync-11",
        v1(addresses=A3, exists=False),
        {"provider_id": "test-provider-id", "taints": [X, U]},
        After(provider_id="test-provider-id", addresses=A3, taints=[X]),
    ),
    row(
        "node-sync-12",
        v1(name="test", external_id_errors={"node0": Unimplemented("no IDs")}),
        {"taints": [U], "ready": "Unknown"},
        After(),
    ),
    row(
        "node-sync-13",
        v2(addresses=A3),
        {"provider_id": "fake://12345", "taints": [U]},
        After(provider_id="fake://12345", addresses=A3),
    ),
    row(
        "node-sync-15",
        TwoSchemes(v1=False, addresses=A3, provider_ids=ID, name="aws", zone=WEST),
        {"taints": [U], "ready": "Unknown"},
        After(provider_id="fake://12345", addresses=A3, labels=WEST_LABELS),
    ),
    row(
        "node-sync-16",
        v2(addresses=A3, provider_ids=ID),
        {"taints": [X, U]},
        After(provider_id="fake://12345", addresses=A3, taints=[X]),
    ),
    row(
        "node-sync-17",
        v2(addresses=A2),
        {**KNOWN_AT, "provider_id": "node0.aws.12345"},
        After(provider_id="node0.aws.12345", addresses=(*A2, H), taints=[X]),
    ),
    row(
        "node-sync-18",
        v2(
            addresses=A2,
            zone=WEST,
            additional_labels={"topology.k8s.cp/zone-id": "az1", "my.custom.label/foo": "bar"},
        ),
        {**KNOWN_AT, "provider_id": "node0.cp.12345"},
        After(
            provider_id="node0.cp.12345",
            addresses=(*A2, H),
            taints=[X],
            labels={
                **WEST_LABELS,
                "topology.k8s.cp/zone-id": "az1",
                "my.custom.label/foo": "bar",
            },
        ),
    ),
    row(
        "node-sync-19",
        v2(
            addresses=A2,
            zone=WEST,
            additional_labels={
                "topology.kubernetes.io/region": "us-other-west",
                "topology.k8s.io/region": "us-other-west",
                "kubernetes.io/region": "us-other-west",
                "k8s.io/region": "us-other-west",
                "my.custom.label/foo": "bar",
                "my.custom.label/bar": "foo",
                "app.k8snio/bar": "foo",
                "k8snio/bar": "foo",
            },
        ),
        {
            **KNOWN_AT,
            "provider_id": "node0.cp.12345",
            "labels": {"my.custom.label/foo": "fizz", "my.custom.label/bar": "foo"},
        },
        After(
            provider_id="node0.cp.12345",
            addresses=(*A2, H),
            taints=[X],
            labels={
                **WEST_LABELS,
                "my.custom.label/foo": "fizz",
                "my.custom.label/bar": "foo",
                "app.k8snio/bar": "foo",
                "k8snio/bar": "foo",
            },
        ),
    ),
    row(
        "node-sync-20",
        v2(addresses=A3, exists=False),
        {"provider_id": "test-provider-id", "taints": [X, U]},
        After(provider_id="test-provider-id", addresses=A3, taints=[X]),
    ),
    row(
        "node-meta-01",
        v1(addresses=A3),
        {"taints": [U]},
        After(provider_id="fake://12345", addresses=A3),
    ),
    row(
        "node-meta-02",
        v1(addresses=A3, external_id_errors={"node0": Unimplemented("no IDs")}),
        {"taints": [U]},
        After(addresses=A3),
    ),
    row(
        "node-meta-03",
        v1(addresses=A3, external_id_errors={"node0": Unimplemented("no IDs")}),
        {"taints": [U], "provider_id": "fake://asdasd"},
        After(provider_id="fake://asdasd", addresses=A3),
    ),
    row(
        "node-meta-04",
        v2(addresses=A3, provider_ids=ID, instance_types={"fake://12345": "t1", "node0": "t2"}),
        {"taints": [U]},
        After(provider_id="fake://12345", addresses=A3),
    ),
    row(
        "node-meta-06",
        v2(addresses=A3, instance_types={"fake://12345": "t1.micro"}),
        {"taints": [U], "provider_id": "fake://12345"},
        After(
            provider_id="fake://12345",
            addresses=A3,
            labels={
                names.LABEL_INSTANCE_TYPE_BETA: "t1.micro",
                names.LABEL_INSTANCE_TYPE: "t1.micro",
            },
        ),
    ),
]


@pytest.mark.parametrize(("fake", "before", "after"), INITIALIZED)
async def test_a_node_is_initialised(
    stage: Stage, fake: FakeCloud, before: Mapping[str, Any], after: After
) -> None:
    made = await stage.node(**before)
    fake.calls.clear()

    await stage.node_controller(fake).sync_node("node0")

    node = await stage.present()
    assert node.provider_id == after.provider_id
    assert list(node.taints) == list(after.taints)
    assert list(node.addresses) == list(after.addresses)
    assert dict(node.labels) == dict(after.labels)
    assert node.ready == made.ready
    assert [told.reason for told in await stage.events()] == ["Synced"]
    assert not [call for call in fake.calls if "exists" in call]


UNTOUCHED = [
    row("node-sync-04", v1(addresses=A3), {}, After()),
    row(
        "node-sync-07",
        v2(metadata=lambda _: None),
        {**KNOWN_AT, "provider_id": "node0.aws.12345"},
        After(),
    ),
    row("node-sync-14", v2(addresses=A3), {}, After()),
]


@pytest.mark.parametrize(("fake", "before", "after"), UNTOUCHED)
async def test_a_node_is_left_as_it_is(
    stage: Stage, fake: FakeCloud, before: Mapping[str, Any], after: After
) -> None:
    made = await stage.node(**before)

    await stage.node_controller(fake).sync_node("node0")

    assert await stage.present() == made
    assert await stage.trace() == []


REFUSED = [
    row(
        "node-sync-09",
        v1(addresses=A2),
        {
            **KNOWN_AT,
            "provider_id": "node0.aws.12345",
            "annotations": {names.ANNOTATION_PROVIDED_NODE_IP: "invalid-ip"},
        },
        After(),
    ),
    row(
        "node-sync-10",
        v1(addresses=A2),
        {
            **KNOWN_AT,
            "provider_id": "node0.aws.12345",
            "annotations": {names.ANNOTATION_PROVIDED_NODE_IP: "10.0.0.2"},
        },
        After(),
    ),
    row("node-sync-21", v2(name="test"), {"taints": [U]}, After()),
    row("node-sync-22", v2(metadata_error=Unavailable("down")), {"taints": [U]}, After()),
    row(
        "node-own-14",
        v2(addresses=A3, provider_ids={"node0": "other://12345"}),
        {"taints": [U]},
        After(),
    ),
    row("node-meta-05", v2(addresses=A3), {"taints": [U]}, After()),
]


@pytest.mark.parametrize(("fake", "before", "after"), REFUSED)
async def test_a_node_that_cannot_be_initialised_is_left_as_it_is(
    stage: Stage, fake: FakeCloud, before: Mapping[str, Any], after: After
) -> None:
    made = await stage.node(**before)

    with pytest.raises(CloudError):
        await stage.node_controller(fake).sync_node("node0")

    assert await stage.present() == made
    assert stage.calls() == []


PAIRS = names.LABEL_PAIRS
BETA = {
    names.LABEL_ZONE_BETA: "foo",
    names.LABEL_REGION_BETA: "bar",
    names.LABEL_INSTANCE_TYPE_BETA: "the-best-type",
}
STABLE = {stable: BETA[beta] for beta, stable in PAIRS}
WRONG = {stable: f"wrong-{value}" for stable, value in STABLE.items()}


@pytest.mark.parametrize(
    ("before", "writes"),
    [
        pytest.param(BETA, 1, marks=pytest.mark.row("node-labels-01")),
        pytest.param({**BETA, **STABLE}, 0, marks=pytest.mark.row("node-labels-02")),
        pytest.param({**BETA, **WRONG}, 1, marks=pytest.mark.row("node-labels-03")),
    ],
)
async def test_stable_labels_follow_their_beta_twins(
    stage: Stage, before: Mapping[str, str], writes: int
) -> None:
    fake = v2()
    await stage.node(labels=before)

    await stage.node_controller(fake).sync_node("node0")

    assert dict((await stage.present()).labels) == {**BETA, **STABLE}
    assert len(await stage.trace()) == writes
    assert fake.calls == []


@pytest.mark.row("node-labels-04")
@pytest.mark.both_servers
async def test_a_stable_label_alone_stays(stage: Stage) -> None:
    made = await stage.node(labels={names.LABEL_ZONE: "mine"})

    await stage.node_controller(v2()).sync_node("node0")

    assert await stage.present() == made
    assert stage.calls() == []


@pytest.mark.parametrize(
    "fake",
    [
        pytest.param(v1(addresses=A3), marks=pytest.mark.row("node-waiting-01"), id="v1"),
        pytest.param(v2(addresses=A3), marks=pytest.mark.row("node-waiting-02"), id="v2"),
    ],
)
async def test_the_address_pass_leaves_waiting_nodes_alone(stage: Stage, fake: FakeCloud) -> None:
    made = await stage.node(taints=[U])
    fake.calls.clear()

    await stage.node_controller(fake).update_addresses()

    assert await stage.present() == made
    assert stage.calls() == []
    assert fake.calls == []
