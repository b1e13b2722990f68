"""Owner references: whose controller an object has, adoption and release."""

from __future__ import annotations

import pytest

from ccm.model import ObjectMeta
from ccm.model.meta import OwnerReference
from ccm.model.node import Node
from ccm.model.owners import (
    adoption_patch,
    controller_key,
    controller_of,
    controller_reference,
    controller_uid,
    release_patch,
)


def reference(uid: str, *, controller: bool | None = None) -> OwnerReference:
    return OwnerReference(
        api_version="v1", kind="MachineSet", name=f"of-{uid}", uid=uid, controller=controller
    )


def owned(*owners: OwnerReference) -> Node:
    meta = ObjectMeta(
        name="a", namespace="d", uid="u", resource_version="7", owner_references=list(owners)
    )
    return Node(metadata=meta)


def test_the_controller_is_the_owner_that_says_so() -> None:
    controller = reference("2", controller=True)
    obj = owned(reference("1", controller=False), reference("3"), controller)
    assert controller_of(obj) == controller
    assert controller_uid(obj) == "2"
    assert controller_key(obj, "MachineSet") == "d/of-2"
    assert controller_key(obj, "Machine") == ""


@pytest.mark.parametrize("obj", [owned(), owned(reference("1")), Node(metadata=ObjectMeta())])
def test_an_object_without_controller_has_no_key(obj: Node) -> None:
    assert controller_of(obj) is None
    assert (controller_uid(obj), controller_key(obj, "MachineSet")) == ("", "")


def test_the_reference_to_a_controller_keeps_the_owner_until_the_object_is_gone() -> None:
    assert controller_reference(owned(), api_version="m/v1", kind="MachineSet") == OwnerReference(
        api_version="m/v1",
        kind="MachineSet",
        name="a",
        uid="u",
        controller=True,
        block_owner_deletion=True,
    )


def builtins(uid: str, **more: bool) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "MachineSet", "name": f"of-{uid}", "uid": uid, **more}


def test_an_adoption_keeps_other_owners_and_has_preconditions() -> None:
    obj = owned(reference("1"), reference("2"))
    assert adoption_patch(obj, reference("2", controller=True)) == {
        "metadata": {
            "uid": "u",
            "resourceVersion": "7",
            "ownerReferences": [builtins("1"), builtins("2", controller=True)],
        }
    }
    assert adoption_patch(Node(metadata=ObjectMeta(uid="u")), reference("2"))["metadata"][
        "ownerReferences"
    ] == [builtins("2")]


def test_a_release_removes_one_owner_only() -> None:
    patch = release_patch(owned(reference("1"), reference("2", controller=True)), "2")
    assert patch == {
        "metadata": {"uid": "u", "resourceVersion": "7", "ownerReferences": [builtins("1")]}
    }
    assert release_patch(owned(reference("1")), "2") is None
    assert release_patch(Node(metadata=ObjectMeta()), "2") is None
