"""What all objects share: keys, empty maps, and decoding that survives Go's nulls."""

from __future__ import annotations

import msgspec
import pytest

from ccm.model import Event, Lease, LeaseSpec, Node, ObjectMeta
from ccm.model.meta import object_key


def test_a_key_has_a_namespace_where_the_kind_has_one() -> None:
    assert object_key(ObjectMeta(namespace="a", name="b")) == "a/b"
    assert object_key(ObjectMeta(name="b")) == "b"


def test_nulls_and_unknown_fields_are_read_as_nothing() -> None:
    node = msgspec.json.decode(
        b'{"kind": "Node", "metadata": {"name": "n", "labels": null, "managedFields": [{"a": 1}],'
        b' "creationTimestamp": null}, "spec": {"taints": null}, "status": {"images": [1]}}',
        type=Node,
    )

    assert (node.name, node.key, node.namespace, node.uid) == ("n", "n", "", "")
    assert dict(node.labels) == dict(node.annotations) == {}
    assert (len(node.taints), len(node.addresses)) == (0, 0)


def test_metadata_is_read_in_full() -> None:
    event = msgspec.json.decode(
        b'{"metadata": {"name": "e", "namespace": "default", "uid": "u", "resourceVersion": "7",'
        b' "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["f"],'
        b' "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "w",'
        b' "controller": true}]}}',
        type=Event,
    )

    assert (event.key, event.uid, event.resource_version) == ("default/e", "u", "7")
    assert (event.labels["a"], event.annotations["c"]) == ("b", "d")
    assert event.metadata.finalizers == ["f"]
    (owner,) = event.metadata.owner_references or []
    assert (owner.api_version, owner.kind, owner.controller) == ("v1", "Pod", True)


def test_a_lease_is_written_with_wire_names_and_without_defaults() -> None:
    lease = Lease(
        metadata=ObjectMeta(name="l", namespace="kube-system", resource_version="9"),
        spec=LeaseSpec(holder_identity="me", lease_duration_seconds=15, lease_transitions=0),
    )

    written = msgspec.to_builtins(lease)

    assert written == {
        "metadata": {"name": "l", "namespace": "kube-system", "resourceVersion": "9"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 0},
    }


def test_objects_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Node(metadata=ObjectMeta(name="n")).metadata.name = "m"  # type: ignore[misc]
