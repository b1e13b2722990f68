"""Whether a provider's answers are what its methods promise. Pure.

Python does not hold a provider to its type hints. An answer of a wrong kind is a fault of
the provider, never taken for an answer: a forgotten `return` must not read as "gone" or as
"no addresses", nor end in a provider ID.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ccm.cloud.types import (
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    InstanceState,
    LoadBalancerRecord,
    Power,
    Route,
    Status,
    Zone,
)
from ccm.model import NodeAddress

T = TypeVar("T")

_TEXTS = ("provider_id", "instance_type", "zone", "region")


class Wrong(Exception):
    """The answer is of a wrong kind; the message says what it was and what it should be."""

    def __init__(self, answer: object, wanted: str) -> None:
        super().__init__(f"{reprlib.repr(answer)}, not {wanted}")


def decision(answer: object) -> bool:
    """True or False. Raises Wrong."""
    if not isinstance(answer, bool):
        raise Wrong(answer, "True or False")
    return answer


def text(answer: object, what: str = "text") -> str:
    """A text. Raises Wrong."""
    if not isinstance(answer, str):
        raise Wrong(answer, what)
    return answer


def zone(answer: object) -> Zone:
    """A `Zone`. Raises Wrong."""
    if not isinstance(answer, Zone):
        raise Wrong(answer, "a Zone")
    text(answer.failure_domain, "the text of a failure domain")
    text(answer.region, "the text of a region")
    return answer


def addresses(answer: object) -> Sequence[NodeAddress]:
    """A sequence of addresses; a bare text is none. Raises Wrong."""
    found = _sequence(answer, NodeAddress, "addresses")
    for entry in found:
        text(entry.type, "the text of an address type")
        text(entry.address, "the text of an address")
    return found


def metadata(answer: object) -> InstanceMetadata | None:
    """An `InstanceMetadata` whose fields are of their kinds, or None. Raises Wrong."""
    return None if answer is None else _metadata(answer)


def state(answer: object) -> InstanceState:
    """An `InstanceState`. Raises Wrong."""
    if not isinstance(answer, InstanceState):
        raise Wrong(answer, "an InstanceState")
    if decision(answer.exists):
        _power(answer.power)
    return answer


def listing(answer: object) -> InstanceListing:
    """An `InstanceListing` of complete records. Raises Wrong."""
    if not isinstance(answer, InstanceListing):
        raise Wrong(answer, "an InstanceListing")
    if not isinstance(answer.requests, int):
        raise Wrong(answer.requests, "a number of requests")
    if not isinstance(answer.instances, Sequence):
        raise Wrong(answer.instances, "a sequence of InstanceRecord")
    for record in answer.instances:
        if not isinstance(record, InstanceRecord):
            raise Wrong(record, "an InstanceRecord")
        text(record.name, "the text of an instance's name")
        _power(record.power)
        _metadata(record.metadata)
    return answer


def status(answer: object) -> Status:
    """A `Status`. Raises Wrong."""
    if not isinstance(answer, Status):
        raise Wrong(answer, "a Status")
    return answer


def status_or_none(answer: object) -> Status | None:
    """A `Status`, or None. Raises Wrong."""
    return None if answer is None else status(answer)


def balancers(answer: object) -> Sequence[LoadBalancerRecord]:
    """A sequence of `LoadBalancerRecord`. Raises Wrong."""
    return _sequence(answer, LoadBalancerRecord, "LoadBalancerRecord")


def routes(answer: object) -> Sequence[Route]:
    """A sequence of `Route`. Raises Wrong."""
    return _sequence(answer, Route, "Route")


def nothing(answer: object) -> None:
    """Whatever a method answers that promises nothing is ignored."""


def _sequence(answer: object, kind: type[T], of_what: str) -> Sequence[T]:
    """A sequence of that kind only; a bare text is none. Raises Wrong."""
    if not isinstance(answer, Sequence) or isinstance(answer, str | bytes):
        raise Wrong(answer, f"a sequence of {of_what}")
    for entry in answer:
        if not isinstance(entry, kind):
            raise Wrong(entry, f"a {kind.__name__}")
    return answer


def _metadata(answer: object) -> InstanceMetadata:
    if not isinstance(answer, InstanceMetadata):
        raise Wrong(answer, "an InstanceMetadata")
    for name in _TEXTS:
        text(getattr(answer, name), f"the text of {name}")
    addresses(answer.addresses)
    if not isinstance(answer.additional_labels, Mapping):
        raise Wrong(answer.additional_labels, "a mapping of labels")
    for key, value in answer.additional_labels.items():
        text(key, "the text of a label key")
        text(value, f"the text of label {key}")
    return answer


def _power(answer: object) -> None:
    if not isinstance(answer, Power):
        raise Wrong(answer, "a Power")
