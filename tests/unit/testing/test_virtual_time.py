"""The virtual-time loop: order, exactness, and jumps."""

from __future__ import annotations

import asyncio

import pytest

from ccm.testing.clock import VirtualTimeLoop, advance

pytestmark = pytest.mark.virtual_time


def test_waiting_for_what_never_comes_beside_a_ticker_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccm.testing.clock._JUMP_LIMIT", 1000)

    async def ticker() -> None:
        while True:
            await asyncio.sleep(1)

    async def stuck() -> None:
        task = asyncio.create_task(ticker())
        await asyncio.Event().wait()
        await task

    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        pytest.raises(RuntimeError, match="await what never comes"),
    ):
        runner.run(stuck())


def test_a_real_loop_has_no_virtual_time() -> None:
    with pytest.raises(RuntimeError, match="runs in real time"):
        asyncio.run(advance(1))
