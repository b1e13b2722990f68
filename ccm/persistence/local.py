"""Local resources: private files and folders, mounted files."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ccm.base import credentials, redact
from ccm.base.files import describe_error
from ccm.persistence.errors import BackendDead, BackendUnavailable

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = 0o077


def ensure_private_folder(path: Path) -> None:
    """Create a private folder, or check that an existing one is private.

    Raises:
        BackendDead: the path is not a folder, or accessible to other users.
        OSError: the folder cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=FOLDER_MODE)
        sync_folder(path.parent)
    except FileExistsError:
        pass
    check_private(path, is_folder=True)


def check_private(path: Path, *, is_folder: bool) -> None:
    """Check that a path is a file or folder, no symbolic link, and accessible only to its owner.

    Raises:
        BackendDead: a check failed.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise BackendDead(f"{path} is a symbolic link; use a real file or folder")
    if stat.S_ISDIR(status.st_mode) != is_folder:
        raise BackendDead(f"{path} must be a {'folder' if is_folder else 'file'}")
    if status.st_mode & _OTHERS:
        mode = FOLDER_MODE if is_folder else FILE_MODE
        raise BackendDead(
            f"{path} is accessible to other users (mode {stat.S_IMODE(status.st_mode):o}); "
            f"find the cause, then `chmod {mode:o}` it"
        )


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_NETWORK_TYPES = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fuse\..*|glusterfs|gpfs|lustre|nfs4?|smb3|smbfs"
)


def is_on_network(path: Path) -> bool:
    """Return whether a file is on a network file system; False if Linux's mount table is absent."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    kinds = [line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == number]
    return any(map(_NETWORK_TYPES.fullmatch, kinds))


def read_text(path: Path, *, secret: bool = True) -> str:
    """Return the text of a mounted file; a secret is masked in all output from then on.

    Raises:
        BackendUnavailable: the file is unreadable; it may be mounted later.
    """
    try:
        text = credentials.read(path)
    except (OSError, ValueError) as error:
        raise BackendUnavailable(f"{path} cannot be read: {describe_error(error)}") from error
    if secret:
        redact.register(text)
    return text
