"""Default storage of secrets: Secret objects of the cluster, in the daemon's namespace.

The daemon's Secrets have the label `kube-ccm.io/persistence` and a digest as name; a Secret of that
name without the label is never changed. A key rotation rewrites each Secret, so that the API server
encrypts the Secret with its current key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from ccm.persistence import envelope, objects
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.errors import (
    BackendDead,
    BackendUnavailable,
    CorruptObject,
    ObjectTooLarge,
    VersionConflict,
)
from ccm.persistence.interface import CAS, FENCING, GVK, SHARED, Expected, ObjectKey, Version
from ccm.persistence.objects import StoragePlace
from ccm.persistence.registry import ApiRequests, BackendContext, backend
from ccm.persistence.secrets import SecretStore
from ccm.persistence.store import Claim, Page, StoredRecord, check_epoch, check_expected

STORED = GVK("secrets.ccm", "v1", "StoredSecret")
LABEL = "kube-ccm.io/persistence"
ANNOTATION = "kube-ccm.io/persistence-key"
FIELD = "stored"
PAGE = 100
MAX_BYTES = 1_000_000
"""Maximum bytes of an envelope: the API server accepts 1 MiB for all fields of a Secret."""

MAX_ATTEMPTS = 4
"""Maximum attempts of a write or deletion with concurrent writers of the same Secret."""


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Secret objects in the cluster."""

    namespace: Annotated[
        str,
        msgspec.Meta(description="Namespace of the Secrets. Empty: the namespace of the Lease."),
    ] = ""


class KubeStore:
    """Store in Secret objects. A former leader cannot change a Secret of a newer leader.

    Args:
        requests: client of the API server.
        namespace: namespace of the Secrets.
    """

    def __init__(self, requests: ApiRequests, namespace: str) -> None:
        self.capabilities = frozenset({CAS, FENCING, SHARED})
        self._requests = requests
        self._path = f"/api/v1/namespaces/{namespace}/secrets"

    async def open(self, claim: Claim) -> None:  # noqa: ARG002 - a cluster has only its own Secrets
        """See `Store.open`."""
        await self.probe()

    async def probe(self) -> None:
        """See `Store.probe`."""
        await self._request("GET", self._path, {"limit": "1", "labelSelector": LABEL})

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """See `Store.read`."""
        secret = await self._request("GET", self._at(place))
        return None if secret is None else _record(secret)

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """See `Store.write`."""
        if len(entry.body) > MAX_BYTES:
            raise ObjectTooLarge(f"a Secret can contain at most {MAX_BYTES} bytes")
        for _ in range(MAX_ATTEMPTS):
            record = await self.read(place)
            check_expected(expect, record and record.version)
            check_epoch(envelope.read_head(record.body).epoch if record else 0, entry.epoch)
            secret = _secret(place, entry, record and record.version)
            method, path = ("PUT", self._at(place)) if record else ("POST", self._path)
            try:
                written = await self._request(method, path, body=secret)
            except VersionConflict:
                continue
            if written is not None:
                return Version(written["metadata"]["resourceVersion"])
        raise VersionConflict("too many concurrent writes of the Secret")

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        """See `Store.remove`."""
        for _ in range(MAX_ATTEMPTS):
            record = await self.read(place)
            if record is None:
                return
            check_epoch(envelope.read_head(record.body).epoch, epoch)
            body = {"preconditions": {"resourceVersion": record.version}}
            try:
                await self._request("DELETE", self._at(place), body=body)
            except VersionConflict:
                continue
            return
        raise VersionConflict("too many concurrent writes of the Secret")

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        query = {"limit": str(PAGE), "labelSelector": LABEL}
        while True:
            listing = await self._request("GET", self._path, query) or {}
            keyed = [(_key(item), item) for item in listing.get("items", ())]
            yield [(StoragePlace(kind, key), _record(item)) for key, item in keyed if key]
            after = listing.get("metadata", {}).get("continue")
            if not after:
                return
            query["continue"] = after

    async def close(self) -> None:
        """See `Store.close`."""

    def _at(self, place: StoragePlace) -> str:
        return f"{self._path}/{_name(place)}"

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
        sent = None if body is None else json.dumps(body).encode()
        try:
            answer = await self._requests.request(method, path, query=query, body=sent)
        except Exception as error:  # noqa: BLE001 - `ApiRequests` declares no error classes
            status = getattr(error, "status", None)
            if status == 404:
                return None
            if status == 409:
                raise VersionConflict("the Secret was changed concurrently") from None
            raise BackendUnavailable(
                f"{method} of Secrets at the API server failed: {status or type(error).__name__}"
            ) from None
        decoded: dict[str, Any] = json.loads(answer)
        return decoded


def _name(place: StoragePlace) -> str:
    digest = hashlib.sha256(f"{'/'.join(place.kind)}/{place.key}".encode()).hexdigest()
    return f"ccm-stored-{digest[:32]}"


def _secret(place: StoragePlace, entry: StoreEntry, version: Version | None) -> dict[str, Any]:
    marks = {"labels": {LABEL: "secret"}, "annotations": {ANNOTATION: place.key}}
    metadata = {"name": _name(place), **marks}
    if version is not None:
        metadata["resourceVersion"] = version
    data = {FIELD: base64.b64encode(entry.body).decode()}
    head = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
    return {**head, "metadata": metadata, "data": data}


def _key(item: Mapping[str, Any]) -> ObjectKey:
    return ObjectKey(item["metadata"].get("annotations", {}).get(ANNOTATION, ""))


def _record(item: Mapping[str, Any]) -> StoredRecord:
    metadata = item["metadata"]
    if LABEL not in metadata.get("labels", {}):
        raise CorruptObject(
            f"Secret {metadata['name']} lacks the label {LABEL} and was not changed"
        )
    try:
        body = base64.b64decode(item.get("data", {}).get(FIELD, ""), validate=True)
    except binascii.Error:
        body = b""
    return StoredRecord(body, Version(metadata["resourceVersion"]))


class KubernetesSecretStore(SecretStore):
    """Secret store on top of the cluster's Secrets.

    Args:
        requests: client of the API server.
        namespace: namespace of the Secrets.
        context: context of the backend; provides the writer.
    """

    def __init__(self, requests: ApiRequests, namespace: str, context: BackendContext) -> None:
        name = objects.instance_name("kubernetes", {"namespace": namespace})
        stores = {name: KubeStore(requests, namespace)}
        inner = StoreProvider("kubernetes", stores, writer=context.writer, sensitive=True)
        super().__init__(inner, STORED)

    async def _seal(self, instance: str, key: ObjectKey, value: bytes) -> dict[str, str]:  # noqa: ARG002
        return {"data": value.decode()}

    async def _unseal(self, instance: str, key: ObjectKey, obj: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        data = obj.get("spec", {}).get("data")
        if not isinstance(data, str):
            raise CorruptObject("the stored object is not a secret")
        return data.encode()

    async def _is_current(self, instance: str, obj: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return False


@backend(config=KubernetesConfig)
def storage(configs: Sequence[KubernetesConfig], context: BackendContext) -> KubernetesSecretStore:
    """Build the secret store of the backend `kubernetes`."""
    if len(configs) != 1 or context.requests is None:
        raise BackendDead(
            "secret store kubernetes: needs exactly one configuration, and an API server"
        )
    return KubernetesSecretStore(
        context.requests, configs[0].namespace or context.namespace, context
    )
