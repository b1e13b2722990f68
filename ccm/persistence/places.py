"""Folders and files that nobody else can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ccm.persistence.errors import BackendDead

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
