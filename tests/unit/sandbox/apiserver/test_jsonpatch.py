from __future__ import annotations

from typing import Any

import pytest

from ccm.sandbox.apiserver import patches


@pytest.mark.parametrize(
    ("operation", "result"),
    [
        ({"op": "add", "path": "/b", "value": 2}, {"a": [1, 2], "b": 2}),
        ({"op": "add", "path": "/a/0", "value": 0}, {"a": [0, 1, 2]}),
        ({"op": "add", "path": "/a/-", "value": 3}, {"a": [1, 2, 3]}),
        ({"op": "add", "path": "/x~1y~0", "value": 1}, {"a": [1, 2], "x/y~": 1}),
        ({"op": "add", "path": "", "value": {"n": 1}}, {"n": 1}),
        ({"op": "replace", "path": "", "value": {"n": 1}}, {"n": 1}),
        ({"op": "remove", "path": "/a/1"}, {"a": [1]}),
        ({"op": "remove", "path": "/a"}, {}),
        ({"op": "replace", "path": "/a", "value": 5}, {"a": 5}),
        ({"op": "replace", "path": "/a/0", "value": 5}, {"a": [5, 2]}),
        ({"op": "move", "from": "/a/0", "path": "/b"}, {"a": [2], "b": 1}),
        ({"op": "copy", "from": "/a", "path": "/b"}, {"a": [1, 2], "b": [1, 2]}),
        ({"op": "test", "path": "/a/0", "value": 1}, {"a": [1, 2]}),
        ({"op": "test", "path": "/z", "value": None}, {"a": [1, 2]}),
    ],
)
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
