"""Small values of the SDK: addresses, power, provider IDs, annotations, owners."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from ccm import cloud
from ccm.cloud import (
    Cloud,
    InvalidArgument,
    Limits,
    NodeAddress,
    add_to_node_addresses,
    address,
    format_provider_id,
    parse_provider_id,
)
from ccm.cloud.lookup import Ownership
from ccm.model import Node
from ccm.model.selectors import BadSelectorError
from ccm.runtime import account
from ccm.testing import builders
from ccm.testing.builders import node


@pytest.mark.parametrize("instance_id", ["i-1", "zone/i-1", "/zone/i-1", "a://b"])
def test_what_was_built_is_read_back(instance_id: str) -> None:
    assert parse_provider_id(format_provider_id("acme", instance_id), "acme") == instance_id


@pytest.mark.parametrize(
    "provider_id",
    [
        "",
        "i-1",
        "acme:i-1",
        "acme:/i-1",
        "acme://",
        "acme:///",
        "acme2://i-1",
        "ACME://i-1",
        "://1",
    ],
)
def test_malformed_ids_are_refused_with_a_hint(provider_id: str) -> None:
    with pytest.raises(InvalidArgument, match="expected acme://<id>") as caught:
        parse_provider_id(provider_id, "acme")

    assert repr(provider_id) in str(caught.value)


def test_a_deadline_of_no_operation_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"names ensure, list; operations are: .*list_routes"):
        Limits(deadlines_s={"list": 5, "ensure": 1, "list_routes": 3})


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_a_deadline_is_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Limits(deadlines_s={"list_routes": seconds})


EXTERNAL = address("ExternalIP", "1.1.1.1")
INTERNAL = address("InternalIP", "10.1.1.1")
HOST = address("Hostname", "localhost")


@pytest.mark.parametrize(
    ("existing", "added", "expected"),
    [
        ([], [], []),
        ([], [EXTERNAL, HOST], [EXTERNAL, HOST]),
        ([], [EXTERNAL, EXTERNAL], [EXTERNAL]),
        ([EXTERNAL, INTERNAL], [EXTERNAL, HOST], [EXTERNAL, INTERNAL, HOST]),
    ],
    ids=["nothing", "both in order", "once", "only what is missing"],
)
def test_addresses_are_added_once(
    existing: list[NodeAddress], added: list[NodeAddress], expected: list[NodeAddress]
) -> None:
    before = list(existing)

    assert add_to_node_addresses(existing, *added) == expected
    assert existing == before


GONE = cloud.NotFound("gone")
OFF = cloud.Power.SHUTDOWN


class Instances(cloud.InstancesByPower):
    def __init__(self, said: cloud.Power | Exception) -> None:
        self._said = said

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        if isinstance(self._said, Exception):
            raise self._said
        return self._said


@pytest.mark.parametrize("power", list(cloud.Power), ids=str)
async def test_what_has_power_or_has_none_exists(power: cloud.Power) -> None:
    asked = Instances(power)

    assert await asked.instance_exists(node("a"))
    assert await asked.instance_shutdown(node("a")) is (power is OFF)
    assert await asked.instance_state(node("a")) == cloud.InstanceState(exists=True, power=power)


async def test_what_the_cloud_denies_does_not_exist() -> None:
    asked = Instances(GONE)

    assert not await asked.instance_exists(node("a"))
    assert await asked.instance_state(node("a")) == cloud.InstanceState(exists=False)
    with pytest.raises(cloud.NotFound):
        await asked.instance_shutdown(node("a"))


async def test_an_error_is_no_denial() -> None:
    asked = Instances(cloud.Unavailable("503"))

    for question in (asked.instance_exists, asked.instance_state, asked.instance_shutdown):
        with pytest.raises(cloud.Unavailable):
            await question(node("a"))


SIZE = cloud.ServiceAnnotation(
    name="acme.example/size", expects="a number", default=3, shown="3", help="Size.", parse=int
)


def test_a_value_is_read_without_white_space_around_it() -> None:
    service = builders.service(annotations={SIZE.name: " 7\n"})

    assert SIZE.read(service) == 7
    assert SIZE.fault(" 7\n") == ""


def test_a_service_without_the_annotation_has_the_default() -> None:
    assert SIZE.read(builders.service()) == 3


@pytest.mark.parametrize("text", ["9" * 14, "9" * 5000, "²"])
def test_a_number_out_of_range_is_no_value(text: str) -> None:
    """`timedelta` raises OverflowError, which is no ValueError."""
    lasting = cloud.ServiceAnnotation(
        name="acme.example/lasting",
        expects="seconds",
        default=None,
        shown="",
        help="Time.",
        parse=lambda text: timedelta(seconds=int(text)),
    )

    assert "expected seconds" in lasting.fault(text)
    with pytest.raises(cloud.InvalidArgument, match="expected seconds"):
        lasting.read(builders.service(annotations={lasting.name: text}))


@pytest.mark.parametrize(
    ("selector", "of", "foreign"),
    [
        ("", node(provider_id="fake://1"), False),
        ("", node(), False),
        ("", node(provider_id="no-scheme"), False),
        ("", node(provider_id="other://1"), True),
        ("own", node(provider_id="fake://1"), True),
        ("own", node(labels={"own": ""}), False),
        ("own", node(provider_id="other://1", labels={"own": ""}), True),
        ("cloud in (a,b),!cellar", node(labels={"cloud": "b"}), False),
        ("cloud in (a,b),!cellar", node(labels={"cloud": "b", "cellar": ""}), True),
    ],
)
def test_who_is_foreign(selector: str, of: Node, foreign: bool) -> None:
    ownership = Ownership.of(("fake",), selector)

    assert ownership.is_foreign(of) is foreign
    assert ownership.is_explicit is bool(selector)


@pytest.mark.parametrize(
    ("provider_id", "said"),
    [
        ("fake://1", ""),
        ("", ""),
        ("fake://bm-1", "is another manager's (this provider leaves IDs alone that begin with "),
        ("other://bm-1", "is of another cloud (this daemon's: fake://)"),
    ],
)
def test_another_manager_of_our_scheme_is_foreign(provider_id: str, said: str) -> None:
    ownership = Ownership.at(Cloud(name="fake", foreign_ids=("fake://bm-",)), "")
    found = node(provider_id=provider_id)

    assert ownership.is_foreign(found) is bool(said)
    assert said in account.foreign(found, ownership)
    assert bool(account.foreign(found, ownership)) is bool(said)


def test_what_is_no_selector_is_refused() -> None:
    with pytest.raises(BadSelectorError):
        Ownership.of(("fake",), "a=b=c")
