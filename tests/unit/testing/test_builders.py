"""Built nodes look like the server's, and every field can be chosen."""

from __future__ import annotations

import msgspec

from ccm.cloud import address
from ccm.model import Node
from ccm.model.node import has_shutdown_taint, is_uninitialized
from ccm.testing.builders import node, shutdown_taint, uninitialized_taint


def test_defaults_are_those_of_a_healthy_node_before_its_initialisation() -> None:
    built = node()

    assert (built.name, built.provider_id, built.ready) == ("node0", "", "True")
    assert built.metadata.creation_timestamp == "2012-01-01T00:00:00Z"
    assert built.taints == ()
    assert built.spec.taints is None


def test_uids_follow_from_names() -> None:
    assert node("a").uid != node("b").uid
    assert node("a", uid="1").uid == "1"


def test_what_was_chosen_is_there() -> None:
    addresses = [address("InternalIP", "10.0.0.1")]
    built = node(
        "a",
        provider_id="fake://1",
        taints=[uninitialized_taint(effect="NoExecute"), shutdown_taint()],
        labels={"l": "1"},
        annotations={"n": "2"},
        addresses=addresses,
        ready="Unknown",
        resource_version="7",
        created="2020-01-01T00:00:00Z",
    )

    assert is_uninitialized(built)
    assert has_shutdown_taint(built)
    assert (built.labels, built.annotations) == ({"l": "1"}, {"n": "2"})
    assert built.addresses == addresses
    assert (built.provider_id, built.ready, built.resource_version) == ("fake://1", "Unknown", "7")


def test_a_node_may_lack_the_ready_condition() -> None:
    assert node(ready=None).status.conditions is None


def test_it_survives_the_wire() -> None:
    built = node("a", taints=[uninitialized_taint()], addresses=[address("Hostname", "a")])

    assert msgspec.json.decode(msgspec.json.encode(built), type=Node) == built
