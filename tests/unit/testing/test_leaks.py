"""Detection of leaked tasks and unclosed resources of providers."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from ccm.testing import probes
from ccm.testing.harness import Harness


async def test_tasks_started_by_a_provider_call_are_attributed_to_the_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "GRACE_S", 0.0)
    tasks: list[asyncio.Task[None]] = []

    async def call() -> None:
        async def inner() -> None:
            tasks.append(asyncio.create_task(asyncio.sleep(60)))

        await asyncio.create_task(inner())

    with probes.watch_tasks(Harness()) as started:
        other = asyncio.create_task(asyncio.sleep(60))
        await started.check_ended("before any call")
        await probes.by_provider(call)
        with pytest.raises(AssertionError, match="tasks left after a call"):
            await started.check_ended("after a call")
        for task in (other, *tasks):
            task.cancel()


async def test_unclosed_resources_are_reported() -> None:
    async def forget() -> None:
        warnings.warn("unclosed session", ResourceWarning, stacklevel=1)

    assert await probes.unclosed_resources(forget) == ["unclosed session"]
