"""Whose tasks they are, and what was never closed."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import AsyncIterator

import pytest

from ccm.testing import probes
from ccm.testing.harness import Harness


@contextlib.asynccontextmanager
async def fake_cloud() -> AsyncIterator[tuple[str, int]]:
    """One behind a socket that never answers, in the event loop of the test."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()


async def test_tasks_of_a_fake_behind_a_socket_are_not_the_providers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "GRACE_S", 0.0)
    async with fake_cloud() as (host, port):
        with probes.watched(Harness()) as started:
            before = asyncio.all_tasks()
            _, writer = await probes.by_provider(lambda: asyncio.open_connection(host, port))
            while not asyncio.all_tasks() - before:
                await asyncio.sleep(0.001)
            await started.have_ended("after a call")
        writer.close()
        await writer.wait_closed()


async def test_what_a_call_began_is_the_providers_whoever_began_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "GRACE_S", 0.0)
    tasks: list[asyncio.Task[None]] = []

    async def call() -> None:
        async def inner() -> None:
            tasks.append(asyncio.create_task(asyncio.sleep(60)))

        await asyncio.create_task(inner())

    with probes.watched(Harness()) as started:
        other = asyncio.create_task(asyncio.sleep(60))
        await started.have_ended("before any call")
        await probes.by_provider(call)
        with pytest.raises(AssertionError, match="tasks left after a call"):
            await started.have_ended("after a call")
        for task in (other, *tasks):
            task.cancel()


async def test_what_is_found_open_is_told() -> None:
    async def forget() -> None:
        warnings.warn("unclosed session", ResourceWarning, stacklevel=1)

    assert await probes.left_open(forget) == ["unclosed session"]
