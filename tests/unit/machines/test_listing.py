"""One listing for all who ask for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ccm.base.tasks import Group
from ccm.cloud.errors import Unavailable
from ccm.cloud.machines import Credentials, MachineRecord
from ccm.machines.classes import ResolvedClass
from ccm.machines.listing import MAX_AGE_S, Listing, Listings
from ccm.model import ObjectMeta

pytestmark = pytest.mark.virtual_time


def pool(name: str = "small", version: str = "1") -> ResolvedClass:
    return ResolvedClass(
        metadata=ObjectMeta(name=name), credentials=Credentials({}), version=(version,)
    )


class Cloud:
    """Takes ten seconds for a listing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.fault: Exception | None = None

    async def fetch(self, made_of: ResolvedClass) -> Sequence[MachineRecord]:
        self.asked.append((made_of.name, *made_of.version))
        await asyncio.sleep(10)
        if self.fault is not None:
            raise self.fault
        return ()


async def test_those_who_ask_together_share_one() -> None:
    cloud = Cloud()
    listings = Listings(cloud.fetch)
    async with Group() as group:
        tasks = [group.start(listings.of(pool()), name=str(number)) for number in range(9)]
    found = {task.result().began for task in tasks}

    assert (len(cloud.asked), len(found)) == (1, 1)


async def test_a_listing_has_an_age_from_its_beginning() -> None:
    cloud = Cloud()
    listings = Listings(cloud.fetch)
    await listings.of(pool())
    await asyncio.sleep(MAX_AGE_S - 11)
    await listings.of(pool())
    assert len(cloud.asked) == 1
    await asyncio.sleep(2)
    await listings.of(pool())

    assert len(cloud.asked) == 2


async def test_what_began_before_is_waited_for_and_not_taken() -> None:
    cloud = Cloud()
    listings = Listings(cloud.fetch)
    async with Group() as group:
        first = group.start(listings.of(pool()), name="first")
        await asyncio.sleep(5)
        since = asyncio.get_running_loop().time()
        later: asyncio.Task[Listing] = group.start(listings.of(pool(), since=since), name="later")

    assert first.result().began < since < later.result().began
    assert len(cloud.asked) == 2


async def test_a_failure_is_told_to_all_and_not_kept() -> None:
    cloud = Cloud()
    cloud.fault = Unavailable("x")
    listings = Listings(cloud.fetch)
    told = []

    async def ask() -> None:
        try:
            await listings.of(pool())
        except Unavailable as error:
            told.append(error)

    async with Group() as group:
        for number in range(3):
            group.start(ask(), name=str(number))
    cloud.fault = None

    assert len(told) == 3
    assert (await listings.of(pool())).records == ()


async def test_another_class_other_credentials_or_another_cloud_are_listed_anew() -> None:
    cloud = Cloud()
    listings = Listings(cloud.fetch)
    for made_of in (pool(), pool("big"), pool("big", "2"), pool()):
        await listings.of(made_of)
    listings.drop()
    await listings.of(pool())

    # The second question about the small ones came within the age of the first.
    assert cloud.asked == [("small", "1"), ("big", "1"), ("big", "2"), *[("small", "1")] * 2]
