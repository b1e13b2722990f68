"""Patches of all formats; what comes out of good ones is told by `patches.yaml`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.sandbox.apiserver import patches, schema

CASES = yaml.safe_load(Path(__file__).with_name("patches.yaml").read_text())
READY = {"type": "Ready", "status": "True"}


def strategic(current: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    return patches.strategic(schema.kubernetes()["Node"], copy.deepcopy(current), patch)


@pytest.mark.parametrize(
    ("current", "patch", "result"), CASES["merge"].values(), ids=CASES["merge"]
)
def test_merge_patch(current: Any, patch: Any, result: Any) -> None:
    assert patches.merge(current, patch) == result


@pytest.mark.parametrize(
    ("current", "patch", "result"), CASES["strategic"].values(), ids=CASES["strategic"]
)
def test_strategic_merge_patch(
    current: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert strategic(current, patch) == result


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


@pytest.mark.parametrize(("operation", "result"), CASES["json"])
def test_json_patch(operation: dict[str, Any], result: Any) -> None:
    assert patches.json_patch({"a": [1, 2]}, [operation]) == result


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ({"op": "test", "path": "/a/0", "value": 2}, patches.UnprocessablePatchError),
        ({"op": "test", "path": "/a/0", "value": True}, patches.UnprocessablePatchError),
        ({"op": "remove", "path": "/z"}, patches.UnprocessablePatchError),
        ({"op": "remove", "path": "/a/9"}, patches.UnprocessablePatchError),
        ({"op": "replace", "path": "/z", "value": 1}, patches.UnprocessablePatchError),
        ({"op": "add", "path": "/z/y", "value": 1}, patches.UnprocessablePatchError),
        ({"op": "add", "path": "/a/9", "value": 1}, patches.UnprocessablePatchError),
        ({"op": "copy", "from": "/z", "path": "/b"}, patches.UnprocessablePatchError),
        ({"op": "jump", "path": "/a"}, patches.BadPatchError),
        ({"op": "add", "value": 1}, patches.BadPatchError),
        ({"op": "add", "path": "/b"}, patches.BadPatchError),
        ({"op": "move", "path": "/b"}, patches.BadPatchError),
        ({"op": "remove", "path": "a"}, patches.BadPatchError),
        ("remove", patches.BadPatchError),
    ],
)
def test_a_json_patch_that_cannot_be_applied_is_refused(
    operation: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        patches.json_patch({"a": [1, 2]}, [operation])


def test_a_json_patch_is_a_list() -> None:
    with pytest.raises(patches.BadPatchError):
        patches.json_patch({}, {"op": "add"})
