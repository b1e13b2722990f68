"""Store in a folder with one file per object.

A put writes a new file next to the old one, flushes it to disk and renames it: a reader sees either
the old or the new object. After a failed fsync the put deletes its file and fails, because the
kernel may have dropped the data; a retry writes another file. A file lock admits one process at a
time to the folder. Opening the store removes temporary files that a crash left behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from ccm.base.files import describe_error
from ccm.persistence import envelope, local, objects
from ccm.persistence.engine import StoreProvider, build_provider
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.errors import BackendDead, CorruptObject, InvalidObject, VersionConflict
from ccm.persistence.interface import ABSENT, CAS, GVK, SHARED, Expected, Version
from ccm.persistence.local import StoreThread
from ccm.persistence.objects import StoragePlace
from ccm.persistence.registry import BackendContext, backend
from ccm.persistence.store import Claim, Page, StoredRecord, check_expected

LOCK = ".lock"
TEMPORARY = ".tmp-"
PAGE = 200

_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Local folder, or a folder on an NFS server."""

    root: Annotated[Path, msgspec.Meta(description="Absolute path; created if absent.")]
    shared: Annotated[
        bool, msgspec.Meta(description="Whether every replica mounts the same folder (NFS).")
    ] = False


class FileStore:
    """Store in a folder.

    Args:
        root: absolute path of the folder.
        shared: as in `FileConfig`.
    """

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        self.capabilities = frozenset({CAS, SHARED} if shared else {CAS})
        self._root = root
        self._worker = StoreThread("persistence-file", OSError, describe_error)
        self._lock: int | None = None
        self._cluster = ""
        self._durable: set[Path] = set()

    async def open(self, claim: Claim) -> None:
        """See `Store.open`."""
        await self._worker.run(self._open, claim)

    async def probe(self) -> None:
        """See `Store.probe`."""
        await self._worker.run(self._probe)

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """See `Store.read`."""
        return await self._worker.run(self._read, self._path(place))

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """See `Store.write`."""
        return await self._worker.run(self._write, self._path(place), entry, expect)

    async def remove(self, place: StoragePlace, epoch: int) -> None:  # noqa: ARG002
        """See `Store.remove`; the lock excludes a former leader, so the epoch is not checked."""
        await self._worker.run(self._remove, self._path(place))

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        names = await self._worker.run(self._list_places, kind)
        for start in range(0, len(names), PAGE):
            yield await self._worker.run(self._read_page, names[start : start + PAGE])

    async def close(self) -> None:
        """See `Store.close`."""
        await self._worker.stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _path(self, place: StoragePlace) -> Path:
        return self._root / self._cluster / place.path

    # Run in the worker thread

    def _open(self, claim: Claim) -> None:
        local.ensure_private_folder(self._root)
        if self._lock is None:
            self._lock = self._acquire_lock()
        self._cluster = objects.encode(claim.cluster_uid)
        self._clean(self._root)
        marker = self._root / objects.MARKER
        try:
            self._create(marker, envelope.build_marker(claim.cluster_uid))
        except FileExistsError:
            body = self._read_bytes(marker) or b""
            envelope.check_marker(body, claim.cluster_uid, str(self._root))
        self._probe()

    def _acquire_lock(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self._root / LOCK, flags, local.FILE_MODE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise BackendDead(f"{self._root} is in use by another process") from None
        return handle

    def _clean(self, folder: Path) -> None:
        """Remove temporary files that a crash left behind; check that no other user has access."""
        with os.scandir(folder) as iterator:
            entries = list(iterator)
        for entry in entries:
            path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
            if entry.name.startswith(TEMPORARY):
                os.unlink(path)
                continue
            local.check_private(path, is_folder=is_folder)
            if is_folder:
                self._clean(path)

    def _probe(self) -> None:
        path = self._root / f"{TEMPORARY}probe"
        try:
            self._fill(path, b"probe")
        finally:
            _unlink(path)

    def _read_bytes(self, path: Path) -> bytes | None:
        try:
            handle = os.open(path, _OLD)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CorruptObject("the stored object is a symbolic link") from None
            raise
        with open(handle, "rb") as file:
            return file.read()

    def _read(self, path: Path) -> StoredRecord | None:
        body = self._read_bytes(path)
        return None if body is None else StoredRecord(body, envelope.read_head(body).version)

    def _write(self, path: Path, entry: StoreEntry, expect: Expected) -> Version:
        if expect is not None and expect is not ABSENT:
            record = self._read(path)
            check_expected(expect, record and record.version)
        self._make_folders(path.parent)
        if expect is ABSENT:
            try:
                self._create(path, entry.body)
            except FileExistsError:
                raise VersionConflict("the object was changed concurrently") from None
            return entry.version
        temporary = self._temporary(path.parent, entry.body)
        try:
            os.rename(temporary, path)
        except OSError:
            _unlink(temporary)
            raise
        local.sync_folder(path.parent)
        return entry.version

    def _create(self, path: Path, body: bytes) -> None:
        """Write a file atomically. Raises FileExistsError if it exists."""
        temporary = self._temporary(path.parent, body)
        try:
            os.link(temporary, path)  # unlike a rename, fails if the path exists
        finally:
            _unlink(temporary)
        local.sync_folder(path.parent)

    def _temporary(self, folder: Path, body: bytes) -> Path:
        path = folder / f"{TEMPORARY}{os.getpid()}-{uuid.uuid4()}"
        try:
            self._fill(path, body)
        except OSError:
            _unlink(path)
            raise
        return path

    def _fill(self, path: Path, body: bytes) -> None:
        handle = os.open(path, _NEW, local.FILE_MODE)
        try:
            rest = memoryview(body)
            while rest:
                rest = rest[os.write(handle, rest) :]
            _sync(handle)
        finally:
            os.close(handle)

    def _make_folders(self, folder: Path) -> None:
        """Create missing folders and flush their names to disk.

        A folder that already exists is flushed too: an earlier attempt may have created it, and
        then failed before the flush.
        """
        if folder == self._root or folder in self._durable:
            return
        self._make_folders(folder.parent)
        try:
            os.mkdir(folder, local.FOLDER_MODE)
        except FileExistsError:
            local.check_private(folder, is_folder=True)
        local.sync_folder(folder.parent)
        self._durable.add(folder)

    def _remove(self, path: Path) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            if not path.parent.is_dir():
                return
        # Flush even if the file was absent: an earlier attempt may have failed before its flush.
        local.sync_folder(path.parent)

    def _list_places(self, kind: GVK) -> list[StoragePlace]:
        folder = self._root / self._cluster / objects.folder_of(kind)
        places: list[StoragePlace] = []
        for namespace in _list_folder(folder):
            for name in _list_folder(folder / namespace):
                try:
                    key = objects.check_key(f"{namespace}/{name.removesuffix(objects.SUFFIX)}")
                except InvalidObject:  # a temporary file
                    continue
                places.append(StoragePlace(kind, key))
        return places

    def _read_page(self, places: Sequence[StoragePlace]) -> Page:
        records = []
        for place in places:
            try:
                record = self._read(self._path(place))
            except CorruptObject:
                record = StoredRecord(b"", Version(""))
            if record is not None:
                records.append((place, record))
        return records


def _sync(handle: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync leaves data in the drive's cache
    if full is None:
        os.fsync(handle)
    else:
        fcntl.fcntl(handle, full)


def _unlink(path: Path) -> None:
    """Delete a temporary file; ignore errors, because the next `open` deletes it too."""
    try:
        os.unlink(path)
    except OSError:
        return


def _list_folder(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


@backend(config=FileConfig)
def storage(configs: Sequence[FileConfig], context: BackendContext) -> StoreProvider:
    """Build the provider of the backend `file`."""
    stores = [
        ({"root": str(config.root)}, FileStore(config.root, shared=config.shared))
        for config in configs
    ]
    return build_provider("file", stores, context.writer)
