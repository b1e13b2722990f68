from __future__ import annotations

import copy
from typing import Any

import pytest

from ccm.sandbox.apiserver import patches, schema

READY = {"type": "Ready", "status": "True"}
DISK = {"type": "Disk", "status": "False"}
IN_1 = {"type": "InternalIP", "address": "1"}
IN_2 = {"type": "InternalIP", "address": "2"}
HOST = {"type": "Hostname", "address": "h"}
TAINT = {"key": "a", "effect": "NoSchedule"}


def strategic(current: dict[str, Any], patch: dict[str, Any], kind: str = "Node") -> dict[str, Any]:
    return patches.strategic(schema.kubernetes()[kind], copy.deepcopy(current), patch)


@pytest.mark.parametrize(
    ("current", "patch", "result"),
    [
        pytest.param({"a": 1}, {"b": 2}, {"a": 1, "b": 2}, id="adds"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="null removes"),
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="recurses"),
        pytest.param({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, id="replaces lists"),
        pytest.param({"a": 1}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}, id="no nulls stay"),
        pytest.param({"a": 1}, "x", "x", id="anything but an object replaces"),
    ],
)
def test_merge_patch(current: Any, patch: Any, result: Any) -> None:
    assert patches.merge(current, patch) == result


@pytest.mark.parametrize(
    ("current", "patch", "result"),
    [
        pytest.param(
            {"status": {"conditions": [READY, DISK]}},
            {"status": {"conditions": [{"type": "Disk", "status": "True"}]}},
            {"status": {"conditions": [READY, {"type": "Disk", "status": "True"}]}},
            id="conditions merge by type",
        ),
        pytest.param(
            {"status": {"conditions": [READY]}},
            {"status": {"conditions": [DISK]}},
            {"status": {"conditions": [DISK, READY]}},
            id="the patch's new elements come first",
        ),
        pytest.param(
            {"status": {"addresses": [IN_1, HOST]}},
            {"status": {"addresses": [{"$patch": "replace"}, IN_2]}},
            {"status": {"addresses": [IN_2]}},
            id="the replace element replaces the whole list",
        ),
        pytest.param(
            {"status": {"addresses": [IN_1, HOST]}},
            {"status": {"addresses": [IN_2, IN_1, {"$patch": "replace"}]}},
            {"status": {"addresses": [IN_2, IN_1]}},
            id="a list that replaces may have two elements with one merge key",
        ),
        pytest.param(
            {"status": {"addresses": [IN_1, HOST]}},
            {"status": {"addresses": [{"$patch": "delete", "type": "Hostname"}]}},
            {"status": {"addresses": [IN_1]}},
            id="the delete element deletes by merge key",
        ),
        pytest.param(
            {"status": {"addresses": [IN_1]}},
            {"status": {"addresses": [IN_2, {"type": "InternalIP", "address": "3"}]}},
            {"status": {"addresses": [{"type": "InternalIP", "address": "3"}]}},
            id="two addresses of a type merge into one, as in Kubernetes",
        ),
        pytest.param(
            {"spec": {"taints": [TAINT]}},
            {"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}},
            {"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}},
            id="taints are atomic",
        ),
        pytest.param(
            {"spec": {"taints": [TAINT]}},
            {"spec": {"taints": None}},
            {"spec": {}},
            id="null removes a list",
        ),
        pytest.param(
            {"metadata": {"labels": {"a": "1", "b": "2"}}},
            {"metadata": {"labels": {"a": None, "c": "3"}}},
            {"metadata": {"labels": {"b": "2", "c": "3"}}},
            id="maps merge",
        ),
        pytest.param(
            {"metadata": {"labels": {"a": "1"}}},
            {"metadata": {"labels": {"$patch": "replace", "b": "2"}}},
            {"metadata": {"labels": {"b": "2"}}},
            id="a map is replaced on demand",
        ),
        pytest.param(
            {"metadata": {"labels": {"a": "1"}}},
            {"metadata": {"labels": {"$patch": "delete"}}},
            {"metadata": {"labels": {}}},
            id="a map is deleted on demand",
        ),
        pytest.param(
            {"metadata": {"labels": {"a": "1"}}},
            {"metadata": {"labels": {"$patch": "merge", "b": "2"}}},
            {"metadata": {"labels": {"a": "1", "b": "2"}}},
            id="merge is the default and may be said",
        ),
        pytest.param(
            {"metadata": {"labels": {"a": "1", "b": "2"}}},
            {"metadata": {"labels": {"$retainKeys": ["a", "c"], "c": "3"}}},
            {"metadata": {"labels": {"a": "1", "c": "3"}}},
            id="keys that are not retained go",
        ),
        pytest.param(
            {"metadata": {"finalizers": ["a/x"]}},
            {"metadata": {"finalizers": ["b/y", "a/x"]}},
            {"metadata": {"finalizers": ["b/y", "a/x"]}},
            id="finalizers merge as a set",
        ),
        pytest.param(
            {"metadata": {"finalizers": ["a/x", "b/y"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]}},
            {"metadata": {"finalizers": ["b/y"]}},
            id="plain values are deleted from a list",
        ),
        pytest.param(
            {"status": {"conditions": [READY, DISK]}},
            {
                "status": {
                    "$setElementOrder/conditions": [{"type": "Disk"}, {"type": "Ready"}],
                    "conditions": [{"type": "Disk", "status": "True"}],
                }
            },
            {"status": {"conditions": [{"type": "Disk", "status": "True"}, READY]}},
            id="elements take the order that is set",
        ),
        pytest.param(
            {},
            {"status": {"conditions": [{"$patch": "delete", "type": "x"}, READY], "phase": None}},
            {"status": {"conditions": [READY]}},
            id="what is new comes without directives and nulls",
        ),
    ],
)
def test_strategic_merge_patch(
    current: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert strategic(current, patch) == result


def test_service_ports_merge_by_port() -> None:
    current = {"spec": {"ports": [{"port": 80, "name": "http"}]}}
    patch = {"spec": {"ports": [{"port": 80, "nodePort": 30000}]}}

    assert strategic(current, patch, "Service") == {
        "spec": {"ports": [{"port": 80, "name": "http", "nodePort": 30000}]}
    }


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        ({"status": {"conditions": [{"status": "x"}]}}, patches.UnprocessablePatchError),
        ({"status": {"conditions": ["x"]}}, patches.BadPatchError),
        ({"status": {"conditions": [{"$patch": "what"}]}}, patches.BadPatchError),
        ({"spec": {"$patch": "what"}}, patches.BadPatchError),
        ({"spec": {"$retainKeys": ["a"], "b": 1}}, patches.BadPatchError),
        ({"status": {"$setElementOrder/conditions": {}}}, patches.BadPatchError),
    ],
)
def test_a_bad_strategic_patch_is_refused(patch: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        strategic({"spec": {}, "status": {"conditions": [READY]}}, patch)
