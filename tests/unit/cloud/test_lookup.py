"""What the node controllers ask: call orders and fallbacks of both interfaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ccm.cloud import (
    Cloud,
    CloudError,
    FailedPrecondition,
    InstanceMetadata,
    Internal,
    NotFound,
    ResourceExhausted,
    RetryAfter,
    Unavailable,
    Unimplemented,
    Zone,
    address,
)
from ccm.cloud.calls.handle import Handle
from ccm.cloud.lookup import GONE, RUNNING, SHUTDOWN, InstanceLookup
from ccm.cloud.types import InstanceState
from ccm.model import Node
from ccm.testing.builders import node
from tests.support.fakecloud import FakeCloud, FakeStateCloud

A3 = (
    address("Hostname", "node0.cloud.internal"),
    address("InternalIP", "10.0.0.1"),
    address("ExternalIP", "132.143.154.163"),
)
WITH_ID = node("node0", provider_id="fake://12345")
WITHOUT_ID = node("node0")


def lookup(fake: FakeCloud) -> InstanceLookup:
    return InstanceLookup(Handle(fake.cloud()))


def old(**script: object) -> FakeCloud:
    """A cloud with the old interface only."""
    return FakeCloud(v2=False, **script)  # type: ignore[arg-type]


def wrapped(cause: CloudError) -> Exception:
    error = Unavailable("the proxy failed")
    error.__cause__ = cause
    return error


IN_ORDER = [
    ("instance-id", "node0"),
    ("instance-exists-by-provider-id", "fake://12345"),
    ("instance-shutdown-by-provider-id", "fake://12345"),
]
UNCLEAR = [
    wrapped(NotFound("gone")),
    Unavailable("down"),
    Unimplemented("cannot"),
    ValueError("odd"),
]
"""Errors that are no absence, whatever they are about."""


class Stubborn(FakeCloud):
    """Refuses every question by provider ID."""

    async def node_addresses_by_provider_id(self, provider_id: str):  # type: ignore[no-untyped-def]
        await super().node_addresses_by_provider_id(provider_id)
        raise NotFound("no address by ID")

    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        await super().instance_type_by_provider_id(provider_id)
        raise Unimplemented("no type by ID")

    async def get_zone_by_provider_id(self, provider_id: str) -> Zone:
        await super().get_zone_by_provider_id(provider_id)
        raise ValueError("no zone by ID")


async def test_old_interface_initialises_in_this_order() -> None:
    fake = old(
        external_ids={"node0": "12345"},
        addresses=A3,
        instance_types={"fake://12345": "t1.micro"},
        zone=Zone(failure_domain="z", region="r"),
    )

    found = await lookup(fake).metadata(WITHOUT_ID)

    assert fake.asked == [
        ("instance-id", "node0"),
        ("node-addresses-by-provider-id", "fake://12345"),
        ("instance-type-by-provider-id", "fake://12345"),
        ("get-zone-by-provider-id", "fake://12345"),
    ]
    assert found == InstanceMetadata(
        provider_id="fake://12345", instance_type="t1.micro", addresses=A3, zone="z", region="r"
    )


async def test_old_interface_with_a_known_id_does_not_ask_for_it() -> None:
    fake = old(external_id_errors={"node0": Unimplemented("x")}, addresses=A3, has_zones=False)

    found = await lookup(fake).metadata(WITH_ID)

    assert fake.calls == ["node-addresses-by-provider-id", "instance-type-by-provider-id"]
    assert found == InstanceMetadata(provider_id="fake://12345", addresses=A3)


@pytest.mark.parametrize(
    "error",
    [Unimplemented("x"), wrapped(Unimplemented("x"))],
    ids=["plain", "wrapped"],
)
async def test_old_interface_without_ids_initialises_without_one(error: Exception) -> None:
    fake = old(external_id_errors={"node0": error}, addresses=A3)

    found = await lookup(fake).metadata(WITHOUT_ID)

    assert found == InstanceMetadata(addresses=A3)
    assert fake.asked[1] == ("node-addresses-by-provider-id", "")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFound("gone"), NotFound),
        (wrapped(NotFound("gone")), Unavailable),
        (ResourceExhausted("quota"), ResourceExhausted),
        (ValueError("odd"), Internal),
    ],
)
async def test_old_interface_needs_the_id_to_initialise(
    error: Exception, kind: type[CloudError]
) -> None:
    fake = old(external_id_errors={"node0": error}, addresses=A3)

    with pytest.raises(kind) as caught:
        await lookup(fake).metadata(WITHOUT_ID)

    assert type(caught.value) is kind
    assert fake.calls == ["instance-id"]


async def test_old_interface_falls_back_to_names_for_each_question() -> None:
    fake = Stubborn(
        v2=False, addresses=A3, instance_types={"node0": "small"}, zone=Zone(region="r")
    )

    found = await lookup(fake).metadata(WITH_ID)

    assert fake.calls == [
        "node-addresses-by-provider-id",
        "node-addresses",
        "instance-type-by-provider-id",
        "instance-type",
        "get-zone-by-provider-id",
        "get-zone-by-node-name",
    ]
    assert found == InstanceMetadata(
        provider_id="fake://12345", instance_type="small", addresses=A3, region="r"
    )


async def test_both_failures_are_told_and_the_second_decides_the_class() -> None:
    fake = Stubborn(v2=False, error=RetryAfter("busy", seconds=9))
    asking = lookup(fake)

    for _ in range(3):
        with pytest.raises(RetryAfter) as caught:
            await asking.addresses(WITH_ID)
        assert str(caught.value) == "addresses: by provider ID: busy; by name: busy"
        assert caught.value.seconds == 9
        assert caught.value.__cause__ is fake.error

    assert str(fake.error) == "busy"


@pytest.mark.parametrize(
    ("exists", "shutdown", "state", "calls"),
    [
        (False, True, GONE, ["instance-exists"]),
        (True, False, RUNNING, ["instance-exists", "instance-shutdown"]),
        (True, True, SHUTDOWN, ["instance-exists", "instance-shutdown"]),
    ],
    ids=["gone", "running", "shut down"],
)
async def test_state_through_the_new_interface(
    exists: bool, shutdown: bool, state: object, calls: list[str]
) -> None:
    fake = FakeCloud(exists=exists, shutdown=shutdown)
    combined = FakeStateCloud(exists=exists, shutdown=shutdown)

    assert await lookup(fake).state(WITH_ID) == state
    assert fake.calls == calls
    assert await lookup(combined).state(WITH_ID) == state
    assert combined.calls == ["instance-state"]


@pytest.mark.parametrize(
    ("node", "script", "state", "asked"),
    [
        (WITHOUT_ID, {"external_ids": {"node0": "12345"}, "exists": True}, RUNNING, IN_ORDER),
        (WITH_ID, {"exists": True, "shutdown": True}, SHUTDOWN, IN_ORDER[1:]),
        (
            WITHOUT_ID,
            {"shutdown_error": Unavailable("not asked")},
            GONE,
            [IN_ORDER[0], ("instance-exists-by-provider-id", "fake://")],
        ),
    ],
    ids=["looks the ID up once", "knows the ID", "asks about an empty ID"],
)
async def test_state_through_the_old_interface(
    node: Node, script: dict[str, Any], state: InstanceState, asked: list[tuple[str, str]]
) -> None:
    fake = old(**script)

    assert await lookup(fake).state(node) == state
    assert fake.asked == asked


@pytest.mark.parametrize("ask", [InstanceLookup.state, InstanceLookup.confirmed_gone])
@pytest.mark.parametrize("error", [*UNCLEAR, NotFound("gone"), TimeoutError()], ids=repr)
async def test_an_error_about_existence_is_never_an_absence(
    ask: Callable[..., Awaitable[object]], error: Exception
) -> None:
    """Nor does it reach the caller as NotFound through the old interface."""
    with pytest.raises(CloudError) as caught:
        await ask(lookup(old(exists_error=error)), WITH_ID)

    assert not isinstance(caught.value, NotFound)
    if isinstance(error, NotFound):
        assert isinstance(caught.value, FailedPrecondition)
        assert str(caught.value) == "existence of fake://12345 is unclear: gone"


@pytest.mark.parametrize("error", [NotFound("gone"), Unavailable("down"), ValueError("odd")])
async def test_an_error_of_the_new_interface_is_passed_on(error: Exception) -> None:
    for fake in (FakeCloud(exists_error=error), FakeStateCloud(exists_error=error)):
        with pytest.raises(CloudError):
            await lookup(fake).state(WITH_ID)
        with pytest.raises(CloudError):
            await lookup(fake).confirmed_gone(WITH_ID)


async def test_old_interface_an_id_that_is_not_found_is_an_absence() -> None:
    fake = old(external_id_errors={"node0": NotFound("gone")}, exists=True)

    assert await lookup(fake).state(WITHOUT_ID) == GONE
    assert await lookup(fake).confirmed_gone(WITHOUT_ID)
    assert fake.calls == ["instance-id", "instance-id"]


@pytest.mark.parametrize("ask", [InstanceLookup.state, InstanceLookup.confirmed_gone])
@pytest.mark.parametrize("error", UNCLEAR, ids=repr)
async def test_old_interface_any_other_error_of_the_id_keeps_the_node(
    ask: Callable[..., Awaitable[object]], error: Exception
) -> None:
    fake = old(external_id_errors={"node0": error}, exists=False)

    with pytest.raises(CloudError) as caught:
        await ask(lookup(fake), WITHOUT_ID)

    assert not isinstance(caught.value, NotFound)
    assert fake.calls == ["instance-id"]


@pytest.mark.parametrize("error", [Unimplemented("x"), wrapped(Unimplemented("x"))])
@pytest.mark.parametrize("v2", [True, False])
async def test_a_cloud_that_cannot_tell_power_has_running_instances(
    v2: bool, error: Exception
) -> None:
    fake = FakeCloud(v2=v2, exists=True, shutdown=True, shutdown_error=error)

    assert await lookup(fake).state(WITH_ID) == RUNNING


@pytest.mark.parametrize("v2", [True, False])
async def test_any_other_error_about_power_is_passed_on(v2: bool) -> None:
    fake = FakeCloud(v2=v2, exists=True, shutdown_error=NotFound("raced"))

    with pytest.raises(NotFound):
        await lookup(fake).state(WITH_ID)


@pytest.mark.parametrize("v2", [True, False])
@pytest.mark.parametrize("exists", [True, False])
async def test_the_last_question_is_about_existence_alone(v2: bool, exists: bool) -> None:
    fake = FakeCloud(v2=v2, exists=exists)

    assert await lookup(fake).confirmed_gone(WITH_ID) is not exists
    assert fake.calls == ["instance-exists" if v2 else "instance-exists-by-provider-id"]


@pytest.mark.parametrize(
    "ask", [InstanceLookup.addresses, InstanceLookup.state, InstanceLookup.metadata]
)
async def test_a_cloud_without_instances_says_so(ask: Callable[..., Awaitable[object]]) -> None:
    with pytest.raises(Unimplemented):
        await ask(InstanceLookup(Handle(Cloud(name="bare"))), WITH_ID)


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("question", ["metadata", "addresses", "state"])
async def test_what_an_opening_confirmed_of_a_node_without_id_is_remembered(
    v2: bool, question: str
) -> None:
    fake = FakeCloud(v2=v2, exists=True, addresses=[address("InternalIP", "10.0.0.1")])
    handle = Handle(fake.cloud())
    lookup, bare, other = InstanceLookup(handle), node("a"), node("b", provider_id="fake://b")
    for each in (bare, other):
        await getattr(lookup, question)(each)
    assert [lookup.confirmed(bare), lookup.confirmed(other)] == [True, False]

    handle.swap(fake.cloud())
    assert not lookup.confirmed(bare)

    await getattr(lookup, question)(bare)
    lookup.forget(bare)
    assert not lookup.confirmed(bare)
