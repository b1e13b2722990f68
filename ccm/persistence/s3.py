"""A bucket of an S3-compatible service, one object for each of ours.

Conditions are tried out when it is opened, not assumed: a store that takes what it must refuse
loses the capabilities that rest on them. With them every write is conditional on what was there
before, so that a request which was cut and arrives late changes nothing, and a newer leader's
object is never replaced; and each time before it is asked who leads. A deletion first writes a
tombstone on condition, then looks at both again and removes it. That knows no condition: what is
written in its place while it is under way goes with it, and only versions of the bucket keep it.

Whether a write came through that was never answered is seen by its id.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import obstore
from obstore import exceptions
from obstore.store import S3Store as Bucket

from ccm.base import log, proxies
from ccm.base.tasks import bounded
from ccm.persistence import envelope, objects
from ccm.persistence.engine import StoreProvider, provider
from ccm.persistence.envelope import Entry
from ccm.persistence.errors import BackendDead, BackendUnavailable, VersionConflict
from ccm.persistence.interface import CAS, FENCING, GVK, SHARED, Expected, ObjectKey, Version
from ccm.persistence.local import text_of
from ccm.persistence.objects import Place
from ccm.persistence.registry import Context, backend
from ccm.persistence.store import Claim, Page, Record, check_epoch, check_expected

AT_ONCE = 16
"""Objects that are read at the same time."""

PAGE = 200
ATTEMPTS = 8
"""Rounds against others who write the same object."""

_TOMBSTONE = b'{"deleted":true,'
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NAMES = frozenset({"NoSuchBucket", "AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId"})

_SIGNS = {
    r"InvalidCertificate\W+(\w+)": r"its certificate is refused (\1); see ca_file and endpoint",
    "dns error": "its host is unknown; see endpoint",
    "tcp connect error": "nobody answers there; see endpoint",
    "operation timed out": "it did not answer in time",
}
"""Words of the library -> ours; what else it says may hold what was sent."""


class S3Config(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket, or a folder of one. Without keys the machine's own identity is used."""

    bucket: Annotated[str, msgspec.Meta(description="Its name.")]
    endpoint: Annotated[
        str, msgspec.Meta(description="URL of the service; empty: that of AWS in the region.")
    ] = ""
    region: Annotated[str, msgspec.Meta(description="Its region.")] = "us-east-1"
    prefix: Annotated[str, msgspec.Meta(description="Folder in the bucket.")] = "ccm"
    access_key_id_file: Annotated[
        Path | None, msgspec.Meta(description="A file with the id of the access key.")
    ] = None
    secret_access_key_file: Annotated[
        Path | None, msgspec.Meta(description="A file with the secret of the access key.")
    ] = None
    ca_file: Annotated[
        Path | None, msgspec.Meta(description="Certificates of who signed the service's, in PEM.")
    ] = None
    server_side_encryption: Annotated[
        Literal["AES256", "aws:kms"] | None,
        msgspec.Meta(description="Header that asks for it; without it, what the bucket says."),
    ] = None
    allow_insecure: Annotated[
        bool, msgspec.Meta(description="Speak HTTP without TLS. For a test only.")
    ] = False

    def identity(self) -> dict[str, str]:
        """What makes it this storage."""
        return {one: getattr(self, one) for one in ("endpoint", "region", "bucket", "prefix")}


class S3Store:
    """A store in a bucket.

    Args:
        config: where it is.

    Raises:
        BackendDead: it would be read over the network in the clear, or through no HTTP proxy.
    """

    def __init__(self, config: S3Config) -> None:
        self.capabilities: frozenset[str] = frozenset({SHARED})
        self._name = f"bucket {config.bucket}"
        if config.endpoint and not config.endpoint.startswith("https://"):
            if not config.endpoint.startswith("http://"):
                raise BackendDead(
                    f"{self._name}: endpoint {config.endpoint} must be a URL, such as "
                    "https://s3.example"
                )
            if not config.allow_insecure:
                raise BackendDead(
                    f"{self._name}: endpoint {config.endpoint} is not encrypted; give https://, "
                    "or allow_insecure: true for a test"
                )
            log.logger("persistence").warning("bucket is used without TLS", source=self._name)
        self._config = config
        try:
            self._proxies = _proxies(config)
        except ValueError as error:
            raise BackendDead(f"{self._name}: {error}") from error
        self._bucket: Any = None
        self._mounted: Mapping[str, str] = {}
        self._base = ""

    async def open(self, claim: Claim) -> None:
        """See `Store.open`."""
        self._connect()
        self._base = f"{self._config.prefix.strip('/')}/{objects.encode(claim.cluster_uid)}".strip(
            "/"
        )
        async with self._asking():
            self.capabilities = frozenset({SHARED}) | await self._conditions()
            await self._claim(claim)

    async def probe(self) -> None:
        """As `Store.probe`; keys that were mounted anew are taken with it."""
        self._connect()
        async with self._asking():
            await self._put(f"{self._base}/.ccm-probe", b"probe", None)

    async def read(self, place: Place) -> Record | None:
        """See `Store.read`."""
        async with self._asking():
            found = await self._got(self._path(place))
        if found is None or found[0].startswith(_TOMBSTONE):
            return None
        return Record(found[0], Version(found[1]))

    async def write(self, place: Place, entry: Entry, expect: Expected) -> Version:
        """See `Store.write`."""
        async with self._asking():
            path = self._path(place)
            if CAS not in self.capabilities:
                return Version(await self._put(path, entry.body, None))
            return await self._replace(path, entry, expect)

    async def remove(self, place: Place, epoch: int) -> None:
        """See `Store.remove`."""
        async with self._asking():
            path = self._path(place)
            if CAS in self.capabilities:
                if await self._got(path) is None:
                    return
                tombstone = _tombstone(epoch)
                await self._replace(path, tombstone, None)
                # A deletion knows no condition: whatever was written in the place of ours stays,
                # and so does the tombstone where a newer leader may be about to write.
                if await self._ours(path, tombstone) is None:
                    return
                await self._lead(epoch)
            await obstore.delete_async(self._bucket, path)

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        prefix = f"{self._base}/{objects.folder(kind)}/"
        paths: list[str] = []
        async with self._asking():
            async for some in obstore.list(self._bucket, prefix, chunk_size=1000):
                paths += [each["path"] for each in some]
        for start in range(0, len(paths), PAGE):
            yield await self._page(kind, prefix, paths[start : start + PAGE])

    async def close(self) -> None:
        """See `Store.close`."""
        self._bucket = None

    def _connect(self) -> None:
        """Make the client, anew only where files changed: each one proves anew who we are."""
        mounted = _read(self._config)
        if self._bucket is None or mounted != self._mounted:
            self._bucket = _bucket(self._config, mounted, self._proxies)
            self._mounted = mounted

    def _path(self, place: Place) -> str:
        return f"{self._base}/{place.path}"

    async def _page(self, kind: GVK, prefix: str, paths: Sequence[str]) -> Page:
        found: list[tuple[Place, Record]] = []

        async def read(path: str) -> None:
            key = ObjectKey(path.removeprefix(prefix).removesuffix(objects.SUFFIX))
            record = await self.read(Place(kind, key))
            if record is not None:  # it may be gone since it was listed
                found.append((Place(kind, key), record))

        try:
            await bounded(paths, read, limit=AT_ONCE, name="persistence-s3")
        except ExceptionGroup as group:
            raise BackendUnavailable(f"{self._name} cannot be listed") from group
        return found

    async def _claim(self, claim: Claim) -> None:
        """Mark it as ours, and say who leads; whoever led before writes nothing any more."""
        path = f"{self._base}/{objects.MARKER}"
        for _ in range(ATTEMPTS):
            found = await self._got(path)
            said = found[0] if found else envelope.marker(claim.cluster_uid)
            envelope.check_marker(said, claim.cluster_uid, self._name)
            led = _led(said) if found else -1
            if FENCING in self.capabilities:
                check_epoch(led, claim.epoch)
            elif found:
                return
            if led == claim.epoch:
                return
            marked = json.dumps(json.loads(said) | {"epoch": claim.epoch}).encode()
            try:
                # On condition, unless there are none here.
                tag = None if CAS not in self.capabilities else found[1] if found else ""
                await self._put(path, marked, tag)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                continue
            return
        raise BackendUnavailable(f"{self._name}: somebody else goes on claiming it")

    async def _lead(self, epoch: int) -> None:
        """See that nobody newer leads. Asked after the look at an object and before the write that
        depends on it, in each round: a newer leader may still claim the bucket in between, but what
        it then writes or deletes is not what we saw, and the condition fails. Only where nothing
        was, and nothing is again, a write of ours that was under way comes through.

        Raises:
            Fenced: somebody does.
        """
        found = await self._got(f"{self._base}/{objects.MARKER}")
        check_epoch(_led(found[0]) if found else 0, epoch)

    async def _replace(self, path: str, entry: Entry, expect: Expected) -> Version:
        """Write on the condition that nobody else does meanwhile."""
        for _ in range(ATTEMPTS):
            found = await self._got(path)
            await self._lead(entry.epoch)
            tag: str | None = None
            if found is not None:
                body, tag = found
                check_epoch(envelope.head(body).epoch, entry.epoch)
                is_gone = body.startswith(_TOMBSTONE)
                check_expected(expect, None if is_gone else Version(tag))
            else:
                check_expected(expect, None)
            try:
                return Version(await self._put(path, entry.body, tag or ""))
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                pass
            except exceptions.BaseError as error:
                if (ours := await self._ours(path, entry)) is None:
                    raise error
                return ours
            if (ours := await self._ours(path, entry)) is not None:
                return ours  # an earlier try came through, only its answer was lost
        raise VersionConflict("somebody else goes on writing the object")

    async def _ours(self, path: str, entry: Entry) -> Version | None:
        found = await self._got(path)
        is_ours = found is not None and envelope.head(found[0]).version == entry.version
        return Version(found[1]) if found is not None and is_ours else None

    async def _got(self, path: str) -> tuple[bytes, str] | None:
        """The bytes and their tag."""
        try:
            answer = await obstore.get_async(self._bucket, path)
            return bytes(await answer.bytes_async()), str(answer.meta["e_tag"])
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise BackendUnavailable(f"{self._name} does not exist") from None
            return None

    async def _put(self, path: str, body: bytes, tag: str | None) -> str:
        """Write; a tag is a condition, and the empty one that nothing is there."""
        mode: Any = "overwrite" if tag is None else {"e_tag": tag} if tag else "create"
        done = await obstore.put_async(
            self._bucket,
            path,
            body,
            mode=mode,
            use_multipart=False,
            attributes={"Content-Type": "application/json"},
        )
        return str(done["e_tag"])

    async def _conditions(self) -> frozenset[str]:
        """What the service really refuses."""
        path = f"{self._base}/.ccm-probe-{uuid.uuid4()}"
        await self._put(path, b"one", "")
        try:
            for tag, refusal in (
                ("", exceptions.AlreadyExistsError),
                ('"00000000000000000000000000000000"', exceptions.PreconditionError),
            ):
                try:
                    await self._put(path, b"two", tag)
                except refusal:
                    continue
                log.logger("persistence").warning(
                    "storage ignores conditions: nothing protects from two writers",
                    source=self._name,
                )
                return frozenset()
        finally:
            await obstore.delete_async(self._bucket, path)
        return frozenset({CAS, FENCING})

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Whatever the library raises, in our words and without what was sent."""
        if self._bucket is None:
            raise BackendUnavailable(f"{self._name} is not open")
        try:
            yield
        except (exceptions.BaseError, FileNotFoundError, PermissionError) as error:
            raise BackendUnavailable(f"{self._name}: {_why(error)}") from None


def _why(error: Exception) -> str:
    text = str(error)
    if (code := _CODE.search(text)) and code[1] in _NAMES:
        return code[1]
    for sign, words in _SIGNS.items():
        if found := re.search(sign, text):
            return found.expand(words)
    return type(error).__name__


def _read(config: S3Config) -> Mapping[str, str]:
    """What the files hold that are named, by the library's words."""
    found = {}
    if config.access_key_id_file and config.secret_access_key_file:
        found["access_key_id"] = text_of(config.access_key_id_file)
        found["secret_access_key"] = text_of(config.secret_access_key_file)
    if config.ca_file:
        found["root_certificate"] = text_of(config.ca_file, secret=False)
    return found


def _proxies(config: S3Config) -> Mapping[str, str]:
    """Name the proxy of the environment to the library, which otherwise goes by rules of its own.

    By those it would also ask the metadata service for credentials through the proxy.

    Raises:
        ValueError: a variable names no HTTP proxy.
    """
    url = config.endpoint or f"https://s3.{config.region}.amazonaws.com"
    known = proxies.Proxies.of()
    proxy = known.proxy_for(url)
    if not proxy:
        return {"proxy_url": "http://localhost", "proxy_excludes": "*,0.0.0.0/0,::/0"}
    return {"proxy_url": proxy, "proxy_excludes": f"{proxies.NEVER},{known.excluded}"}


def _bucket(config: S3Config, mounted: Mapping[str, str], through: Mapping[str, str]) -> Any:
    given: dict[str, Any] = {"region": config.region}
    if config.endpoint:
        given |= {"endpoint": config.endpoint, "virtual_hosted_style_request": False}
    if config.server_side_encryption:
        given["server_side_encryption"] = config.server_side_encryption
    options: Any = {"connect_timeout": "5s", "timeout": "10s"}
    options |= {"allow_http": config.allow_insecure, **through}
    for name, text in mounted.items():
        (options if name == "root_certificate" else given)[name] = text
    wait = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2)}
    retry: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=25), "backoff": wait}
    try:
        return Bucket(config.bucket, client_options=options, retry_config=retry, **given)
    except (ValueError, exceptions.BaseError) as error:
        why = "see bucket, endpoint, region and server_side_encryption"
        if config.ca_file and isinstance(error, ValueError):
            why = f"ca_file {config.ca_file} holds no certificate in PEM"
        raise BackendUnavailable(f"bucket {config.bucket}: {why}") from None


def _tombstone(epoch: int) -> Entry:
    version = Version(str(uuid.uuid4()))
    rest = {"format": envelope.FORMAT, "writeId": version, "writer": {"epoch": epoch}}
    return Entry(_TOMBSTONE + json.dumps(rest).encode()[1:], version, epoch)


def _led(marker: bytes) -> int:
    """Which epoch leads; what is damaged says nothing, and each object has its own."""
    try:
        return int(json.loads(marker)["epoch"])
    except (KeyError, TypeError, ValueError):
        return 0


@backend(config=S3Config)
def storage(given: Sequence[S3Config], context: Context) -> StoreProvider:
    """Build the provider of the backend `s3`."""
    return provider("s3", [(one.identity(), S3Store(one)) for one in given], context.writer)
