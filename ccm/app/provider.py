"""Opens the chosen provider, however long its cloud takes to answer.

What a person has to correct (unknown name, unreadable file, wrong configuration) ends the
process with one message. What passes by itself (the cloud is down, credentials are
refused) is tried again with back-off, and said once at the start and once at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from ccm.base import log
from ccm.base.backoff import Exponential, Streak
from ccm.base.clock import monotonic
from ccm.base.files import Signature
from ccm.cloud.config import ClientBuilder, Context
from ccm.cloud.errors import normalized
from ccm.cloud.fields import ConfigError
from ccm.cloud.interface import Cloud
from ccm.cloud.registry import Opener

OPEN_BACK_OFF = Exponential(base_s=1.0, factor=2.0, cap_s=30.0, jitter=0.2)
"""Pauses between attempts to open the provider."""

OPEN_LIMIT_S = 120.0
"""Longest time of one attempt; a cloud that accepts a connection may never answer."""


class Misconfigured(Exception):
    """A person has to correct something; the message says what. The process ends with 1."""


def read_config(file: str) -> bytes:
    """The bytes of the cloud-config file; empty without one.

    Raises:
        Misconfigured: the file cannot be read.
    """
    if not file:
        return b""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise Misconfigured(f"--cloud-config={file} cannot be read: {reason}") from error


def context(
    *,
    file: str,
    cluster_name: str,
    clients: ClientBuilder | None,
    followed: dict[Path, Signature] | None = None,
) -> Context:
    """What the provider is opened with; `followed` takes the files it follows.

    Raises:
        Misconfigured: the file cannot be read.
    """
    return Context(
        config=read_config(file),
        source=file or "--cloud-config (not given)",
        cluster_name=cluster_name,
        clients=clients,
        followed={} if followed is None else followed,
    )


@asynccontextmanager
async def opened(
    name: str,
    opener: Opener,
    given: Context,
    *,
    anew: Callable[[], Context] | None = None,
    told: Callable[[Exception], object] | None = None,
) -> AsyncIterator[Cloud]:
    """The open provider.

    Args:
        name: of the provider.
        opener: opens it.
        given: what the first attempt is made with.
        anew: reads that again for each further attempt; None = the same again.
        told: of each attempt that failed.

    Raises:
        Misconfigured: the provider refuses its configuration.
    """
    logger = log.logger("provider", provider=name)
    streak = Streak(policy=OPEN_BACK_OFF, rng=random.Random())
    async with AsyncExitStack() as stack:
        while True:
            try:
                cloud = await _attempt(stack, name, opener, given)
                break
            except Misconfigured:
                raise
            except Exception as error:  # noqa: BLE001 - a provider may fail in any way
                delay, fault = streak.next(monotonic()), normalized(error)
                level = logger.warning if streak.failures == 1 else logger.debug
                level("provider cannot be opened, retrying", error=str(fault))
                if told is not None:
                    told(fault)
            await asyncio.sleep(delay)
            given = given if anew is None else anew()
        if streak.failures:
            logger.info("provider opened at last", attempt=streak.failures + 1)
        yield cloud


@asynccontextmanager
async def opened_once(name: str, opener: Opener, given: Context) -> AsyncIterator[Cloud]:
    """The open provider, without a second attempt.

    Raises:
        Misconfigured: the provider refuses its configuration.
        Exception: whatever else keeps it from opening.
    """
    async with AsyncExitStack() as stack:
        yield await _attempt(stack, name, opener, given)


async def _attempt(stack: AsyncExitStack, name: str, opener: Opener, given: Context) -> Cloud:
    try:
        # In this task, as it is left here too: a provider may open a task group.
        async with asyncio.timeout(OPEN_LIMIT_S):
            cloud: object = await stack.enter_async_context(opener(given))
    except ConfigError as error:
        faults = "\n  ".join(error.faults)
        raise Misconfigured(
            f"cloud provider {name!r} refuses its configuration ({given.source}):\n  {faults}"
        ) from error
    if not isinstance(cloud, Cloud):
        kind = type(cloud).__name__
        raise Misconfigured(f"cloud provider {name!r} yields a {kind}, not a Cloud")
    return cloud
