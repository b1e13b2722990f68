"""The simulated cloud's memory across restarts: its content in one JSON file."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from ccm.base import tasks

from . import world, worlds

SAVE_EVERY_S = 1.0
"""How often changes are written down; a killed process forgets at most so much."""


def load(path: Path) -> worlds.Saved:
    """Read the saved cloud; a missing file is an empty one, a mere list holds instances.

    Raises:
        ValueError: the file holds something else; the message says where.
        OSError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return worlds.Saved()
    try:
        if content.lstrip().startswith(b"["):
            instances = msgspec.json.decode(content, type=tuple[world.GivenInstance, ...])
            return worlds.Saved(instances=instances)
        return msgspec.json.decode(content, type=worlds.Saved)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is no saved state: {error}") from error


def save(path: Path, content: worlds.Saved) -> None:
    """Write the cloud so that a crash leaves the old file or the new one, never half.

    Raises:
        OSError: the file cannot be written.
    """
    draft = path.with_name(f"{path.name}.new")
    with draft.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content)))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextlib.asynccontextmanager
async def kept(cloud: worlds.Worlds, path: Path | None) -> AsyncIterator[None]:
    """Fill a cloud from its file, and keep the file up to date while the context is open.

    None keeps nothing.

    Raises:
        ValueError: see `load`.
        OSError: see `load` and `save`.
    """
    if path is None:
        yield
        return
    cloud.load(await asyncio.to_thread(load, path))
    stop = asyncio.Event()
    saved = cloud.revision
    saver = tasks.spawn(_save_changes(cloud, path, saved, stop), name="state-saver")
    try:
        yield
    finally:
        stop.set()
        await saver


async def _save_changes(cloud: worlds.Worlds, path: Path, saved: int, stop: asyncio.Event) -> None:
    """Save what is new once in a while and a last time at the end.

    It is told to stop instead of being cancelled: a thread that writes cannot be, and
    two of them would spoil the draft.
    """
    last = False
    while not last:
        last = await tasks.wait_for(stop, SAVE_EVERY_S)
        if cloud.revision != saved:
            saved = cloud.revision
            await asyncio.to_thread(save, path, cloud.snapshot())
