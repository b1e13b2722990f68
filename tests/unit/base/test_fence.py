"""What a leader may still begin, and when what it has begun ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ccm.base import clock, fence
from ccm.base.fence import Fence, Lapsed
from ccm.testing.clock import advance, elapsed_s, jump, settle

pytestmark = pytest.mark.virtual_time


def governing(seconds: float | None) -> Fence:
    """The fence of this test; None: under a lease that nobody has taken yet."""
    made = Fence()
    if seconds is not None:
        made.extend(clock.monotonic() + seconds)
    made.govern()
    return made


async def work() -> str:
    """Something that never ends by itself; how it ended."""
    try:
        async with fence.limit():
            await asyncio.sleep(1e6)
    except Lapsed:
        return "not begun"
    except TimeoutError:
        return "ended"
    return "done"


async def test_outside_of_a_fence_everything_may_be_done() -> None:
    fence.check()
    async with fence.limit():
        await asyncio.sleep(1e5)
    fence.check()


async def test_before_the_first_lease_nothing_may_be_begun() -> None:
    governing(None)

    with pytest.raises(Lapsed):
        fence.check()
    assert await work() == "not begun"


async def test_nothing_is_begun_once_the_lease_has_run_out() -> None:
    """Also where the event loop had no chance to notice."""
    governing(10)
    jump(9.9)
    fence.check()

    jump(0.1)

    with pytest.raises(Lapsed):
        fence.check()
    assert await work() == "not begun"


async def test_what_is_under_way_ends_with_the_lease() -> None:
    governing(10)

    assert await work() == "ended"
    assert elapsed_s() == 10


async def test_what_is_under_way_may_last_for_as_long_as_the_lease_is_renewed() -> None:
    made = governing(10)
    begun = asyncio.create_task(work())
    for _ in range(3):
        await advance(9)
        made.extend(clock.monotonic() + 10)

    assert await begun == "ended"
    assert elapsed_s() == 37
    made.extend(clock.monotonic() + 10)
    fence.check()


async def test_a_lost_lease_ends_at_once_what_is_under_way() -> None:
    made = governing(10)
    begun = asyncio.create_task(work())
    await advance(1)

    made.lapse()
    # A renewal that is answered in the same breath finds its end begun.
    await asyncio.sleep(0)
    made.extend(clock.monotonic())

    assert await begun == "ended"
    assert elapsed_s() == 1


async def test_each_lease_holds_its_own_work() -> None:
    """What a task starts, in threads too, is held as the task is; the others are not."""
    governing(10)

    async def another() -> None:
        governing(100)
        await advance(50)
        fence.check()
        await asyncio.to_thread(fence.check)

    await asyncio.create_task(another())
    await settle()

    for way in (asyncio.create_task(_checks()), asyncio.to_thread(fence.check)):
        with pytest.raises(Lapsed):
            await way
    bare = threading.Thread(target=fence.check)
    bare.start()
    bare.join()


async def _checks() -> None:
    fence.check()
