"""What all objects share: keys, empty maps, and decoding that survives Go's nulls."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.model import Event, Lease, LeaseSpec, Node, ObjectMeta
from ccm.model.meta import object_key, split_key

NAME = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)


@given(st.one_of(st.just(""), NAME), NAME)
def test_a_key_splits_into_what_it_was_made_of(namespace: str, name: str) -> None:
    key = object_key(ObjectMeta(namespace=namespace, name=name))

    assert split_key(key) == (namespace, name)


def test_a_key_with_two_slashes_is_refused() -> None:
    with pytest.raises(ValueError, match="unexpected key format: 'a/b/c'"):
        split_key("a/b/c")


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
