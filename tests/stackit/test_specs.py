"""What may stand in a class and its Secret: the tables of the vendor's driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ccm import cloud
from ccm.base import redact
from providers.stackit import machines
from providers.stackit.testing.server import IMAGE, NETWORK, PROJECT

GOOD = {
    "region": "eu01",
    "machineType": "c2i.2",
    "imageId": IMAGE,
    "networking": {"networkId": NETWORK},
}
SECRET = {"project-id": PROJECT.encode(), "serviceaccount.json": b'{"credentials": {}}'}
VOLUME = {"source": {"type": "image", "id": IMAGE}}


def fields(given: Mapping[str, Any], secret: Mapping[str, bytes] = SECRET) -> list[str]:
    return [one.field for one in machines.problems(given, secret)]


def cases(row: str, field: str, good: list[Any], bad: list[Any]) -> list[Any]:
    """One parameter for each value, marked with its row."""
    return [
        pytest.param(field, value, ok, marks=pytest.mark.row(row), id=f"{field}-{value!r}"[:60])
        for ok, values in ((True, good), (False, bad))
        for value in values
    ]


@pytest.mark.parametrize(
    ("field", "value", "ok"),
    [
        *cases(
            "stackit-spec-01",
            "region",
            ["eu01", "eu02", "eu10", "us02"],
            ["", None, "eu01-1", "eu02-b", "us-east-01", "eu01\n", 7],
        ),
        *cases(
            "stackit-spec-02",
            "availabilityZone",
            ["", None, "eu01-1", "eu01-2", "eu02-1", "eu02-4", "eu01-m", "eu02-m"],
            ["eu01-a", "eu01-m1", "eu01", "eu01-", "-1", "eu01-mm", "eu01-\u0661"],
        ),
        *cases(
            "stackit-spec-03",
            "machineType",
            ["c2i.2", "m2i.8", "c1.2", "g1a.8", "n2.56d.g4"],
            ["", None, "InvalidFormat"],
        ),
        *cases("stackit-spec-04", "imageId", [IMAGE, IMAGE.upper()], ["", None, "flatcar"]),
        *cases(
            "stackit-spec-05",
            "labels",
            [
                None,
                {},
                {"app.kubernetes.io_component": "a"},
                {"app/component": "a"},
                {"team/project/name": "a"},
                {"empty": ""},
                {"k" * 63: "v" * 63},
            ],
            [{"k" * 64: "a"}, {"a": "v" * 64}, {"-x": ""}, {"x-": ""}, {"a@b": ""}, {"a": "-x"}],
        ),
        *cases(
            "stackit-spec-06",
            "networking",
            [{"networkId": NETWORK}, {"nicIds": [NETWORK, IMAGE]}],
            [
                None,
                {},
                {"nicIds": []},
                {"networkId": NETWORK, "nicIds": [NETWORK]},
                {"networkId": "net"},
                {"networkId": ""},
                {"nicIds": [""]},
                {"nicIds": [NETWORK, "nic"]},
            ],
        ),
        *cases(
            "stackit-spec-07",
            "bootVolume",
            [
                None,
                {},
                {"size": 0},
                {"size": 50, "performanceClass": "p", "deleteOnTermination": False, **VOLUME},
                {"source": {"type": "snapshot", "id": IMAGE}},
                {"source": {"type": "volume", "id": IMAGE}},
            ],
            [
                {"source": {"type": "disk", "id": IMAGE}},
                {"source": {"id": IMAGE}},
                {"source": {"type": "image"}},
                {"source": {"type": "image", "id": "flatcar"}},
                {"size": -1},
            ],
        ),
        *cases("stackit-spec-08", "volumes", [None, [], [IMAGE]], [["disk"], [""], [IMAGE, ""]]),
        *cases("stackit-spec-08", "affinityGroup", [None, "", IMAGE], ["group"]),
        *cases("stackit-spec-08", "securityGroups", [None, [], ["default"]], [[""]]),
        *cases(
            "stackit-spec-08",
            "allowedAddresses",
            [None, [], ["10.0.0.0/8"], ["10.0.0.7/8"], ["2001:db8::1/64"]],
            [["10.0.0.1"], ["10.0.0.0/33"], ["net/8"], [""]],
        ),
        *cases(
            "stackit-spec-09",
            "keypairName",
            [None, "", "my-key_2024@test.com", "k" * 127],
            ["my key!", "k" * 128],
        ),
        *cases(
            "stackit-spec-10",
            "serviceAccountMails",
            [None, [], ["a.b+c@sa.stackit.cloud"]],
            [["mail"], [""], ["a@example.com", "b@example.com"]],
        ),
        *cases(
            "stackit-spec-11",
            "agent",
            [None, {"provisioned": True}, {"provisioned": False}, {}],
            [{"provisioned": "yes"}],
        ),
        *cases("stackit-spec-11", "metadata", [None, {}, {"a": "b", "c": {"d": [1]}}], ["text"]),
        *cases("stackit-spec-11", "someField", [1, "x", {}], []),
    ],
)
def test_each_spec_field_accepts_and_refuses_the_vendors_cases(
    field: str, value: Any, ok: bool
) -> None:
    assert fields({**GOOD, field: value}) == ([] if ok else [field])


@pytest.mark.row("stackit-spec-04")
def test_a_boot_volume_source_replaces_the_image() -> None:
    assert fields({**GOOD, "imageId": "", "bootVolume": VOLUME}) == []
    assert fields({**GOOD, "imageId": "", "bootVolume": {"size": 5}}) == ["imageId"]


@pytest.mark.row("stackit-spec-04", "stackit-spec-13")
def test_an_empty_spec_lacks_three_required_fields() -> None:
    assert fields({"region": "eu01"}) == ["machineType", "imageId", "networking"]


@pytest.mark.parametrize(
    ("secret", "found"),
    [
        pytest.param(value, found, marks=pytest.mark.row("stackit-spec-12"), id=name)
        for name, value, found in [
            ("nothing", {}, 2),
            ("no_project", {"serviceaccount.json": b"{}"}, 1),
            ("empty_project", {**SECRET, "project-id": b""}, 1),
            ("project_is_no_uuid", {**SECRET, "project-id": b"mine"}, 1),
            ("no_key", {"project-id": PROJECT.encode()}, 1),
            ("empty_key", {**SECRET, "serviceaccount.json": b" \n"}, 1),
            ("bad_json", {**SECRET, "serviceaccount.json": b"not-json-at-all"}, 1),
            ("truncated_json", {**SECRET, "serviceaccount.json": b'{"a": '}, 1),
            ("deep_json", {**SECRET, "serviceaccount.json": b"[" * 60_000}, 1),
            ("object", SECRET, 0),
            ("array", {**SECRET, "serviceaccount.json": b"[1]"}, 0),
            ("string", {**SECRET, "serviceaccount.json": b'"text"'}, 0),
            ("of_a_file", {**SECRET, "project-id": f"{PROJECT}\n".encode()}, 0),
        ]
    ],
)
def test_secrets_are_validated_without_quoting_them(
    secret: Mapping[str, bytes], found: int
) -> None:
    told = machines.problems(GOOD, secret)

    assert [one.field for one in told] == ["secretRef"] * found
    assert "not-json-at-all" not in " ".join(map(str, told))
    assert all(redact.mask_text(str(one)) == str(one) for one in told)


@pytest.mark.row("stackit-spec-13")
def test_all_invalid_fields_are_reported_in_order() -> None:
    wrong = {
        "serviceAccountMails": ["x"],
        "affinityGroup": "x",
        "allowedAddresses": ["x"],
        "keypairName": "!",
        "volumes": ["x"],
        "bootVolume": {"size": -1},
        "securityGroups": [""],
        "networking": {},
        "labels": {"-": ""},
        "imageId": "x",
        "machineType": "x",
        "availabilityZone": "x",
        "region": "-",
    }

    assert fields(wrong, {}) == ["secretRef", "secretRef", *reversed(wrong)]
    with pytest.raises(cloud.InvalidArgument) as caught:
        machines.parse_spec(wrong)
    assert all(name in str(caught.value) for name in wrong)


@pytest.mark.row("stackit-spec-11")
def test_null_and_unknown_spec_fields_are_accepted() -> None:
    found = machines.parse_spec({**GOOD, "userData": None, "bootVolume": VOLUME, "extra": 1})

    assert found.boot_volume is not None
    assert (found.boot_volume.delete_on_termination, found.user_data) == (True, "")
    assert json.dumps(found.labels) == "{}"
