"""The scripted provider answers what was written down and logs the calls."""

from __future__ import annotations

import pytest

from ccm.cloud import (
    Cloud,
    InstanceListing,
    InstanceMetadata,
    InvalidArgument,
    NotFound,
    Unavailable,
    Zone,
    address,
)
from ccm.testing.builders import node
from ccm.testing.clock import elapsed_s
from ccm.testing.fakes import FakeCloud, FakeStateCloud

pytestmark = pytest.mark.virtual_time

NODE = node("node0", provider_id="fake://1")
ADDRESSES = (address("InternalIP", "10.0.0.1"),)


def test_capabilities_are_chosen() -> None:
    fake = FakeCloud()

    assert fake.cloud() == Cloud(
        name="fake", instances=fake, instances_v1=fake, zones=fake, limits=fake.limits
    )
    bare = FakeCloud(name="acme", v2=False, v1=False, has_zones=False)
    assert bare.cloud() == Cloud(name="acme")
    listing = FakeCloud(listing=InstanceListing(instances=()))
    assert listing.cloud().inventory is listing


async def test_metadata_adds_up() -> None:
    fake = FakeCloud(
        provider_ids={"node0": "fake://12345"},
        instance_types={"fake://1": "small", "node0": "never"},
        addresses=ADDRESSES,
        zone=Zone(failure_domain="z", region="r"),
        additional_labels={"rack": "7"},
    )

    assert await fake.instance_metadata(NODE) == InstanceMetadata(
        provider_id="fake://12345",
        instance_type="small",
        addresses=ADDRESSES,
        zone="z",
        region="r",
        additional_labels={"rack": "7"},
    )


async def test_metadata_can_be_overridden() -> None:
    fake = FakeCloud(metadata=lambda asked: InstanceMetadata(provider_id=f"x://{asked.name}"))

    assert await fake.instance_metadata(NODE) == InstanceMetadata(provider_id="x://node0")


async def test_the_old_interface_is_keyed_by_what_was_asked_and_empty_where_nothing_is() -> None:
    fake = FakeCloud(
        instance_types={"node0": "by name", "fake://1": "by ID"},
        external_ids={"a": "1", "b": "2"},
        external_id_errors={"b": NotFound("b")},
        shutdown=True,
    )

    assert await fake.instance_type("node0") == "by name"
    assert await fake.instance_type_by_provider_id("fake://1") == "by ID"
    assert [await fake.instance_id(name) for name in ("a", "c")] == ["1", ""]
    with pytest.raises(NotFound):
        await fake.instance_id("b")
    assert await fake.instance_shutdown_by_provider_id("fake://1")
    with pytest.raises(InvalidArgument):
        await fake.instance_shutdown_by_provider_id("")


async def test_errors_win_over_answers() -> None:
    down = Unavailable("down")
    fake = FakeStateCloud(
        exists=True,
        addresses=ADDRESSES,
        error=down,
        metadata_error=down,
        exists_error=down,
        shutdown_error=down,
        listing_error=down,
    )

    for ask in (fake.instance_exists, fake.instance_shutdown, fake.instance_state):
        with pytest.raises(Unavailable):
            await ask(NODE)
    for by_name in (
        *(fake.node_addresses, fake.node_addresses_by_provider_id),
        *(fake.get_zone_by_provider_id, fake.get_zone_by_node_name),
    ):
        with pytest.raises(Unavailable):
            await by_name("x")
    with pytest.raises(Unavailable):
        await fake.instance_metadata(NODE)
    with pytest.raises(Unavailable):
        await fake.list_instances()


async def test_calls_are_logged_with_their_subject_after_the_delay() -> None:
    fake = FakeCloud(delay_s=10)

    await fake.instance_exists(NODE)
    await fake.instance_exists(node("nameless"))
    await fake.get_zone()

    told = [("instance-exists", "fake://1"), ("instance-exists", "nameless"), ("get-zone", "")]
    assert fake.asked == told
    assert fake.calls == [entry for entry, _ in told]
    assert elapsed_s() == 30
