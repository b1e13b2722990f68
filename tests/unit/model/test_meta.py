"""What all objects share: keys, empty maps, and decoding that survives Go's nulls."""

from __future__ import annotations

import msgspec
import pytest

from ccm.model import Node, ObjectMeta
from ccm.model.meta import object_key
from ccm.testing.builders import node as build_node


def test_a_key_has_a_namespace_where_the_kind_has_one() -> None:
    assert object_key(ObjectMeta(namespace="a", name="b")) == "a/b"
    assert object_key(ObjectMeta(name="b")) == "b"


@pytest.mark.parametrize(
    ("own", "other", "lags"),
    [
        *[("9", "10", True), ("10", "9", False), ("7", "7", False)],
        *[("", "7", False), ("7", "", False), ("²", "7", False), ("7", "9" * 5000, False)],
    ],
)
def test_of_two_versions_the_lower_number_is_the_earlier(own: str, other: str, lags: bool) -> None:
    def version(text: str) -> Node:
        found = build_node("n")
        metadata = msgspec.structs.replace(found.metadata, uid="u", resource_version=text)
        return msgspec.structs.replace(found, metadata=metadata)

    assert version(own).lags_behind(version(other)) is lags


def test_nulls_and_unknown_fields_are_read_as_nothing() -> None:
    node = msgspec.json.decode(
        b'{"kind": "Node", "metadata": {"name": "n", "labels": null, "managedFields": [{"a": 1}],'
        b' "creationTimestamp": null}, "spec": {"taints": null}, "status": {"images": [1]}}',
        type=Node,
    )

    assert (node.name, node.key, node.namespace, node.uid) == ("n", "n", "", "")
    assert dict(node.labels) == dict(node.annotations) == {}
    assert (len(node.taints), len(node.addresses)) == (0, 0)
