"""What all objects share: keys, empty maps, and decoding that survives Go's nulls."""

from __future__ import annotations

import msgspec

from ccm.model import Node, ObjectMeta
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
