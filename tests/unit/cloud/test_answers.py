"""Answers of wrong kinds are told from answers."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import pytest

from ccm.cloud import answers
from ccm.cloud.types import (
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    InstanceState,
    Power,
    Zone,
    address,
)

FULL = InstanceMetadata(
    provider_id="a://1",
    instance_type="big",
    addresses=[address("InternalIP", "10.0.0.1")],
    zone="z",
    region="r",
    additional_labels={"colour": "blue"},
)
RECORD = InstanceRecord(name="n", power=Power.RUNNING, metadata=FULL)

GOOD: list[tuple[Callable[[object], object], object]] = [
    (answers.decision, False),
    (answers.text, ""),
    (answers.zone, Zone(failure_domain="z", region="r")),
    (answers.addresses, ()),
    (answers.addresses, FULL.addresses),
    (answers.metadata, None),
    (answers.metadata, InstanceMetadata()),
    (answers.metadata, FULL),
    (answers.state, InstanceState(exists=False)),
    (answers.state, InstanceState(exists=True, power=Power.SHUTDOWN)),
    (answers.listing, InstanceListing(instances=[RECORD], requests=3)),
]

NO_TEXT = ipaddress.ip_address("10.0.0.1")
BAD: list[tuple[Callable[[object], object], object, str]] = [
    (answers.decision, None, "None, not True or False"),
    (answers.text, None, "None, not text"),
    (answers.zone, None, "None, not a Zone"),
    (answers.zone, Zone(region=7), "7, not the text of a region"),  # type: ignore[arg-type]
    (answers.addresses, None, "None, not a sequence of addresses"),
    (answers.addresses, "10.0.0.1", "'10.0.0.1', not a sequence of addresses"),
    (answers.addresses, ["10.0.0.1"], "'10.0.0.1', not a NodeAddress"),
    (
        answers.addresses,
        [address("InternalIP", NO_TEXT)],  # type: ignore[arg-type]
        "not the text of an address",
    ),
    (answers.metadata, {}, "{}, not an InstanceMetadata"),
    (
        answers.metadata,
        InstanceMetadata(provider_id=7),  # type: ignore[arg-type]
        "7, not the text of provider_id",
    ),
    (
        answers.metadata,
        InstanceMetadata(addresses=None),  # type: ignore[arg-type]
        "None, not a sequence of addresses",
    ),
    (
        answers.metadata,
        InstanceMetadata(additional_labels=()),  # type: ignore[arg-type]
        "not a mapping of labels",
    ),
    (
        answers.metadata,
        InstanceMetadata(additional_labels={"cores": 4}),  # type: ignore[dict-item]
        "4, not the text of label cores",
    ),
    (answers.state, None, "None, not an InstanceState"),
    (answers.state, InstanceState(exists=0), "0, not True or False"),  # type: ignore[arg-type]
    (answers.state, InstanceState(exists=True), "None, not a Power"),
    (answers.listing, [RECORD], "not an InstanceListing"),
    (
        answers.listing,
        InstanceListing(instances=[RECORD], requests="1"),  # type: ignore[arg-type]
        "'1', not a number of requests",
    ),
    (
        answers.listing,
        InstanceListing(instances={}),  # type: ignore[arg-type]
        "not a sequence of InstanceRecord",
    ),
    (
        answers.listing,
        InstanceListing(instances=[FULL]),  # type: ignore[list-item]
        "not an InstanceRecord",
    ),
    (
        answers.listing,
        InstanceListing(
            instances=[InstanceRecord(name="n", power=Power.RUNNING, metadata=None)]  # type: ignore[arg-type]
        ),
        "None, not an InstanceMetadata",
    ),
]


@pytest.mark.parametrize(("check", "answer"), GOOD)
def test_right_answers_pass_unchanged(check: Callable[[object], object], answer: object) -> None:
    assert check(answer) is answer


@pytest.mark.parametrize(("check", "answer", "told"), BAD, ids=[told for _, _, told in BAD])
def test_wrong_answers_are_told(
    check: Callable[[object], object], answer: object, told: str
) -> None:
    with pytest.raises(answers.Wrong) as caught:
        check(answer)

    assert told in str(caught.value)
