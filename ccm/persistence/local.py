"""Resources of this machine: a thread for blocking calls, private folders, mounted files."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from ccm.base import credentials, redact
from ccm.base.files import reason
from ccm.persistence.errors import BackendDead, BackendUnavailable

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """One thread for one store: blocking calls run there, in the order of their requests.

    A caller that is cancelled does not end what has begun; later calls still wait for it.

    Args:
        name: of the thread.
        refused: what the library raises when something could not be done now.
        words: why, for people.
    """

    def __init__(
        self,
        name: str,
        refused: type[Exception] | tuple[type[Exception], ...],
        words: Callable[[Exception], str],
    ) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._refused = refused
        self._words = words

    async def run(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call it there.

        Raises:
            BackendUnavailable: it could not be done.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, lambda: function(*args, **named))
        except self._refused as error:
            raise BackendUnavailable(self._words(error)) from error

    async def end(self) -> None:
        """All that was asked for is done."""
        await asyncio.to_thread(self._pool.shutdown)


FOLDER_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = 0o077


def private_folder(path: Path) -> None:
    """Make it, or see that it is ours alone.

    Raises:
        BackendDead: others may look into it, or it is no folder.
        OSError: it cannot be made.
    """
    if not path.is_absolute():
        raise BackendDead(f"{path} must be an absolute path")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=FOLDER_MODE)
        sync_folder(path.parent)
    except FileExistsError:
        pass
    check_private(path, is_folder=True)


def check_private(path: Path, *, is_folder: bool) -> None:
    """See that it is what it should be, and ours alone.

    Raises:
        BackendDead: it is not.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise BackendDead(f"{path} is a symbolic link; storage has none")
    if stat.S_ISDIR(found.st_mode) != is_folder:
        raise BackendDead(f"{path} must be a {'folder' if is_folder else 'file'}")
    if found.st_mode & _OTHERS:
        wanted = FOLDER_MODE if is_folder else FILE_MODE
        raise BackendDead(
            f"{path} can be read or changed by others (mode {stat.S_IMODE(found.st_mode):o}); "
            f"look who did, then `chmod {wanted:o}` it"
        )


def sync_folder(path: Path) -> None:
    """Make durable which names are in a folder."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def text_of(path: Path, *, secret: bool = True) -> str:
    """What a file holds; a secret is never logged.

    Raises:
        BackendUnavailable: it cannot be read; it may be mounted later.
    """
    try:
        text = credentials.read(path)
    except (OSError, ValueError) as error:
        raise BackendUnavailable(f"{path} cannot be read: {reason(error)}") from error
    if secret:
        redact.know(text)
    return text
