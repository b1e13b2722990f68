"""Store in objects of the cluster: in ConfigMaps, or in Secrets for a secret store.

The envelope is compressed, because the API server accepts at most 1 MiB for an object. The name of
an object is a digest. Its label `kube-ccm.io/persistence` names the daemon's Lease, so that several
daemons can use one namespace. An object of that name without the label is never changed.

A marker has the epoch of the leader. Before each write the store reads the object, then the marker,
and then writes with the object's resource version as precondition. So a former leader whose request
arrives late never replaces an object of a newer leader. If the caller passes the version that it
expects, the store need not read the object.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import msgspec

from ccm.persistence import envelope, objects, store
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.errors import BackendDead, BackendUnavailable, CorruptObject, VersionConflict
from ccm.persistence.interface import (
    ABSENT,
    CAS,
    FENCING,
    GVK,
    SHARED,
    Expected,
    ObjectKey,
    Version,
)
from ccm.persistence.objects import StoragePlace
from ccm.persistence.registry import BackendContext, backend
from ccm.persistence.store import Claim, Page, StoredRecord, check_epoch, check_expected

LABEL = "kube-ccm.io/persistence"
KIND_LABEL = "kube-ccm.io/persistence-kind"
"""Label whose value is a digest of the stored object's kind."""
ANNOTATION = "kube-ccm.io/persistence-key"
"""Annotation with the key of the stored object."""
FIELD = "stored"
"""Key of the compressed envelope in the data of the ConfigMap or Secret."""

PAGE = 20
"""Objects per request of a listing: a whole page is in memory, and each object may have 1 MB."""

MAX_BYTES = 1_000_000
"""Maximum bytes of an envelope: the API server accepts 1 MiB for all fields of an object."""

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}
"""HTTP method -> RBAC verb."""

MAX_ATTEMPTS = 4
"""Maximum attempts of a write or deletion with concurrent writers of the same object; few, because
only the leader writes."""

_FORMATS = {
    "namespace": (r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?", "the name of a namespace"),
}


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """ConfigMaps of the cluster, or Secrets for a secret store."""

    namespace: Annotated[
        str, msgspec.Meta(description="Their namespace. Empty: the namespace of the Lease.")
    ] = ""


class KubeKind(NamedTuple):
    """Kind of the objects, and the fields that each of them has."""

    name: str
    plural: str
    data: str
    fields: Mapping[str, str]


CONFIG_MAPS = KubeKind("ConfigMap", "configmaps", "binaryData", {})
SECRETS = KubeKind("Secret", "secrets", "data", {"type": "Opaque"})


class KubeStore:
    """Store in objects of the cluster.

    Args:
        kind: kind of the objects.
        config: namespace of the objects.
        context: context of the backend.

    Raises:
        BackendDead: a setting is invalid, or no API server is connected.
    """

    def __init__(self, kind: KubeKind, config: KubernetesConfig, context: BackendContext) -> None:
        self.capabilities = frozenset({CAS, FENCING, SHARED})
        self.max_bytes = MAX_BYTES
        if context.requests is None:
            raise BackendDead("kubernetes: no API server is connected")
        store.check_settings("kubernetes", config, _FORMATS)
        self.namespace = config.namespace or context.namespace
        # A label has at most 63 characters, the name of a Lease 253.
        self.owner = context.lease if len(context.lease) <= 63 else _digest(context.lease)
        self._kind = kind
        self._requests = context.requests
        self._path = f"/api/v1/namespaces/{self.namespace}/{kind.plural}"
        self._marker = self._name_of(objects.MARKER)

    def identity(self) -> Mapping[str, str]:
        """Return the settings that identify the storage."""
        return {"namespace": self.namespace, "lease": self.owner}

    async def open(self, claim: Claim) -> None:
        """See `Store.open`."""
        for _ in range(MAX_ATTEMPTS):
            record = await self._read(self._marker)
            body, version = record or (None, None)
            body = store.claim_marker(body, claim, f"{self._kind.name} {self._marker}")
            with suppress(VersionConflict):
                await self._put(self._marker, body, version, {})
                return
        raise BackendUnavailable("too many concurrent claims by other leaders")

    async def probe(self) -> None:
        """See `Store.probe`."""
        await self._read(self._marker)

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """See `Store.read`."""
        return await self._read(self._name_of(*place.kind, place.key))

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """See `Store.write`."""
        name = self._name_of(*place.kind, place.key)
        metadata = {
            "labels": {KIND_LABEL: _digest(*place.kind)},
            "annotations": {ANNOTATION: place.key},
        }
        # The API server rejects a version that is no number, instead of reporting a conflict.
        is_known = expect is ABSENT or (expect is not None and expect.isdecimal())
        # A marker that was lost or set back fences no writer: then read the epoch in the object.
        if is_known and await self._leader_epoch() == entry.epoch:
            version = None if expect is ABSENT else expect
            with suppress(VersionConflict):
                return await self._put(name, entry.body, version, metadata)
        for _ in range(MAX_ATTEMPTS):
            record = await self._read_as_leader(name, entry.epoch)
            if record is not None and record.body == entry.body:
                return record.version  # by an attempt whose response was lost
            check_expected(expect, record and record.version)
            with suppress(VersionConflict):
                return await self._put(name, entry.body, record and record.version, metadata)
        raise VersionConflict(f"too many concurrent writes of the {self._kind.name}")

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        """See `Store.remove`."""
        name = self._name_of(*place.kind, place.key)
        for _ in range(MAX_ATTEMPTS):
            record = await self._read_as_leader(name, epoch)
            if record is None:
                return
            body = {"preconditions": {"resourceVersion": record.version}}
            with suppress(VersionConflict):
                await self._request("DELETE", f"{self._path}/{name}", body=body)
                return
        raise VersionConflict(f"too many concurrent writes of the {self._kind.name}")

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        selector = f"{LABEL}={self.owner},{KIND_LABEL}={_digest(*kind)}"
        query = {"limit": str(PAGE), "labelSelector": selector}
        while True:
            listing = await self._request("GET", self._path, query) or {}
            yield await asyncio.to_thread(self._page, kind, listing.get("items") or ())
            after = listing.get("metadata", {}).get("continue")
            if not after:
                return
            query["continue"] = after

    async def close(self) -> None:
        """See `Store.close`."""

    def _name_of(self, *parts: str) -> str:
        return f"ccm-stored-{_digest(self.owner, *parts)}"

    async def _read_as_leader(self, name: str, epoch: int) -> StoredRecord | None:
        """Read an object; check that no newer leader has opened the store or written the object.

        Raises:
            Fenced: a newer leader has done either.
        """
        record = await self._read(name)
        check_epoch(await self._leader_epoch(), epoch)
        if record is not None:
            head = await asyncio.to_thread(envelope.read_head, record.body)
            check_epoch(head.epoch, epoch)
        return record

    async def _leader_epoch(self) -> int:
        marker = await self._read(self._marker)
        return envelope.epoch_of(marker.body) if marker else 0

    async def _read(self, name: str) -> StoredRecord | None:
        item = await self._request("GET", f"{self._path}/{name}")
        return None if item is None else await asyncio.to_thread(self._record, item)

    async def _put(
        self, name: str, body: bytes, before: Version | None, metadata: Mapping[str, Any]
    ) -> Version:
        """Create an object, or replace it if it still has the version `before`.

        Raises:
            VersionConflict: the object to create exists, or the one to replace was changed.
        """
        compressed = await asyncio.to_thread(zlib.compress, body, zlib.Z_BEST_SPEED)
        labels = {LABEL: self.owner, **metadata.get("labels", {})}
        obj: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": self._kind.name,
            **self._kind.fields,
            "metadata": {**metadata, "name": name, "labels": labels},
            self._kind.data: {FIELD: base64.b64encode(compressed).decode()},
        }
        method, path = "POST", self._path
        if before is not None:
            obj["metadata"]["resourceVersion"] = before
            method, path = "PUT", f"{self._path}/{name}"
        written = await self._request(method, path, body=obj)
        if written is None:
            if before is None:
                raise BackendUnavailable(f"the namespace {self.namespace} does not exist")
            raise VersionConflict(f"the {self._kind.name} was deleted concurrently")
        return Version(written["metadata"]["resourceVersion"])

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        """Send a request and return the response; None for 404.

        Raises:
            VersionConflict: the API server responded with 409.
            BackendUnavailable: the request failed otherwise.
        """
        content = None if body is None else msgspec.json.encode(body)
        try:
            response = await self._requests.request(method, path, query=query, body=content)
            decoded: dict[str, Any] = await asyncio.to_thread(msgspec.json.decode, response)
        except Exception as error:  # noqa: BLE001 - `ApiRequests` declares no error classes
            status = getattr(error, "status", None)
            if status == 404:
                return None
            if status == 409:
                raise VersionConflict(f"the {self._kind.name} was changed concurrently") from None
            advice = ""
            if status == 403:
                verb = "list" if query else _VERBS[method]
                advice = (
                    f"; the role of the daemon lacks the verb {verb} of {self._kind.plural} in "
                    "this namespace: apply rbac.yaml or the chart of this version"
                )
            raise BackendUnavailable(
                f"{method} of {self._kind.name}s in the namespace {self.namespace} failed: "
                f"{status or type(error).__name__}{advice}"
            ) from None
        return decoded

    def _page(self, kind: GVK, items: Sequence[Mapping[str, Any]]) -> Page:
        keyed = [(item["metadata"].get("annotations", {}).get(ANNOTATION), item) for item in items]
        return [
            (StoragePlace(kind, ObjectKey(key)), self._record(item)) for key, item in keyed if key
        ]

    def _record(self, item: Mapping[str, Any]) -> StoredRecord:
        metadata = item["metadata"]
        if metadata.get("labels", {}).get(LABEL) != self.owner:
            raise CorruptObject(
                f"{self._kind.name} {metadata['name']} lacks the label {LABEL}={self.owner} and "
                "was not changed"
            )
        try:
            stored = base64.b64decode(item.get(self._kind.data, {}).get(FIELD, ""), validate=True)
            # Limited: a few compressed bytes can expand to gigabytes.
            body = zlib.decompressobj().decompress(stored, MAX_BYTES)
        except (binascii.Error, zlib.error):
            body = b""
        return StoredRecord(body, Version(metadata["resourceVersion"]))


def _digest(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:32]


@backend(config=KubernetesConfig)
def storage(configs: Sequence[KubernetesConfig], context: BackendContext) -> StoreProvider:
    """Build the provider of the backend `kubernetes`, which stores objects in ConfigMaps."""
    stores = [KubeStore(CONFIG_MAPS, config, context) for config in configs]
    named = {objects.instance_name("kubernetes", each.identity()): each for each in stores}
    return StoreProvider("kubernetes", named, writer=context.writer)
