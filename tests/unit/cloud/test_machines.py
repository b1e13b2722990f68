"""Values between controllers and machine drivers, and defaults of the driver base class."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

from ccm.cloud import (
    Credentials,
    DeleteMachineResponse,
    Driver,
    GetVolumeIDsRequest,
    Identity,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    MigrationRequest,
    errors,
)
from ccm.cloud.machines import check_owner, find_record, is_owner, partial_info
from ccm.cloud.operation import DECLARATIONS

WHO = Identity(cluster="c1", pool="workers", name="m-1", uid="u-1")


def request(who: Identity = WHO, **fields: Any) -> MachineRequest:
    secret = Credentials({"token": b"hunter2"})
    return MachineRequest(identity=who, provider_spec={}, credentials=secret, **fields)


def test_credentials_are_equal_by_content() -> None:
    one, same = Credentials({"a": b"1", "b": b"2"}), Credentials({"b": b"2", "a": b"1"})

    assert one == same
    assert one.digest == same.digest == copy.deepcopy(one).digest
    assert len({one, same, pickle.loads(pickle.dumps(one))}) == 1
    assert dict(one) == {"a": b"1", "b": b"2"}
    assert len(one) == 2


@pytest.mark.parametrize(
    "other", [{"a": b"1"}, {"a": b"12", "b": b""}, {"a": b"", "b": b"12"}, {"a1": b"", "b": b"2"}]
)
def test_different_credentials_have_different_digests(other: dict[str, bytes]) -> None:
    one = Credentials({"a": b"1", "b": b"2"})

    assert Credentials(other) != one
    assert Credentials(other).digest != one.digest


NAMED = Identity(cluster="", pool="", name="m-1", uid="")


@pytest.mark.parametrize(
    ("asked", "subject"),
    [
        (request(), "u-1"),
        (request(provider_id="a://1"), "u-1"),
        (request(NAMED, provider_id="a://1"), "a://1"),
        (request(NAMED), "m-1"),
    ],
    ids=["new machine", "machine with a VM", "VM without a machine", "name only"],
)
def test_changes_of_one_vm_share_a_subject(asked: MachineRequest, subject: str) -> None:
    """Calls with the same subject never overlap; an empty subject would exclude nothing."""
    changes = ("create_machine", "initialize_machine", "delete_machine")

    assert {DECLARATIONS[change].subject(req=asked) for change in changes} == {subject}


@pytest.mark.parametrize(
    ("carried", "expected"),
    [
        (None, MachineInfo()),
        ("odd", MachineInfo()),
        (MachineInfo(provider_id="a://1"), MachineInfo(provider_id="a://1")),
        (DeleteMachineResponse(last_known_state="s"), MachineInfo(last_known_state="s")),
    ],
)
def test_partial_info_of_an_error_is_read_from_any_carried_value(
    carried: object, expected: MachineInfo
) -> None:
    assert partial_info(errors.Unavailable("x").carrying(carried)) == expected


async def test_optional_driver_methods_raise_unimplemented() -> None:
    session = object()
    driver = Driver(session)
    calls = [
        driver.initialize_machine(request()),
        driver.get_volume_ids(GetVolumeIDsRequest(pv_specs=())),
        driver.generate_machine_class_for_migration(
            MigrationRequest(provider_specific_machine_class={}, machine_class={}, class_spec={})
        ),
    ]

    assert driver.spi is session
    for call in calls:
        with pytest.raises(errors.Unimplemented):
            await call


OWN = Identity(cluster="c1", namespace="default", pool="workers", name="m-1", uid="u-1")


UNMARKED = Identity(cluster="", pool="", name="m-1", uid="")


@pytest.mark.parametrize(
    ("marks", "owned"),
    [
        ({}, True),
        ({"namespace": ""}, True),
        ({"pool": "former-class"}, True),
        ({"uid": "before-the-restore"}, True),
        ({"uid": "another", "namespace": ""}, False),
        ({"uid": "another", "namespace": "other"}, False),
        ({"uid": "another", "name": "m-2"}, False),
        ({"uid": "another", "pool": "other"}, False),
        ({"cluster": "c2"}, False),
        ({"cluster": "", "uid": ""}, False),
        ({"uid": ""}, False),
    ],
)
def test_owner_labels_decide_who_owns_a_vm(marks: dict[str, str], owned: bool) -> None:
    assert is_owner(OWN, replace(OWN, **marks)) is owned


@pytest.mark.parametrize(
    ("marks", "fields", "told"),
    [
        (UNMARKED, {}, "has no labels or tags of a machine"),
        (replace(UNMARKED, name="control-plane"), {"adopts_unmarked": True}, "has no labels"),
        (
            replace(OWN, cluster="c2"),
            {"adopts_unmarked": True},
            "belongs to machine m-1 (u-1) of cluster c2",
        ),
    ],
)
def test_vm_of_another_owner_is_refused(
    marks: Identity, fields: dict[str, bool], told: str
) -> None:
    with pytest.raises(errors.NotOwned) as caught:
        check_owner(request(OWN, provider_id="a://1", **fields), marks)

    assert told in str(caught.value)
    assert "VM a://1" in str(caught.value)
    assert "in the class's annotation kube-ccm/import-vms" in str(caught.value)


@pytest.mark.parametrize(
    ("marks", "fields", "beside"),
    [
        (OWN, {}, OWN),
        (replace(OWN, uid="before"), {}, replace(OWN, uid="before")),
        (UNMARKED, {"adopts_unmarked": True}, OWN),
        (UNMARKED, {"is_imported": True}, OWN),
        (replace(OWN, cluster="c2"), {"is_imported": True}, replace(OWN, cluster="c2")),
    ],
)
def test_owned_adoptable_and_imported_vms_are_accepted(
    marks: Identity, fields: dict[str, bool], beside: Identity
) -> None:
    assert check_owner(request(OWN, provider_id="a://1", **fields), marks) == beside


@pytest.mark.parametrize(
    "other",
    [
        Identity(cluster="c2", pool="workers", name="m-1", uid="u-1"),
        Identity(cluster="c1", pool="workers", name="m-1", uid="u-2"),
        Identity(cluster="", pool="workers", name="m-1", uid=""),
    ],
)
def test_vm_is_found_by_cluster_and_uid_only(other: Identity) -> None:
    info = MachineInfo(provider_id="a://1")
    ours = MachineRecord(identity=WHO, info=info)
    moved = Identity(cluster="c1", namespace="other", pool="other", name="renamed", uid="u-1")

    assert find_record([MachineRecord(identity=other, info=info)], WHO) is None
    assert find_record([MachineRecord(identity=other, info=info), ours], WHO) is ours
    assert find_record([MachineRecord(identity=moved, info=info)], WHO) is not None
