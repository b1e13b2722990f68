"""Opening the provider: patient with the cloud, impatient with a person's mistakes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from ccm.app import provider
from ccm.app.provider import Misconfigured, opened
from ccm.cloud import ConfigError, Context
from ccm.cloud.interface import Cloud
from ccm.testing import clock

CLOUD = Cloud(name="paper")

pytestmark = pytest.mark.virtual_time


class Script:
    """A provider whose attempts to open end as told; None: it opens."""

    def __init__(self, *outcomes: BaseException | None) -> None:
        self.outcomes = list(outcomes)
        self.open = 0

    @contextlib.asynccontextmanager
    async def __call__(self, given: Context) -> AsyncIterator[Cloud]:
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        self.open += 1
        # A task group must be left by the task that entered it.
        async with asyncio.TaskGroup():
            yield CLOUD
        self.open -= 1


@pytest.mark.row("daemon-exit-02")
async def test_trouble_with_the_cloud_is_waited_out_and_said_twice() -> None:
    script = Script(OSError("no route"), PermissionError("bad token"), OSError("again"), None)

    with capture_logs() as lines:
        async with opened("paper", script, Context()) as cloud:
            assert cloud is CLOUD
            assert script.open == 1

    assert script.open == 0
    assert 7 <= clock.elapsed_s() <= 7 * 1.2
    said = [line for line in lines if line["log_level"] != "debug"]
    assert [line["log_level"] for line in said] == ["warning", "info"]
    assert "no route" in said[0]["error"]


@pytest.mark.row("daemon-exit-01")
async def test_a_refused_configuration_is_a_persons_mistake() -> None:
    script = Script(ConfigError("region is missing", "token is missing"))

    with pytest.raises(Misconfigured, match=r"paper(.|\n)*cloud.yaml(.|\n)*region(.|\n)*token"):
        async with opened("paper", script, Context(source="cloud.yaml")):
            pass


async def test_a_cloud_that_never_answers_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "OPEN_LIMIT_S", 0.02)
    attempts = 0

    @contextlib.asynccontextmanager
    async def hangs_once(given: Context) -> AsyncIterator[Cloud]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await asyncio.Event().wait()
        yield CLOUD

    async with opened("paper", hangs_once, Context()) as cloud:
        assert cloud is CLOUD

    assert attempts == 2


async def test_opening_can_be_cancelled_at_any_time() -> None:
    script = Script(OSError("no route"), OSError("no route"))

    async def use() -> None:
        async with opened("paper", script, Context()):
            raise AssertionError("it was not opened")

    task = asyncio.create_task(use())
    await clock.advance(1.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not script.outcomes


async def test_a_provider_that_yields_no_cloud_is_told() -> None:
    @contextlib.asynccontextmanager
    async def nothing(given: Context) -> AsyncIterator[Cloud]:
        yield None  # type: ignore[misc]

    with pytest.raises(Misconfigured, match="'paper' yields a NoneType, not a Cloud"):
        async with opened("paper", nothing, Context()):
            pass
