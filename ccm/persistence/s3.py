"""Store in a bucket of an S3-compatible service, with one S3 object per stored object.

`open` tests whether the service supports conditional writes, and refuses one that does not. The
precondition of every write is that the object still has the ETag that the store read before. So a
cancelled request that arrives late changes nothing, and an object of a newer leader is never
replaced. Before each write the store also checks the leader's epoch.

A deletion first writes a tombstone conditionally, then checks tombstone and epoch again, then
deletes the tombstone. The last step is unconditional: an object written at that moment is
deleted too, and only bucket versioning keeps it.

An operation is repeated while the service is overloaded (429, 5xx) or if a response is lost. A
repeated write first reads the object: the unique ID of the write in its envelope shows whether an
earlier attempt succeeded.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote

import msgspec
import obstore
from obstore import exceptions
from obstore.store import S3Store as Bucket

from ccm.base import log, proxies
from ccm.base.tasks import leaf_exceptions, run_bounded
from ccm.persistence import envelope, objects, store
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.errors import BackendDead, BackendUnavailable, VersionConflict
from ccm.persistence.interface import CAS, FENCING, GVK, SHARED, Expected, ObjectKey, Version
from ccm.persistence.local import read_text
from ccm.persistence.objects import MAX_ENVELOPE, StoragePlace
from ccm.persistence.registry import store_backend
from ccm.persistence.store import Claim, Page, StoredRecord, check_epoch, check_expected

T = TypeVar("T")

MAX_CONCURRENT_READS = 16
"""Maximum concurrent reads of a listing: a listing must not overload the service."""

PAGE = 200
"""Objects that a listing holds in memory at the same time."""

MAX_ATTEMPTS = 8
"""Maximum attempts of a write with concurrent writers of the same object; few, because only the
leader writes."""

CONNECT_TRIES = 3
"""Attempts to connect: an unreachable service, unlike an overloaded one, is reported soon."""

_TOMBSTONE = b'{"deleted":true,'
"""Begin of the content of an object that is being deleted; such an object counts as absent."""

_PROBE = ".ccm-probe"
_TEMPORARY = re.compile(r"HTTP error|status code: (?:408|429|5(?!01)\d\d)")
_NOT_CONNECTED = "kind: Connect"
_UNCHANGED = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
"""Errors of a write whose precondition does not hold."""

_FAILURES = (exceptions.BaseError, FileNotFoundError, PermissionError)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_SHOWN_CODES = frozenset(
    {"NoSuchBucket", "AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId"}
)

_ERROR_TEXTS = {
    r"InvalidCertificate\W+(\w+)": r"certificate rejected (\1); see ca_file and endpoint",
    "dns error": "the host name does not resolve; see endpoint",
    "tcp connect error": "connection failed; see endpoint",
    "operation timed out": "request timed out",
    r"status code: (429|5\d\d)": r"HTTP \1, the service is overloaded or failing",
    r"status code: (\d{3})": r"HTTP \1",
    "HTTP error": "the connection broke before the response",
}
"""Pattern in the library's error -> our error text. Other errors of the library are not shown,
because they may contain the data that was sent."""


class S3Config(msgspec.Struct, frozen=True, kw_only=True):
    """Bucket, or a folder in it. Without keys, the identity of the host or Pod is used."""

    bucket: Annotated[str, msgspec.Meta(description="Name of the bucket.")]
    endpoint: Annotated[
        str, msgspec.Meta(description="URL of the service. Empty: AWS in the region.")
    ] = ""
    region: Annotated[str, msgspec.Meta(description="Region of the bucket.")] = "us-east-1"
    prefix: Annotated[str, msgspec.Meta(description="Folder in the bucket.")] = "ccm"
    access_key_id_file: Annotated[
        Path | None, msgspec.Meta(description="File with the access key ID.")
    ] = None
    secret_access_key_file: Annotated[
        Path | None, msgspec.Meta(description="File with the secret access key.")
    ] = None
    ca_file: Annotated[
        Path | None, msgspec.Meta(description="PEM file with the CA certificates of the service.")
    ] = None
    server_side_encryption: Annotated[
        Literal["AES256", "aws:kms"] | None,
        msgspec.Meta(description="Server-side encryption. Empty: the bucket's default."),
    ] = None
    allow_insecure: Annotated[
        bool, msgspec.Meta(description="Use HTTP without TLS. For tests only.")
    ] = False


_SEGMENT = r"(?!\.\.?(?:/|$))[A-Za-z0-9!_.*'()-]+"
_FORMATS = {
    "bucket": (
        r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}",
        "3 to 255 letters, digits, dots, dashes and underscores",
    ),
    "region": (r"[A-Za-z0-9_-]+", "the name of a region, such as eu-central-1"),
    "prefix": (
        rf"/*({_SEGMENT}(/{_SEGMENT})*)?/*",
        "folder names of letters, digits and !_.*'()- between slashes, such as ccm/prod",
    ),
    "endpoint": (
        rf"(https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:{store.PORT})?(/[^\s?#@]*)?)?",
        "a URL without credentials, such as https://s3.example, and a port from 1 to 65535",
    ),
}
"""Setting -> pattern of valid values, and advice for the error message."""


@dataclass(slots=True)
class _ConditionalWrite:
    """A conditional write, which may be repeated.

    Attributes:
        path: key of the S3 object.
        entry: the envelope, whose ID identifies the write.
        expect: precondition.
        is_unclear: whether the response to an attempt was lost.
    """

    path: str
    entry: StoreEntry
    expect: Expected = None
    is_unclear: bool = False


class S3Store:
    """Store in a bucket.

    Args:
        config: settings of the bucket.

    Raises:
        BackendDead: a setting is invalid, the endpoint is not encrypted, or an environment variable
            such as HTTPS_PROXY is not the URL of an HTTP proxy.
    """

    def __init__(self, config: S3Config) -> None:
        self.capabilities = frozenset({CAS, FENCING, SHARED})
        self.max_bytes = MAX_ENVELOPE
        self._name = f"bucket {config.bucket}"
        store.check_settings("s3", config, _FORMATS)
        if bool(config.access_key_id_file) != bool(config.secret_access_key_file):
            raise BackendDead(
                "s3.access_key_id_file and s3.secret_access_key_file belong together; set both or "
                "none"
            )
        if config.endpoint.startswith("http://"):
            if not config.allow_insecure:
                raise BackendDead(
                    f"s3.endpoint is {config.endpoint!r}, which is not encrypted; use https://, or "
                    "allow_insecure: true for a test"
                )
            log.logger("persistence").warning("bucket is used without TLS", source=self._name)
        self._config = config
        try:
            self._proxies = _proxies(config)
        except ValueError as error:
            raise BackendDead(f"{self._name}: {error}") from error
        self._bucket: Any = None
        self._file_contents: Mapping[str, str] = {}
        self._base = ""

    async def open(self, claim: Claim) -> None:
        """See `Store.open`."""
        self._connect()
        self._base = self._folder(claim.cluster_uid)
        await self._run(partial(self._open, claim))

    async def probe(self) -> None:
        """See `Store.probe`; also reloads changed key files."""
        self._connect()
        await self._run(partial(self._put, f"{self._base}/{_PROBE}", b"probe", None))

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """See `Store.read`."""
        stored = await self._run(partial(self._get, self._path(place)))
        if stored is None or stored[0].startswith(_TOMBSTONE):
            return None
        return StoredRecord(stored[0], Version(stored[1]))

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """See `Store.write`."""
        write = _ConditionalWrite(self._path(place), entry, expect)
        return await self._run(partial(self._write_conditionally, write))

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        """See `Store.remove`."""
        tombstone = _ConditionalWrite(self._path(place), _tombstone(epoch))
        await self._run(partial(self._remove, tombstone))

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        prefix = f"{self._base}/{objects.folder_of(kind)}/"
        paths = await self._run(partial(self._list, prefix))
        for start in range(0, len(paths), PAGE):
            yield await self._page(kind, prefix, paths[start : start + PAGE])

    async def clusters(self, wanted: str) -> Collection[str]:
        """See `ClusterListing.clusters`."""
        self._connect()
        return await self._run(partial(self._list_clusters, wanted))

    async def close(self) -> None:
        """See `Store.close`."""
        self._bucket = None

    def _connect(self) -> None:
        """Create the client; replace it only if the files changed, to save an authentication."""
        mounted = _read_files(self._config)
        if self._bucket is None or mounted != self._file_contents:
            self._bucket = _bucket(self._config, mounted, self._proxies)
            self._file_contents = mounted

    def _folder(self, cluster_uid: str) -> str:
        return f"{self._config.prefix.strip('/')}/{objects.encode(cluster_uid)}".strip("/")

    def _path(self, place: StoragePlace) -> str:
        return f"{self._base}/{place.path}"

    async def _list(self, prefix: str) -> Sequence[str]:
        listing = obstore.list(self._bucket, prefix, chunk_size=1000)
        return [item["path"] async for chunk in listing for item in chunk]

    async def _list_clusters(self, wanted: str) -> Collection[str]:
        # First, because the credentials may permit the folder of one cluster only.
        if await self._get(f"{self._folder(wanted)}/{objects.MARKER}") is not None:
            return (wanted,)
        prefix = self._config.prefix.strip("/")
        listing = await obstore.list_with_delimiter_async(self._bucket, prefix or None)
        return [unquote(path.rpartition("/")[2]) for path in listing["common_prefixes"]]

    async def _page(self, kind: GVK, prefix: str, paths: Sequence[str]) -> Page:
        records: list[tuple[StoragePlace, StoredRecord]] = []

        async def read(path: str) -> None:
            key = ObjectKey(path.removeprefix(prefix).removesuffix(objects.SUFFIX))
            record = await self.read(StoragePlace(kind, key))
            if record is not None:  # it may have been deleted after the listing
                records.append((StoragePlace(kind, key), record))

        try:
            await run_bounded(paths, read, limit=MAX_CONCURRENT_READS, name="persistence-s3")
        except ExceptionGroup as group:
            raise next(leaf_exceptions(group)) from None
        return records

    async def _open(self, claim: Claim) -> None:
        """Test the service, and fence former leaders with the marker."""
        await self._test_conditions()
        path = f"{self._base}/{objects.MARKER}"
        for _ in range(MAX_ATTEMPTS):
            marker, tag = await self._get(path) or (None, "")
            with suppress(*_UNCHANGED):
                await self._put(path, store.claim_marker(marker, claim, self._name), tag)
                return
        raise BackendUnavailable(f"{self._name}: too many concurrent claims by other leaders")

    async def _check_leader(self, epoch: int) -> None:
        """Check that no newer leader has claimed the bucket.

        Called in each attempt after the read of an object and before the dependent write. A newer
        leader may claim the bucket between this check and our write. If it also writes or deletes
        the object, the precondition of our write fails, unless the object was absent when we read
        it and is absent again.

        Raises:
            Fenced: a newer leader has claimed the bucket.
        """
        marker = await self._get(f"{self._base}/{objects.MARKER}")
        check_epoch(envelope.epoch_of(marker[0]) if marker else 0, epoch)

    async def _write_conditionally(self, write: _ConditionalWrite) -> Version:
        """Write an entry if the object is unchanged since our read; retry after a conflict.

        Raises:
            VersionConflict: the precondition does not hold.
            BackendUnavailable: the precondition does not hold, and the outcome of an earlier
                attempt is unknown.
        """
        entry = write.entry
        try:
            for _ in range(MAX_ATTEMPTS):
                stored = await self._get(write.path)
                if stored is not None and _is_written(stored, entry):
                    return Version(stored[1])  # by an attempt whose response was lost
                await self._check_leader(entry.epoch)
                tag, current = "", None
                if stored is not None:
                    body, tag = stored
                    check_epoch(envelope.read_head(body).epoch, entry.epoch)
                    current = None if body.startswith(_TOMBSTONE) else Version(tag)
                check_expected(write.expect, current)
                try:
                    return Version(await self._put(write.path, entry.body, tag))
                except _UNCHANGED:
                    continue
                except exceptions.BaseError as error:
                    write.is_unclear |= _NOT_CONNECTED not in str(error)
                    raise
            raise VersionConflict("too many concurrent writes of the object")
        except VersionConflict as conflict:
            if not write.is_unclear:
                raise
            # Another writer may have replaced our write.
            raise BackendUnavailable(
                f"{self._name}: the response to a write was lost, and the object was changed"
            ) from conflict

    async def _remove(self, tombstone: _ConditionalWrite) -> None:
        if await self._get(tombstone.path) is None:
            return
        await self._write_conditionally(tombstone)
        # The deletion below is unconditional. So skip it if our tombstone was replaced, or if a
        # newer leader exists, which may be about to write.
        stored = await self._get(tombstone.path)
        if stored is None or not _is_written(stored, tombstone.entry):
            return
        await self._check_leader(tombstone.entry.epoch)
        await obstore.delete_async(self._bucket, tombstone.path)

    async def _get(self, path: str) -> tuple[bytes, str] | None:
        """Return the bytes and the ETag of an S3 object; None if it is absent."""
        try:
            answer = await obstore.get_async(self._bucket, path)
            return bytes(await answer.bytes_async()), str(answer.meta["e_tag"])
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise BackendUnavailable(f"{self._name} does not exist") from None
            return None

    async def _put(self, path: str, body: bytes, tag: str | None) -> str:
        """Write an S3 object and return its ETag.

        Args:
            path: key of the S3 object.
            body: its content.
            tag: ETag as precondition; empty = must not exist; None = unconditional.
        """
        mode: Any = "overwrite" if tag is None else {"e_tag": tag} if tag else "create"
        result = await obstore.put_async(
            self._bucket,
            path,
            body,
            mode=mode,
            use_multipart=False,
            attributes={"Content-Type": "application/json"},
        )
        return str(result["e_tag"])

    async def _test_conditions(self) -> None:
        """Test conditional writes.

        The object always exists with the same content, so processes can test at the same time, and
        a killed one leaves nothing behind.

        Raises:
            BackendDead: the service does not support conditional writes.
        """
        path = f"{self._base}/{_PROBE}"
        await self._put(path, b"probe", None)
        for header, tag in (("If-None-Match", ""), ("If-Match", f'"{"0" * 32}"')):
            try:
                await self._put(path, b"probe", tag)
            except _UNCHANGED:
                continue
            except exceptions.BaseError as error:
                if "status code: 501" not in str(error):
                    raise
            raise BackendDead(
                f"{self._name}: the service does not support conditional writes ({header}), so two "
                "leaders could overwrite each other's objects; use a service that supports them, "
                "or another backend, such as postgres"
            )

    async def _run(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Run an operation; repeat it while the service is overloaded or responses are lost."""
        if self._bucket is None:
            raise BackendUnavailable(f"{self._name} is not open")
        return await store.retry(self._name, operation, _FAILURES, _explain)


def _explain(error: Exception, failures: int) -> tuple[str, bool]:
    """Return the cause of a failure, and whether the request may succeed soon."""
    text, why = str(error), type(error).__name__
    if (code := _CODE.search(text)) and code[1] in _SHOWN_CODES:
        why = code[1]
    elif match := next(filter(None, (re.search(sign, text) for sign in _ERROR_TEXTS)), None):
        why = match.expand(_ERROR_TEXTS[match.re.pattern])
    is_temporary = bool(_TEMPORARY.search(text))
    if _NOT_CONNECTED in text:
        is_temporary = failures + 1 < CONNECT_TRIES
    return why, is_temporary and "InvalidCertificate" not in text


def _is_written(stored: tuple[bytes, str], entry: StoreEntry) -> bool:
    return envelope.read_head(stored[0]).version == entry.version


def _read_files(config: S3Config) -> Mapping[str, str]:
    """Read the configured files; return their contents by obstore's option names."""
    contents = {}
    if config.access_key_id_file and config.secret_access_key_file:
        contents["access_key_id"] = read_text(config.access_key_id_file)
        contents["secret_access_key"] = read_text(config.secret_access_key_file)
    if config.ca_file:
        contents["root_certificate"] = read_text(config.ca_file, secret=False)
    return contents


def _proxies(config: S3Config) -> Mapping[str, str]:
    """Return the proxy of the environment as options of obstore.

    With obstore's own handling of the environment, requests to the metadata service, which returns
    credentials, would use the proxy.

    Raises:
        ValueError: a variable such as HTTPS_PROXY is not the URL of an HTTP proxy.
    """
    url = config.endpoint or f"https://s3.{config.region}.amazonaws.com"
    environment = proxies.ProxySettings.from_environ()
    proxy = environment.proxy_for(url)
    if not proxy:
        # A proxy for no host: without the option, obstore would read the environment.
        return {"proxy_url": "http://localhost", "proxy_excludes": "*,0.0.0.0/0,::/0"}
    return {
        "proxy_url": proxy,
        "proxy_excludes": f"{proxies.NO_PROXY_HOSTS},{environment.no_proxy}",
    }


def _bucket(
    config: S3Config, file_contents: Mapping[str, str], proxy_options: Mapping[str, str]
) -> Any:
    settings: dict[str, Any] = {"region": config.region}
    if config.endpoint:
        settings |= {"endpoint": config.endpoint, "virtual_hosted_style_request": False}
    if config.server_side_encryption:
        settings["server_side_encryption"] = config.server_side_encryption
    # Short, so that `store.RETRY_S` allows for a second attempt.
    options: Any = {"connect_timeout": "5s", "timeout": "10s"}
    options |= {"allow_http": config.allow_insecure, **proxy_options}
    for name, text in file_contents.items():
        (options if name == "root_certificate" else settings)[name] = text
    # No retries by obstore: a repeated write first has to look for its ID in the object.
    retry: Any = {"max_retries": 0}
    try:
        return Bucket(config.bucket, client_options=options, retry_config=retry, **settings)
    except (ValueError, exceptions.BaseError) as error:
        why = "see bucket, endpoint, region and server_side_encryption"
        if config.ca_file and isinstance(error, ValueError):
            why = f"ca_file {config.ca_file} contains no PEM certificate"
        raise BackendUnavailable(f"bucket {config.bucket}: {why}") from None


def _tombstone(epoch: int) -> StoreEntry:
    version = Version(str(uuid.uuid4()))
    rest = {"format": envelope.FORMAT, "writeId": version, "writer": {"epoch": epoch}}
    return StoreEntry(_TOMBSTONE + json.dumps(rest).encode()[1:], version, epoch)


storage = store_backend("s3", S3Config, S3Store, ("endpoint", "region", "bucket", "prefix"))
