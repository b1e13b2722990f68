"""The provider: opening it, patient with the cloud and not with mistakes, and exchanging it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from ccm.app import options, provider
from ccm.app.provider import ConfiguredProvider, Crashed, Misconfigured, Opening, ProviderHolder
from ccm.base.tasks import spawn
from ccm.cloud import ConfigError, Context
from ccm.cloud.interface import Cloud, InstancesV2
from ccm.cloud.registry import Opener
from ccm.cloud.registry import provider as as_provider
from ccm.testing import clock
from ccm.testing.builders import node
from tests.support.calls import Provider

CLOUD = Cloud(name="paper", has_cluster_id=True)
HANG = object()

pytestmark = pytest.mark.virtual_time


class Script:
    """A provider whose attempts to open end as told: they raise, hang, or yield something."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.open = 0

    @asynccontextmanager
    async def __call__(self, given: Context) -> AsyncIterator[Cloud]:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is HANG:
            await asyncio.Event().wait()
        self.open += 1
        # A task group must be left by the task that entered it.
        async with asyncio.TaskGroup():
            yield outcome
        self.open -= 1


def paper(opener: Opener, *flags: str) -> ConfiguredProvider:
    return ConfiguredProvider(options.parse(["--cloud-provider=paper", *flags]), opener, Mock())


@pytest.mark.row("daemon-exit-02")
async def test_trouble_with_the_cloud_is_waited_out_and_said_twice() -> None:
    script = Script(OSError("no route"), PermissionError("bad token"), OSError("again"), CLOUD)

    with capture_logs() as lines:
        async with paper(script).opened() as cloud:
            assert cloud is CLOUD
            assert script.open == 1

    assert script.open == 0
    assert 7 <= clock.elapsed_s() <= 7 * 1.2
    said = [line for line in lines if line["log_level"] != "debug"]
    assert [line["log_level"] for line in said] == ["warning", "info"]
    assert "no route" in said[0]["error"]


@pytest.mark.row("daemon-exit-01")
async def test_a_refused_configuration_is_a_persons_mistake(tmp_path: Path) -> None:
    file = tmp_path / "cloud.yaml"
    file.touch()
    script = Script(ConfigError("region is missing", "token is missing"))

    said = r"paper(.|\n)*cloud.yaml(.|\n)*region(.|\n)*token"
    with pytest.raises(Misconfigured, match=said) as caught:
        async with paper(script, f"--cloud-config={file}").opened():
            pass
    assert isinstance(caught.value.__cause__, ConfigError), "what the provider raised"


async def test_a_cloud_that_never_answers_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "OPEN_LIMIT_S", 0.02)

    async with paper(Script(HANG, CLOUD)).opened() as cloud:
        assert cloud is CLOUD


async def test_a_provider_that_yields_no_cloud_is_told() -> None:
    with pytest.raises(Misconfigured, match="'paper' yields a NoneType, not a Cloud"):
        async with paper(Script(None)).opened():
            pass


async def _ends(given: Context) -> AsyncIterator[Cloud]:
    if given.config:
        yield CLOUD


async def _yields_nothing_usable(given: Context) -> AsyncIterator[Cloud]:
    routes: Any = object()
    async with asyncio.TaskGroup():
        yield Cloud(name="paper", has_cluster_id=True, routes=routes)


async def _misspells(given: Context) -> AsyncIterator[Cloud]:
    fields: dict[str, Any] = {"load_balancers": object()}
    async with asyncio.TaskGroup():
        yield Cloud(name="paper", **fields)


async def _refuses(given: Context) -> AsyncIterator[Cloud]:
    async with asyncio.TaskGroup():
        if not given.config:
            raise ConfigError("region is missing")
        yield CLOUD


def _returns(given: Context) -> Any:
    return CLOUD


@pytest.mark.row("daemon-exit-01")
@pytest.mark.parametrize(
    ("opener", "words"),
    [
        (as_provider(sdk="2.0")(_ends), ["yield"]),
        (as_provider(sdk="2.0")(_yields_nothing_usable), ["routes: ", "create_route is missing"]),
        (as_provider(sdk="2.0")(_misspells), ["'load_balancers'", "'load_balancer'"]),
        (as_provider(sdk="2.0")(_refuses), ["--cloud-config", "region is missing"]),
        (as_provider(sdk="2.0")(_returns), ["_returns is no async generator function"]),
        (_ends, ["async_generator", "@cloud.provider"]),
        (_returns, ["Cloud", "@cloud.provider"]),
    ],
)
async def test_a_miswritten_provider_is_no_trouble_with_the_cloud(
    opener: Any, words: list[str]
) -> None:
    """A person has to correct it: another attempt would end in the same way."""
    with pytest.raises(Misconfigured) as caught:
        async with asyncio.timeout(60), paper(opener).opened():
            pass

    assert clock.elapsed_s() == 0
    assert "cloud provider 'paper'" in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == []


class Providers:
    """Opens providers, and knows which are open; each holds a task group, as some do."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.crash = asyncio.Event()
        self.slow = Provider(lambda: asyncio.sleep(60))
        self.holder = ProviderHolder()

    def opening(self, name: str, *, close_s: float = 0.0, fault: str = "") -> Opening:
        """One that takes its time to close, or fails then."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Cloud]:
            async with asyncio.TaskGroup() as group:
                falling = group.create_task(self._fall())
                self.open.append(name)
                try:
                    yield self.slow.cloud(name)
                    await asyncio.sleep(close_s)
                    if fault:
                        raise OSError(fault)
                finally:
                    self.open.remove(name)
                    falling.cancel()

        return opened

    def calls(self) -> asyncio.Task[bool]:
        """A call that is under way."""
        return spawn(self.holder.handle.call(InstancesV2.instance_exists, node("n")), name="call")

    async def _fall(self) -> None:
        await self.crash.wait()
        raise OSError("the pool is gone")


async def fine(cloud: Cloud) -> None:
    """Accepts every provider."""


async def refuse(cloud: Cloud) -> None:
    raise ValueError(cloud.name)


@pytest.fixture
async def held() -> AsyncIterator[Providers]:
    """The provider `old` is in use; whatever is in use at the end is closed."""
    found = Providers()
    await found.holder.open(found.opening("old"))
    yield found
    await found.holder.close()
    assert found.open == []


async def test_a_provider_that_never_closes_is_given_up(held: Providers) -> None:
    with pytest.raises(ValueError, match="new"):
        await held.holder.exchange(held.opening("new", close_s=60), refuse)
    await held.holder.exchange(held.opening("hanging", close_s=60), fine)

    with pytest.raises(TimeoutError, match="did not close"):
        await held.holder.close()


async def test_a_provider_that_ends_while_it_is_looked_at_is_not_taken(held: Providers) -> None:
    other = Providers()

    async def look(cloud: Cloud) -> None:
        other.crash.set()
        await asyncio.sleep(0.01)

    with pytest.raises(Crashed, match="ended by itself"):
        await held.holder.exchange(other.opening("new"), look)

    assert held.holder.handle.cloud.name == "old"


@pytest.mark.parametrize("trouble", ["refused", "refused and closes ill", "does not open"])
async def test_a_provider_that_is_not_taken_is_closed_and_the_old_stays(
    held: Providers, trouble: str
) -> None:
    opening = held.opening("new", fault="no" if "ill" in trouble else "")
    if trouble == "does not open":
        opening = Mock(side_effect=ValueError("new"))

    with pytest.raises(ValueError, match="new"):
        await held.holder.exchange(opening, refuse)

    assert (held.holder.handle.cloud.name, held.open) == ("old", ["old"])


async def test_the_old_provider_stays_open_until_its_last_call_has_ended(held: Providers) -> None:
    answer = asyncio.Event()
    seen: list[list[str]] = []

    async def slow() -> bool:
        await answer.wait()
        seen.append(list(held.open))
        return True

    held.slow.act = slow
    call = held.calls()
    await asyncio.sleep(0)
    await held.holder.exchange(held.opening("new"), fine)
    await asyncio.sleep(1.0)
    answer.set()

    assert await call
    assert seen == [["old", "new"]]
    await asyncio.sleep(0.01)
    assert held.open == ["new"]
