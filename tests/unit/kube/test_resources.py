"""Kinds know their paths, and their types read what the server writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ccm.kube import errors, exec_plugin, resources
from ccm.kube.resources import EVENTS, KINDS, LEASES, NODES, Kind
from ccm.model import event, lease, meta, node

_WIRE_NAMES = {
    "Node": {"metadata", "spec", "status"},
    "NodeSpec": {"providerID", "podCIDR", "podCIDRs", "taints", "unschedulable"},
    "NodeStatus": {"addresses", "conditions"},
    "NodeAddress": {"type", "address"},
    "NodeCondition": {
        "type", "status", "reason", "message", "lastHeartbeatTime", "lastTransitionTime",
    },
    "Taint": {"key", "value", "effect", "timeAdded"},
    "ObjectMeta": {
        "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp",
        "labels", "annotations", "finalizers", "ownerReferences",
    },
    "OwnerReference": {"apiVersion", "kind", "name", "uid", "controller"},
    "ObjectReference": {
        "kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath",
    },
    "Lease": {"metadata", "spec"},
    "LeaseSpec": {
        "holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime",
        "leaseTransitions", "strategy", "preferredHolder",
    },
    "Event": {
        "metadata", "involvedObject", "reason", "message", "source", "type", "count",
        "firstTimestamp", "lastTimestamp", "reportingComponent",
    },
    "EventSource": {"component", "host"},
    "ListMeta": {"resourceVersion", "continue", "remainingItemCount"},
    "Status": {"kind", "status", "message", "reason", "code", "details"},
    "StatusDetails": {"name", "group", "kind", "uid", "causes", "retryAfterSeconds"},
    "Cause": {"reason", "message", "field"},
    "Envelope": {"type", "object"},
    "ExecStatus": {"token", "clientCertificateData", "clientKeyData", "expirationTimestamp"},
    "ExecCredential": {"apiVersion", "kind", "status"},
}  # fmt: skip
"""Field names as the Kubernetes API reference and the client authentication API write them."""


_LISTS_AND_MAPS = (msgspec.inspect.ListType, msgspec.inspect.DictType)


_MODULES = (meta, node, lease, event, resources, errors, exec_plugin)


def _wire_types() -> Iterator[type[meta.Wire]]:
    """Every wire type of the model and of this layer, bases and generic ones apart."""
    skipped = (meta.Wire, meta.KubeObject, resources.ItemList)
    for module in _MODULES:
        for found in vars(module).values():
            ours = isinstance(found, type) and found.__module__ == module.__name__
            if ours and issubclass(found, meta.Wire) and found not in skipped:
                yield found


def _list_and_map_fields() -> Iterator[Any]:
    for wire_type in sorted(_wire_types(), key=lambda item: item.__name__):
        info = msgspec.inspect.type_info(wire_type)
        assert isinstance(info, msgspec.inspect.StructType)
        for item in info.fields:
            parts = getattr(item.type, "types", (item.type,))
            if any(isinstance(part, _LISTS_AND_MAPS) for part in parts):
                yield pytest.param(
                    wire_type, item.encode_name, id=f"{wire_type.__name__}.{item.encode_name}"
                )


def _minimal(wire_type: type[msgspec.Struct]) -> dict[str, Any]:
    """The few fields that must be there."""
    needed = {"metadata": {}, "type": "", "object": {}}
    required = [item for item in msgspec.structs.fields(wire_type) if item.required]
    return {item.encode_name: needed[item.encode_name] for item in required}


@pytest.mark.parametrize(("wire_type", "name"), list(_list_and_map_fields()))
def test_null_lists_and_maps_decode(wire_type: type[msgspec.Struct], name: str) -> None:
    body = json.dumps({**_minimal(wire_type), name: None})

    decoded = msgspec.json.decode(body, type=wire_type)

    assert isinstance(decoded, wire_type)


def test_there_are_lists_and_maps_to_try() -> None:
    assert len(list(_list_and_map_fields())) >= 9


@pytest.mark.parametrize("name", sorted(_WIRE_NAMES))
def test_fields_are_spelled_as_the_server_spells_them(name: str) -> None:
    found = {item.__name__: item for item in _wire_types()}[name]

    spelled = {item.encode_name for item in msgspec.structs.fields(found)}

    assert spelled == _WIRE_NAMES[name]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_page_with_null_items_is_empty(kind: Kind[Any]) -> None:
    page = kind.page.decode(b'{"metadata": {"resourceVersion": "5"}, "items": null}')

    assert page.items is None
    assert page.metadata.resource_version == "5"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_unknown_fields_are_skipped(kind: Kind[Any]) -> None:
    body = b'{"metadata": {"name": "n", "future": [1]}, "spec": {"future": {}}, "future": null}'

    assert kind.one.decode(body).name == "n"


def test_a_core_kind_lives_under_api() -> None:
    assert NODES.path() == "/api/v1/nodes"
    assert NODES.path(name="n1", subresource="status") == "/api/v1/nodes/n1/status"
    assert EVENTS.path(namespace="default") == "/api/v1/namespaces/default/events"


def test_a_kind_of_a_group_lives_under_apis() -> None:
    assert LEASES.api_version == "coordination.k8s.io/v1"
    assert (
        LEASES.path(namespace="kube-system", name="ccm")
        == "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/ccm"
    )


def test_names_cannot_escape_their_path() -> None:
    assert NODES.path(name="../secrets?x#y%") == "/api/v1/nodes/..%2Fsecrets%3Fx%23y%25"
