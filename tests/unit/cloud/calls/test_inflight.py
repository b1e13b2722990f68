"""Calls that do not end when they should: the caller goes on, and nothing is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest
import pytest_asyncio

from ccm.cloud import InstancesV2, LoadBalancer, Route, Routes, Service, Status, errors
from ccm.cloud.calls.handle import Handle
from ccm.cloud.calls.inflight import MOST_ABANDONED
from ccm.model import ObjectMeta
from ccm.testing.builders import node
from ccm.testing.clock import settle
from tests.support.calls import Provider, cloud, ensure

pytestmark = pytest.mark.virtual_time


def web(uid: str) -> Service:
    return Service(metadata=ObjectMeta(name="web", uid=uid))


class Stubborn:
    """A provider whose calls swallow every cancellation until they are let go."""

    made: ClassVar[list[Stubborn]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.entered = 0
        self.ended = 0
        self.leave = asyncio.Event()

    async def __call__(self) -> Status:
        self.entered += 1
        while not self.leave.is_set():
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                continue
        self.ended += 1
        return Status()


@pytest_asyncio.fixture(autouse=True)
async def _nobody_outlives_a_test() -> AsyncIterator[None]:
    """Else a test that fails would never end."""
    yield
    while Stubborn.made:
        Stubborn.made.pop().leave.set()


async def fine() -> Status:
    return Status()


async def test_those_that_may_still_change_something_are_told_apart() -> None:
    question, change = Stubborn(), Stubborn()
    provider = Provider(question)
    handle = Handle(provider.cloud("s6"), deadline_s=5)
    with pytest.raises(errors.DeadlineExceeded):
        await handle.call(InstancesV2.instance_exists, node("n"))
    assert (handle.abandoned_calls, handle.abandoned_changes) == (1, 0)

    provider.act = change
    with pytest.raises(errors.DeadlineExceeded):
        await ensure(handle)
    assert (handle.abandoned_calls, handle.abandoned_changes) == (2, 1)

    change.leave.set()
    await settle()
    assert (handle.abandoned_calls, handle.abandoned_changes) == (1, 0)


async def test_only_so_many_calls_of_an_operation_are_abandoned() -> None:
    stubborn = Stubborn()
    provider = Provider(stubborn)
    handle = Handle(provider.cloud("s9"), deadline_s=5)
    for number in range(MOST_ABANDONED):
        with pytest.raises(errors.DeadlineExceeded):
            await ensure(handle, f"uid-{number}")

    with pytest.raises(errors.Unavailable, match=f"{MOST_ABANDONED} earlier ones"):
        await ensure(handle, "another")
    assert stubborn.entered == MOST_ABANDONED
    provider.act = fine
    await handle.call(LoadBalancer.update_load_balancer, "c1", web("another"), ())

    handle.swap(cloud("s9-new", fine))
    assert await ensure(handle, "another") == Status()


async def test_nothing_else_is_done_about_the_subject_meanwhile() -> None:
    """Calls about one Service never overlap, not even with one that was given up."""
    stubborn = Stubborn()
    provider = Provider(stubborn)
    handle = Handle(provider.cloud("s7"), deadline_s=5)
    with pytest.raises(errors.DeadlineExceeded):
        await ensure(handle, "uid-1")
    provider.act = fine

    for late in (LoadBalancer.get_load_balancer, LoadBalancer.ensure_load_balancer_deleted):
        with pytest.raises(errors.Aborted, match="an earlier ensure_load_balancer was cancelled"):
            await handle.call(late, "c1", web("uid-1"))
    with pytest.raises(errors.Aborted):
        await handle.call(LoadBalancer.update_load_balancer, "c1", web("uid-1"), ())
    assert await ensure(handle, "uid-2") == Status()
    await handle.call(Routes.delete_route, "c1", Route(destination_cidr="x", target_node="n"))

    handle.swap(cloud("s7-new", fine))
    with pytest.raises(errors.Aborted):
        await ensure(handle, "uid-1")

    stubborn.leave.set()
    await settle()
    assert await ensure(handle, "uid-1") == Status()
