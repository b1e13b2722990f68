"""Kinds know their paths, and their types read what the server writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ccm.kube import errors, exec_plugin, resources
from ccm.kube.resources import CONFIG_MAPS, EVENTS, LEASES, NODES, SERVICES, Kind
from ccm.model import configmap, event, lease, meta, node, service

KINDS: list[Kind[Any]] = [NODES, SERVICES, LEASES, EVENTS, CONFIG_MAPS]

_MODELS = {
    "Cause": "V1StatusCause",
    "Envelope": "V1WatchEvent",
    "Event": "CoreV1Event",
    "EventSource": "V1EventSource",
    "ObjectReference": "V1ObjectReference",
    "PortStatus": "V1PortStatus",
}
"""Types whose name in the official client is not theirs with `V1` before it."""

_NOT_THERE = {"ExecCredential", "ExecStatus", "Bookmark", "Named", "NameMeta", "RawList"}
"""Types that no kind of the API has."""

_LISTS_AND_MAPS = (msgspec.inspect.ListType, msgspec.inspect.DictType)


_MODULES = (meta, node, service, lease, event, configmap, resources, errors, exec_plugin)


def _wire_types() -> Iterator[type[meta.Wire]]:
    """Every wire type of the model and of this layer, bases and generic ones apart."""
    skipped = (meta.Wire, meta.KubeObject, resources.ItemList, resources.Change)
    for module in _MODULES:
        for found in vars(module).values():
            ours = isinstance(found, type) and found.__module__ == module.__name__
            if ours and issubclass(found, meta.Wire) and found not in skipped:
                yield found


def test_null_lists_and_maps_decode() -> None:
    needed = {"metadata": {}, "type": "", "object": {}, "port": 80, "protocol": ""}
    tried = 0
    for wire_type in _wire_types():
        required = {item.encode_name for item in msgspec.structs.fields(wire_type) if item.required}
        minimal = {name: needed[name] for name in required}
        info = msgspec.inspect.type_info(wire_type)
        assert isinstance(info, msgspec.inspect.StructType)
        for item in info.fields:
            if any(isinstance(part, _LISTS_AND_MAPS) for part in getattr(item.type, "types", ())):
                msgspec.convert({**minimal, item.encode_name: None}, wire_type)
                tried += 1

    assert tried >= 9


def test_fields_are_spelled_as_the_server_spells_them() -> None:
    from kubernetes.client import models  # heavy: nobody else needs it

    for each in _wire_types():
        if each.__name__ not in _NOT_THERE:
            model = getattr(models, _MODELS.get(each.__name__, f"V1{each.__name__}"))
            ours = {item.encode_name for item in msgspec.structs.fields(each)}
            assert ours <= {"kind", *model.attribute_map.values()}, each


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_page_with_null_items_is_empty(kind: Kind[Any]) -> None:
    page = kind.page.decode(b'{"metadata": {"resourceVersion": "5"}, "items": null}')

    assert page.items is None
    assert page.metadata.resource_version == "5"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_unknown_fields_are_skipped(kind: Kind[Any]) -> None:
    body = b'{"metadata": {"name": "n", "future": [1]}, "spec": {"future": {}}, "future": null}'

    assert kind.one.decode(body).name == "n"


def test_kinds_know_their_paths() -> None:
    assert NODES.path() == "/api/v1/nodes"
    assert NODES.path(name="n1", subresource="status") == "/api/v1/nodes/n1/status"
    assert NODES.path(name="../secrets?x#y%") == "/api/v1/nodes/..%2Fsecrets%3Fx%23y%25"
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    assert LEASES.path(namespace="kube-system", name="ccm") == f"{leases}/ccm"
