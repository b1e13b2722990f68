"""Patches of finalizers in both forms, and what binds a patch."""

from __future__ import annotations

from functools import partial

from ccm.model import patches
from ccm.testing import builders

F = "example.com/ours"


service = partial(builders.service, uid="u1", resource_version="7")


def test_a_strategic_patch_names_our_finalizer_only() -> None:
    assert patches.add_finalizer(service(finalizers=["x"]), F) == {
        "metadata": {
            "resourceVersion": "7",
            "$setElementOrder/finalizers": ["x", F],
            "finalizers": [F],
        }
    }
    assert patches.remove_finalizer(service(finalizers=["x", F]), F) == {
        "metadata": {
            "resourceVersion": "7",
            "$deleteFromPrimitiveList/finalizers": [F],
            "$setElementOrder/finalizers": ["x"],
        }
    }


def test_a_merge_patch_writes_the_whole_list_under_its_version() -> None:
    added = patches.add_finalizer(service(finalizers=["x"]), F, strategic=False)
    removed = patches.remove_finalizer(service(finalizers=["x", F]), F, strategic=False)
    assert added == {"metadata": {"resourceVersion": "7", "finalizers": ["x", F]}}
    assert removed == {"metadata": {"resourceVersion": "7", "finalizers": ["x"]}}


def test_nothing_is_written_where_nothing_changes() -> None:
    assert patches.add_finalizer(service(finalizers=[F]), F) is None
    assert patches.remove_finalizer(service(finalizers=["x"]), F) is None


def test_a_patch_is_bound_to_the_object_or_to_its_state() -> None:
    assert patches.same_object(service()) == {"uid": "u1"}
    assert patches.same_version(service()) == {"resourceVersion": "7"}
