"""Nodes after their initialisation, on both API servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ccm.cloud import Cloud, CloudError, NotFound, Unavailable, Unimplemented, Zone, address
from ccm.model import NodeAddress, Taint, names
from ccm.testing.builders import uninitialized_taint
from tests.conformance.environment import TAINT, UNINITIALIZED, NodeEnvironment, row, wrapped
from tests.support.fakecloud import FakeCloud

U = UNINITIALIZED
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
TYPE_LABELS = dict.fromkeys((names.LABEL_INSTANCE_TYPE_BETA, names.LABEL_INSTANCE_TYPE), "t1.micro")
NO_IDS, NO_ID = Unimplemented("no IDs"), wrapped(NotFound("gone"))

WAITING = {"taints": [U]}
WAITING_X = {"taints": [X, U]}
RENAMED = {**WAITING, "addresses": [KUBELET]}
GIVEN_ID = "test-provider-id"
GIVEN = {**WAITING_X, "provider_id": GIVEN_ID}


def provided(ip: str) -> dict[str, Any]:
    """Annotations of a node whose kubelet was given an IP."""
    return {"annotations": {names.ANNOTATION_PROVIDED_NODE_IP: ip}}


AWS = {**provided("10.0.0.1"), **WAITING_X, "addresses": [H], "provider_id": "node0.aws.12345"}
CP = {**AWS, "provider_id": "node0.cp.12345"}


@dataclass(frozen=True, kw_only=True)
class After:
    """Expected fields of the node."""

    provider_id: str = "fake://12345"
    taints: Sequence[Taint] = ()
    addresses: Sequence[NodeAddress] = A3
    labels: Mapping[str, str] = field(default_factory=dict)


def after_ip(before: Mapping[str, Any], **labels: str) -> After:
    """The same, of a node whose kubelet was given an IP."""
    fields = {"provider_id": before["provider_id"], "addresses": (*A2, H), "taints": (X,)}
    return After(**fields, labels=labels)


def zone(name: str) -> dict[str, str]:
    return dict.fromkeys((names.LABEL_ZONE_BETA, names.LABEL_ZONE), name)


def v1(**script: Any) -> FakeCloud:
    return FakeCloud(v2=False, **{"external_ids": {"node0": "12345"}, "addresses": A3, **script})


def v2(**script: Any) -> FakeCloud:
    """Return a cloud that returns no provider ID."""
    return FakeCloud(v1=False, **{"addresses": A3, **script})


def v2_id(**script: Any) -> FakeCloud:
    return v2(provider_ids={"node0": "fake://12345"}, **script)


def v1_error(error: Exception, **script: Any) -> FakeCloud:
    """A cloud that fails when it is asked for the instance ID."""
    return v1(external_id_errors={"node0": error}, **script)


class TwoSchemes(FakeCloud):
    """A provider whose IDs do not all begin with its name."""

    def cloud(self) -> Cloud:
        return replace(super().cloud(), schemes=("aws", "fake"))


AFTER, X_LEFT, GIVEN_LEFT = After(), After(taints=(X,)), After(provider_id=GIVEN_ID, taints=(X,))
FOO_BAR = {"topology.k8s.cp/zone-id": "az1", "my.custom.label/foo": "bar"}
OWN = {"my.custom.label/bar": "foo", "app.k8snio/bar": "foo", "k8snio/bar": "foo"}
RESERVED = [names.LABEL_REGION, "topology.k8s.io/region", "kubernetes.io/region", "k8s.io/region"]
FIZZ = {"my.custom.label/foo": "fizz"}
ALIKE = {"mykubernetes.io/x": "1", "x.kubernetes.io.example.com/y": "1"}


def inits(name: str, fake: FakeCloud, after: After = AFTER, **before: Any) -> Any:
    """Return a case in which an uninitialized node with these fields is initialised."""
    return row(name, fake, {**WAITING, **before}, after)


INITIALIZED = [
    inits("node-sync-01", v1(instance_types={"node0": "t1.micro"}), addresses=[KUBELET]),
    inits("node-sync-02", v1(addresses=A2), After(addresses=(*A2, KUBELET)), addresses=[KUBELET]),
    inits("node-sync-03", v1()),
    inits(
        *("node-sync-05", v1(name="aws", zone=WEST)),
        After(provider_id="aws://12345", labels=WEST_LABELS),
        ready="Unknown",
    ),
    inits("node-sync-06", v1(), X_LEFT, ready="Unknown", taints=[X, U]),
    inits("node-sync-08", v1(addresses=A2), after_ip(AWS), **AWS),
    inits("node-sync-11", v1(exists=False), GIVEN_LEFT, **GIVEN),
    inits(
        *("node-sync-12", v1_error(NO_IDS, name="test", addresses=())),
        After(provider_id="", addresses=()),
        ready="Unknown",
    ),
    inits("node-sync-13", v2(), provider_id="fake://12345"),
    inits(
        "node-sync-15",
        TwoSchemes(
            v1=False, addresses=A3, provider_ids={"node0": "fake://12345"}, name="aws", zone=WEST
        ),
        After(labels=WEST_LABELS),
        ready="Unknown",
    ),
    inits("node-sync-16", v2_id(), X_LEFT, taints=[X, U]),
    inits("node-sync-17", v2(addresses=A2), after_ip(AWS), **AWS),
    inits(
        *("node-sync-18", v2(addresses=A2, zone=WEST, additional_labels=FOO_BAR)),
        after_ip(CP, **WEST_LABELS, **FOO_BAR),
        **CP,
    ),
    inits(
        "node-sync-19",
        v2(
            addresses=A2,
            zone=WEST,
            additional_labels={
                **dict.fromkeys(RESERVED, "us-other-west"),
                "my.custom.label/foo": "bar",
                **OWN,
            },
        ),
        after_ip(CP, **WEST_LABELS, **FIZZ, **OWN),
        **{**CP, "labels": {**FIZZ, "my.custom.label/bar": "foo"}},
    ),
    inits("node-sync-20", v2(exists=False), GIVEN_LEFT, **GIVEN),
    inits("node-meta-01", v1()),
    inits("node-meta-02", v1_error(NO_IDS), After(provider_id="")),
    inits("node-meta-03", v1_error(NO_IDS), After(provider_id="fake://a"), provider_id="fake://a"),
    inits("node-meta-04", v2_id(instance_types={"fake://12345": "t1", "node0": "t2"})),
    inits(
        *("node-meta-06", v2(instance_types={"fake://12345": "t1.micro"})),
        After(labels=TYPE_LABELS),
        provider_id="fake://12345",
    ),
    inits("node-more-01", v2_id(), taints=[uninitialized_taint(value="", effect="NoExecute")]),
    inits(
        *("node-more-02", v2_id(), After(taints=(TAINT,))),
        taints=[U, TAINT, uninitialized_taint(effect="NoExecute")],
    ),
    inits("node-more-03", v2_id(), After(provider_id="fake://a"), provider_id="fake://a"),
    inits(
        *("node-more-04", v2_id(zone=Zone(failure_domain="y")), After(labels=zone("y"))),
        labels=zone("x"),
    ),
    inits("node-more-05", v2_id(), After(labels=zone("x")), labels=zone("x")),
    inits(
        "node-more-22",
        v2_id(
            zone=Zone(failure_domain="z"), additional_labels={names.LABEL_ZONE: "other", "own": "1"}
        ),
        After(labels={**zone("z"), "own": "1"}),
    ),
    inits(
        "node-more-23",
        v2_id(
            additional_labels={
                "a.kubernetes.io/x": "1",
                "node-restriction.kubernetes.io/x": "1",
                **ALIKE,
            }
        ),
        After(labels=ALIKE),
    ),
    inits("node-more-25", v1_error(wrapped(NO_IDS)), After(provider_id="")),
]


@pytest.mark.parametrize(("fake", "before", "after"), INITIALIZED)
async def test_initialisation_sets_provider_id_addresses_labels_and_taints(
    env: NodeEnvironment, fake: FakeCloud, before: Mapping[str, Any], after: After
) -> None:
    made = await env.node(**before)
    fake.calls.clear()

    await env.sync(fake)

    node = await env.present()
    assert node.ready == made.ready
    assert after == After(
        provider_id=node.provider_id,
        taints=tuple(node.taints),
        addresses=tuple(node.addresses),
        labels=dict(node.labels),
    )
    assert await env.reasons() == ["Synced"]
    assert not [call for call in fake.calls if "exists" in call]


@pytest.mark.parametrize(
    ("fake", "before"),
    [
        row("node-sync-04", v1(), {}),
        row("node-sync-07", v2(metadata=lambda _: None), AWS),
        row("node-sync-14", v2(), {}),
    ],
)
async def test_node_without_taint_or_metadata_is_left_unchanged(
    env: NodeEnvironment, fake: FakeCloud, before: Mapping[str, Any]
) -> None:
    made = await env.node(**before)

    await env.sync(fake)

    assert await env.present() == made
    assert await env.trace() == []


@pytest.mark.parametrize(
    ("fake", "before"),
    [
        row("node-sync-09", v1(addresses=A2), {**AWS, **provided("invalid-ip")}),
        row("node-sync-10", v1(addresses=A2), {**AWS, **provided("10.0.0.2")}),
        row("node-sync-21", v2(name="test", addresses=()), WAITING),
        row("node-sync-22", v2(metadata_error=Unavailable("down")), WAITING),
        row("node-own-14", v2(provider_ids={"node0": "other://12345"}), WAITING),
        row("node-meta-05", v2(), WAITING),
        row("node-more-06", v2_id(), {**RENAMED, **provided("")}),
        row("node-more-07", v2_id(addresses=()), {**RENAMED, **provided("10.0.0.1")}),
        row("node-more-24", v1_error(NO_ID), WAITING),
    ],
)
async def test_failed_initialisation_raises_and_leaves_the_node_unchanged(
    env: NodeEnvironment, fake: FakeCloud, before: Mapping[str, Any]
) -> None:
    made = await env.node(**before)

    with pytest.raises(CloudError):
        await env.sync(fake)

    assert await env.present() == made
    assert env.calls() == []


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
        row("node-labels-01", BETA, 1),
        row("node-labels-02", {**BETA, **STABLE}, 0),
        row("node-labels-03", {**BETA, **WRONG}, 1),
    ],
)
async def test_stable_labels_follow_their_beta_labels(
    env: NodeEnvironment, before: Mapping[str, str], writes: int
) -> None:
    fake = v2()
    await env.node(provider_id="fake://1", labels=before)

    await env.sync(fake)

    assert dict((await env.present()).labels) == {**BETA, **STABLE}
    assert len(await env.trace()) == writes
    assert fake.calls == []


@pytest.mark.row("node-labels-04")
@pytest.mark.both_servers
async def test_stable_label_without_beta_label_is_kept(env: NodeEnvironment) -> None:
    made = await env.node(labels={names.LABEL_ZONE: "mine"})

    await env.sync(v2())

    assert await env.present() == made
    assert env.calls() == []


@pytest.mark.parametrize(
    "fake", [row("node-waiting-01", v1(), label="v1"), row("node-waiting-02", v2(), label="v2")]
)
async def test_address_pass_skips_uninitialized_nodes(
    env: NodeEnvironment, fake: FakeCloud
) -> None:
    made = await env.node(taints=[U])
    fake.calls.clear()

    await env.node_controller(fake).update_addresses()

    assert await env.present() == made
    assert env.calls() == []
    assert fake.calls == []
