"""A folder with a file for each object.

A put writes a new file beside the old one, makes it durable, then gives it the old one's name: a
reader sees one or the other. A failed fsync is final for its attempt, as the kernel may have
dropped what it could not write; another attempt writes another file. One process at a time has
the folder, held by a lock; what earlier ones left half-written is removed when it is opened.
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

from ccm.base.files import reason
from ccm.persistence import envelope, local, objects
from ccm.persistence.engine import StoreProvider, provider
from ccm.persistence.envelope import Entry
from ccm.persistence.errors import BackendDead, CorruptObject, InvalidObject, VersionConflict
from ccm.persistence.interface import ABSENT, CAS, GVK, SHARED, Expected, Version
from ccm.persistence.local import Worker
from ccm.persistence.objects import Place
from ccm.persistence.registry import Context, backend
from ccm.persistence.store import Claim, Page, Record, check_expected

LOCK = ".lock"
TEMPORARY = ".tmp-"
PAGE = 200

_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of this machine, or of an NFS server."""

    root: Annotated[Path, msgspec.Meta(description="The folder, an absolute path; made if absent.")]
    shared: Annotated[
        bool,
        msgspec.Meta(description="The next leader finds the same folder, wherever it runs (NFS)."),
    ] = False


class FileStore:
    """A store in a folder.

    Args:
        root: the folder.
        shared: as in `FileConfig`.
    """

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        self.capabilities = frozenset({CAS, SHARED} if shared else {CAS})
        self._root = root
        self._worker = Worker("persistence-file", OSError, reason)
        self._lock: int | None = None
        self._cluster = ""
        self._durable: set[Path] = set()

    async def open(self, claim: Claim) -> None:
        """As `Store.open`."""
        await self._worker.run(self._open, claim)

    async def probe(self) -> None:
        """As `Store.probe`."""
        await self._worker.run(self._probe)

    async def read(self, place: Place) -> Record | None:
        """As `Store.read`."""
        return await self._worker.run(self._read, self._path(place))

    async def write(self, place: Place, entry: Entry, expect: Expected) -> Version:
        """As `Store.write`."""
        return await self._worker.run(self._write, self._path(place), entry, expect)

    async def remove(self, place: Place, epoch: int) -> None:  # noqa: ARG002
        """As `Store.remove`; the lock keeps out whoever led before."""
        await self._worker.run(self._remove, self._path(place))

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """As `Store.scan`."""
        names = await self._worker.run(self._names, kind)
        for start in range(0, len(names), PAGE):
            yield await self._worker.run(self._page, names[start : start + PAGE])

    async def close(self) -> None:
        """As `Store.close`."""
        await self._worker.end()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _path(self, place: Place) -> Path:
        return self._root / self._cluster / place.path

    # In the thread

    def _open(self, claim: Claim) -> None:
        local.private_folder(self._root)
        if self._lock is None:
            self._lock = self._locked()
        self._cluster = objects.encode(claim.cluster_uid)
        self._clean(self._root)
        marker = self._root / objects.MARKER
        try:
            self._create(marker, envelope.marker(claim.cluster_uid))
        except FileExistsError:
            body = self._bytes(marker) or b""
            envelope.check_marker(body, claim.cluster_uid, str(self._root))
        self._probe()

    def _locked(self) -> int:
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
        """See that all below is ours alone, and remove what an earlier process left over."""
        with os.scandir(folder) as found:
            entries = list(found)
        for each in entries:
            path, is_folder = Path(each.path), each.is_dir(follow_symlinks=False)
            if each.name.startswith(TEMPORARY):
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

    def _bytes(self, path: Path) -> bytes | None:
        try:
            handle = os.open(path, _OLD)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CorruptObject("a symbolic link stands where an object should") from None
            raise
        with open(handle, "rb") as file:
            return file.read()

    def _read(self, path: Path) -> Record | None:
        body = self._bytes(path)
        return None if body is None else Record(body, envelope.head(body).version)

    def _write(self, path: Path, entry: Entry, expect: Expected) -> Version:
        if expect is not None and expect is not ABSENT:
            found = self._read(path)
            check_expected(expect, found and found.version)
        self._make_folders(path.parent)
        if expect is ABSENT:
            try:
                self._create(path, entry.body)
            except FileExistsError:
                raise VersionConflict("somebody else wrote the object meanwhile") from None
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
        """Write a file that must not exist."""
        temporary = self._temporary(path.parent, body)
        try:
            os.link(temporary, path)
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
        """All of them durable, also those that an earlier attempt made and did not come to sync."""
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
        # Also if it was absent: an earlier attempt may have come no further.
        local.sync_folder(path.parent)

    def _names(self, kind: GVK) -> list[Place]:
        folder = self._root / self._cluster / objects.folder(kind)
        found: list[Place] = []
        for namespace in _listed(folder):
            for name in _listed(folder / namespace):
                try:
                    key = objects.checked(f"{namespace}/{name.removesuffix(objects.SUFFIX)}")
                except InvalidObject:  # a temporary file
                    continue
                found.append(Place(kind, key))
        return found

    def _page(self, wanted: Sequence[Place]) -> Page:
        found = []
        for place in wanted:
            try:
                record = self._read(self._path(place))
            except CorruptObject:
                record = Record(b"", Version(""))
            if record is not None:
                found.append((place, record))
        return found


def _sync(handle: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS, where fsync leaves it in the drive's cache
    if full is None:
        os.fsync(handle)
    else:
        fcntl.fcntl(handle, full)


def _unlink(path: Path) -> None:
    """What stays behind is removed at the next start, and counts as no object."""
    try:
        os.unlink(path)
    except OSError:
        return


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


@backend(config=FileConfig)
def storage(given: Sequence[FileConfig], context: Context) -> StoreProvider:
    """The backend."""
    stores = [({"root": str(one.root)}, FileStore(one.root, shared=one.shared)) for one in given]
    return provider("file", stores, context.writer)
