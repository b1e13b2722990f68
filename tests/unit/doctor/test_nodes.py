"""Nodes against instances: what follows from names and provider IDs alone."""

from __future__ import annotations

from ccm.app.options import Options
from ccm.cloud import InstanceListing, InstanceMetadata, InstanceRecord, Power
from ccm.doctor import nodes
from ccm.doctor.case import Case
from ccm.testing import builders


def case(**instances: str) -> Case:
    """With a listing: name -> provider ID; underscores are dashes."""
    given = Case(options=Options(), environ={})
    records = [
        InstanceRecord(
            name=name.replace("_", "-"),
            power=Power.RUNNING,
            metadata=InstanceMetadata(provider_id=provider_id),
        )
        for name, provider_id in instances.items()
    ]
    given.listing = InstanceListing(instances=records)
    return given


def test_a_provider_id_counts_before_the_name() -> None:
    given = case(a="x://1", b="x://2")
    cluster = [
        builders.node("a"),
        builders.node("b", provider_id="x://9"),
        builders.node("renamed", provider_id="x://2"),
        builders.node("stranger"),
    ]

    assert [node.name for node in nodes._unlisted(given, cluster)] == ["b", "stranger"]
    assert nodes._lonely(given, cluster) == []


def test_instances_without_nodes_are_found() -> None:
    given = case(a="x://1", b="x://2")

    assert nodes._lonely(given, [builders.node("other", provider_id="x://1")]) == ["b"]


def test_without_a_listing_everything_has_to_be_asked() -> None:
    given = case()
    given.listing = None

    assert len(nodes._unlisted(given, [builders.node("a")])) == 1
    assert nodes._lonely(given, [builders.node("a")]) == ()


def test_names_that_look_alike_are_offered() -> None:
    lost = ["web-1.example.com", "DB-1", "zebra"]

    assert list(nodes._guesses(lost, ["web-1", "db1", "other"])) == [
        "web-1.example.com may be the instance web-1",
        "DB-1 may be the instance db1",
    ]


def test_few_instances_without_a_node_are_named_and_many_counted() -> None:
    assert nodes._told([]) == ()
    assert nodes._told([f"i{number}" for number in range(7)]) == (
        "7 instances without a node: i0, i1, i2, i3, i4 and 2 more",
    )
